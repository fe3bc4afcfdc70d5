"""Every `--help`: its whole text in one snapshot, and in another one what scripts rely on."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.pins.conftest import COMMAND, Shell, check_json_snapshot, check_snapshot, create_shell

# The installed command starts this entry point. One process shows all help pages, which saves ten seconds.
SHOW_ALL = """\
import contextlib, importlib.metadata, io, json, sys
(entry,) = importlib.metadata.entry_points(group="console_scripts", name="treadle")
main, pages = entry.load(), {}
for words in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as page:
        assert main([*words.split(), "--help"]) == 0, words
    pages[words] = page.getvalue()
json.dump(pages, sys.stdout)
"""


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return create_shell(tmp_path_factory.mktemp("help"))


@pytest.fixture(scope="module")
def pages(shell: Shell) -> dict[str, str]:
    """The help page of every command and of every action of a command."""

    def show(commands: list[str]) -> dict[str, str]:
        python = [sys.executable, "-c", SHOW_ALL]
        return json.loads(subprocess.check_output(python, input=json.dumps(commands).encode(), env=shell.env))

    top = show([""])
    commands = show(list_commands(top[""]))
    actions = show([f"{name} {action}" for name, page in commands.items() for action in list_actions(page)])
    return dict(sorted({**top, **commands, **actions}.items()))


def list_commands(page: str) -> list[str]:
    section = re.search(r"^commands:\n((?:  .*\n)+)", page, re.MULTILINE)
    assert section is not None
    return re.findall(r"^  (\S+)", section[1], re.MULTILINE)


def list_actions(page: str) -> list[str]:
    section = re.search(r"^  ACTION\n((?:    .*\n)+)", page, re.MULTILINE)
    return re.findall(r"^    (\w\S*)", section[1], re.MULTILINE) if section else []


def read_structure(page: str) -> dict[str, list[str]]:
    """Options with their metavars and choices, positional arguments in their order, actions: no prose."""
    usage, _, rest = page.partition("\n\n")
    words = re.findall(r"\[(?:[^\[\]]|\[[^\]]*\])*\]|\S+", " ".join(usage.split()))
    columns = re.findall(r"^  (-\S.*?)(?:  |$)", rest, re.MULTILINE)
    return {
        "usage": [word for word in words if not word.startswith("[-")],
        "options": sorted(word for word in words if word.startswith("[-")),
        "spellings": sorted(name for one in columns for name in re.findall(r"(?<![-\w])--?[a-zA-Z][-\w]*", one)),
        "actions": list_actions(page),
    }


def test_commands_keep_their_options_arguments_and_actions(pages: dict[str, str]) -> None:
    structure = {f"treadle {name}".rstrip(): read_structure(page) for name, page in pages.items() if name}
    check_json_snapshot("help_structure.json", {"commands": list_commands(pages[""]), "pages": structure})


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="argparse lays help out in another way since 3.13")
def test_help_pages_keep_their_text(pages: dict[str, str]) -> None:
    """This one holds prose. Update it when the wording was changed on purpose."""
    text = "".join(f"$ {f'treadle {name}'.rstrip()} --help\n{page}\n" for name, page in pages.items())
    check_snapshot("help_text.txt", text)


def test_the_installed_command_shows_help_and_its_version(shell: Shell, pages: dict[str, str]) -> None:
    for words, expected in ((["--help"], re.escape(pages[""])), (["--version"], r"treadle \d+\.\d+\.\d+\S*\n")):
        done = subprocess.run([COMMAND, *words], capture_output=True, text=True, env=shell.env, check=False)
        assert (done.returncode, done.stderr) == (0, "") and re.fullmatch(expected, done.stdout)
