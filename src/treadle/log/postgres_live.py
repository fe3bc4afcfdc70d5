"""What other nodes write, for those who watch here: facts, which are never missing, and live text, which may be.

The owner sends deltas only while somebody watches elsewhere. Each piece of text says how many letters came before it,
so that a receiver drops what it has, notices what it missed, and asks for the text so far.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeGuard

from msgspec import Struct
from msgspec.structs import replace

from treadle.errors import NotFound, StoreError
from treadle.events import AnyDelta, CallDelta, OutputDelta, ReasoningDelta, TextDelta
from treadle.log.hub import Channel, Hub, join_deltas
from treadle.log.postgres_wakeups import LivePiece, LiveWanted, NewsItem

LIVE_SECONDS = 0.02
"""Deltas of so many seconds are joined and sent together."""
ASK_SECONDS = 0.01
REFRESH_SECONDS = 4.0
INTEREST_SECONDS = 15.0
"""A node that did not say for so long that it watches a session does not watch it."""
ASK_AGAIN_SECONDS = 1.0
"""How long a node waits before it asks again for text that it missed."""
HOLD_SECONDS = 0.02
"""How soon pieces are tried again whose facts were not here."""
MAX_HOLD_SECONDS = 5.0
MAX_PIECE = 1200
"""Letters in one piece. JSON may need six bytes for a letter, and a message has room for 7900."""
MAX_SO_FAR = 200_000
"""Letters of a reply that are sent again at most. A longer one shows on other nodes when it is stored."""
MAX_PENDING = 500_000
MAX_HELD = 200
MAX_WANTED = 50_000


class _Sent(Struct):
    """A session that others watch: until when they do, and how much text after `after` was sent."""

    until: float
    after: int = -1
    count: int = 0


class _Shown(Struct, eq=False):
    """A session of another node that is watched here: whose text is shown, and how much of that after `after`."""

    channel: Channel
    epoch: int = 0
    after: int = -1
    count: int = 0
    held: list[LivePiece] = []
    held_at: float = 0.0
    asked_at: float = 0.0
    asks_again: bool = False


def _is_text(delta: AnyDelta) -> TypeGuard[TextDelta | ReasoningDelta]:
    return isinstance(delta, TextDelta | ReasoningDelta)


def join_two(first: AnyDelta, second: AnyDelta) -> AnyDelta | None:
    """Join a delta with the next one, or return None when they are not of the same text."""
    if first.after != second.after:
        return None
    match first, second:
        case TextDelta(), TextDelta():
            return replace(first, text=first.text + second.text, logprobs=(*first.logprobs, *second.logprobs))
        case ReasoningDelta(), ReasoningDelta():
            return replace(first, text=first.text + second.text)
        case OutputDelta(), OutputDelta() if first.call_id == second.call_id:
            return replace(first, text=first.text + second.text)
        case CallDelta(), CallDelta() if first.index == second.index and not second.tool:
            return replace(first, arguments=first.arguments + second.arguments)
        case _:
            return None


def split_piece(piece: LivePiece) -> list[LivePiece]:
    """Split a piece whose text is too long for one message."""
    delta = piece.delta
    if not isinstance(delta, TextDelta | ReasoningDelta | OutputDelta) or len(delta.text) <= MAX_PIECE:
        return [piece]
    if isinstance(delta, TextDelta):
        delta = replace(delta, logprobs=())  # they belong to the whole
    step = 1 if _is_text(delta) else 0
    starts = range(0, len(delta.text), MAX_PIECE)
    return [
        replace(piece, at=piece.at + start * step, delta=replace(delta, text=delta.text[start : start + MAX_PIECE]))
        for start in starts
    ]


class FactUpdates:
    """Shows the facts of other nodes to those who watch or run their sessions here.

    `on_change` is called for a session that runs here.
    """

    def __init__(self, hub: Hub, on_change: Callable[[str], None]) -> None:
        self._hub, self._on_change = hub, on_change
        self._goals: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, heads: Mapping[str, int]) -> None:
        """Handle sessions with their heads. One with 0 was deleted."""
        self._hub.wake_store_waiters()
        for session_id, head in heads.items():
            channel = self._hub.channels.get(session_id)
            if channel is None:
                continue
            if not head:
                self._hub.end_session(session_id)
            elif session_id in self._goals:
                self._goals[session_id] = max(head, self._goals[session_id])
            elif head > channel.head:
                self._goals[session_id] = head
                task = asyncio.create_task(self._update(session_id))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Show nothing more."""
        for task in self._tasks:
            task.cancel()

    async def _update(self, session_id: str) -> None:
        try:
            while (channel := self._hub.channels.get(session_id)) and (head := self._goals[session_id]) > channel.head:
                if channel.watchers and head - channel.head <= self._hub.ring:
                    with suppress(StoreError, NotFound):  # the watcher that reads gets the error
                        facts = await self._hub.read(session_id, channel.head, self._hub.ring)
                        channel.add_facts(facts, from_owner=False)
                channel.advance_head(head)
                if channel.epoch:
                    self._on_change(session_id)
        finally:
            del self._goals[session_id]


