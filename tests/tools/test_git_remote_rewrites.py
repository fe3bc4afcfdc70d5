"""The user's own settings may rewrite addresses. What is shown is where git goes."""

from pathlib import Path

import pytest

from tests.kit.git_servers import PASSWORD, USER, GitHome, RemoteCaller, serve_web
from tests.kit.shell import needs_bubblewrap
from treadle.errors import BadInput
from treadle.git.remote_address import list_rewrites, parse_address, rewrite_address
from treadle.tools.base import ToolInputError

_SHORT = "https://git.example.org/"


@pytest.fixture
def caller(work: Path) -> RemoteCaller:
    return RemoteCaller(work)


async def test_the_host_behind_the_users_own_short_name_is_shown_and_used(
    home: GitHome, shared: Path, port: int, work: Path, caller: RemoteCaller
) -> None:
    home.git("remote", "set-url", "origin", f"{_SHORT}app.git", at=work)
    home.configure(f'[url "git://127.0.0.1:{port}/"]\n\tinsteadOf = {_SHORT}\n')
    shown = await caller.bind("fetch")
    assert shown["host"] == f"127.0.0.1:{port}" and shown["operation"].endswith(f"git://127.0.0.1:{port}/app.git")
    assert (await caller.run_bound()).ok
    with serve_web(shared) as (web, seen):
        home.configure(f'[url "http://{USER}:{PASSWORD}@127.0.0.1:{web}/"]\n\tpushInsteadOf = {_SHORT}\n')
        home.git("config", "http.receivepack", "true", at=shared / "app.git")
        home.commit(work, "new")
        shown = await caller.bind("push")
        assert shown["host"] == f"127.0.0.1:{web}" and PASSWORD not in str(shown)
        result = await caller.run_bound()
        assert result.ok and seen and PASSWORD not in result.text, result.text
        home.git("config", "remote.origin.pushurl", f"git://127.0.0.1:{port}/app.git", at=work)
        assert (await caller.bind("push"))["host"] == f"127.0.0.1:{port}", "git uses an address for pushes as it is"


async def test_an_address_that_is_rewritten_after_the_question_is_not_used(
    home: GitHome, port: int, caller: RemoteCaller
) -> None:
    await caller.bind("fetch")
    home.configure(f'[url "git://127.0.0.1:1/"]\n\tinsteadOf = git://127.0.0.1:{port}/\n')
    with pytest.raises(Exception, match="has changed since this was approved"):
        await caller.run_bound()


@needs_bubblewrap
async def test_a_clone_shows_where_it_goes_and_keeps_the_address_that_was_asked_for(
    home: GitHome, tmp_path: Path, shared: Path, port: int
) -> None:
    (tmp_path / "workspace").mkdir()
    caller = RemoteCaller(tmp_path / "workspace")
    home.configure(f'[url "git://127.0.0.1:{port}/"]\n\tinsteadOf = {_SHORT}\n')
    shown = await caller.bind("clone", url=f"{_SHORT}app.git")
    assert shown["operation"] == f"clone git://127.0.0.1:{port}/app.git into app"
    assert (await caller.run_bound()).ok
    clone = tmp_path / "workspace/app"
    assert home.git("config", "remote.origin.url", at=clone) == f"{_SHORT}app.git"
    assert "Nothing is new" in (await caller.run("fetch", folder="app")).text
    home.configure(f'[url "{tmp_path}/workspace/"]\n\tinsteadOf = https://near.example.org/\n')
    with pytest.raises(ToolInputError, match="is in the workspace"):
        await caller.bind("clone", url="https://near.example.org/app", folder="again")


def test_rewrites_are_those_of_git() -> None:
    rules = list_rewrites(
        [
            ("url.git@a.example:.insteadof", "https://a.example/"),
            ("url.https://b.example/.insteadof", "https://a.example/team/"),
            ("url.ssh://c.example/.pushinsteadof", "https://a.example/"),
            ("user.name", "https://a.example/"),
        ]
    )
    assert rewrite_address("https://a.example/x", rules) == "git@a.example:x"
    assert rewrite_address("https://a.example/team/x", rules) == "https://b.example/x"
    assert rewrite_address("https://a.example/team/x", rules, is_push=True) == "ssh://c.example/team/x"
    assert rewrite_address("https://other.example/x", rules, is_push=True) == "https://other.example/x"
    twice = [
        ("url.https://b.example/x.insteadof", "https://a.example/x"),
        ("url.ext::x.insteadof", "https://b.example/x"),
    ]
    with pytest.raises(BadInput, match="in two steps"):
        rewrite_address("https://a.example/x", list_rewrites(twice))


@pytest.mark.parametrize(
    "host", ["127.1", "2130706433", "0x7f.1", "017700000001", "0", "10.0.0.1", "[::1]", "localhost"]
)
def test_every_form_of_a_near_address_is_warned_about(host: str) -> None:
    assert "this machine or its network" in parse_address(f"http://{host}:8420/x").warning
    assert "not encrypted" in parse_address(f"http://{host}/x").warning
