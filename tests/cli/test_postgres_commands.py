"""The commands on a store in PostgreSQL, as a user runs them. Its password is in the URL, and shows nowhere."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.fakes.chat import StrictChat
from tests.kit.pgbouncer import PgBouncer
from tests.kit.postgres import PostgresServer, needs_postgres
from tests.kit.terminal import Done, Place, call_tool, model_options
from treadle.messages import Reply

pytestmark = needs_postgres
PASSWORD = "p@ss-never-to-be-shown"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(durable=False, password=PASSWORD) as server:
        yield server


class Shell:
    """Runs commands on one store."""

    def __init__(self, place: Place, url: str) -> None:
        self._place, self.url = place, url

    async def __call__(self, *words: str, code: int = 0, url: str = "") -> Done:
        done = await self._place.quick(*words, "--store", url or self.url)
        text = done.out + done.err
        assert done.code == code, text
        assert PASSWORD not in text and "p%40ss" not in text and "Traceback" not in text
        return done


@pytest.fixture
def shell(place: Place, server: PostgresServer, request: pytest.FixtureRequest) -> Iterator[Shell]:
    with server.make_database(f"cli_{abs(hash(request.node.name))}") as url:
        yield Shell(place, url)


def find_store_line(done: Done) -> str:
    return next(line for line in done.out.splitlines() if line[2:].startswith("store"))


async def test_doctor_says_what_stands_before_the_database_and_changes_nothing(
    shell: Shell, server: PostgresServer
) -> None:
    options = ("doctor", "--model", "local")
    database = shell.url.rpartition("/")[2]
    line = find_store_line(await shell(*options))
    assert line.startswith("✓") and "PostgreSQL 1" in line and "treadle:***@" in line
    assert "without a pooler, LISTEN works, its clock differs by 0.0 s, tables are created at first use" in line
    assert server.query("SELECT to_regnamespace('treadle') IS NULL", database=database) == [(True,)]
    with PgBouncer(server) as pooler:
        pooled = shell.url.replace(f":{server.port}/", f":{pooler.port}/")
        done = await shell(*options, url=pooled)
        assert find_store_line(done).startswith("!") and "through a pooler, no LISTEN" in done.out
        assert "?listen=HOST:PORT" in done.out
        line = find_store_line(await shell(*options, url=f"{pooled}?listen=127.0.0.1:{server.port}"))
        assert line.startswith("✓") and "through a pooler, LISTEN works" in line
    done = await shell(*options, url=pooled, code=1)
    assert find_store_line(done).startswith("✗") and "cannot be used now" in done.out
    done = await shell(*options, url=shell.url.replace("p%40ss", "wrong"), code=1)
    assert "refuses the user" in done.out and "password authentication failed" in done.out
    done = await shell(*options, url=shell.url.replace(database, "no_such_database"), code=1)
    assert "no_such_database" in find_store_line(done) and "createdb" in done.out


async def test_a_task_waits_in_the_store_is_answered_and_goes_on(shell: Shell, place: Place) -> None:
    script = [call_tool("ask_user", question="Which?", options=["red", "blue"]), Reply(text="Blue.")]
    async with StrictChat(script) as fake:
        waiting = await shell(
            "run", "paint", "--name", "colours", *model_options(fake), "--ask-later", "--json", code=4
        )
        session = waiting.document["session_id"]
        assert "Which?  (red, blue)" in (await shell("approvals")).out
        assert "needs you" in (await shell("sessions", "list")).out
        await shell("approvals", "answer", session, "blue")
        done = await shell("sessions", "resume", "colours", *model_options(fake))
        assert done.out == "Blue.\n"
    assert "colours" in (await shell("sessions", "list")).out
    assert "Blue." in (await shell("sessions", "show", "last")).out
    assert "paint" in (await shell("sessions", "search", "paint")).out
    assert "Blue." in (await shell("sessions", "export", session)).out
    assert "Blue." in (await shell("attach", session)).out
    await shell("sessions", "rename", session, "painted")
    await shell("sessions", "fork", "painted")
    await shell("sessions", "delete", session, "--yes")
    assert session[:12] not in (await shell("sessions", "list")).out


async def test_memories_are_in_the_database(shell: Shell) -> None:
    added = (await shell("memory", "add", "Releases are cut on Mondays.")).out.strip()
    await shell("memory", "edit", added, "Releases are cut on Fridays.")
    assert "Fridays" in (await shell("memory", "search", "releases")).out
    assert added in (await shell("memory", "list")).out
    await shell("memory", "forget", added)
    assert added not in (await shell("memory", "list")).out


async def test_a_chat_is_followed_from_elsewhere_and_shows_no_password_to_other_users(
    shell: Shell, place: Place
) -> None:
    asked = call_tool("write_file", path="AGENTS.md", content="be kind\n")
    store = ("--store", shell.url)
    async with (
        StrictChat([asked, Reply(text="It is written."), Reply(text="You are welcome.")]) as fake,
        place.screen("chat", "--name", "job", *store, *model_options(fake)) as owner,
    ):
        await owner.until("What shall be done?")
        owner.type("write it\r")
        await owner.until("Esc stops the run")
        async with place.screen("attach", "job", *store) as other:
            await other.until("Ctrl-C leaves")
            await other.until("write_file wants to run")
            lines = await asyncio.to_thread(read_command_lines)
            assert any("postgresql://treadle:***@" in line for line in lines)
            assert not any(PASSWORD in line or "p%40ss" in line for line in lines)
            other.type("y")
            await other.until("It is written.")
            other.type("\x03")
            assert await other.end() == 0
        await owner.until("It is written.")
        owner.type("/quit\r")
        assert await owner.end() == 0
        assert PASSWORD not in owner.text + other.text and "p%40ss" not in owner.text + other.text


def read_command_lines() -> list[str]:
    """What other users of the machine see of all processes of treadle."""
    files = (path / "cmdline" for path in Path("/proc").iterdir() if path.name.isdigit())
    lines: list[str] = []
    for file in files:
        try:
            lines.append(file.read_bytes().decode(errors="replace"))
        except OSError:  # it has ended
            continue
    return [line for line in lines if "treadle" in line]


async def test_a_server_whose_database_is_away_says_so_in_one_line(shell: Shell, server: PostgresServer) -> None:
    away = shell.url.replace(f":{server.port}/", ":1/")
    done = await shell("serve", "--allow-root", "--port", "0", "--model", "local", code=1, url=away)
    assert done.err.count("\n") == 1 and "cannot be used now" in done.err and "Connection refused" in done.err
