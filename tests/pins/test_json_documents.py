"""Every ending of `treadle run --json`: the exit code, the document, the types of the events on stderr."""

from __future__ import annotations

import asyncio
import json
import signal
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.pins.conftest import (
    TIMEOUT,
    FakeModel,
    Shell,
    call_tool,
    call_until_wrap_up,
    check_json_snapshot,
    create_shell,
    list_model_options,
    refuse_key,
    say,
    stall,
)

WRITE = call_tool("write_file", path="AGENTS.md", content="obey")  # an agent may not do this unasked
CALCULATE = call_tool("calculate", expression="6*7")
PROSE = {"error", "why"}
"""Fields whose wording may change. The snapshots say only whether there is a text."""

ENDINGS: dict[str, tuple[Any, list[str]]] = {
    "answered": ([CALCULATE, say("It is 42.")], []),
    "failed": ([refuse_key()], []),
    "usage": ([], ["--max-turns", "many"]),
    "turn_limit": ([call_tool("current_time"), say("I looked at the clock.")], ["--max-turns", "1"]),
    "call_limit": (lambda n: call_tool("calculate", expression=f"{n}+1"), ["--max-calls", "1"]),
    "token_limit": (lambda n: call_tool("calculate", expression=f"{n}+1"), ["--max-tokens", "3"]),
    "time_limit": (lambda _: stall(1), ["--timeout", "1"]),
    "doom_loop": (lambda _: CALCULATE, []),
    "stuck": ([say("")], []),
    "stuck_by_its_own_word": ([say("<stuck>I do not know how.</stuck>")], []),
    "yielded": ([say("<yield>Over to you.</yield>")], []),
    "denied": ([WRITE, say("I could not write it.")], []),
    "denied_question": ([call_tool("ask_user", question="Which one?"), say("I took the first.")], []),
    "forbidden": ([WRITE, say("I may not.")], ["--forbid", "write_*"]),
    "waiting": ([WRITE], ["--ask-later"]),
    "cancelled": ([stall(400)], []),
}


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_run_ends_with_its_document_and_exit_code(tmp_path: Path, ending: str) -> None:
    script, flags = ENDINGS[ending]
    interrupt_after = "text_delta" if ending == "cancelled" else ""
    code, out, err = await run(create_shell(tmp_path), script, [*flags, "--json"], interrupt_after)
    assert out.endswith("\n") and out.count("\n") == 1, "stdout is one document"
    document = hide_volatile(json.loads(out))
    result = {"exit_code": code, "document": document, "stderr": list_types(err)}
    check_json_snapshot(f"run_json/{ending}.json", result)


async def test_a_run_prints_its_events_as_lines(tmp_path: Path) -> None:
    code, out, err = await run(create_shell(tmp_path), [CALCULATE, say("It is 42.")], ["--jsonl"])
    assert err == ""
    check_json_snapshot("run_jsonl.json", {"exit_code": code, "stdout": list_types(out)})


async def run(shell: Shell, script: Any, flags: list[str], interrupt_after: str = "") -> tuple[int | None, str, str]:
    """Run the command to its end; send it SIGINT when an event of the given type is on stderr."""
    async with FakeModel(call_until_wrap_up(script) if callable(script) else script) as fake, asyncio.timeout(TIMEOUT):
        process = await shell.start("run", "work", *list_model_options(fake), *flags)
        assert process.stderr is not None
        before = b""
        try:
            while interrupt_after and interrupt_after.encode() not in before:
                before += await process.stderr.readline()
            if interrupt_after:
                process.send_signal(signal.SIGINT)
            out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    return process.returncode, out.decode(), (before + err).decode()


def list_types(lines: str) -> list[str]:
    """The types of events, in order. Fragments that follow each other count as one: their number may vary."""
    return [kind for kind, _ in groupby(json.loads(line)["type"] for line in lines.splitlines())]


def hide_volatile(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: hide_volatile(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [hide_volatile(inner) for inner in value]
    if name == "session_id" and value:
        return "<id>"
    return "<text>" if name in PROSE and value else value
