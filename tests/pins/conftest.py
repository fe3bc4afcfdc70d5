"""What the pins share: snapshots, the installed command in a fresh home, and a fake model behind it.

This is the only file of the pins that imports anything but public names: `Reply` and `Call`, the fake model, and the
generator of the event schema. `UPDATE_PINS=1 python -m pytest tests/pins` rewrites the snapshots.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kit.fakes.chat import StrictChat as FakeModel
from tests.kit.fakes.server import Odd, status
from treadle.export.event_schema import render_schema as generate_event_schema
from treadle.messages import Call, Reply

__all__ = ["FakeModel", "generate_event_schema"]

SNAPSHOTS = Path(__file__).parent / "snapshots"
COMMAND = Path(sys.executable).parent / "treadle"
TIMEOUT = 60.0
"""Seconds until a test that hangs fails."""


def check_snapshot(name: str, text: str) -> None:
    """Compare a text with its snapshot, or rewrite the snapshot when UPDATE_PINS is set."""
    file = SNAPSHOTS / name
    if os.environ.get("UPDATE_PINS"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    assert file.exists(), f"{name} has no snapshot: run with UPDATE_PINS=1, and look at the result"
    assert text == file.read_text("utf-8"), f"{name} differs from its snapshot"


def check_json_snapshot(name: str, document: Any) -> None:
    """Compare a JSON document with its snapshot. The order of keys does not count."""
    check_snapshot(name, json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def hide_prose(value: Any, key: str = "") -> Any:
    """A JSON schema without the wording of its texts. A property that is called `title` stays: its value is no text."""
    if isinstance(value, dict):
        return {name: hide_prose(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [hide_prose(inner) for inner in value]
    return "<text>" if value and isinstance(value, str) and key in ("description", "summary", "title") else value


# --- the fake model's replies


def say(text: str) -> Reply:
    """A reply that is an answer."""
    return Reply(text=text)


def call_tool(tool: str, **arguments: Any) -> Reply:
    """A reply that calls one tool."""
    return Reply(calls=(Call("call_1", tool, json.dumps(arguments)),), finish="calls")


def refuse_key() -> Odd:
    """A provider's answer to a wrong key."""
    return status(401, "unknown key")


def stall(after: int) -> Odd:
    """A reply of which only the first bytes come. The first word is in the first 400 of them."""
    return Odd(Reply(text="one two three"), stall_after=after)


def offers_tools(body: dict[str, Any]) -> bool:
    """Whether a request lets the model call tools. The last turn at a limit does not."""
    return bool(body.get("tools")) and body.get("tool_choice") != "none"


def call_until_wrap_up(call: Callable[[int], Reply | Odd]) -> Callable[[dict[str, Any]], Reply | Odd]:
    """A script that makes the same call, with its number, until no tools are offered any more."""
    made = 0

    def reply(body: dict[str, Any]) -> Reply | Odd:
        nonlocal made
        made += 1
        return call(made) if offers_tools(body) else say("That is all.")

    return reply


# --- the installed command


@dataclass
class Shell:
    """Starts the installed command in a home and a workspace of its own."""

    work: Path
    env: dict[str, str]

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            COMMAND, *words, cwd=self.work, env=self.env, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )


def create_shell(folder: Path) -> Shell:
    """A shell whose command sees none of this user's settings."""
    for name in ("home", "work"):
        (folder / name).mkdir()
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    own = {"HOME": str(folder / "home"), "TEST_KEY": "sk-test", "TREADLE_AUTO_NAME": "false", "PYTHONUTF8": "1"}
    own["TREADLE_ALLOW_ROOT"] = "true"
    return Shell(folder / "work", {**kept, **own, "COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"})


def list_model_options(fake: FakeModel) -> list[str]:
    """The options that make the command use a fake model."""
    return ["--model", "fake", "--base-url", fake.base_url, "--api-key-env", "TEST_KEY"]


@asynccontextmanager
async def serve(shell: Shell, fake: FakeModel) -> AsyncIterator[tuple[str, str]]:
    """`treadle serve` on a free port: its address and its token."""
    tokens = shell.work.parent / "tokens.json"
    options = ["--port", "0", "--allow-root", "--token-file", str(tokens), *list_model_options(fake)]
    process = await shell.start("serve", *options)
    assert process.stderr is not None
    try:
        async with asyncio.timeout(TIMEOUT):
            while True:
                line = (await process.stderr.readline()).decode()
                assert line, "the server ended before it gave its address"
                if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                    break
        yield found[0], json.loads(tokens.read_text())[0]["value"]
    finally:
        process.terminate()
        await process.communicate()
