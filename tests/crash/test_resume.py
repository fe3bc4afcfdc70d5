"""A crash as a user sees it: the program is killed and started again."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.children import join_all, start, wait_until
from tests.crash.notes import Notes, open_reporting_log
from tests.crash.session_processes import run_order
from tests.kit.sessions import select_events
from treadle.engine.state import OUTCOME_UNKNOWN
from treadle.events import AnyFact, CallFinished, CallStarted, RunFinished
from treadle.log.base import SessionQuery

PROGRAM = '''
import asyncio, sys, time
from treadle import Agent, ModelReplied, tool
from treadle.testing import ScriptedModel, call

@tool
def send_letter(to: str) -> str:
    """Send a letter."""
    with open("letters.txt", "a") as letters:
        letters.write(to + "\\n")
    if to == "Bob" and "slow" in sys.argv:
        time.sleep(60)
    return "sent"

def next_line(request):
    done = sum(message.__class__.__name__ == "ResultMessage" for message in request.messages)
    names = ["Ann", "Bob", "Cleo"]
    return call("send_letter", to=names[done]) if done < 3 else "All have their letters."

async def main():
    agent = Agent(ScriptedModel(*[next_line] * 9), tools=[send_letter])
    async with agent.session("letters.db") as session:
        unfinished = (await session.state()).run is not None
        async with session.resume() if unfinished else session.run("Write to Ann, Bob and Cleo.") as run:
            outcome = await run.wait()
        print("resumed:" if unfinished else "ran:", outcome.answer)

asyncio.run(main())
'''


def test_a_killed_program_continues_when_it_is_started_again(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", PROGRAM]
    letters = tmp_path / "letters.txt"
    with subprocess.Popen([*command, "slow"], cwd=tmp_path) as program:
        wait_until(lambda: letters.exists() and "Bob" in letters.read_text())
        program.kill()
    assert program.returncode == -signal.SIGKILL
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=500)
    assert again.stdout == "resumed: All have their letters.\n"
    assert again.stderr == ""
    assert letters.read_text().split() == ["Ann", "Bob", "Cleo"], "nobody gets two letters"
    third = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=500)
    assert third.stdout.startswith("ran:"), "nothing is left to resume"


async def read_facts_after_deaths(notes: Notes, order: str, deaths: int) -> list[AnyFact]:
    """Return the facts of a session whose process died `deaths` times before the end."""
    for _ in range(deaths):
        child = start(run_order, notes, order)
        child.join(60)
        assert child.exitcode == -signal.SIGKILL, notes.read("trouble")
    join_all(notes, start(run_order, notes, order))
    log = open_reporting_log(notes)
    (info,) = (await log.list_sessions(SessionQuery())).sessions
    facts = await log.read(info.id)
    await log.close()
    assert isinstance(facts[-1], RunFinished) and facts[-1].answer == "stopped after 1"
    return facts


@pytest.mark.parametrize(
    ("order", "deaths", "status", "attempts", "lines"),
    [
        ("die before", 1, "interrupted", [1], 0),
        ("die after", 1, "interrupted", [1], 1),
        ("die once", 1, "ok", [1, 2], 2),
        ("die always", 3, "interrupted", [1, 2, 3], 3),
    ],
)
async def test_an_interrupted_call_runs_again_only_if_it_is_safe_and_at_most_three_times(
    notes: Notes, order: str, deaths: int, status: str, attempts: list[int], lines: int
) -> None:
    facts = await read_facts_after_deaths(notes, order, deaths)
    (finished,) = select_events(facts, CallFinished)
    assert finished.status == status and (status == "ok" or finished.output == OUTCOME_UNKNOWN)
    assert [fact.attempt for fact in select_events(facts, CallStarted)] == attempts
    keys = [key for key, *_ in notes.read("lines")]
    assert len(keys) == lines and len(set(keys)) <= 1, "the idempotency key of a call stays the same"
