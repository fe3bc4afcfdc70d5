"""Several nodes on one PostgreSQL log in one process, and what a watcher sees."""

import asyncio
from collections.abc import Callable
from typing import Self

from treadle.events import AgentConfig, Event, OutputDelta, ReasoningDelta, SessionCreated, TextDelta
from treadle.log.base import Claim, Watch
from treadle.log.postgres import PostgresLog


class Nodes:
    """Opens one log several times, and closes all in the end."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._logs: list[PostgresLog] = []
        self._screens: list[Screen] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for screen in self._screens:
            await screen.close()
        for log in self._logs:
            await log.close()

    async def open(self, url: str = "", *, listens: bool = True) -> PostgresLog:
        """Open the log as another node, and wait until it hears of the others."""
        log = PostgresLog(url or self.url)
        self._logs.append(log)
        log._start()  # pyright: ignore
        if listens:
            await until(lambda: log._wakeups.is_listening)  # pyright: ignore
        return log

    def watch(self, log: PostgresLog, after: int = 0, name: str = "s") -> "Screen":
        screen = Screen(log.watch(name, after))
        self._screens.append(screen)
        return screen


class Screen:
    """What a watcher has seen."""

    def __init__(self, watch: Watch) -> None:
        self.events: list[Event] = []
        self._watch, self._task = watch, asyncio.create_task(self._follow(watch))

    async def _follow(self, watch: Watch) -> None:
        async for event in watch:
            self.events.append(event)

    @property
    def text(self) -> str:
        """All live text, with each fact as its position in square brackets."""
        return "".join(
            event.text
            if isinstance(event, TextDelta | ReasoningDelta | OutputDelta)
            else f"[{getattr(event, 'seq', '?')}]"
            for event in self.events
        )

    async def shows(self, text: str) -> None:
        """Wait until it shows exactly this."""
        try:
            await until(lambda: self.text == text, 20)
        except TimeoutError:
            raise AssertionError(f"{self.text[:200]!r} is not {text[:200]!r}") from None

    async def close(self) -> None:
        self._watch.close()
        await self._task


async def until(fact: Callable[[], object], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not fact():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def run_session(log: PostgresLog, name: str = "s", owner: str = "me", ttl: float = 600) -> Claim:
    """Create a session, and claim it."""
    await log.create(name, [SessionCreated(session_id=name, agent=AgentConfig(name="agent"))])
    claim = await log.claim(owner, ttl, name)
    assert claim is not None
    return claim


def say(log: PostgresLog, *texts: str, after: int, name: str = "s") -> None:
    for text in texts:
        log.publish(name, TextDelta(text=text, after=after))
