"""`treadle config`: what is set and where, and changes of the user's file that keep the rest of it."""

import stat
from pathlib import Path

import pytest

from tests.kit.terminal import Place

WRITTEN = """\
# my settings
model = "ollama:qwen3"   # the small one

[sandbox]
read_only = ["~/data"]   # large
"""


@pytest.fixture
def file(place: Place) -> Path:
    file = place.home / ".config/treadle/config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(WRITTEN)
    return file


async def test_get_shows_the_value_on_stdout_and_where_it_comes_from(place: Place, file: Path) -> None:
    done = await place.quick("config", "get", "model")
    assert (done.code, done.out, done.err) == (0, "ollama:qwen3\n", f"from: {file}\n")
    done = await place.quick("config", "get", "model", "--json", env={"TREADLE_MODEL": "local"})
    assert done.document == {"key": "model", "value": "local", "source": "TREADLE_MODEL"}
    assert (await place.quick("config", "get", "sandbox.read_only")).out == '["~/data"]\n'
    done = await place.quick("config", "get", "max_turns")
    assert (done.code, done.out, done.err) == (0, "", "max_turns is not set\n")
    done = await place.quick("config", "get", "notify")
    assert (done.out, done.err) == ("auto\n", "from: default\n")


async def test_get_without_a_key_shows_all_that_is_set(place: Place, file: Path) -> None:
    (place.work / ".treadle").mkdir()
    (place.work / ".treadle/config.toml").write_text("max_turns = 5\n")
    document = (await place.quick("config", "get", "--json")).document
    assert document["model"] == {"value": "ollama:qwen3", "source": str(file)}
    assert document["max_turns"] == {"value": 5, "source": str(place.work / ".treadle/config.toml")}
    assert "web" not in document
    shown = (await place.quick("config", "get")).out
    assert shown.splitlines()[0].split() == ["key", "value", "from"] and "ollama:qwen3" in shown


@pytest.mark.parametrize("key", ["modle", "model.x", "sandbox.nothing", "always.x"])
async def test_get_of_an_unknown_key_is_an_error(place: Place, file: Path, key: str) -> None:
    done = await place.quick("config", "get", key)
    assert done.code == 2 and ("did you mean model?" in done.err or "not set" in done.err or "unknown" in done.err)


async def test_set_keeps_comments_and_order_and_the_file_private(place: Place, file: Path) -> None:
    for words in (
        ["model", "local"],
        ["max_cost", "2.5"],
        ["approve", "shell(git *)", "read_*"],
        ["sandbox.writable", "~/out"],
        ["web", "true"],
        ["system_prompt", "5"],
        ["terminal.status_command", "5"],
    ):
        done = await place.quick("config", "set", *words)
        assert (done.code, done.out) == (0, "") and f"{words[0]} is set in {file}" in done.err
    assert (
        file.read_text()
        == """\
# my settings
model = "local"   # the small one
max_cost = 2.5
approve = ["shell(git *)", "read_*"]
web = true
system_prompt = "5"

[sandbox]
read_only = ["~/data"]   # large
writable = ["~/out"]

[terminal]
status_command = "5"
"""
    )
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and list(file.parent.iterdir()) == [file]
    assert (await place.quick("config", "set", "max_cost", "--unset")).code == 0
    assert "max_cost" not in file.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["modle", "x"], "unknown setting 'modle'; did you mean model?"),
        (["max_cost", "much"], "max_cost is 'much'; it must be a number"),
        (["max_cost", "-1"], "max_cost is -1.0; it must be more than 0"),
        (["access", "full"], "only allowed on the command line"),
        (["access", "all"], "access is 'all'; it must be 'plan' or"),
        (["api_key", "sk-secret"], "secrets are not allowed here"),
        (["sandbox.folder", "x"], "unknown field `folder`"),
        (["model.name", "x"], "model is not a table"),
        (["model", "a", "b"], "takes one value"),
        (["model"], "needs a value, or --unset"),
        (["model", "a\udcff"], "is not valid TOML"),
        (["web", "--unset"], "web is not set in"),
        (["workspace", "/tmp"], "unknown setting 'workspace'"),
    ],
)
async def test_set_refuses_what_would_not_be_valid_and_changes_nothing(
    place: Place, file: Path, words: list[str], said: str
) -> None:
    done = await place.quick("config", "set", *words)
    assert done.code == 2 and said in done.err and "sk-secret" not in done.err
    assert file.read_text() == WRITTEN


async def test_set_does_not_touch_a_file_that_is_broken(place: Place, file: Path) -> None:
    file.write_text("model = \n")
    done = await place.quick("config", "set", "model", "local")
    assert done.code == 2 and "is not valid TOML" in done.err and file.read_text() == "model = \n"


