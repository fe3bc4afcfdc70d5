"""A node is killed, frozen or cut off: every session ends on another one, and nothing is lost or done twice unnamed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.deployment import Cluster, NodeUnderTest
from tests.cluster.invariants import check_cluster, find_slow_takeovers, measure_delay, measure_takeovers
from tests.kit.machines import Direction, needs_machines
from tests.kit.pgbouncer import needs_pgbouncer
from tests.kit.postgres import needs_postgres
from tests.kit.shifted_clock import ShiftedClock

pytestmark = [needs_postgres, needs_pgbouncer, needs_machines]

SESSIONS, PACE = 12, 20.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.start_nodes(PACE)
        yield cluster


def check(cluster: Cluster, victim: NodeUnderTest, since: float, began: float) -> None:
    """Check that all sessions ended, and that those of the victim were taken over in time."""
    findings = check_cluster(cluster)
    taken = measure_takeovers(cluster, findings, victim.owner, since)
    delay = measure_delay(cluster.notes, began, victim.name)
    print(findings)
    print(f"taken over after {sorted(round(seconds, 2) for seconds in taken)} s; scheduling delays {delay:.2f} s")
    assert findings.violations == []
    assert taken, "there was nothing to take over"
    assert find_slow_takeovers(taken, delay) == []


@pytest.fixture
def victim(cluster: Cluster) -> NodeUnderTest:
    """The busiest node, while all of them are at work."""
    cluster.start_sessions(SESSIONS)
    cluster.wait_for_facts(SESSIONS * 8)
    return cluster.choose_busy_node()


def test_the_sessions_of_a_killed_node_go_on_elsewhere(cluster: Cluster, victim: NodeUnderTest) -> None:
    since, began = cluster.read_time(), time.monotonic()
    victim.process.kill()
    check(cluster, victim, since, began)
    victim.start()


def test_a_node_that_was_frozen_beyond_its_lease_writes_nothing_more(cluster: Cluster, victim: NodeUnderTest) -> None:
    refused, since, began = len(cluster.notes.read("refused")), cluster.read_time(), time.monotonic()
    victim.process.freeze()
    cluster.wait_for_takeover(victim.owner, since)
    victim.process.thaw()
    check(cluster, victim, since, began)
    assert len(cluster.notes.read("refused")) > refused, "it was told that its claims are lost"


@pytest.mark.parametrize("direction", ["both", "from_node", "to_node"])
def test_a_node_that_is_cut_off_beyond_its_lease_writes_nothing_more(
    cluster: Cluster, victim: NodeUnderTest, direction: Direction
) -> None:
    refused, since, began = len(cluster.notes.read("refused")), cluster.read_time(), time.monotonic()
    victim.machine.cut(direction)
    cluster.wait_for_takeover(victim.owner, since)
    victim.machine.heal()
    check(cluster, victim, since, began)
    assert len(cluster.notes.read("refused")) > refused, "it was told that its claims are lost"


def test_wrong_clocks_of_nodes_change_nothing(cluster: Cluster, tmp_path: Path) -> None:
    clocks = [ShiftedClock(tmp_path / str(hours), hours * 3600) for hours in (1, -1)]
    for node, clock in zip(cluster.nodes, clocks, strict=False):
        node.process.kill()
        node.begin_start(clock.environment)
    for node in cluster.nodes[:2]:
        node.finish_start()
    cluster.start_sessions(SESSIONS)
    cluster.wait_for_facts(SESSIONS * 4)
    for clock, hours in zip(clocks, (-1, 1), strict=True):
        clock.shift(hours * 3600)
    cluster.wait_for_facts(SESSIONS * 4)
    victim, since, began = cluster.nodes[0], cluster.read_time(), time.monotonic()
    victim.process.kill()
    check(cluster, victim, since, began)
    victim.start()
