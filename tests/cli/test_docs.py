"""docs/cli.md says what is so: its commands, keys, codes and examples are those of the program."""

import importlib
import re
import tomllib
from pathlib import Path

import pytest

from tests.kit.terminal import Place
from treadle.app.settings import Settings, load_settings
from treadle.cli import drive
from treadle.cli.main import COMMANDS

TEXT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")


def test_every_command_is_described() -> None:
    described = re.findall(r"^treadle (\w+)", TEXT.partition("```")[2].partition("```")[0], re.MULTILINE)
    assert described == list(COMMANDS)


def test_every_key_of_a_file_is_described() -> None:
    rows = re.findall(r"^\| (`.*?) \|", TEXT.partition("## Configuration")[2], re.MULTILINE)
    described = {name.strip("[]").split(".")[0] for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert described == set(Settings.__struct_fields__) - {"workspace", "worktree", "yes", "always"}


def test_every_exit_code_is_described() -> None:
    described = {int(code) for code in re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE)}
    names = ("ANSWERED", "FAILED", "USAGE", "STOPPED", "UNANSWERED", "CANCELLED")
    assert described == {getattr(drive, name) for name in names}


def test_the_example_of_a_file_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = re.search(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    assert example is not None and tomllib.loads(example[1])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.toml").write_text(example[1])
    assert load_settings(config=str(tmp_path / "config.toml")).settings.model == "ollama:qwen3"


def test_every_example_of_the_help_and_of_the_docs_can_be_parsed() -> None:
    lines = [line for line in TEXT.splitlines() if re.match(r"treadle \w+ ", line)][len(COMMANDS) :]
    for name in COMMANDS:
        module = importlib.import_module(f"treadle.cli.{name}")
        lines += [line.strip() for line in module.EXAMPLES.splitlines() if line.strip().startswith("treadle ")]
    assert len(lines) > 30
    for line in lines:
        words = split(line)
        parser = importlib.import_module(f"treadle.cli.{words[1]}").parser()
        if words[1:] != [words[1]] or words[1] in ("chat", "serve", "doctor", "tools", "agents"):
            parser.parse_args(words[2:] or [])


def split(line: str) -> list[str]:
    """The words of an example, without the remark that stands in a column of its own, and what it is piped to."""
    import shlex

    line = re.split(r" {2,}|\s+[|>#]", line)[0]
    return shlex.split(line)


async def test_flags_named_in_the_docs_exist(place: Place) -> None:
    commands = ("run", "chat", "sessions", "sessions list", "config set", "serve")
    shown = "".join([(await place.quick(*name.split(), "--help")).out for name in commands])
    for flag in set(re.findall(r"`(--[a-z-]+)", TEXT)):
        assert flag in shown, flag
