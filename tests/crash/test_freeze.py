"""A frozen process: others take over, and it does no harm when it continues."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crash.children import freeze, run_child, start_fork_server, thaw, wait_until
from tests.crash.invariants import check_store
from tests.crash.notes import Notes
from tests.crash.test_kill import finish
from tests.crash.worker import Job, work

LEASE = 0.6


@pytest.mark.parametrize("seed", range(4))
async def test_a_frozen_worker_is_replaced_and_does_nothing_twice(tmp_path: Path, seed: int) -> None:
    notes = Notes(tmp_path)
    start_fork_server()
    with run_child(work, notes, Job(most=6, at_once=6, lease=LEASE, pace=100)) as frozen:  # for ten seconds and more
        wait_until(lambda: notes.read("lines"))
        frozen.join(random.Random(seed).uniform(0, 0.5))
        freeze(frozen, notes.store)
        before = len(notes.read("acknowledged"))
        finish(notes, Job(most=6, at_once=6, lease=LEASE))
        assert len(notes.read("acknowledged")) > before, "there was nothing left to take over"
        thaw(frozen)
        frozen.join(60)
        assert frozen.exitcode == 0, "it must see that others have ended its sessions"
    counts = await check_store(notes)
    assert counts.sessions == 6
    assert counts.epochs > 6, "no session was taken over during its work"
