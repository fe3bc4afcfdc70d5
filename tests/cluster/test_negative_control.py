"""Without the check of the epoch the checks of the other tests fail: they do see what a zombie does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.deployment import Cluster
from tests.cluster.invariants import check_cluster
from tests.kit.machines import needs_machines
from tests.kit.postgres import needs_postgres

pytestmark = [needs_postgres, needs_machines]

CHECK = "epoch = epochs[i] AND owner = owners[i] AND "
ROUNDS, SESSIONS, THINKING = 10, 12, 0.5
"""A model that takes long leaves a zombie time to write, before its successor does."""


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("control"), standby="none", pooled=False) as cluster:
        yield cluster


def remove_fence(cluster: Cluster) -> None:
    """Let anybody append, whose epoch and name are not those of the claim."""
    ((definition,),) = cluster.server.query("SELECT pg_get_functiondef('treadle.append_facts'::regproc)")
    assert definition.count(CHECK) == 1
    cluster.server.query(definition.replace(CHECK, "").replace("%", "%%"))


def test_the_checks_fail_when_nobody_checks_the_epoch(cluster: Cluster) -> None:
    remove_fence(cluster)
    cluster.start_nodes(thinking=THINKING)
    for _ in range(ROUNDS):
        cluster.start_sessions(SESSIONS)
        cluster.wait_for_facts(SESSIONS * 5)
        victim, since = cluster.choose_busy_node(), cluster.read_time()
        victim.process.freeze()
        cluster.wait_for_claims(victim.owner, since)
        victim.process.thaw()
        if violations := check_cluster(cluster).violations:
            print("\n".join(violations))
            return
    pytest.fail("nothing was found")
