"""One PostgreSQL for all tests of a process, started when the first test needs it, and an empty database for each."""

import os
import subprocess
from collections.abc import Iterator
from itertools import count

import pytest

from tests.kit.postgres import PostgresServer, require_postgres
from treadle.tools.files.ripgrep import find_ripgrep

_numbers = count(1)


@pytest.fixture(scope="session")
def postgres_server(no_test_leaves_a_secret_behind: None) -> Iterator[PostgresServer]:
    """A server for tests of logic. Tests that stop or break a server start their own."""
    require_postgres()
    with PostgresServer(durable=False) as server:
        yield server
        server.stop()
        assert find_secret(server) == "", "a secret of the environment was written down"


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of an empty database, which is dropped after the test."""
    with postgres_server.make_database(f"test_{next(_numbers)}") as url:
        yield url


def find_secret(server: PostgresServer) -> str:
    """Look for the secret of the environment in all that a server has stored. The write-ahead log still has most of
    what was dropped.
    """
    search = [find_ripgrep(), "--no-config", "-uuu", "--text", "-l", "-F", os.environ["SOME_SERVICE_TOKEN"]]
    found = subprocess.run([*search, str(server.folder)], stdout=subprocess.PIPE, text=True, check=False)
    return found.stdout
