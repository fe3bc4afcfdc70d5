"""One question is answered on several nodes at once: one answer counts, everybody is told which, and none is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from tests.cluster.deployment import Cluster, NodeUnderTest, wait_slowly
from tests.cluster.invariants import check_cluster
from tests.kit.machines import needs_machines
from tests.kit.postgres import needs_postgres
from tests.kit.tcp_relay import Direction

pytestmark = [needs_postgres, needs_machines]

SESSIONS = 6
QUESTION = "careful-2.0"


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("approvals"), standby="none", pooled=False) as cluster:
        cluster.start_nodes(answering=False)
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """A cluster whose new sessions all wait for a person."""
    shared_cluster.start_sessions(SESSIONS)
    sql = "SELECT count(*) FROM treadle.sessions WHERE status = 'waiting' AND owner = ''"
    wait_slowly(lambda: shared_cluster.server.query(sql) == [(SESSIONS,)])
    return shared_cluster


def answer(cluster: Cluster, nodes: Sequence[NodeUnderTest]) -> set[tuple[str, str]]:
    """Answer all questions on several nodes. Return who answers what."""
    names = cluster.sessions[-SESSIONS:]
    for session_id in names:
        for node in nodes:
            node.tell("answer", session_id, QUESTION)
    return {(session_id, node.name) for session_id in names for node in nodes}


def check_all_are_told(cluster: Cluster, answered: set[tuple[str, str]]) -> None:
    """Check that each one who answered was told what counts, that this is true, and that all sessions ended."""

    def find_untold() -> set[tuple[str, str]]:
        told = cluster.notes.read("answers")
        return answered - {(session_id, by.partition(".")[0]) for session_id, _, by, _, _ in told}

    wait_slowly(lambda: not find_untold())
    findings = check_cluster(cluster)
    print(findings)
    assert findings.violations == []


def test_two_nodes_answer_at_once(cluster: Cluster) -> None:
    check_all_are_told(cluster, answer(cluster, cluster.nodes[:2]))


def test_two_nodes_answer_while_the_third_is_taken_over(cluster: Cluster) -> None:
    victim, *others = cluster.nodes
    answer(cluster, [victim])
    wait_slowly(lambda: cluster.server.query("SELECT 1 FROM treadle.sessions WHERE owner = %s", victim.owner))
    answered = answer(cluster, others)
    victim.process.kill()
    check_all_are_told(cluster, answered)
    victim.start()


@pytest.mark.parametrize("direction", ["both", "to_client"])
def test_two_nodes_answer_while_the_database_cannot_be_reached(cluster: Cluster, direction: Direction) -> None:
    away = len(cluster.notes.read("away"))
    cluster.cable.cut(direction)
    answered = answer(cluster, cluster.nodes[1:])
    wait_slowly(
        lambda: {node.partition(".")[0] for _, node, *_ in cluster.notes.read("away")[away:]} >= {"node2", "node3"}
    )
    cluster.cable.heal()
    check_all_are_told(cluster, answered)
