"""The kill test for hours, with a new seed for every fresh store.

TREADLE_SOAK_KILLS (default 2000) or TREADLE_SOAK_MINUTES set the length, and TREADLE_SOAK_SEED the first seed.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.crash.children import freeze, join_all, run_child, start, thaw
from tests.crash.invariants import check_store
from tests.crash.notes import Notes
from tests.crash.session_processes import count_turns
from tests.crash.test_kill import finish, kill_at_random
from tests.crash.worker import Job, work
from tests.kit.sessions import PATIENCE

KILLS = int(os.environ.get("TREADLE_SOAK_KILLS", "2000"))
MINUTES = float(os.environ.get("TREADLE_SOAK_MINUTES", "0"))
SEED = int(os.environ.get("TREADLE_SOAK_SEED", "1000"))
KILLS_A_STORE = 50

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]


def seeds(rounds: int, share: float) -> Iterator[int]:
    """Yield a seed for each round, or for a share of the minutes if they are set."""
    until_then = time.monotonic() + MINUTES * 60 * share
    for number in count():
        if time.monotonic() >= until_then if MINUTES else number >= rounds:
            return
        yield SEED + number


def create_notes(folder: Path, seed: int) -> Notes:
    (folder / str(seed)).mkdir()
    return Notes(folder / str(seed))


async def test_workers_killed_thousands_of_times_lose_and_repeat_nothing(tmp_path: Path) -> None:
    kills = interrupted = 0
    for seed in seeds(KILLS // KILLS_A_STORE, 0.7):
        notes = create_notes(tmp_path, seed)
        counts = await kill_at_random(notes, seed, KILLS_A_STORE, lambda counts: counts.sessions)
        kills, interrupted = kills + KILLS_A_STORE, interrupted + counts.statuses["interrupted"]
        print(f"seed {seed}: {counts}", flush=True)
        shutil.rmtree(notes.folder)
    print(f"{kills} kills, {interrupted} calls broken off, none done twice", flush=True)


async def test_workers_frozen_repeatedly_do_nothing_twice(tmp_path: Path) -> None:
    for seed in seeds(60, 0.2):
        notes, instants = create_notes(tmp_path, seed), random.Random(seed)
        job = Job(most=6, at_once=6, lease=0.6)
        with run_child(work, notes, job) as first:
            first.join(instants.uniform(0.05, 0.3))
            if first.is_alive():
                freeze(first, notes.store)
            with run_child(work, notes, job) as second:
                second.join(instants.uniform(0.05, 1.2))
                if second.is_alive():
                    freeze(second, notes.store)
                finish(notes, job)
                for child in (first, second):
                    if child.is_alive():
                        thaw(child)
                    child.join(PATIENCE)
                    assert child.exitcode == 0, (seed, notes.read("trouble"))
        await check_store(notes)
        shutil.rmtree(notes.folder)


async def test_eight_processes_share_one_file_for_a_long_time(tmp_path: Path) -> None:
    for seed in seeds(5, 0.1):
        notes = create_notes(tmp_path, seed)
        children = [start(count_turns, notes, f"p{number}", 4, 199) for number in range(8)]
        join_all(notes, *children)
        assert len(notes.read("lines")) == 8 * 4 * 199
        shutil.rmtree(notes.folder)
