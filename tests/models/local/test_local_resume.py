"""The embedded model under the engine: a process that is killed in mid-run, and the next one that goes on."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from treadle import Agent, RunFinished, ToolContext, tool
from treadle.models.local import weights

WORKER = """
import asyncio, os, signal, sys
sys.path.insert(0, {here!r})
from test_local_resume import new_agent

async def main():
    async with new_agent().session("notes.db", workspace=".") as session, session.run("Write a note: call Anna") as run:
        async for event in run:
            if type(event).__name__ == {kind!r}:
                os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@tool(
    examples=[
        ("Write a note: call the bank", {"text": "call the bank"}),
        ("Make a note that says buy bread", {"text": "buy bread"}),
    ]
)
def write_note(text: str, context: ToolContext) -> str:
    """Write a note down."""
    with (context.workspace / "notes.txt").open("a", encoding="utf-8") as notes:
        notes.write(f"{text}\n")
    return f"noted: {text}"


def new_agent() -> Agent:
    return Agent("local", tools=[write_note])


def run_until_killed(program: str, folder: Path) -> bool:
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, timeout=500, check=False)
    return done.returncode == -signal.SIGKILL


@pytest.mark.skipif(
    weights.find_weights(None) is None, reason="THE WEIGHTS OF THE EMBEDDED MODEL ARE MISSING: make weights"
)
@pytest.mark.parametrize("kind", ["TurnStarted", "CallFinished"])
async def test_a_run_goes_on_after_a_kill_and_writes_nothing_twice(kind: str, tmp_path: Path) -> None:
    program = WORKER.format(here=str(Path(__file__).parent), kind=kind)
    assert run_until_killed(program, tmp_path)
    async with new_agent().session(tmp_path / "notes.db") as session:
        async with session.resume() as run:
            outcome = await run.wait()
        facts = await session.facts()
    assert outcome is not None and outcome.reason == "answered" and "call Anna" in outcome.answer
    assert sum(isinstance(fact, RunFinished) for fact in facts) == 1
    assert (tmp_path / "notes.txt").read_text("utf-8") == "call Anna\n"
