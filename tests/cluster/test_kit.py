"""The servers and faults that the other tests rely on are real."""

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.kit.postgres import PostgresServer, needs_postgres
from tests.kit.processes import read_state, wait_until

pytestmark = needs_postgres

PROJECT = Path(__file__).parents[2]
# Starts a server, tells its process and its folder, and waits to be killed.
ABANDON = """
from tests.kit.postgres import PostgresServer
server = PostgresServer()
server.start()
print(server.process.pid, server.folder, flush=True)
input()
"""


def test_a_database_is_empty_and_reached_by_its_url(postgres_server: PostgresServer, postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        tables = "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'"
        assert connection.execute(tables).fetchone() == (0,)
        connection.execute("CREATE TABLE kept (word text)")
    name = postgres_url.rpartition("/")[2]
    assert postgres_server.query("SELECT count(*) FROM kept", database=name) == [(0,)]


def test_a_database_orders_words_as_a_dictionary_does(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        rows = connection.execute("SELECT word FROM (VALUES ('B'), ('a')) AS words (word) ORDER BY word").fetchall()
    assert rows == [("a",), ("B",)]


def test_a_server_does_not_run_as_root(postgres_server: PostgresServer) -> None:
    assert Path(f"/proc/{postgres_server.process.pid}").stat().st_uid != 0


def test_a_server_keeps_its_data_when_it_is_killed() -> None:
    with PostgresServer() as server:
        server.query("CREATE TABLE kept (word text)")
        server.query("INSERT INTO kept VALUES ('safe')")
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(server.build_url())
        server.start()
        assert server.query("SELECT word FROM kept") == [("safe",)]
        assert "was not properly shut down" in server.read_log()


def test_a_frozen_server_takes_connections_and_does_not_answer() -> None:
    with PostgresServer() as server, server.connect() as connection:
        server.freeze()
        with pytest.raises(psycopg.OperationalError, match="timeout"):
            psycopg.connect(server.build_url(), connect_timeout=2)
        server.thaw()
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_server_with_a_password_refuses_another() -> None:
    with PostgresServer(password="it's a secret") as server:
        psycopg.connect(server.build_url()).close()
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(server.build_url().replace("secret", "guess"))


def test_a_server_ends_with_the_tests_that_started_it() -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", ABANDON],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    pid, folder = owner.stdout.readline().split()
    assert read_state(int(pid)) != ""
    owner.kill()
    owner.communicate()
    wait_until(lambda: read_state(int(pid)) in ("", "Z") and not Path(folder).exists())
