"""The page computes the same state from the facts of a session as the server, at every position."""

import asyncio
import itertools
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.kit.write_recordings import write_recordings
from treadle.engine.fold import apply
from treadle.engine.state import State
from treadle.events import AnyFact
from treadle.messages import Json
from treadle.permissions.patterns import covers_call, unpin_version

WEB = Path(__file__).resolve().parents[2] / "web"
NODE = Path(sys.executable).with_name("node")
PATIENCE = 240

PATTERNS = (
    *("*", "shell", "sh*", "shell(*)", "shell(**)", "shell(git *)", "shell(command=git *)", "shell(git statu?)"),
    *("shell(git status)", "shell(echo [*])", "shell(a;b)", "shell@1f3a(git *)", "other(git *)", "shell()"),
    *("shell(git *", "write(src/**)", "write(path=src/**)", "write(src/*)", "write(**/*.py)", "write(../**)"),
    *("write(/tmp/**)", "write(src/a.py)", "write(content=x*)", "write(2)", "write(True)", "write(é?)"),
    *("git__*", "mcp/*", "mcp/?"),
)
COMMANDS = ("git status", "git  status", "git", "git a; rm b", "a;b", "echo *", "")
PATHS = ("src/a.py", "src", "src/b/c.py", "./src/../a.py", "../x", "/tmp/x", "é€")
LISTS: tuple[Json, ...] = ([], ["src/a.py", "b.py"], ["src/a.py", "src/b.py"], ["src/a.py", None])
VALUES: tuple[Json, ...] = ("x y", "y", 2, True, None, {"a": 1})
CALLS: list[tuple[str, dict[str, Json]]] = [
    *(("shell", {"command": text}) for text in COMMANDS),
    *(("write", {"path": path}) for path in PATHS),
    *(("write", {"paths": paths}) for paths in LISTS),
    *(("write", {"content": value, "path": "src/a.py"}) for value in VALUES),
    *((tool, dict[str, Json]()) for tool in ("shell", "git__log", "mcp/a", "mcp/a/b")),
]


def write_patterns(path: Path) -> None:
    """Write which patterns cover which calls."""
    rows = [
        (unpin_version(pattern), tool, arguments, covers_call(unpin_version(pattern), tool, arguments))
        for pattern, (tool, arguments) in itertools.product(PATTERNS, CALLS)
    ]
    path.write_bytes(msgspec.json.encode(rows))


def write_details(recording: Path, path: Path) -> None:
    """Write what a state has besides the view of it, after each fact."""
    facts = msgspec.convert(msgspec.json.decode(recording.read_bytes())["facts"], list[AnyFact])
    state, rows = State(), list[object]()
    for fact in facts:
        apply(state, fact)
        waited = state.run.waited if state.run is not None else None
        turns = state.run.limits.turns if state.run is not None else None
        rows.append((state.tokens, state.is_held, state.runs, waited, turns, list(state.calls)))
    path.write_bytes(msgspec.json.encode(rows))


async def write_all(folder: Path) -> None:
    """Write what the tests of the page compare with."""
    details = folder / "details"
    details.mkdir()
    for recording in await write_recordings(folder):
        write_details(recording, details / recording.name)
    write_patterns(details / "patterns.json")


@pytest.mark.parametrize("name", sorted(path.name for path in (WEB / "tests").glob("*.test.ts")))
def test_the_modules_of_the_page(name: str, tmp_path: Path) -> None:
    if not NODE.exists():
        pytest.skip("NOT TESTED: the environment has no node (make setup)")
    asyncio.run(write_all(tmp_path))
    command = [str(NODE), "--test", "--test-reporter=dot", f"tests/{name}"]
    environment = {"PATH": "/usr/bin:/bin", "TREADLE_RECORDINGS": str(tmp_path)}
    done = subprocess.run(
        command, cwd=WEB, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
