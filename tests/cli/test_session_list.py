"""`treadle sessions list`: helpers stand below the session that started them, at every width."""

import json

import pytest

from tests.kit.terminal import Place
from treadle.events import AgentConfig, Parent, SessionCreated, SessionRenamed
from treadle.log.sqlite import SqliteLog

MAIN, TESTS, READER, DOCS, FORK, OLD = (letter * 32 for letter in "123456")
SESSIONS = {
    OLD: ("default", "upgrade the store to version 9 without losing any of the sessions in it", None),
    MAIN: ("default", "fix token counting", None),
    TESTS: ("tests", "six cases for 日本語, Korean and emoji", Parent(MAIN, 1, "call_1")),
    READER: ("reader", "look for the emoji", Parent(TESTS, 1, "call_1")),
    DOCS: ("docs", "where the count comes from", Parent(MAIN, 1, "call_2")),
    FORK: ("default", "another try", Parent(MAIN, 1)),
}


@pytest.fixture
async def store(place: Place) -> str:
    log = SqliteLog(place.home / "store.db")
    for at, (session_id, (agent, name, parent)) in enumerate(SESSIONS.items()):
        created = SessionCreated(session_id=session_id, agent=AgentConfig(name=agent), workspace="/w", parent=parent)
        await log.create(session_id, [created, SessionRenamed(name=name, by="auto", at=1e9 + at)])
    await log.close()
    return str(place.home / "store.db")


async def test_helpers_stand_below_their_session_and_forks_do_not(place: Place, store: str) -> None:
    done = await place.quick("sessions", "list", "--store", store)
    head, *lines = done.out.splitlines()
    assert head.split() == ["session", "status", "name", "age", "cost", "turns", "workspace"]
    assert [line[:12] for line in lines] == [one[:12] for one in (FORK, MAIN, TESTS, READER, DOCS, OLD)]
    assert "  | tests: six cases" in lines[2] and "  | ` reader: look" in lines[3] and "  ` docs: where" in lines[4]
    assert done.out.isascii() is False and all(line.endswith("/w") for line in lines)


async def test_the_limit_counts_sessions_without_their_helpers(place: Place, store: str) -> None:
    done = await place.quick("sessions", "list", "--store", store, "--limit", "2")
    assert [line[:12] for line in done.out.splitlines()[1:]] == [one[:12] for one in (FORK, MAIN, TESTS, READER, DOCS)]
    assert "there are more; --limit 8" in done.err
    done = await place.quick("sessions", "list", "--store", store, "--limit", "2", "--status", "idle", "--json")
    assert [json.loads(line)["id"] for line in done.out.splitlines()] == [FORK, DOCS]


@pytest.mark.parametrize("columns", [60, 80, 100])
async def test_the_list_fits_the_terminal(place: Place, store: str, columns: int) -> None:
    program = f"""\
import sys, termios
termios.tcsetwinsize(1, (40, {columns}))
from treadle.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
    async with place.screen("sessions", "list", "--store", store, program=program) as screen:
        assert await screen.end() == 0
    rows = screen.text.splitlines()
    assert len(rows) == 1 + len(SESSIONS), screen.text
    assert [row for row in rows if len(row) > columns] == []
    assert "├ tests: six cases" in screen.text
    assert "│ └ reader: look" in screen.text and "└ docs: where" in screen.text
    assert ("cost" in rows[0], "workspace" in rows[0]) == (columns >= 80, columns >= 100)
