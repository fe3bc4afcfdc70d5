"""A node of an older release beside a newer one, which stores a kind of fact that the older one cannot read."""

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.kit import sessions as kit
from tests.kit.postgres import needs_postgres
from treadle import Runtime
from treadle.cli.picker_rows import list_session_rows
from treadle.errors import StoreTooNew
from treadle.events import (
    AgentConfig,
    ApprovalRequested,
    Custom,
    Fact,
    Limits,
    MessageReceived,
    ModelReplied,
    RunStarted,
    SessionCreated,
    SessionMarked,
    TurnStarted,
)
from treadle.log import postgres_rows as rows
from treadle.log.base import Claim, Claimant, SessionInfo, SessionQuery
from treadle.log.postgres import PostgresLog
from treadle.messages import Call, TextPart
from treadle.server.first_words import FirstWords
from treadle.server.open_questions import OpenQuestions
from treadle.server.registry import Registry

pytestmark = needs_postgres


class DreamDreamt(Fact, frozen=True):
    """What only the next release knows."""

    of: str = "sheep"


@contextmanager
def newer_release() -> Iterator[None]:
    """Let this process write and claim as the next release does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "READER", rows.READER + 1)
        patch.setitem(rows._MIN_READERS, DreamDreamt, rows.READER)
        yield


async def dream(log: PostgresLog, session_id: str, *, wake: bool = True) -> None:
    """Post a fact of the next release."""
    with newer_release():
        await log.post(session_id, [DreamDreamt()], wake=wake)


def create(session_id: str) -> SessionCreated:
    return SessionCreated(session_id=session_id, agent=AgentConfig(name="agent"))


def write_message(text: str) -> MessageReceived:
    return MessageReceived(id=f"m-{text}", parts=(TextPart(text),))


@pytest.fixture
async def log(postgres_url: str) -> AsyncIterator[PostgresLog]:
    """A log with the session `s`, whose third fact is of the next release, and the ordinary session `t`."""
    async with PostgresLog(postgres_url) as opened:
        await opened.create("s", [create("s")])
        await opened.create("t", [create("t"), write_message("plain")])
        await opened.post("s", [write_message("hello")])
        await dream(opened, "s")
        await opened.post("s", [write_message("goodbye")])
        yield opened


# ── who runs it ──────────────────────────────────────────────────────────────────────────────────────────


async def test_only_a_node_that_knows_all_its_facts_claims_a_session(log: PostgresLog) -> None:
    assert await log.claim("old", 30) is None, "although it is due"
    assert await log.claim("old", 30, "s") is None
    posted = await log.post("s", [write_message("again")], claimant=Claimant("old", 30))
    assert posted.is_new and posted.claim is None, "a message is stored for whoever may run it"
    with newer_release():
        claim = await log.claim("new", 30)
    assert claim is not None and claim.session_id == "s"


async def test_a_session_that_its_owner_cannot_read_any_more_is_due_at_once_for_others(log: PostgresLog) -> None:
    claim = await log.claim("old", 30, "t")
    assert claim is not None
    await dream(log, "t", wake=False)
    assert await log.release(claim, None, wake_at=log.now() + 60)
    assert await log.claim("old", 30, "t") is None
    with newer_release():
        assert {(await log.claim("new", 30)).session_id for _ in range(2)} == {"s", "t"}


async def test_a_new_session_can_begin_with_a_newer_fact(log: PostgresLog) -> None:
    with newer_release():
        await log.create("u", [create("u"), DreamDreamt()])
        await log.post("u", [write_message("hello")])
    assert await log.claim("old", 30, "u") is None


# ── what can be seen of it ───────────────────────────────────────────────────────────────────────────────


async def test_reading_it_says_which_fact_needs_a_newer_release(log: PostgresLog) -> None:
    with pytest.raises(StoreTooNew, match=r"fact 3 was written by a newer treadle.*dream_dreamt.*Upgrade treadle"):
        await log.read("s")
    assert len(await log.read("s", limit=2)) == 2


async def test_a_watcher_gets_the_facts_before_it_and_then_the_error(log: PostgresLog) -> None:
    watch = log.watch("s")
    assert [type(await anext(watch)) for _ in range(2)] == [SessionCreated, MessageReceived]
    with pytest.raises(StoreTooNew, match="fact 3"):
        await anext(watch)


@pytest.mark.parametrize("after", range(6))
async def test_a_watcher_of_all_sessions_goes_on_past_it(log: PostgresLog, after: int) -> None:
    watch, seen = log.watch_all(after), list[tuple[int, str, int]]()
    async for stored in watch:
        seen.append((stored.cursor, stored.session_id, stored.fact.seq))
        if (stored.session_id, stored.fact.seq) == ("s", 4):
            watch.close()
    everything = [(1, "s", 1), (2, "t", 1), (3, "t", 2), (4, "s", 2), (6, "s", 4)]
    assert seen == [one for one in everything if one[0] > after]


async def test_a_watcher_of_all_sessions_waits_behind_it(log: PostgresLog, postgres_url: str) -> None:
    await dream(log, "s")
    watch = log.watch_all(6)
    waiting = asyncio.ensure_future(anext(watch))
    async with PostgresLog(postgres_url) as other:
        await dream(other, "t")
        await other.post("t", [Custom(name="later")])
    stored = await asyncio.wait_for(waiting, kit.PATIENCE)
    assert (stored.session_id, stored.fact.seq) == ("t", 4)
    watch.close()


async def test_a_channel_goes_on_past_it(log: PostgresLog, postgres_url: str) -> None:
    watch = log.watch("t", after=1)
    assert (await anext(watch)).seq == 2
    async with PostgresLog(postgres_url) as other:
        await dream(other, "t")
    with pytest.raises(StoreTooNew, match="fact 3"):
        await asyncio.wait_for(anext(watch), kit.PATIENCE)
    watch.close()


async def test_it_is_listed_searched_marked_and_deleted_as_others_are(log: PostgresLog) -> None:
    assert {info.id: info.seq for info in (await log.list_sessions(SessionQuery())).sessions} == {"s": 4, "t": 2}
    assert [(hit.session_id, hit.seq) for hit in await log.search("goodbye")] == [("s", 4)]
    await log.post("s", [SessionMarked(archived=True)], wake=False)
    assert (await log.get_info("s")).archived
    await log.delete("s")
    assert [info.id for info in (await log.list_sessions(SessionQuery())).sessions] == ["t"]


async def test_lists_show_it_without_what_needs_its_facts(log: PostgresLog) -> None:
    with newer_release():
        claim = await log.claim("new", 30, "s")
    assert claim is not None
    assert await log.release(claim, 4, waiting=True)
    info: SessionInfo = await log.get_info("s")
    assert info.status == "waiting"
    assert await OpenQuestions().find(log, info) == []
    assert await FirstWords().find(log, info) == ""
    assert {row.value: row.label for row in await list_session_rows(log)} == {"s": "session s", "t": "plain"}
    agent, _ = kit.build_agent()
    async with Runtime(log, [agent], recover=False) as runtime:
        assert (await Registry().summarize_session(runtime, info)).session_id == "s"


# ── a run that gets one ──────────────────────────────────────────────────────────────────────────────────


class CountingLog(PostgresLog):
    """Counts what an owner does."""

    releases = 0
    attempts = 0

    async def release(self, *args: Any, **options: Any) -> bool:
        self.releases += 1
        return await super().release(*args, **options)

    async def claim(self, *args: Any, **options: Any) -> Claim | None:
        self.attempts += 1
        return await super().claim(*args, **options)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(kit.PATIENCE):
        while not condition():  # noqa: ASYNC110 - counters have no events
            await asyncio.sleep(0.01)


async def test_an_owner_gives_a_session_back_that_gets_a_newer_fact(postgres_url: str) -> None:
    """It stops what it does, releases the session once, and leaves it alone."""
    held = kit.HeldTool()
    async with CountingLog(postgres_url) as log, held.open_session(log, "done") as session:
        waiting = asyncio.ensure_future(kit.resume_run(session))
        await dream(log, session.id)
        with pytest.raises(StoreTooNew, match="was written by a newer treadle"):
            await asyncio.wait_for(waiting, kit.PATIENCE)
        await until(lambda: held.ends == 1)  # the tool was stopped
        await until(lambda: log.releases == 1)
        assert (await log.get_info(session.id)).status == "running"
        before = log.attempts
        async with Runtime(log, [held.agent]):
            await until(lambda: log.attempts >= before + 3)  # it looks for work every second
        assert log.releases == 1
        with pytest.raises(StoreTooNew, match="was written by a newer treadle"):
            await kit.resume_run(session)
        with newer_release():
            claim = await log.claim("new", 30)
        assert claim is not None and claim.session_id == session.id


# ── the command line ─────────────────────────────────────────────────────────────────────────────────────


async def run_treadle(*arguments: str) -> tuple[int, str, str]:
    command = (sys.executable, "-m", "treadle", *arguments)
    child = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, stdin=DEVNULL)
    out, err = await asyncio.wait_for(child.communicate(), kit.PATIENCE)
    assert child.returncode is not None
    return child.returncode, out.decode(), err.decode()


async def test_commands_go_on_past_a_session_that_only_a_newer_release_can_read(
    log: PostgresLog, postgres_url: str
) -> None:
    turn = TurnStarted(turn=1)
    reply = ModelReplied(calls=(Call("c", "drop"),), finish="calls")
    asked = ApprovalRequested(call_id="c", tool="drop", arguments={"table": "users"}, safety="destructive", why="test")
    await log.create("u", [create("u"), RunStarted(run_id="r", limits=Limits()), turn, reply, asked])
    for session_id, seq in (("s", 4), ("u", 5)):
        with newer_release():
            claim = await log.claim("new", 30, session_id)
        assert claim is not None
        assert await log.release(claim, seq, waiting=True)
    code, out, err = await run_treadle("approvals", "list", "--store", postgres_url)
    assert (code, "drop" in out) == (0, True), (out, err)
    assert "session s is left out: fact 3 was written by a newer treadle" in err
    code, out, err = await run_treadle("sessions", "list", "--store", postgres_url)
    assert code == 0 and len(out.splitlines()) >= 3, (out, err)
    code, out, err = await run_treadle("sessions", "show", "s", "--store", postgres_url)
    assert code == 1
    assert "fact 3 was written by a newer treadle" in err and "Traceback" not in err
