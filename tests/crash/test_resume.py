"""A crash as a user sees it: the program is killed and started again."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.children import start, until
from tests.crash.owners import own
from tests.crash.paper import Paper
from treadle.engine.state import OUTCOME_UNKNOWN
from treadle.events import AnyFact, CallFinished, CallStarted, RunFinished
from treadle.log.base import SessionQuery
from treadle.log.sqlite import SqliteLog

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
        until(lambda: letters.exists() and "Bob" in letters.read_text())
        program.kill()
    assert program.returncode == -signal.SIGKILL
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=500)
    assert again.stdout == "resumed: All have their letters.\n"
    assert again.stderr == ""
    assert letters.read_text().split() == ["Ann", "Bob", "Cleo"], "nobody gets two letters"
    third = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=500)
    assert third.stdout.startswith("ran:"), "nothing is left to resume"


async def facts_after_deaths(paper: Paper, order: str, deaths: int) -> list[AnyFact]:
    """Return the facts of a session whose process died `deaths` times before the end."""
    for _ in range(deaths):
        child = start(own, paper, order)
        child.join(60)
        assert child.exitcode == -signal.SIGKILL, paper.read("trouble")
    child = start(own, paper, order)
    child.join(60)
    assert child.exitcode == 0, paper.read("trouble")
    log = SqliteLog(paper.store)
    (info,) = (await log.list_sessions(SessionQuery())).sessions
    facts = await log.read(info.id)
    await log.close()
    assert isinstance(facts[-1], RunFinished) and facts[-1].answer == "stopped after 1"
    return facts


@pytest.mark.parametrize(("order", "lines"), [("die before", 0), ("die after", 1)])
async def test_an_interrupted_call_is_unknown_and_never_runs_again(tmp_path: Path, order: str, lines: int) -> None:
    paper = Paper(tmp_path)
    facts = await facts_after_deaths(paper, order, deaths=1)
    (finished,) = [fact for fact in facts if isinstance(fact, CallFinished)]
    assert (finished.status, finished.output) == ("interrupted", OUTCOME_UNKNOWN)
    assert len([fact for fact in facts if isinstance(fact, CallStarted)]) == 1
    assert len(paper.read("lines")) == lines


async def test_an_interrupted_safe_call_runs_again(tmp_path: Path) -> None:
    paper = Paper(tmp_path)
    facts = await facts_after_deaths(paper, "die once", deaths=1)
    (finished,) = [fact for fact in facts if isinstance(fact, CallFinished)]
    assert finished.status == "ok"
    assert [fact.attempt for fact in facts if isinstance(fact, CallStarted)] == [1, 2]
    assert len({key for key, *_ in paper.read("lines")}) == 1, "an idempotency key stays the same"


async def test_a_safe_call_that_kills_every_process_is_given_up(tmp_path: Path) -> None:
    paper = Paper(tmp_path)
    facts = await facts_after_deaths(paper, "die always", deaths=3)
    (finished,) = [fact for fact in facts if isinstance(fact, CallFinished)]
    assert finished.status == "interrupted"
    assert len(paper.read("lines")) == 3