async def test_set_follows_a_link_and_creates_a_missing_file(place: Place, file: Path) -> None:
    kept = place.home / "dotfiles.toml"
    file.rename(kept)
    file.symlink_to(kept)
    assert (await place.quick("config", "set", "model", "local")).code == 0
    assert file.is_symlink() and 'model = "local"' in kept.read_text()
    file.unlink()
    assert (await place.quick("config", "set", "model", "local")).code == 0
    assert file.read_text() == 'model = "local"\n'


async def test_set_says_that_the_file_cannot_be_written(place: Place) -> None:
    (place.home / ".config").mkdir(exist_ok=True)
    (place.home / ".config/treadle").write_text("not a folder")
    done = await place.quick("config", "set", "model", "local")
    assert done.code == 2 and "cannot be written" in done.err and "nothing was changed" in done.err


async def test_set_says_that_another_place_overrides_it(place: Place, file: Path) -> None:
    done = await place.quick("config", "set", "model", "local", env={"TREADLE_MODEL": "ollama:x"})
    assert "here TREADLE_MODEL sets model too, and overrides it" in done.err


async def test_secrets_are_not_shown(place: Place, file: Path) -> None:
    file.write_text(
        'store = "postgresql://ada:hunter2@host/db"\n[mcp.x]\nurl = "https://h"\nheaders = {a = "hunter2"}\n'
        '[mcp.y]\ncommand = "c"\nenv = {KEY = "hunter2"}\n'
    )
    shown = ""
    for words in ([], ["store"], ["mcp"], ["mcp.y.env"], ["mcp.x", "--json"]):
        done = await place.quick("config", "get", *words)
        shown += done.out + done.err
    assert "hunter2" not in shown and "postgresql://ada:***@host/db" in shown and '"KEY":"***"' in shown


async def test_path_prints_the_users_file(place: Place) -> None:
    file = place.home / ".config/treadle/config.toml"
    done = await place.quick("config", "path")
    assert done.out == f"{file}\n" and "does not exist yet" in done.err
    other = await place.quick("config", "path", "--json", env={"TREADLE_CONFIG": "/etc/t.toml"})
    assert other.document["user"] == {"path": "/etc/t.toml", "exists": False}


def write_editor(place: Place, *texts: str) -> str:
    """A program that replaces the file by the next of these texts, each time it is started."""
    for number, text in enumerate(texts):
        (place.home / f"text{number}").write_text(text)
    script = place.home / "editor"
    script.write_text(f'#!/bin/sh\nn=$(cat {place.home}/n 2>/dev/null || echo 0)\ncp {place.home}/text$n "$2"\n')
    with script.open("a") as more:
        more.write(f"echo $((n + 1)) > {place.home}/n\n")
    script.chmod(0o700)
    return f"{script} --wait"


async def test_edit_saves_a_valid_text_and_offers_to_correct_another(place: Place, file: Path) -> None:
    env = {"VISUAL": write_editor(place, "modle = 1\n", "# better\nmax_turns = 3\n"), "EDITOR": "false"}
    async with place.screen("config", "edit", env=env) as screen:
        await screen.until("unknown setting 'modle'; did you mean model?")
        assert file.read_text() == WRITTEN
        await screen.until("edit it again? [y/N]")
        screen.type("y\r")
        assert await screen.end() == 0 and "saved" in screen.text
    assert file.read_text() == "# better\nmax_turns = 3\n" and stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_edit_that_is_given_up_changes_nothing_and_keeps_the_text(place: Place, file: Path) -> None:
    env = {"EDITOR": write_editor(place, "modle = 1\n"), "TMPDIR": str(place.home)}
    async with place.screen("config", "edit", env=env) as screen:
        await screen.until("edit it again? [y/N]")
        screen.type("n\r")
        assert await screen.end() == 2 and "nothing was changed; your text is in" in screen.unbroken
    (kept,) = place.home.glob("treadle-config-*/config.toml")
    assert kept.read_text() == "modle = 1\n" and file.read_text() == WRITTEN


@pytest.mark.parametrize(
    ("editor", "said"),
    [("false", "exit code 1"), ("/no/such/editor", "cannot be started"), ("vi 'x", "No closing quotation. Correct")],
)
async def test_edit_with_an_editor_that_fails_changes_nothing(place: Place, file: Path, editor: str, said: str) -> None:
    async with place.screen("config", "edit", env={"EDITOR": editor}) as screen:
        assert await screen.end() == 2 and said in screen.text
    assert file.read_text() == WRITTEN
    assert "no terminal for an editor" in (await place.quick("config", "edit")).err
