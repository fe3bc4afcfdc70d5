"""The standby and the pooler that the other tests rely on are real."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.kit.pgbouncer import PgBouncer, needs_pgbouncer
from tests.kit.postgres import PostgresServer, needs_postgres
from tests.kit.processes import PATIENCE, wait_until
from tests.kit.standby import Standby, build_shared_url

pytestmark = needs_postgres


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    with PostgresServer(password="it's a secret") as server:
        server.query("CREATE TABLE kept (word text)")
        yield server


def keep(url: str, word: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO kept VALUES (%s)", [word])


def test_a_synchronous_standby_has_what_was_confirmed_when_it_takes_over(primary: PostgresServer) -> None:
    with Standby(primary, synchronous=True) as standby:
        url = build_shared_url([primary, standby])
        for number in range(50):
            keep(url, str(number))
        primary.kill()
        assert standby.is_following()
        standby.promote()
        keep(url, "after")
        assert standby.query("SELECT count(*) FROM kept") == [(51,)]


def test_a_commit_waits_for_a_synchronous_standby(primary: PostgresServer) -> None:
    with Standby(primary, synchronous=True) as standby, ThreadPoolExecutor() as threads:
        standby.freeze()
        commit = threads.submit(keep, primary.build_url(), "waits")
        wait_until(lambda: primary.query("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))
        assert standby.is_in_sync()
        assert not commit.done()
        standby.thaw()
        commit.result(PATIENCE)
        wait_until(standby.has_caught_up)
        assert standby.query("SELECT word FROM kept") == [("waits",)]


def test_an_asynchronous_standby_follows_and_promises_nothing(primary: PostgresServer) -> None:
    with Standby(primary) as standby:
        keep(primary.build_url(), "seen")
        wait_until(standby.has_caught_up)
        assert standby.query("SELECT word FROM kept") == [("seen",)]
        assert not standby.is_in_sync()
        standby.freeze()
        keep(primary.build_url(), "not waited for")
        assert not standby.has_caught_up()


@needs_pgbouncer
def test_a_pooler_gives_the_transactions_of_many_clients_few_connections(primary: PostgresServer) -> None:
    with PgBouncer(primary, pool_size=2) as pooler:
        clients = [psycopg.connect(pooler.build_url(), prepare_threshold=None) for _ in range(20)]
        for word, client in enumerate(clients):
            with client.transaction():
                client.execute("INSERT INTO kept VALUES (%s)", [str(word)])
        assert primary.query("SELECT count(*) FROM kept") == [(20,)]
        assert len(primary.query("SELECT 1 FROM pg_stat_activity WHERE client_port > 0")) <= 2
        with clients[0].transaction(), clients[1].transaction():
            clients[0].execute("SELECT 1")
            clients[1].execute("SELECT 1")
            assert sum(pool["sv_active"] for pool in pooler.query("SHOW POOLS") if pool["user"] == "treadle") == 2
        for client in clients:
            client.close()


@needs_pgbouncer
def test_a_pooler_in_transaction_mode_loses_prepared_statements(primary: PostgresServer) -> None:
    with PgBouncer(primary, pool_size=2) as pooler:
        clients = [psycopg.connect(pooler.build_url(), autocommit=True) for _ in range(3)]
        with pytest.raises(psycopg.ProgrammingError, match="prepared statement"):
            prepare_in_turn(clients)
        for client in clients:
            client.close()


def prepare_in_turn(clients: list[psycopg.Connection]) -> None:
    for client in clients * 20:
        client.execute("SELECT 1", prepare=True)


@needs_pgbouncer
def test_a_killed_pooler_ends_connections_and_comes_back(primary: PostgresServer) -> None:
    with PgBouncer(primary) as pooler:
        client = psycopg.connect(pooler.build_url())
        pooler.kill()
        with pytest.raises(psycopg.OperationalError):
            client.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(pooler.build_url())
        pooler.start()
        keep(pooler.build_url(), "again")
        client.close()


@needs_pgbouncer
def test_a_pooler_is_pointed_at_the_promoted_standby(primary: PostgresServer) -> None:
    with Standby(primary, synchronous=True) as standby, PgBouncer(primary) as pooler:
        keep(pooler.build_url(), "before")
        primary.kill()
        standby.promote()
        pooler.point_at(standby)
        keep(pooler.build_url(), "after")
        assert standby.query("SELECT word FROM kept") == [("before",), ("after",)]
