"""Who is root is refused, or told how to be another user."""

import os
from pathlib import Path

import pytest

from tests.kit.fakes.chat import StrictChat
from tests.kit.terminal import Place, create_place, model_options
from treadle.app import root_user
from treadle.app.root_user import NO_LOGIN, check_root
from treadle.errors import BadInput
from treadle.messages import Reply

ROOT = Path(__file__).parents[2]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be refused; the suite runs as another user")


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The root of a container. Returns the file that names the user who logged in."""
    login = tmp_path / "loginuid"
    login.write_text(str(NO_LOGIN))
    monkeypatch.setattr(root_user, "LOGIN_USER_FILE", login)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    for name in ("SUDO_USER", "DOAS_USER", "PKEXEC_UID"):
        monkeypatch.delenv(name, raising=False)
    return login


@pytest.mark.parametrize("name", ["SUDO_USER", "DOAS_USER", "PKEXEC_UID"])
@pytest.mark.parametrize("serves", [False, True])
def test_a_user_who_became_root_is_refused_and_named(
    root: Path, monkeypatch: pytest.MonkeyPatch, name: str, serves: bool
) -> None:
    monkeypatch.setenv(name, "ann")
    with pytest.raises(BadInput, match=r"run it as ann.*--allow-root"):
        check_root(is_allowed=False, serves=serves)


@pytest.mark.parametrize("user", ["0", "1000"])
def test_a_user_who_logged_in_and_is_root_now_is_refused(root: Path, user: str) -> None:
    root.write_text(user)
    with pytest.raises(BadInput, match="run it as an ordinary user"):
        check_root(is_allowed=False)


def test_the_root_of_a_container_is_told_how_to_use_another_user(root: Path) -> None:
    assert "docker run --user 1000:1000" in check_root(is_allowed=False)
    root.unlink()  # not every kernel has this file
    assert "docker run --user 1000:1000" in check_root(is_allowed=False)


def test_a_server_of_a_container_is_refused_with_the_same_advice(root: Path) -> None:
    with pytest.raises(BadInput, match=r"docker run --user 1000:1000.*--allow-root"):
        check_root(is_allowed=False, serves=True)


def test_root_that_is_allowed_and_other_users_read_nothing_about_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.write_text("1000")
    assert check_root(is_allowed=True) == check_root(is_allowed=True, serves=True) == ""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert check_root(is_allowed=False) == check_root(is_allowed=False, serves=True) == ""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = create_place(tmp_path)
    del place.env["TREADLE_ALLOW_ROOT"]
    return place


@needs_root
async def test_a_run_under_sudo_is_refused_with_one_message_and_creates_nothing(place: Place) -> None:
    async with StrictChat([Reply(text="Hello.")]) as fake:
        done = await place.run("run", "Hello?", *model_options(fake), env={"SUDO_USER": "ann"})
        assert (done.code, done.out) == (2, "")
        assert "does not run as root" in done.err and "run it as ann" in done.err and done.err.count("\n") == 1
        assert not list(place.home.rglob("*.db")) and not fake.seen
        allowed = await place.run("run", "Hello?", "--allow-root", *model_options(fake), env={"SUDO_USER": "ann"})
        assert (allowed.code, allowed.out) == (0, "Hello.\n")


@needs_root
async def test_a_workspace_cannot_allow_root(place: Place) -> None:
    (place.work / ".treadle").mkdir()
    (place.work / ".treadle" / "config.toml").write_text("allow_root = true\n")
    async with StrictChat([Reply(text="Hello.")]) as fake:
        done = await place.run("run", "Hello?", *model_options(fake), env={"SUDO_USER": "ann"})
    assert done.code == 2 and "does not run as root" in done.err


def test_the_image_runs_as_an_ordinary_user_and_copies_files_that_exist() -> None:
    lines = (ROOT / "packaging" / "Dockerfile").read_text("utf-8").splitlines()
    words = [line.split() for line in lines]
    assert [name for instruction, name, *_ in filter(None, words) if instruction == "USER"] == ["treadle"]
    assert words.index(["USER", "treadle"]) < words.index(["ENTRYPOINT", '["treadle"]'])
    copied = [name for line in words if line[:1] == ["COPY"] for name in line[1:-1]]
    assert "src" in copied and all((ROOT / name).exists() for name in copied)
