"""Kill -9 at any time and start again: the work continues, and no side effect happens twice."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from tests.crash.children import join_all, kill, start, start_fork_server
from tests.crash.invariants import CheckCounts, check_store
from tests.crash.notes import Notes
from tests.crash.worker import Job, work
from tests.kit.fakes.travel import WIRES

SEEDS = 4
KILLS, SHARED_KILLS = 26, 5  # for each seed: 104 in all in a file; in a database each costs a lease
SPREES, MORE_KILLS = 40, 5
SHARED_STRIDE = 9
"""In a database the test of every instant takes a minute, so it takes every ninth one."""


def finish(notes: Notes, job: Job) -> float:
    """Let a worker finish its job. Returns how long it took."""
    start_fork_server()
    began = time.monotonic()
    join_all(notes, start(work, notes, job))
    return time.monotonic() - began


async def kill_at_random(
    notes: Notes, seed: int, kills: int, hit: Callable[[CheckCounts], object], wire: str = ""
) -> CheckCounts:
    """Kill workers at random times, each continuing the work of the one before. Then finish the work and check it.

    On a busy machine every kill may miss the work. So calls take longer there, and there are more kills until one hits.
    """
    instants, at_once = random.Random(seed), 1 if wire else 3
    whole = finish(notes, Job(most=at_once, at_once=at_once, wire=wire))
    job = Job(most=1000, at_once=at_once, wire=wire, pace=max(1.0, whole))
    for spree in range(SPREES):
        for _ in range(kills if spree == 0 else MORE_KILLS):
            child = start(work, notes, job)
            child.join(instants.uniform(0, whole + notes.lease if notes.url else whole))
            assert child.exitcode is None, (child.exitcode, notes.read("trouble"))
            kill(child)
        finish(notes, Job(at_once=at_once, wire=wire))
        counts = await check_store(notes)
        if hit(counts):
            return counts
    pytest.fail(f"{kills + SPREES * MORE_KILLS} kills hit nothing: {counts}")


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_worker_killed_at_random_loses_nothing_and_does_nothing_twice(notes: Notes, seed: int) -> None:
    def hit(counts: CheckCounts) -> bool:
        return bool(counts.statuses["interrupted"] and counts.reruns and counts.steered)

    counts = await kill_at_random(notes, seed, SHARED_KILLS if notes.url else KILLS, hit)
    assert counts.acknowledged > 100


@pytest.mark.parametrize("wire", WIRES)
async def test_a_worker_killed_at_random_sends_no_request_that_a_provider_rejects(tmp_path: Path, wire: str) -> None:
    counts = await kill_at_random(Notes(tmp_path), 7, 20, lambda counts: counts.statuses["interrupted"], wire)
    assert counts.acknowledged > 50


async def test_a_worker_killed_before_or_after_any_write_loses_nothing(make_notes: Callable[[], Notes]) -> None:
    is_shared = bool(make_notes().url)
    for halves in count(1, SHARED_STRIDE if is_shared else 1):
        notes = make_notes()
        child = start(work, notes, Job(most=1, pace=0, dies_at=halves / 2))
        child.join(300)
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL, (child.exitcode, notes.read("trouble"))
        finish(notes, Job(most=1, pace=0))
        counts = await check_store(notes)
        assert counts.sessions == 1
    assert halves > 40, "there are more than twenty writes in the plan"


async def test_a_worker_killed_while_it_creates_the_store_leaves_a_usable_store(
    make_notes: Callable[[], Notes],
) -> None:
    instants, is_shared = random.Random(0), bool(make_notes().url)
    for _ in range(5 if is_shared else 12):
        notes = make_notes()
        child = start(work, notes, Job(most=1))
        child.join(instants.uniform(0.005, 0.2 if is_shared else 0.06))
        kill(child)
        finish(notes, Job(most=1, pace=0))
        assert (await check_store(notes)).sessions == 1
