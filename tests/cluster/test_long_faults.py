"""Every fault with many seeds, while a hundred sessions run. A seed chooses the victims and the instants.

TREADLE_SOAK_SEEDS (default 20) is the number of seeds for each fault, and TREADLE_SOAK_SEED the first one.
TREADLE_SOAK_SESSIONS (default 100) is the number of sessions.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.deployment import Cluster
from tests.cluster.faults import OF_DATABASES, OF_NODES, WITHOUT_POOLER, Fault, break_everything
from tests.cluster.invariants import check_cluster, find_slow_takeovers, measure_delay, measure_takeovers
from tests.kit.machines import needs_machines
from tests.kit.pgbouncer import needs_pgbouncer
from tests.kit.postgres import needs_postgres

SEEDS = int(os.environ.get("TREADLE_SOAK_SEEDS", "20"))
FIRST = int(os.environ.get("TREADLE_SOAK_SEED", "1000"))
SESSIONS = int(os.environ.get("TREADLE_SOAK_SESSIONS", "100"))
PACE = 40.0
DIRECT: dict[str, Any] = {"standby": "none", "pooled": False, "server": {"disk_megabytes": 300, "max_connections": 60}}

pytestmark = [needs_postgres, needs_pgbouncer, needs_machines, pytest.mark.soak, pytest.mark.timeout(0)]


def build_cases() -> list[Any]:
    faults = {**OF_NODES, **OF_DATABASES, "everything": break_everything}
    cases = [pytest.param(fault, {}, id=name) for name, fault in faults.items()]
    return [*cases, *(pytest.param(fault, DIRECT, id=name) for name, fault in WITHOUT_POOLER.items())]


@pytest.mark.parametrize(("fault", "options"), build_cases())
def test_nothing_is_lost_whatever_breaks(tmp_path: Path, fault: Fault, options: dict[str, Any]) -> None:
    for seed in range(FIRST, FIRST + SEEDS):
        folder, instants = tmp_path / str(seed), random.Random(seed)
        folder.mkdir()
        with Cluster(folder, **options) as cluster:
            cluster.start_nodes(PACE)
            cluster.start_sessions(SESSIONS)
            cluster.wait_for_facts(instants.randrange(2, 25) * SESSIONS)
            began = time.monotonic()
            failure = fault(cluster, instants)
            over = cluster.read_time()
            findings = check_cluster(cluster)
            delay = measure_delay(cluster.notes, began, failure.name if failure is not None else "")
            print(f"seed {seed}: {findings}; scheduling delays {delay:.2f} s", flush=True)
            print(f"seed {seed}: the first fact after it came in {cluster.measure_rest(over):.2f} s", flush=True)
            assert findings.violations == [], f"seed {seed}"
            if failure is not None:
                taken = measure_takeovers(cluster, findings, failure.owner, failure.since)
                print(f"seed {seed}: taken over after {sorted(round(seconds, 2) for seconds in taken)} s", flush=True)
                assert find_slow_takeovers(taken, delay) == [], f"seed {seed}"
