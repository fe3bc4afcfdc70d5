"""Which sessions are old enough to be deleted, and how a server deletes them by itself."""

import asyncio
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.kit.serve_process import start_server
from tests.log.conftest import Clock, Make, claim
from treadle.app.settings import Settings, parse_age
from treadle.app.store_care import find_old_sessions, prune_sessions
from treadle.errors import BadInput, NotFound
from treadle.events import Limits, Parent, RunFinished, RunStarted, SessionCreated, SessionRenamed
from treadle.log.base import RESPONSES_AGENT, Log, SessionQuery
from treadle.log.in_memory import InMemoryLog
from treadle.log.sqlite import SqliteLog

PATIENCE = 60.0


async def fill(log: Log, clock: Clock) -> None:
    """Sessions of every kind that last changed at 1000, and one of them at 2000."""
    await log.create("plain", [Make.created("plain")])
    await log.create("auto", [Make.created("auto"), SessionRenamed(name="a", by="auto")])
    await log.create("named", [Make.created("named"), SessionRenamed(name="mine")])
    await log.create("responses", [Make.created("responses", RESPONSES_AGENT)])
    for name, starter in (
        ("helper-of-plain", "plain"),
        ("helper-of-named", "named"),
        ("helper-of-gone", "gone"),
        ("helper-of-fresh", "fresh"),
    ):
        await log.create(name, [SessionCreated(session_id=name, parent=Parent(session_id=starter, seq=1, call_id="c"))])
    await log.create(
        "fork-of-named", [SessionCreated(session_id="fork-of-named", parent=Parent(session_id="named", seq=1))]
    )
    await log.create("woken", [Make.created("woken")])
    await log.post("woken", [Make.message("do it")])
    for name, waiting in (("running", False), ("waiting", True)):
        await log.create(name, [Make.created(name)])
        mine = await claim(log, name)
        await log.append(mine, 1, [RunStarted(run_id="r", limits=Limits())])
        if waiting:
            await log.release(mine, 2, waiting=True)
    await log.create("ended", [Make.created("ended")])
    mine = await claim(log, "ended")
    await log.append(mine, 1, [RunStarted(run_id="r", limits=Limits()), RunFinished(run_id="r", reason="answered")])
    await log.release(mine, 3)
    clock.now = 2000.0
    await log.create("fresh", [Make.created("fresh")])


@pytest.fixture(params=["memory", "sqlite"])
async def log(request: pytest.FixtureRequest, tmp_path: Path):
    clock = Clock()
    opened: Log = InMemoryLog(clock=clock) if request.param == "memory" else SqliteLog(tmp_path / "s.db", clock=clock)
    await fill(opened, clock)
    yield opened
    await opened.close()


async def test_only_sessions_that_ended_long_ago_are_deleted_and_helpers_go_with_their_session(log: Log) -> None:
    old = await find_old_sessions(log, 1500.0, keep_named=False)
    gone = {"plain", "auto", "named", "responses", "fork-of-named", "ended"}
    assert {info.id for info in old} == gone | {"helper-of-plain", "helper-of-named", "helper-of-gone"}
    assert len(await prune_sessions(log, old)) == 9
    left = {info.id async for info in log.iterate_sessions(SessionQuery())}
    assert left == {"woken", "running", "waiting", "fresh", "helper-of-fresh"}
    with pytest.raises(NotFound):
        await log.get_info("responses")


async def test_sessions_that_a_user_named_can_be_kept_with_their_helpers(log: Log) -> None:
    old = {info.id for info in await find_old_sessions(log, 1500.0, keep_named=True)}
    assert not old & {"named", "helper-of-named"} and {"auto", "plain", "fork-of-named"} <= old


async def test_a_session_that_changed_since_it_was_found_is_not_deleted(log: Log) -> None:
    old = await find_old_sessions(log, 1500.0, keep_named=False)
    await log.post("plain", Make.notes("go on"), wake=False)
    assert "plain" not in {info.id for info in await prune_sessions(log, old)}
    assert (await log.get_info("plain")).seq == 2


@pytest.mark.parametrize(("text", "seconds"), [("12h", 43200), ("90d", 7776000), (" 2w ", 1209600)])
def test_an_age_is_a_number_of_hours_days_or_weeks(text: str, seconds: float) -> None:
    assert parse_age(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "d", "-1d", "0d", "1.5d", "90 days", "9999999d"])
def test_what_is_no_age_is_bad_input(text: str) -> None:
    with pytest.raises(BadInput, match="not an age"):
        parse_age(text)
    if text:
        with pytest.raises(BadInput, match="not an age"):
            Settings(retention=text)


async def test_a_server_deletes_old_sessions_by_itself_and_keeps_those_with_a_name(tmp_path: Path) -> None:
    clock = Clock(time.time() - 100 * 86400)
    async with SqliteLog(tmp_path / "store.db", clock=clock) as log:
        await log.create("old", [Make.created("old")])
        await log.create("named", [Make.created("named"), SessionRenamed(name="mine")])
        clock.now = time.time()
        await log.create("new", [Make.created("new")])
    config = tmp_path / "config.toml"
    config.write_text('retention = "90d"\n')
    async with start_server(tmp_path, None, "--config", str(config)), SqliteLog(tmp_path / "store.db") as log:
        with suppress(NotFound):  # it is already deleted
            async with asyncio.timeout(PATIENCE):
                async for _ in log.watch("old"):  # this ends when it is deleted
                    pass
        assert {info.id async for info in log.iterate_sessions(SessionQuery())} == {"named", "new"}
