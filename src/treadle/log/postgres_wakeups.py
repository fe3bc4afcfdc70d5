"""News between the nodes of a PostgreSQL log: that a session has new facts, and who is alive.

News are hints. They travel by NOTIFY, apart from the writes that they tell of, and may be lost or late. A poll every
two seconds finds the same, so that nothing depends on them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec
import psycopg
from msgspec import Struct

from treadle.errors import StoreError
from treadle.log.postgres_database import CONNECT_SECONDS, Database, Row, build_conninfo, shut_down

FLUSH_SECONDS = 0.01
"""News of so many seconds go into one message."""
POLL_SECONDS = 2.0
DEAF_POLL_SECONDS = 0.5
"""How often the database is asked while no news can be received."""
SILENCE_SECONDS = 5.0
"""After so many seconds without an answer the connections to the database count as dead."""
MAX_PAYLOAD = 7900
CHANNEL = "treadle"

_logger = logging.getLogger("treadle")


class News(Struct, omit_defaults=True):
    """One message: who sent it and when, and the heads of sessions that got facts."""

    node: str
    at: float
    heads: dict[str, int] = {}


_decoder = msgspec.json.Decoder(News)


class Wakeups:
    """Sends and receives news, and polls, from its first use until it is closed.

    `on_heads` gets sessions with their heads, `poll` asks the database for the same. `now` is the time of the store.
    """

    def __init__(
        self,
        database: Database,
        on_heads: Callable[[dict[str, int]], None],
        poll: Callable[[], Awaitable[None]],
        now: Callable[[], float],
    ) -> None:
        self._database, self._on_heads, self._poll, self._now = database, on_heads, poll, now
        self.node = os.urandom(6).hex()
        self.lag = 0.0
        self._heads: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._listening: psycopg.AsyncConnection[Row] | None = None
        self._is_unheard_since: float | None = None

    @property
    def is_listening(self) -> bool:
        """Whether news can be received now."""
        return self._listening is not None

    def tell(self, session_id: str, head: int) -> None:
        """Tell the other nodes soon that a session has facts up to `head`."""
        self._heads[session_id] = head
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush)

    def start(self) -> None:
        """Begin to receive news and to poll."""
        if not self._tasks and not self._database.is_closed:
            self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._keep_polling())]

    async def close(self) -> None:
        """Stop. News that were not sent yet are sent."""
        if self._timer is not None:
            self._timer.cancel()
            self._flush()
        if self._sending is not None:
            await asyncio.wait((self._sending,), timeout=1.0)
        tasks = [*self._tasks, *filter(None, (self._sending,))]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _flush(self) -> None:
        self._timer = None
        if self._sending is not None and not self._sending.done():  # the next message takes more
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush)
            return
        heads, self._heads = self._heads, {}
        self._sending = asyncio.create_task(self._send(heads))

    async def _send(self, heads: dict[str, int]) -> None:
        names = list(heads)
        per_message = MAX_PAYLOAD // (max(map(len, names)) + 16)
        with suppress(StoreError):  # the others find the facts when they poll
            for start in range(0, len(names), per_message):
                some = {name: heads[name] for name in names[start : start + per_message]}
                payload = msgspec.json.encode(News(self.node, self._now(), some)).decode()
                self._is_unheard_since = self._is_unheard_since or time.monotonic()
                await self._database.execute("SELECT pg_notify(%s, %s)", (CHANNEL, payload), patience=0)

    async def _listen(self) -> None:
        while True:
            try:
                async with asyncio.timeout(4 * CONNECT_SECONDS):
                    connection = await psycopg.AsyncConnection.connect(
                        build_conninfo(self._database.url.listen), autocommit=True
                    )
                async with connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    self._listening, self._is_unheard_since = connection, None
                    await self._poll_quietly()  # what happened meanwhile
                    async for note in connection.notifies():
                        self._receive(note.payload)
            except (psycopg.Error, OSError, TimeoutError) as error:
                _logger.info("no news of other nodes can be received, so they are polled for: %s", error)
            finally:
                self._listening = None
            await asyncio.sleep(DEAF_POLL_SECONDS)

    def _receive(self, payload: str) -> None:
        try:
            news = _decoder.decode(payload)
        except msgspec.MsgspecError:  # from a newer release
            return
        if news.node == self.node:
            self._is_unheard_since = None
        else:
            self.lag = max(0.0, self._now() - news.at)
            self._on_heads(news.heads)

    async def _keep_polling(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS if self.is_listening else DEAF_POLL_SECONDS)
            unheard = self._is_unheard_since
            if self._listening is not None and unheard is not None and time.monotonic() - unheard > SILENCE_SECONDS:
                shut_down(self._listening)  # it does not even hear this node
            polling = asyncio.ensure_future(self._poll_quietly())
            _, late = await asyncio.wait((polling,), timeout=SILENCE_SECONDS)
            if late:
                self._database.cut()
                if self._listening is not None:
                    shut_down(self._listening)
                await polling

    async def _poll_quietly(self) -> None:
        with suppress(StoreError):  # a failure loses only a hint: the next read or write raises the error
            await self._poll()
