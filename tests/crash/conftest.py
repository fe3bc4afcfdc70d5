"""Stores of every kind that processes can share. Failed invariants are shown with their values, as in a test."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from tests.crash.notes import Notes
from tests.kit.postgres import PostgresServer

pytest.register_assert_rewrite("tests.crash.invariants")
_numbers = count(1)


@pytest.fixture(params=["sqlite", "postgres"])
def make_notes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Notes]]:
    """Make a folder for notes with an empty store of its own."""
    with ExitStack() as databases:

        def make_notes() -> Notes:
            number, url = next(_numbers), ""
            if request.param == "postgres":
                server: PostgresServer = request.getfixturevalue("postgres_server")
                url = databases.enter_context(server.make_database(f"crash_{number}"))
            folder = tmp_path / str(number)
            folder.mkdir()
            return Notes(folder, url)

        yield make_notes


@pytest.fixture
def notes(make_notes: Callable[[], Notes]) -> Notes:
    return make_notes()
