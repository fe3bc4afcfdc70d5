"""Without a pooler: a full disk and too few connections lose nothing. A standby that lags loses facts: it is said."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psycopg
import pytest

from tests.cluster.deployment import Cluster, wait_slowly
from tests.cluster.invariants import find_lost_facts
from tests.cluster.test_database_faults import check_goes_on, wait_for_errors
from tests.kit.machines import needs_machines
from tests.kit.postgres import PostgresServer, needs_postgres
from tests.kit.small_disk import fill_disk
from treadle.errors import StoreLostFacts
from treadle.events import Custom, SessionCreated
from treadle.log.postgres import PostgresLog

pytestmark = needs_postgres

SESSIONS, PACE = 9, 20.0


@pytest.fixture(scope="module")
def small_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    server = {"disk_megabytes": 150, "max_connections": 60}
    with Cluster(tmp_path_factory.mktemp("small"), standby="none", pooled=False, server=server) as cluster:
        cluster.start_nodes(PACE)
        yield cluster


def begin(cluster: Cluster) -> float:
    cluster.start_sessions(SESSIONS)
    cluster.wait_for_facts(SESSIONS * 6)
    return time.monotonic()


@needs_machines
def test_work_goes_on_after_the_disk_of_the_database_was_full(small_cluster: Cluster) -> None:
    began, server = begin(small_cluster), small_cluster.server
    filler = fill_disk(server.data)
    wait_for_errors(small_cluster)
    filler.unlink()
    if not server.is_running():
        server.start()
    check_goes_on(small_cluster, small_cluster.read_time(), began)


@needs_machines
def test_work_goes_on_after_the_server_had_no_connection_left(small_cluster: Cluster) -> None:
    began, server = begin(small_cluster), small_cluster.server
    with ExitStack() as connections:
        small_cluster.cable.refuse()
        with suppress(psycopg.OperationalError):
            while True:
                connections.enter_context(server.connect())
        small_cluster.cable.heal()
        wait_for_errors(small_cluster)
    check_goes_on(small_cluster, small_cluster.read_time(), began)


@needs_machines
def test_facts_that_an_asynchronous_standby_does_not_have_are_reported(tmp_path: Path) -> None:
    with Cluster(tmp_path, standby="asynchronous", pooled=False) as cluster:
        cluster.start_nodes(PACE)
        cluster.start_sessions(SESSIONS)
        cluster.wait_for_facts(SESSIONS * 6)
        assert cluster.standby is not None
        wait_slowly(cluster.standby.has_caught_up)
        cluster.replication_cable.cut()
        cluster.wait_for_facts(SESSIONS * 3)
        cluster.primary.kill()
        cluster.replication_cable.heal(lose=True)
        cluster.fail_over()
        wait_slowly(lambda: set(find_lost_facts(cluster)) <= list_reports(cluster))
        lost = set(find_lost_facts(cluster))
        print(f"facts were lost in {sorted(lost)}; reported: {sorted(list_reports(cluster))}")
        assert lost and list_reports(cluster) <= lost, "a false alarm"


def list_reports(cluster: Cluster) -> set[str]:
    """List the sessions of which a node said that they have lost facts."""
    reports = [" ".join(words) for words in cluster.notes.read("trouble")]
    return {report.split(" session ")[1].split()[0] for report in reports if "has lost facts: session" in report}


@pytest.mark.parametrize("lost", ["facts", "facts and claim", "claim"])
async def test_an_owner_is_told_that_the_database_has_lost_facts(
    postgres_server: PostgresServer, postgres_url: str, lost: str
) -> None:
    async with PostgresLog(postgres_url) as log:
        await log.create("s", [SessionCreated(session_id="s")])
        claim = await log.claim("me", 60, "s")
        assert claim is not None
        await log.append(claim, 1, [Custom(name="a.b"), Custom(name="a.c")])
        changes = {"facts": "head = 2", "claim": "owner = '', epoch = 0", "facts and claim": "head = 2, epoch = 0"}
        postgres_server.query(f"UPDATE treadle.sessions SET {changes[lost]}", database=postgres_url.rpartition("/")[2])
        with pytest.raises(StoreLostFacts, match="session s ends at"):
            await log.append(claim, 3, [Custom(name="a.d")])
