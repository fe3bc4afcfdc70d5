"""Kill -9 at any instant; start again; it goes on, and no side effect has run twice."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from tests.crash.children import kill, start, warm_up
from tests.crash.invariants import Tally, check_store
from tests.crash.paper import Paper
from tests.crash.worker import Job, work
from tests.kit.fakes.travel import WIRES

SEEDS = 4
KILLS = 26  # for each seed: 104 in all
SPREES, MORE_KILLS = 40, 5


def finish(paper: Paper, job: Job) -> float:
    """Let a worker do its job to the end; how long it took."""
    warm_up()
    began = time.monotonic()
    child = start(work, paper, job)
    child.join(300)
    assert child.exitcode == 0, (child.exitcode, paper.read("trouble"))
    return time.monotonic() - began


async def killed_at_random(
    paper: Paper, seed: int, kills: int, hit: Callable[[Tally], object], wire: str = ""
) -> Tally:
    """Kill workers at random instants of their work, each going on where the last was killed; then finish and check it.

    On a machine that is busy elsewhere every kill may miss the work, so calls take longer there, and there are more
    kills until one has hit.
    """
    instants, at_once = random.Random(seed), 1 if wire else 3
    whole = finish(paper, Job(most=at_once, at_once=at_once, wire=wire))
    job = Job(most=1000, at_once=at_once, wire=wire, pace=max(1.0, whole))
    for spree in range(SPREES):
        for _ in range(kills if spree == 0 else MORE_KILLS):
            child = start(work, paper, job)
            child.join(instants.uniform(0, whole))
            assert child.exitcode is None, (child.exitcode, paper.read("trouble"))
            kill(child)
        finish(paper, Job(at_once=at_once, wire=wire))
        tally = await check_store(paper)
        if hit(tally):
            return tally
    pytest.fail(f"{kills + SPREES * MORE_KILLS} kills hit nothing: {tally}")


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_worker_killed_at_random_loses_nothing_and_does_nothing_twice(tmp_path: Path, seed: int) -> None:
    def hit(tally: Tally) -> bool:
        return bool(tally.statuses["interrupted"] and tally.reruns and tally.steered)

    tally = await killed_at_random(Paper(tmp_path), seed, KILLS, hit)
    assert tally.acknowledged > 100


@pytest.mark.parametrize("wire", WIRES)
async def test_a_worker_killed_at_random_never_sends_what_a_provider_rejects(tmp_path: Path, wire: str) -> None:
    tally = await killed_at_random(Paper(tmp_path), 7, 20, lambda tally: tally.statuses["interrupted"], wire)
    assert tally.acknowledged > 50


async def test_a_worker_killed_right_before_or_after_any_write_loses_nothing(tmp_path: Path) -> None:
    for halves in count(1):
        (tmp_path / str(halves)).mkdir()
        paper = Paper(tmp_path / str(halves))
        child = start(work, paper, Job(most=1, pace=0, dies_at=halves / 2))
        child.join(300)
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL, (child.exitcode, paper.read("trouble"))
        finish(paper, Job(most=1, pace=0))
        tally = await check_store(paper)
        assert tally.sessions == 1
    assert halves > 40, "there are more than twenty writes in the plan"


async def test_a_worker_killed_while_the_store_is_made_leaves_one_that_can_be_used(tmp_path: Path) -> None:
    instants = random.Random(0)
    for attempt in range(12):
        (tmp_path / str(attempt)).mkdir()
        paper = Paper(tmp_path / str(attempt))
        child = start(work, paper, Job(most=1))
        child.join(instants.uniform(0.005, 0.06))
        kill(child)
        finish(paper, Job(most=1, pace=0))
        assert (await check_store(paper)).sessions == 1
