"""News between the nodes of a PostgreSQL log: wake-ups and live text, and what happens when they do not arrive."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress

import pytest

from tests.kit.postgres import needs_postgres
from treadle.events import (
    AgentConfig,
    Custom,
    Event,
    ModelReplied,
    OutputDelta,
    ReasoningDelta,
    SessionCreated,
    TextDelta,
    TurnStarted,
)
from treadle.log import postgres_wakeups
from treadle.log.base import Claim, Watch
from treadle.log.postgres import PostgresLog
from treadle.log.postgres_wakeups import LivePiece, NewsItem, encode_news

pytestmark = needs_postgres

Open = Callable[..., Awaitable[PostgresLog]]


@pytest.fixture
async def open_node(postgres_url: str) -> AsyncIterator[Open]:
    """Open the log once more, as another node does, and wait until it hears of the others."""
    logs: list[PostgresLog] = []

    async def open_node(url: str = "", *, listens: bool = True) -> PostgresLog:
        log = PostgresLog(url or postgres_url)
        logs.append(log)
        log._start()  # pyright: ignore
        if listens:
            await until(lambda: log._wakeups.is_listening)  # pyright: ignore
        return log

    yield open_node
    for log in logs:
        await log.close()


async def until(fact: Callable[[], object], seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not fact():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


class Screen:
    """What a watcher has seen: text as it grows, facts as their positions."""

    def __init__(self, watch: Watch) -> None:
        self.events: list[Event] = []
        self._watch, self._task = watch, asyncio.create_task(self._follow(watch))

    async def _follow(self, watch: Watch) -> None:
        async for event in watch:
            self.events.append(event)

    @property
    def text(self) -> str:
        """All live text, with each fact in square brackets."""
        return "".join(
            event.text
            if isinstance(event, TextDelta | ReasoningDelta | OutputDelta)
            else f"[{getattr(event, 'seq', '?')}]"
            for event in self.events
        )

    async def shows(self, text: str) -> None:
        with suppress(TimeoutError):
            await until(lambda: self.text == text, 20)
        assert self.text == text

    async def close(self) -> None:
        self._watch.close()
        await self._task


async def run_session(log: PostgresLog, name: str = "s") -> Claim:
    await log.create(name, [SessionCreated(session_id=name, agent=AgentConfig(name="agent"))])
    claim = await log.claim("me", 60, name)
    assert claim is not None
    return claim


def say(log: PostgresLog, *texts: str, after: int, name: str = "s") -> None:
    for text in texts:
        log.publish(name, TextDelta(text=text, after=after))


async def test_text_shows_on_other_nodes_in_order_and_before_its_reply(open_node: Open) -> None:
    owner, other = await open_node(), await open_node()
    claim = await run_session(owner)
    screen = Screen(other.watch("s"))
    await owner.append(claim, 1, [TurnStarted(turn=1)])
    await screen.shows("[1][2]")
    say(owner, "Hel", "lo ", after=2)
    await screen.shows("[1][2]Hello ")
    say(owner, "world", after=2)
    owner.publish("s", ReasoningDelta(text="hm", after=2))
    await owner.append(claim, 2, [ModelReplied(text="Hello world")])
    await screen.shows("[1][2]Hello worldhm[3]")


async def test_a_watcher_that_joins_in_the_middle_sees_the_text_so_far(open_node: Open) -> None:
    owner, other, third = await open_node(), await open_node(), await open_node()
    await run_session(owner)
    local = Screen(owner.watch("s"))
    early = Screen(other.watch("s"))
    await early.shows("[1]")
    long = "word " * 2000
    say(owner, "begin ", long, after=1)
    await early.shows(f"[1]begin {long}")
    late = Screen(third.watch("s"))
    await late.shows(f"[1]begin {long}")
    say(owner, "end", after=1)
    for screen in (late, early, local):
        await screen.shows(f"[1]begin {long}end")


async def test_text_that_nobody_watches_elsewhere_is_not_sent(open_node: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, other = await open_node(), await open_node()
    await run_session(owner)
    sent: list[NewsItem] = []

    def encode(node: str, at: float, items: Sequence[NewsItem]) -> list[str]:
        sent.extend(items)
        return encode_news(node, at, items)

    monkeypatch.setattr(postgres_wakeups, "encode_news", encode)
    watch = owner.watch("s")
    say(owner, "quiet", after=1)
    await owner.post("s", [Custom(name="n")])
    await until(lambda: sent)
    assert not [item for item in sent if isinstance(item, LivePiece)]
    screen = Screen(other.watch("s"))
    await screen.shows("[1][2]quiet")
    assert [item for item in sent if isinstance(item, LivePiece)]
    watch.close()
