"""No secret leaves: canaries in the environment, in the agent's secrets and in a `.env` reach no log and no output."""

import base64
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.kit.sessions import build_agent, read_finished_calls, select_events
from tests.kit.shell import needs_bubblewrap
from treadle.events import CallFinished, Grant, OutputDelta, serialize_event
from treadle.testing import call
from treadle.tools.builtin import build_default_tools

ENVIRONMENT, CONFIGURED, FILE = "canary-of-the-environment-1", "canary/of+the config 2", "canary-of-the-file-3"

COMMANDS = [
    "env",
    "export -p; set",
    "cat .env",
    "cat ./sub/../.env | rev | rev",
    "base64 .env",
    "cp .env copy; cat copy",
    "ln -s .env link; cat link",
    "ln .env hard; cat hard",
    "grep -r canary .",
    "tar c . | cat",
    "cat /proc/self/environ",
    "cat /proc/*/environ /proc/*/cmdline",
    "cat /proc/$PPID/environ",
    "/usr/bin/python3 -c 'import os; print(os.environ)'",
    "strings /proc/self/mem | head -100",
    "cat sub/.env.local",
]
FILES = [
    ("read_file", {"path": ".env"}),
    ("read_file", {"path": "sub/.env.local"}),
    ("read_file", {"path": "/proc/self/environ"}),
    ("search_files", {"pattern": "canary"}),
    ("list_files", {}),
]


def list_spellings(secret: str) -> list[bytes]:
    inner = base64.b64encode(secret.encode())[2:-6]
    return [secret.encode(), quote(secret).encode(), inner, secret[::-1].encode()]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "workspace"
    (folder / "sub").mkdir(parents=True)
    (folder / ".env").write_text(f"API_KEY={FILE}\n")
    (folder / "sub" / ".env.local").write_text(f"API_KEY={FILE}\n")
    monkeypatch.setenv("SOME_SERVICE_API_KEY", ENVIRONMENT)
    monkeypatch.setenv("HARMLESS_LOOKING", f"x{ENVIRONMENT}")
    return folder


async def find_leaks(
    store: Path, secrets: list[str], *calls: Any, **options: Any
) -> tuple[list[str], list[CallFinished]]:
    """Run the calls. Return the facts, deltas and files of the store that have a secret, and the results."""
    agent, _ = build_agent(
        *calls,
        "done",
        tools=build_default_tools(kept=store.parent / "kept", ask=False),
        grant=Grant(tier=options.pop("tier", "sandbox"), yes=True),
        secrets=(CONFIGURED,),
    )
    found: list[str] = []
    async with agent.session(store, workspace=options["workspace"]) as session:
        async with session.run("go") as run:
            events = [event async for event in run]
        events += await session.facts()
        done = list((await read_finished_calls(session)).values())
        live = "".join(event.text for event in select_events(events, OutputDelta)).encode()
        for written in (live, *map(serialize_event, events)):
            found += [str(written[:200]) for secret in secrets for form in list_spellings(secret) if form in written]
    assert len(done) == len(calls) and live
    for path in store.parent.glob(f"{store.name}*"):
        data = path.read_bytes()
        found += [path.name for secret in secrets for form in list_spellings(secret) if form in data]
    return found, done


@needs_bubblewrap
async def test_no_command_and_no_file_tool_gets_a_canary_into_the_log(workspace: Path, tmp_path: Path) -> None:
    calls = [call("shell", command=command) for command in COMMANDS]
    calls += [call(name, **arguments) for name, arguments in FILES]
    found, done = await find_leaks(tmp_path / "s.db", [ENVIRONMENT, CONFIGURED, FILE], *calls, workspace=workspace)
    assert found == []
    assert any("HOME=" in one.output for one in done), "the environment was shown, so the canary had its chance"


async def test_no_canary_of_the_environment_reaches_a_command_on_the_host(workspace: Path, tmp_path: Path) -> None:
    commands = ["env", "export -p", "cat /proc/self/environ", "/usr/bin/python3 -c 'import os; print(os.environ)'"]
    calls = [call("shell", command=command) for command in commands]
    found, done = await find_leaks(tmp_path / "s.db", [ENVIRONMENT], *calls, workspace=workspace, tier="full")
    assert found == [] and any("HOME=" in one.output for one in done)


@needs_bubblewrap
async def test_a_configured_secret_in_the_output_of_a_command_is_hidden(workspace: Path, tmp_path: Path) -> None:
    (workspace / "notes.txt").write_text(f"the key is {CONFIGURED}\n" * 2000)
    commands = ["cat notes.txt", "base64 -w0 notes.txt", 'while read -r -n 3 x; do printf %s "$x"; done < notes.txt']
    calls = [call("shell", command=command) for command in commands]
    found, done = await find_leaks(tmp_path / "s.db", [CONFIGURED], *calls, workspace=workspace)
    assert found == [] and "[secret]" in done[0].output


def test_the_canaries_are_real(workspace: Path) -> None:
    assert os.environ["SOME_SERVICE_API_KEY"] == ENVIRONMENT
    assert any(form in (workspace / ".env").read_bytes() for form in list_spellings(FILE))