class LiveText:
    """Sends and receives deltas for one log.

    `need_facts` gets the positions that a delta follows and nobody has here. `send_soon` is told in how many seconds to
    collect what is to be sent.
    """

    def __init__(
        self, hub: Hub, need_facts: Callable[[Mapping[str, int]], None], send_soon: Callable[[float], None]
    ) -> None:
        self._hub, self._need_facts, self._send_soon = hub, need_facts, send_soon
        self._sent: dict[str, _Sent] = {}
        self._pending: dict[str, list[LivePiece]] = {}
        self._pending_size = 0
        self._shown: dict[str, _Shown] = {}
        self._wanted: dict[str, bool] = {}
        self._refreshed_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def collect(self) -> list[NewsItem]:
        """Take what is to be sent."""
        wanted, self._wanted = self._wanted, {}
        pending, self._pending, self._pending_size = self._pending, {}, 0
        items: list[NewsItem] = [LiveWanted(name, from_start) for name, from_start in wanted.items()]
        for pieces in pending.values():
            for piece in pieces:
                items += split_piece(piece)
        return items

    def receive(self, item: LiveWanted | LivePiece) -> None:
        """Handle what another node sent."""
        if isinstance(item, LiveWanted):
            self._note_wanted(item)
        else:
            self._receive_piece(item)

    def refresh(self, *, from_start: bool = False) -> None:
        """Tell the other nodes again what is watched here, and with `from_start`, ask for the text so far."""
        now = time.monotonic()
        if not from_start and now - self._refreshed_at < REFRESH_SECONDS:
            return
        self._refreshed_at = now
        for name, sent in tuple(self._sent.items()):
            if sent.until < now:
                del self._sent[name]
        for name, shown in tuple(self._shown.items()):
            if self._hub.channels.get(name) is not shown.channel:
                del self._shown[name]
        for name, channel in self._hub.channels.items():
            if channel.watchers and not channel.epoch:
                self._wanted[name] = self._wanted.get(name, False) or from_start
        if self._wanted:
            self._send_soon(ASK_SECONDS)

    def close(self) -> None:
        """Show nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    # ── what we run ────────────────────────────────────────────────────────────────────────────────────

    def send(self, session_id: str, delta: AnyDelta) -> None:
        """Send a delta of a session that runs here, if somebody watches it elsewhere."""
        sent = self._sent.get(session_id)
        channel = self._hub.channels.get(session_id)
        if sent is None or channel is None or not channel.epoch or sent.until < time.monotonic():
            return
        at = 0
        if _is_text(delta):
            if delta.after != sent.after:
                sent.after, sent.count = delta.after, 0
            at = sent.count
            sent.count += len(delta.text)
        if self._pending_size > MAX_PENDING:  # the receivers notice, and ask
            return
        self._pending_size += len(delta.text) if isinstance(delta, TextDelta | ReasoningDelta | OutputDelta) else 100
        pieces = self._pending.setdefault(session_id, [])
        joined = join_two(pieces[-1].delta, delta) if pieces and pieces[-1].epoch == channel.epoch else None
        if joined is not None:
            pieces[-1] = replace(pieces[-1], delta=joined)
        else:
            pieces.append(LivePiece(session_id, channel.epoch, at, delta))
        self._send_soon(LIVE_SECONDS)

    def take_over(self, session_id: str) -> None:
        """Note that this node runs a session now. Whoever watches it here saw the beginning of another reply."""
        shown = self._shown.pop(session_id, None)
        if shown is not None and shown.count and not shown.channel.ended > shown.after:
            shown.channel.tear_live(shown.after)

    def _note_wanted(self, item: LiveWanted) -> None:
        name, now = item.session_id, time.monotonic()
        sent = self._sent.get(name)
        if sent is not None and sent.until >= now and not item.from_start:
            sent.until = now + INTEREST_SECONDS
        elif sent is not None or len(self._sent) < MAX_WANTED:
            self._sent[name] = _Sent(now + INTEREST_SECONDS)
            self._send_so_far(name, self._sent[name])

    def _send_so_far(self, name: str, sent: _Sent) -> None:
        """Send the text so far of the reply that is being written. It takes the place of what was not sent yet."""
        channel = self._hub.channels.get(name)
        if channel is None or not channel.epoch:
            return
        text = join_deltas(channel.trimmed_text, channel.items[max(channel.live_start - channel.start, 0) :])
        if not text:
            return
        sent.after = text[-1].after
        others = [piece for piece in self._pending.get(name, ()) if not _is_text(piece.delta)]
        pieces: list[LivePiece] = []
        for delta in text:
            if delta.after == sent.after:
                pieces.append(LivePiece(name, channel.epoch, sent.count, delta))
                sent.count += len(delta.text)
        self._pending[name] = [*(pieces if sent.count <= MAX_SO_FAR else ()), *others]
        self._send_soon(ASK_SECONDS)

    # ── what we watch ──────────────────────────────────────────────────────────────────────────────────

    def ask(self, session_id: str) -> None:
        """Ask for the live text of a session if it is watched here and runs elsewhere."""
        channel = self._hub.channels.get(session_id)
        if channel is None or not channel.watchers or channel.epoch:
            return
        self._wanted[session_id] = True
        shown = self._shown.get(session_id)
        if shown is None or shown.channel is not channel:
            shown = self._shown[session_id] = _Shown(channel)
        shown.asked_at = time.monotonic()
        self._send_soon(ASK_SECONDS)

    def _receive_piece(self, piece: LivePiece) -> None:
        name = piece.session_id
        channel = self._hub.channels.get(name)
        if channel is None or not channel.watchers or channel.epoch:
            self._shown.pop(name, None)
            return
        shown = self._shown.get(name)
        if shown is None or shown.channel is not channel:
            shown = self._shown[name] = _Shown(channel)
        if shown.held or piece.delta.after > channel.head:
            if not shown.held:
                shown.held_at = time.monotonic()
            if len(shown.held) < MAX_HELD:
                shown.held.append(piece)
            if channel.head:  # otherwise a watcher is about to read them
                self._need_facts({name: piece.delta.after})
            self._hold()
        else:
            self._show(channel, shown, piece)

    def _show(self, channel: Channel, shown: _Shown, piece: LivePiece) -> None:
        delta = piece.delta
        if piece.epoch < shown.epoch or channel.is_over(delta):
            return
        if piece.epoch > shown.epoch:
            if shown.count and not channel.ended > shown.after:
                channel.tear_live(shown.after)
            shown.epoch, shown.after, shown.count = piece.epoch, -1, 0
        if not _is_text(delta):
            channel.add_delta(delta)
            return
        if delta.after < shown.after:
            return
        if delta.after > shown.after:
            shown.after, shown.count = delta.after, 0
        missing = piece.at - shown.count
        if missing > 0:
            if not shown.asks_again:
                shown.asks_again = True
                wait = shown.asked_at + ASK_AGAIN_SECONDS - time.monotonic()
                asyncio.get_running_loop().call_later(wait, self._ask_again, piece.session_id, shown)
        elif len(delta.text) > -missing:
            shown.count = piece.at + len(delta.text)
            if missing:
                delta = replace(delta, text=delta.text[-missing:])
            channel.add_delta(delta)

    def _ask_again(self, session_id: str, shown: _Shown) -> None:
        shown.asks_again = False
        if self._shown.get(session_id) is shown:
            self.ask(session_id)

    def _hold(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(HOLD_SECONDS, self._show_held)

    def _show_held(self) -> None:
        """Show the pieces whose facts have come meanwhile."""
        self._timer = None
        for name, shown in tuple(self._shown.items()):
            if not shown.held:
                continue
            channel = shown.channel
            if self._hub.channels.get(name) is not channel or channel.epoch:
                del self._shown[name]
                continue
            if time.monotonic() - shown.held_at > MAX_HOLD_SECONDS:  # the next piece shows that these are missing
                shown.held = []
            count = next((n for n, piece in enumerate(shown.held) if piece.delta.after > channel.head), len(shown.held))
            pieces, shown.held = shown.held[:count], shown.held[count:]
            for piece in pieces:
                self._show(channel, shown, piece)
            if shown.held:
                self._hold()
