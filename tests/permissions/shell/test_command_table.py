"""The table of shell commands is complete, without contradictions, and read late."""

import subprocess
import sys
import time
import tomllib
from pathlib import Path

import msgspec
import pytest

from treadle.permissions.shell import command_table
from treadle.permissions.shell.command_table import CommandNames, CommandTable, load_command_table

TEXT = Path(command_table.__file__).with_name("commands.toml").read_text("utf-8")


@pytest.mark.parametrize("section", ["safe", "wrapper", "helper"])
def test_no_command_stands_in_two_rows_of_a_section(section: str) -> None:
    names = [name for row in tomllib.loads(TEXT)[section] for name in row["commands"]]
    assert len(names) == len(set(names)) > 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('unless_letters = "p"', 'unless_leters = "p"'),
        ("skip = 1", 'skip = "one"'),
        ("[programs]", "[program]"),
        ('why = "it stops the machine"', ""),
    ],
)
def test_a_mistake_in_the_table_is_an_error(old: str, new: str) -> None:
    assert old in TEXT
    with pytest.raises(msgspec.ValidationError):
        command_table.read_command_table(TEXT.replace(old, new))


@pytest.mark.parametrize(
    ("name", "is_in"),
    [("python", True), ("python3.11", True), ("pythonx", False), ("mkfs.ext4", True), ("mkfsx", False), ("ls", True)],
)
def test_a_name_may_stand_for_versions_and_families(name: str, is_in: bool) -> None:
    assert (name in CommandNames(["python#", "mkfs.*", "ls"])) is is_in


def test_every_pattern_of_the_table_is_matched_in_linear_time() -> None:
    table = load_command_table()
    patterns = [row.when for row in (*table.destructive, *table.helper) if row.when is not None]
    patterns += [row.harmless for row in table.variable if row.harmless is not None]
    units = ("a", "-", " ", "/a", "-o ", ":$PATH", "--no-a", "-Da=b", "j", "-w", "$HOME/a:", "- ", ".a", "\\", "link")
    for pattern in patterns:
        for unit in units:
            start = time.process_time()
            pattern.fullmatch(unit * 10_000 + "!")
            pattern.match(unit * 10_000 + "!")
            assert time.process_time() - start < 2, (pattern.pattern, unit)  # milliseconds, or for ever


def test_the_table_is_read_once_and_not_for_help() -> None:
    assert isinstance(load_command_table(), CommandTable) and load_command_table() is load_command_table()
    code = (
        "import sys, contextlib\n"
        "from treadle.cli.main import main\n"
        "with contextlib.suppress(SystemExit): main(['--help'])\n"
        "assert 'treadle.permissions.shell.command_table' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
