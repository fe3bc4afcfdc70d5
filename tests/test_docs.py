"""Every example in the README and the guide is run as it stands."""

import os
import pty
import re
import runpy
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from treadle.models.local import weights

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CLIENTS = ROOT / "docs" / "clients.md"  # its examples need other programs: `make clients` runs them
PAGES = [ROOT / "README.md", *sorted(set((ROOT / "docs").rglob("*.md")) - {CLIENTS})]
EXAMPLES = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(BLOCK.findall(page.read_text("utf-8")), 1)
]

needs_weights = pytest.mark.skipif(
    weights.find_weights(None) is None, reason="THE WEIGHTS OF THE EMBEDDED MODEL ARE MISSING: make weights"
)


def run(path: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", str(path)], cwd=folder, capture_output=True, text=True, timeout=500, check=False
    )


@pytest.mark.parametrize("block", EXAMPLES)
def test_an_example_in_the_documentation_runs_and_says_something(block: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text((ROOT / "README.md").read_text("utf-8"), "utf-8")
    (tmp_path / "example.py").write_text(block, "utf-8")
    done = run(tmp_path / "example.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() or "print(" not in block
    assert not done.stderr


def test_there_are_examples_to_run() -> None:
    assert len(EXAMPLES) >= 8


@needs_weights
def test_the_first_example_does_its_jobs_on_the_embedded_model(tmp_path: Path) -> None:
    done = run(ROOT / "examples" / "hello.py", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    called = re.findall(r"^  -> (\w+)", done.stdout, re.MULTILINE)
    assert called == ["list_files", "read_file", "count_words", "calculate", "write_file"]
    for result in (
        "budget.txt",
        "call Anna",
        "14 words",
        "1050",
        "note.txt: the bike is fixed",
        "5 of 5 jobs answered",
    ):
        assert result in done.stdout


SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FIRST_SCREEN = [shlex.split(line, comments=True) for line in SHELL.findall(PAGES[0].read_text("utf-8"))[0].splitlines()]


def test_the_first_screen_has_commands() -> None:
    assert {words[1] for words in FIRST_SCREEN} == {"run", "chat", "sessions", "serve", "doctor"}
    assert all(words[0] == "treadle" for words in FIRST_SCREEN)


@needs_weights
def test_every_command_of_the_first_screen_does_what_it_says(tmp_path: Path) -> None:
    """On the embedded model and a store of its own: the one-shot answers, the others start and end well."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "notes.txt").write_text("the bike is fixed\n", "utf-8")
    settings = {"TREADLE_MODEL": "local", "TREADLE_STORE": str(tmp_path / "sessions.db")}
    env = {**os.environ, **settings, "XDG_CONFIG_HOME": str(tmp_path / "config")}
    for words in FIRST_SCREEN:
        run_command = run_at_terminal if words[1] == "chat" else run_in_pipe
        told = run_command(words[1:], tmp_path / "work", env)
        expected = {"notes.txt": "the bike is fixed", "--json": '"answer":', "list": "answered", "doctor": "sandbox"}
        for word, text in expected.items():
            if word in " ".join(words):
                assert text in told, (words, told)


def run_in_pipe(words: list[str], folder: Path, env: dict[str, str]) -> str:
    """The output of a command without a terminal. A server is stopped as soon as it serves."""
    serves = words[0] == "serve"
    command = [sys.executable, "-m", "treadle", *words, *(["--allow-root", "--port", "0"] if serves else [])]
    errors = subprocess.PIPE if serves else None
    with subprocess.Popen(command, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=errors) as child:
        if child.stderr is not None:
            assert "treadle serves http://127.0.0.1:" in child.stderr.readline()
            child.terminate()
        told, _ = child.communicate(timeout=500)
    assert child.returncode == 0, (words, told)
    return told


def run_at_terminal(words: list[str], folder: Path, env: dict[str, str]) -> str:
    """The output of a chat at a terminal that is left at its first prompt."""
    ours, theirs = pty.openpty()
    told = b""
    with subprocess.Popen(
        [sys.executable, "-m", "treadle", *words], cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs
    ) as child:
        os.close(theirs)
        while "›".encode() not in told:
            told += os.read(ours, 4096)
        os.write(ours, b"/quit\r")
        with suppress(OSError):  # the terminal is closed with the child
            while piece := os.read(ours, 4096):
                told += piece
    os.close(ours)
    assert child.returncode == 0, told
    return told.decode()


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_a_link_inside_the_project_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("name", ["architecture", "cluster"])
def test_a_picture_is_what_its_script_draws(name: str) -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / f"draw_{name}.py"))["draw_picture"]()
    assert (ROOT / "docs" / f"{name}.svg").read_text("utf-8") == drawn, "run `make picture` and look at it"
