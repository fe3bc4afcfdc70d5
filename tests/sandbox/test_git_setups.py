"""Set-ups of git that people have: filters, sparse checkouts, signed commits, a workspace inside a repository."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.git_places import GitPlace, user_settings
from tests.kit.sandbox import Ran, needs_bubblewrap

pytestmark = needs_bubblewrap


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GitPlace]:
    place = GitPlace(tmp_path)
    with user_settings(place, monkeypatch):
        yield place


def read_rejected(ran: Ran) -> str:
    return "\n".join(sentence for report in ran.ended.git for sentence in report.rejected)


@pytest.mark.parametrize("scope", ["--global", "--local"])
async def test_a_file_that_a_filter_encrypts_is_never_committed_raw(scope: str, place: GitPlace) -> None:
    place.make_layout("plain")
    place.host(
        f"git config {scope} filter.crypt.clean 'tr a-z b-za'; git config {scope} filter.crypt.smudge 'tr b-za a-z'; "
        "echo '*.key filter=crypt' > .gitattributes; echo abc > a.key; git add .; git commit -qm key"
    )
    ran = await place.inside(
        "echo xyzxyz > a.key; git add -A; git commit -qam raw; echo 1 > new; git add new; git commit -qm new"
    )
    assert "Ask the user to stage it" in ran.output, ran
    assert place.host("git log --format=%s -2") == "new\nkey\n" and place.host("git show HEAD:a.key") == "bcd\n"
    assert place.host("git diff --name-only; git commit -qam mine; git show HEAD:a.key") == "a.key\nyzayza\n"


async def test_git_works_beside_files_that_a_filter_encrypts(place: GitPlace) -> None:
    place.make_layout("plain")
    place.host(
        "git config filter.crypt.clean 'tr a-z b-za'; git config filter.crypt.smudge 'tr b-za a-z'; "
        "echo '*.key filter=crypt' > .gitattributes; echo abc > a.key; git add .; git commit -qm key; "
        "git switch -qc other; echo xyz > a.key; git commit -qam two; git switch -q main"
    )
    ran = await place.inside(
        "git status --short; git switch -q other; git status --short; cat a.key; git switch -q main; touch a.key; "
        "git status --short; echo 1 > new; git add -A; git commit -qm new; git diff HEAD~ --stat --name-only"
    )
    assert ran.output == "yza\nnew\n", ran
    after = place.host("git log -1 --format=%s; git show HEAD:a.key; rm a.key; git checkout -q . && cat a.key")
    assert after == "new\nbcd\nabc\n"


async def test_a_sparse_checkout_stays_sparse_and_hides_env_files(place: GitPlace) -> None:
    place.make_layout("plain")
    place.host(
        "mkdir in out; touch in/a out/b; echo K=1 > .env; git add .; git commit -qm folders; git switch -qc other; "
        "touch out/c; git add .; git commit -qm more; git switch -q main; git sparse-checkout set --cone in"
    )
    ran = await place.inside("git switch -q other; ls; echo 1 >> file0; git commit -qam new; git status --short")
    assert ran.ended.code == 0 and "out" not in ran.output.split() and ".env" not in ran.output, ran
    assert place.host("git log -1 --format=%s; git status --short; cat .env; git ls-files -t out") == (
        "new\nK=1\nS out/b\nS out/c\n"
    )


async def test_the_model_is_told_that_commits_are_not_signed(place: GitPlace) -> None:
    place.make_layout("plain")
    place.host("git config --global commit.gpgSign true")
    ran = await place.inside("git commit -q --allow-empty -m new")
    assert "not signed" in read_rejected(ran) and place.host("git log -1 --format=%s") == "new\n"
    assert read_rejected(await place.inside("git branch side")) == ""


async def test_the_model_is_told_of_a_repository_around_the_workspace(place: GitPlace) -> None:
    top = place.make_layout("plain")
    place.workspace = top / "inner"
    place.workspace.mkdir()
    ran = await place.inside("git status")
    assert str(top) in read_rejected(ran), ran
    assert read_rejected(await place.inside("true")) == ""


async def test_a_damaged_index_stops_no_command(place: GitPlace) -> None:
    place.make_layout("submodule")
    index = place.workspace / ".git/index"
    *data, last = index.read_bytes()
    index.write_bytes(bytes((*data, last ^ 1)))
    ran = await place.inside("echo works; git status")
    assert ran.output.startswith("works") and "index" in read_rejected(ran), ran


@pytest.mark.parametrize("is_installed", [True, False])
async def test_a_command_has_its_own_copy_of_hooks_that_husky_makes(is_installed: bool, place: GitPlace) -> None:
    """`npm install` writes `.husky/_`. Without a folder of its own, it fails in every project that uses husky."""
    place.make_layout("plain")
    place.host("mkdir .husky; echo 'echo hook ran' > .husky/pre-commit; git add .; git commit -qm husky")
    make = "mkdir -p .husky/_; printf '#!/bin/sh\\nsh .husky/pre-commit\\n' > .husky/_/pre-commit; chmod +x .husky/_/*"
    if is_installed:
        place.host(f"git config core.hooksPath .husky/_; {make}; echo '*' > .husky/_/.gitignore")
    before = place.host("find .husky | sort; cat .husky/_/* || true")
    ran = await place.inside(
        f"echo 1 > new; git add new; git commit -qm new; {make} && echo made; "
        "echo 'exit 1' >> .husky/_/pre-commit; touch .husky/x .husky/_/y"
    )
    assert ("hook ran" in ran.output) == is_installed and "made" in ran.output, ran
    assert place.host("find .husky | sort; cat .husky/_/* || true") == before
    assert place.host("git log -1 --format=%s; git status --short") == "new\n"


async def test_generated_hooks_behind_a_link_stay_as_they_are(place: GitPlace) -> None:
    place.make_layout("plain")
    place.host("mkdir .husky real; ln -s ../real .husky/_")
    ran = await place.inside("touch .husky/_x; echo works")
    assert "works" in ran.output and place.host("ls .husky") == "_\n"
