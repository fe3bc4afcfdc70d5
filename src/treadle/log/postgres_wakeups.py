"""News between the nodes of a PostgreSQL log: new facts, live text, and who watches what.

News are hints. They travel by NOTIFY, apart from the writes that they tell of, and may be lost or late. A poll every
two seconds finds the facts, so that nothing depends on news.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, TypeAlias

import msgspec
import psycopg
from msgspec import Struct

from treadle.errors import StoreError
from treadle.events import AnyDelta
from treadle.log.postgres_binary import BinaryConnection, pack_texts
from treadle.log.postgres_database import CONNECT_SECONDS, Database, build_conninfo, is_pooled, shut_down
from treadle.secrets.store_url import HIDDEN, hide_password

FLUSH_SECONDS = 0.01
"""News of so many seconds go into one message."""
POLL_SECONDS = 2.0
DEAF_POLL_SECONDS = 0.5
"""How often the database is asked while no news can be received."""
SILENCE_SECONDS = 5.0
"""After so many seconds without an answer the connections to the database count as dead."""
ALONE_SECONDS = 5.0
"""A node that has heard no other one for so long is alone, and sends only that it listens."""
MAX_PAYLOAD = 7900
_MAX_MESSAGES = 1000
"""How many messages are sent at once. What is more is dropped."""
_STUCK_SECONDS = 60
"""The server ends a connection that takes no news for so long. Otherwise its queue could fill."""
# Everybody who may connect to the database could listen to a channel with a known name, or write to it.
_NOTIFY = b"SELECT count(pg_notify($1::text, payload)) FROM unnest($2::text[]) AS payload"
_MAKE_SECRET = "INSERT INTO treadle.secrets VALUES ('news', %s) ON CONFLICT DO NOTHING"
_READ_SECRET = "SELECT value FROM treadle.secrets WHERE name = 'news'"

_logger = logging.getLogger("treadle")


class FactsStored(Struct, array_like=True, tag="facts"):
    """A session reaches the position `head`. With 0 it was deleted."""

    session_id: str
    head: int


class SessionsDue(Struct, array_like=True, tag="due"):
    """Sessions were left to whoever claims them first."""


class LiveWanted(Struct, array_like=True, tag="wanted"):
    """A session is watched on another node. `from_start` asks for the text so far of the reply under way."""

    session_id: str
    from_start: bool = False


class LivePiece(Struct, array_like=True, tag="live"):
    """A delta from the owner with that epoch. `at` is how many letters of text and reasoning came before it."""

    session_id: str
    epoch: int
    at: int
    delta: AnyDelta


class NodeListens(Struct, array_like=True, tag="listens"):
    """The sender hears news. It says so when it begins to listen and whenever it polls."""


NewsItem: TypeAlias = NodeListens | FactsStored | SessionsDue | LiveWanted | LivePiece


class _Message(Struct):
    """What travels."""

    node: str
    at: float
    items: list[msgspec.Raw]


_encoder = msgspec.json.Encoder()
_message_decoder = msgspec.json.Decoder(_Message)
_item_decoder: msgspec.json.Decoder[NewsItem] = msgspec.json.Decoder(NewsItem)


class LiveNews(Protocol):
    """The part of the news that is about live text."""

    def collect(self) -> list[NewsItem]:
        """Take what is to be sent."""
        ...

    def receive(self, item: LiveWanted | LivePiece) -> None:
        """Handle what another node sent."""
        ...

    def refresh(self, *, from_start: bool = False) -> None:
        """Tell the other nodes again what is watched here, and with `from_start`, ask for the text so far."""
        ...


def encode_news(node: str, at: float, items: Sequence[NewsItem]) -> list[str]:
    """Encode items as messages that NOTIFY can carry. An item that is too long for one is dropped."""
    head = b'{"node":"%s","at":%.6f,"items":[' % (node.encode(), at)
    messages: list[list[bytes]] = [[]]
    room = size = MAX_PAYLOAD - len(head) - 2
    for item in items:
        try:
            encoded = _encoder.encode(item)
        except ValueError:  # half of a letter
            continue
        if len(encoded) > room:
            continue
        if size < len(encoded) + 1:
            messages.append([])
            size = room
        messages[-1].append(encoded)
        size -= len(encoded) + 1
    return [(head + b",".join(message) + b"]}").decode() for message in messages if message]


def decode_news(payload: str) -> tuple[str, float, list[NewsItem]] | None:
    """Decode a message: who sent it, when by its own clock, and what. What is from a newer release is left out."""
    items: list[NewsItem] = []
    try:
        message = _message_decoder.decode(payload)
    except msgspec.MsgspecError:
        return None
    for raw in message.items:
        with suppress(msgspec.MsgspecError):
            items.append(_item_decoder.decode(raw))
    return message.node, message.at, items


class Wakeups:
    """Sends and receives news, and polls, from its first use until it is closed.

    `on_heads` gets sessions with their heads, and `on_due` is called when there is something to claim. `poll` asks the
    database for the same. `counters` gets `wakeup_lag`: how long the last message of this node took to the database and
    back.
    """

    def __init__(
        self,
        database: Database,
        live: LiveNews,
        on_heads: Callable[[Mapping[str, int]], None],
        on_due: Callable[[], None],
        poll: Callable[[], Awaitable[None]],
        counters: dict[str, float],
    ) -> None:
        self._database, self._live, self._poll = database, live, poll
        self._on_heads, self._on_due = on_heads, on_due
        self._counters = counters
        self._counters["wakeup_lag"] = DEAF_POLL_SECONDS
        self._node = os.urandom(6).hex()
        self._channel = ""
        self._heads: dict[str, int] = {}
        self._has_due = self._says_that_it_listens = False
        self._has_others_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0  # uvloop's timers of no time do not know it
        self._sending: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._listening: BinaryConnection | None = None
        self._is_unheard_since: float | None = None
        self._is_warned = False

    @property
    def is_listening(self) -> bool:
        """Whether news can be received now."""
        return self._listening is not None

    @property
    def is_alone(self) -> bool:
        """Whether no other node listens, as far as this one has heard."""
        return self.is_listening and time.monotonic() > self._has_others_until

    def tell(self, session_id: str, head: int) -> None:
        """Tell the other nodes soon that a session has facts up to `head`."""
        if not self.is_alone:
            self._heads[session_id] = head
            self.schedule(FLUSH_SECONDS)

    def tell_due(self) -> None:
        """Tell the other nodes soon that there is something to claim."""
        if not self.is_alone:
            self._has_due = True
            self.schedule(FLUSH_SECONDS)

    def schedule(self, seconds: float) -> None:
        """Send what there is in so many seconds, or earlier."""
        loop = asyncio.get_running_loop()
        due_at = loop.time() + seconds
        if self._timer is not None:
            if self._due_at <= due_at:
                return
            self._timer.cancel()
        self._timer, self._due_at = loop.call_later(seconds, self._flush), due_at

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

    # ── sending ────────────────────────────────────────────────────────────────────────────────────────

    def _flush(self) -> None:
        self._timer = None
        if self._sending is not None and not self._sending.done():  # the next message takes more
            self.schedule(FLUSH_SECONDS)
            return
        # Deltas come first: they were there before the facts that end their reply.
        items = [*self._live.collect(), *(FactsStored(*entry) for entry in self._heads.items())]
        if self._has_due:
            items.append(SessionsDue())
        if self.is_alone:
            items.clear()
        if self._says_that_it_listens:
            items.append(NodeListens())
        self._heads, self._has_due, self._says_that_it_listens = {}, False, False
        if items:
            self._sending = asyncio.create_task(self._send(items))

    async def _send(self, items: Sequence[NewsItem]) -> None:
        with suppress(StoreError):  # the others find the facts when they poll
            channel = await self._get_channel()
            payloads = encode_news(self._node, time.monotonic(), items)[:_MAX_MESSAGES]
            self._is_unheard_since = self._is_unheard_since or time.monotonic()
            values = (channel.encode(), pack_texts(payloads))
            await self._database.run(_NOTIFY, values, through=self._database.pool, patience=0)

    async def _get_channel(self) -> str:
        """Return the name of the channel, which only those know who can read the store."""
        if not self._channel:
            await self._database.execute(_MAKE_SECRET, (os.urandom(16),), patience=0)
            ((secret,),) = await self._database.fetch(_READ_SECRET, patience=0)
            self._channel = f"treadle_{bytes(secret).hex()}"
        return self._channel

    # ── receiving ──────────────────────────────────────────────────────────────────────────────────────

    async def _listen(self) -> None:
        while True:
            try:
                async with asyncio.timeout(4 * CONNECT_SECONDS):
                    connection = await BinaryConnection.connect(
                        build_conninfo(self._database.url.listen), autocommit=True
                    )
                async with connection:
                    if await is_pooled(connection):
                        self._warn_of_pooler()
                    else:
                        await self._receive_from(connection)
            except (psycopg.Error, OSError, TimeoutError, StoreError) as error:
                text = hide_password(str(error).replace(self._database.url.password or HIDDEN, HIDDEN))
                _logger.info("no news of other nodes can be received, so they are polled for: %s", text)
            except Exception:
                _logger.exception("news of another node could not be handled; listening begins anew")
            finally:
                self._listening = None
                self._counters["wakeup_lag"] = DEAF_POLL_SECONDS
            await asyncio.sleep(DEAF_POLL_SECONDS)

    async def _receive_from(self, connection: BinaryConnection) -> None:
        self._channel = ""  # a fail-over may have lost it, and the others may have another one now
        channel = await self._get_channel()
        await connection.execute(f"SET tcp_user_timeout = '{_STUCK_SECONDS}s'".encode())
        await connection.execute(f'LISTEN "{channel}"'.encode())
        self._listening, self._is_unheard_since = connection, None
        self._has_others_until = time.monotonic() + ALONE_SECONDS
        self._say_that_it_listens()
        self._live.refresh(from_start=True)
        await self._poll_quietly()  # what happened meanwhile
        while True:
            for payload in await connection.wait_for_notes():
                self._receive(payload)

    def _say_that_it_listens(self) -> None:
        self._says_that_it_listens = True
        self.schedule(0.0)

    def _warn_of_pooler(self) -> None:
        if not self._is_warned:
            self._is_warned = True
            _logger.warning(
                "%s goes through a pooler, which cannot pass on news of other nodes. New facts of other nodes show "
                "after half a second, and their live text does not show. Add listen=HOST:PORT with the address of the "
                "database itself to the URL of the store",
                self._database.url.shown,
            )

    def _receive(self, payload: str) -> None:
        decoded = decode_news(payload)
        if decoded is None:
            return
        node, at, items = decoded
        if node == self._node:
            self._is_unheard_since = None
            self._counters["wakeup_lag"] = max(0.0, time.monotonic() - at)
            return
        if self.is_alone:
            self._live.refresh()  # this node was alone, so the other one does not know what is watched here
        self._has_others_until = time.monotonic() + ALONE_SECONDS
        heads: dict[str, int] = {}
        for item in items:
            if isinstance(item, FactsStored):
                heads[item.session_id] = item.head
            elif isinstance(item, SessionsDue):
                self._on_due()
            elif not isinstance(item, NodeListens):
                self._live.receive(item)
        if heads:
            self._on_heads(heads)

    async def _keep_polling(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS if self.is_listening else DEAF_POLL_SECONDS)
            self._live.refresh()
            if self.is_listening:
                self._say_that_it_listens()
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
        try:
            await self._poll()
        except StoreError:  # it loses only a hint: the next read or write raises the error
            pass
        except Exception:
            _logger.exception("a poll of the database failed; the next one is made as usual")
