"""The database, its pooler or its news go away for a while: nothing is lost, and work goes on soon after."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest

from tests.cluster.deployment import Cluster, wait_slowly
from tests.cluster.faults import lose_answers
from tests.cluster.invariants import check_cluster, measure_delay
from tests.kit.machines import needs_machines
from tests.kit.pgbouncer import needs_pgbouncer
from tests.kit.postgres import needs_postgres

pytestmark = [needs_postgres, needs_pgbouncer, needs_machines]

SESSIONS, PACE = 9, 20.0
SOON = 3.0
"""Seconds after which work goes on when a fault is over."""


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.start_nodes(PACE)
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """A cluster at work."""
    shared_cluster.start_sessions(SESSIONS)
    shared_cluster.wait_for_facts(SESSIONS * 6)
    return shared_cluster


def check_goes_on(cluster: Cluster, over: float, began: float) -> None:
    """Check that work went on soon after a fault was over, and that nothing was lost."""
    rest = cluster.measure_rest(over)
    findings, delay = check_cluster(cluster), measure_delay(cluster.notes, began)
    print(findings)
    ended = cluster.read_time() - over
    print(f"the first fact was stored {rest:.2f} s after it was over, the last one {ended:.1f} s; delays {delay:.2f} s")
    assert findings.violations == []
    assert rest <= SOON + delay


def wait_for_errors(cluster: Cluster) -> None:
    """Wait until every node tells its user that the store is away, or full."""
    while "works" in (answers := cluster.probe()):
        pass
    for answer in answers:
        assert answer.startswith(("StoreAway", "StoreBusy", "StoreFull")), answer
        assert "Try again" in answer or "make room and go on" in answer


def test_work_goes_on_after_the_pooler_was_restarted(cluster: Cluster) -> None:
    began = time.monotonic()
    assert cluster.pooler is not None
    cluster.pooler.kill()
    wait_for_errors(cluster)
    cluster.pooler.start()
    check_goes_on(cluster, cluster.read_time(), began)


def test_work_goes_on_after_answers_of_the_database_were_lost(cluster: Cluster) -> None:
    began = time.monotonic()
    lose_answers(cluster, random.Random(0))
    check_goes_on(cluster, cluster.read_time(), began)


def test_work_goes_on_while_no_news_arrive(cluster: Cluster) -> None:
    began = time.monotonic()
    cluster.listen_cable.cut()
    check_goes_on(cluster, cluster.read_time(), began)
    cluster.listen_cable.heal(lose=True)


def test_work_goes_on_after_all_connections_were_taken(cluster: Cluster) -> None:
    assert cluster.pooler is not None
    began = time.monotonic()
    with ExitStack() as connections:
        for _ in range(20):
            connection = connections.enter_context(psycopg.connect(cluster.pooler.build_url(), prepare_threshold=None))
            connection.execute("SELECT 1")  # its transaction holds one of the pooler's connections
        wait_for_errors(cluster)
    check_goes_on(cluster, cluster.read_time(), began)


def test_work_goes_on_after_the_primary_was_killed_and_restarted(cluster: Cluster) -> None:
    began = time.monotonic()
    cluster.primary.kill()
    wait_for_errors(cluster)
    cluster.primary.start()
    assert cluster.standby is not None
    wait_slowly(cluster.standby.is_in_sync)
    check_goes_on(cluster, cluster.read_time(), began)


def test_nothing_is_lost_when_a_synchronous_standby_is_promoted(cluster: Cluster) -> None:
    began = time.monotonic()
    cluster.primary.kill()
    wait_for_errors(cluster)
    cluster.fail_over()
    check_goes_on(cluster, cluster.read_time(), began)
