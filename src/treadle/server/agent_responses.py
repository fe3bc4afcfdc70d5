"""Stored responses of agents. Each is a message or a result in an ordinary session, and what its run did after it.

The session has all that an agent said and did. What it does not have is stored beside it: the request, and how the
text came in pieces, so that a client can join the stream again at any number.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from itertools import groupby
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from treadle import CallFinished, CallStarted, ModelReplied, Run, RunFinished, Runtime, Session
from treadle.dialects.base import encode_frame
from treadle.dialects.responses_events import ResponseEvent, ResponsesDialect
from treadle.dialects.responses_objects import ResponseObject, build_response
from treadle.dialects.responses_requests import Item, read_tool_table
from treadle.errors import BadInput, NotFound, TreadleError
from treadle.events import (
    CLIENT_SANDBOX,
    AnyFact,
    Custom,
    Fact,
    MessageReceived,
    ModelFailed,
    ReasoningDelta,
    Rewound,
    RunRequested,
    RunStarted,
    TextDelta,
    TurnStarted,
)
from treadle.messages import Reply
from treadle.server.agent_runs import CANCELLED, Detach, PostedFact, ReplyEvent, follow_run
from treadle.server.event_feed import EventFeed
from treadle.server.guard import Refusal
from treadle.server.stored_responses import DELETED, INPUT, InputRecord, build_fact, format_id, name_items, parse_id
from treadle.server.tokens import Token

PROGRESS = "responses.progress"
NUMBER_GAP = 1_000_000
"""How far the numbers jump where a process died: beyond all events that its clients may have got."""
_ENDS_ASKING = (TurnStarted, ModelReplied, ModelFailed, RunFinished)
_GOES_ON = (MessageReceived, RunRequested, RunStarted, RunFinished, Rewound)
_logger = logging.getLogger("treadle.server")
PieceKind: TypeAlias = Literal["reasoning", "text"]
OpenSession: TypeAlias = Callable[[str, Token], Awaitable[Session]]


class ProgressRecord(Struct, frozen=True, omit_defaults=True):
    """How the reply that ended at position `through` was shown. The record before it ended at `after`.

    `pieces` are deltas by the position that they followed: their lengths, or their texts if the log does not have
    them. `has_gap` means that numbers jump before the reply. `end` is the call with which the response ended.
    """

    seq: int
    after: int
    through: int
    pieces: list[tuple[int, PieceKind, list[int | str]]] = []
    has_gap: bool = False
    end: int = 0


class RunHistory(Struct):
    """What the log has about the stream of a response."""

    covered: int
    deltas: dict[int, list[TextDelta | ReasoningDelta]] = {}
    gaps: set[int] = set()
    end: int = 0


def read_history(facts: Sequence[AnyFact], seq: int) -> RunHistory:
    """Read how the response to the fact at `seq` was streamed. Of two records about the same, the first counts."""
    history = RunHistory(seq, {}, set())
    for fact in facts[seq:]:
        if not isinstance(fact, Custom) or fact.name != PROGRESS:
            continue
        record = msgspec.convert(fact.data, ProgressRecord)
        if record.seq != seq or record.after != history.covered:
            continue
        history.covered, history.end = record.through, record.end
        if record.has_gap:
            history.gaps.add(record.through)
        reply = facts[record.through - 1]
        rest = {"text": "", "reasoning": ""}
        if isinstance(reply, ModelReplied):
            rest = {"text": reply.text, "reasoning": reply.reasoning}
        for after, kind, sizes in record.pieces:
            for size in sizes:
                text = size if isinstance(size, str) else rest[kind][:size]
                rest[kind] = rest[kind][len(text) :]
                delta = TextDelta(text=text) if kind == "text" else ReasoningDelta(text=text)
                history.deltas.setdefault(after, []).append(delta)
    return history


def _list_records(facts: Sequence[AnyFact]) -> list[InputRecord]:
    return [msgspec.convert(one.data, InputRecord) for one in facts if isinstance(one, Custom) and one.name == INPUT]


class LiveRun(EventFeed):
    """A run that is followed, live or in the log. The same facts and records give the same events with their numbers.

    What the log has already is shown as it was shown at first. A run that another process began goes on with higher
    numbers where that process has not stored the pieces.
    """

    def __init__(self, dialect: ResponsesDialect, seq: int, history: RunHistory, *, head: int, is_new: bool) -> None:
        super().__init__(dialect)
        self.position = self._seq = seq
        self._history, self._head = history, head
        self._is_lost, self._is_asking = not is_new, False
        self._pieces: list[tuple[int, PieceKind, str]] = []
        self._held: list[ResponseEvent] = []
        self._shown = dialect.response

    @property
    def response(self) -> ResponseObject:
        return self._shown

    def take(self, event: ReplyEvent) -> ProgressRecord | None:
        """Read the next event. Returns what must be stored before `show` shows it."""
        if isinstance(event, TextDelta | ReasoningDelta):
            if self._is_asking and not self._is_lost:
                kind: PieceKind = "text" if isinstance(event, TextDelta) else "reasoning"
                self._pieces.append((self.position, kind, event.text))
                self._held += self.dialect.feed(event)
            return None
        if isinstance(event, Reply):
            self._held += self.dialect.feed(event)
            return self._cover(self.position, end=self.position) if self._history.end != self.position else None
        return self._take_fact(event) if isinstance(event, Fact) else None

    def _take_fact(self, fact: AnyFact) -> ProgressRecord | None:
        record: ProgressRecord | None = None
        if self._is_asking and isinstance(fact, _ENDS_ASKING):
            is_covered = fact.seq <= self._history.covered
            has_gap = fact.seq in self._history.gaps if is_covered else self._is_lost
            if has_gap:
                self.dialect.skip_numbers(NUMBER_GAP)
            if not is_covered:
                record, self._is_lost = self._cover(fact.seq, fact, has_gap=has_gap), False
        self.position = fact.seq
        self._held += self.dialect.feed(fact)
        for delta in self._history.deltas.get(fact.seq, ()):
            self._held += self.dialect.feed(delta)
        if isinstance(fact, _ENDS_ASKING):
            self._is_asking = isinstance(fact, TurnStarted | ModelFailed)
        if isinstance(fact, TurnStarted) and fact.seq > self._head:  # all its deltas come here
            self._is_lost = False
        return record

    def _cover(
        self, through: int, reply: AnyFact | None = None, *, has_gap: bool = False, end: int = 0
    ) -> ProgressRecord:
        """Build the record of what was shown since the last one."""
        said = {"text": "", "reasoning": ""}
        if isinstance(reply, ModelReplied):
            said = {"text": reply.text, "reasoning": reply.reasoning}
        shown = {kind: "".join(text for _, one, text in self._pieces if one == kind) for kind in said}
        pieces: list[tuple[int, PieceKind, list[int | str]]] = []
        for (after, kind), group in groupby(self._pieces, key=lambda piece: piece[:2]):
            is_known = said[kind].startswith(shown[kind])
            pieces.append((after, kind, [len(text) if is_known else text for _, _, text in group]))
        record = ProgressRecord(self._seq, self._history.covered, through, pieces, has_gap, end)
        self._history.covered = through
        self._pieces.clear()
        return record

    def show(self, event: ReplyEvent) -> None:
        """Show what was taken. Facts change the response, deltas only its events."""
        if not isinstance(event, TextDelta | ReasoningDelta):
            self._shown = self.dialect.show_progress()
        held, self._held = self._held, []
        self.add(held)

    def close(self, *, is_cancelled: bool = False) -> None:
        """End the stream. Unless the run has ended or was cancelled, it goes on elsewhere or later."""
        if is_cancelled:
            self.events += self.dialect.fail("", "", "cancelled")
            self._shown = self.dialect.response
        self.is_over = True
        self.notify()

    async def catch_up(self, position: int) -> None:
        """Wait until all facts up to a position were read."""
        while not self.is_over and self.position < position:
            await self.wait_for_change()


class AgentResponse:
    """A stored response of an agent."""

    def __init__(self, owner: AgentResponses, session: Session, record: InputRecord, facts: Sequence[AnyFact]) -> None:
        self._owner, self.session, self.record, self.facts = owner, session, record, facts
        posted = facts[record.seq - 1]
        assert isinstance(posted, MessageReceived | CallFinished)
        self.posted: PostedFact = posted
        self.id = format_id("resp", session.id, record.seq)

    @property
    def items(self) -> list[Item]:
        """What the response was asked with."""
        return self.record.items

    @property
    def is_background(self) -> bool:
        return bool(self.record.body.background)

    def open_dialect(self) -> ResponsesDialect:
        """Start to write the response."""
        body = self.record.body
        response = build_response(self.id, self.record.created_at, body, self.record.given)
        dialect = ResponsesDialect(response, read_tool_table(body, self.items))
        dialect.session_id = self.session.id
        return dialect

    async def read(self, include: Sequence[str] = ()) -> ResponseObject:
        """The response as it is now. There is no state of a provider to `include`."""
        return (await self._owner.open(self)).response

    async def list_output(self) -> list[Item]:
        """The items that the agent wrote so far."""
        return msgspec.json.decode(encode_frame((await self.read()).output))

    async def wait(self) -> ResponseObject:
        """Wait for the end of the response. Raises when it cannot be followed that far here."""
        live = await self._owner.open(self)
        await live.wait()
        if live.failure is not None:
            raise live.failure
        return live.response

    def was_continued_with(self, items: Sequence[Item]) -> bool:
        """Whether a request with these items has continued this response."""
        wanted = [_drop_id(item) for item in items]
        earlier = [one for one in _list_records(self.facts) if one.body.previous_response_id == self.id]
        return any([_drop_id(item) for item in one.items] == wanted for one in earlier)

    async def follow(self, after: int) -> AsyncGenerator[list[ResponseEvent]]:
        """Yield the events after a number, up to the end. Raises when it cannot be followed that far here."""
        live = await self._owner.open(self)
        while True:
            if after < (dropped := live.last_dropped):
                events = await self._owner.replay(self, live.position)
                fresh = [one for one in events if after < one.sequence_number <= dropped]
                after = dropped
                yield fresh
            async with aclosing(live.follow(after)) as following:
                async for fresh in following:
                    after = fresh[-1].sequence_number
                    yield fresh
            if live.is_over and live.failure is not None:
                raise live.failure
            if after >= live.last_dropped:
                return

    async def cancel(self, by: str) -> None:
        """Stop the run. A response that has ended stays as it is."""
        live = await self._owner.open(self)
        if not live.is_over:
            await self.session.cancel(by, "its response was cancelled")
            await live.wait()

    async def delete(self, by: str) -> None:
        """Hide the response. Its session stays. A run that goes on is cancelled first."""
        await self.cancel(by)
        await self.session.log.post(self.session.id, [build_fact(DELETED, self.record.seq)], wake=False)

    async def find_next_fact(self) -> AnyFact | None:
        """With what the session went on after this response. Raises when the response has not ended."""
        live = await self._owner.open(self)
        if live.response.status in ("queued", "in_progress"):
            message = "previous_response_id: that response is in progress; continue one that has ended"
            raise BadInput(message, param="previous_response_id")
        calls = {
            fact.call_id
            for fact in self.facts[: live.position]
            if isinstance(fact, CallStarted) and fact.sandbox == CLIENT_SANDBOX
        }
        for fact in self.facts[live.position :]:
            if isinstance(fact, _GOES_ON) or (isinstance(fact, CallFinished) and fact.call_id in calls):
                return fact
        return None


def _drop_id(item: Item) -> Item:
    return {name: value for name, value in item.items() if name != "id"}


class AgentResponses:
    """Finds the stored responses of agents, and follows their runs for all clients together."""

    def __init__(self, runtime: Runtime, open_session: OpenSession, detach: Detach) -> None:
        self._runtime, self._open_session, self._detach = runtime, open_session, detach
        self.continuing = asyncio.Lock()
        """Held while a request continues another, so that only one of two continues the same session."""
        self._live: dict[str, LiveRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(self, session: Session, posted: PostedFact, run: Run, record: InputRecord) -> AgentResponse:
        """Store a request, and follow its run. `run` watches since before anything was said."""
        if isinstance(posted, CallFinished):
            facts = await session.facts()
            if (earlier := self._find_record(facts, posted.seq)) is not None:  # the same results were sent twice
                run.detach()
                return AgentResponse(self, session, earlier, facts)
        items = name_items(record.items, session.id, posted.seq)
        record = msgspec.structs.replace(record, items=items, seq=posted.seq)
        await session.log.post(session.id, [build_fact(INPUT, record)], wake=False)
        found = AgentResponse(self, session, record, await session.facts())
        self._start(found, run, is_new=True)
        return found

    async def find(self, response_id: str, token: Token) -> AgentResponse | None:
        """Find a response by its id."""
        position = parse_id(response_id)
        if position is None:
            return None
        try:
            session = await self._open_session(position.session_id, token)
            facts = await session.facts()
        except NotFound:
            return None
        record = self._find_record(facts, position.seq)
        is_deleted = any(
            isinstance(fact, Custom) and fact.name == DELETED and fact.data == position.seq for fact in facts
        )
        return AgentResponse(self, session, record, facts) if record is not None and not is_deleted else None

    def _find_record(self, facts: Sequence[AnyFact], seq: int) -> InputRecord | None:
        return next((record for record in _list_records(facts) if record.seq == seq), None)

    async def find_item(self, item_id: str, token: Token) -> Item | None:
        """Find an item that an agent wrote, or was asked with."""
        position = parse_id(item_id)
        found = await self.find(format_id("resp", *position), token) if position is not None else None
        if found is None:
            return None
        return next((item for item in (*found.items, *await found.list_output()) if item.get("id") == item_id), None)

    async def open(self, found: AgentResponse) -> LiveRun:
        """Follow the run of a response, whoever began it. Returns when everything in the log was read."""
        live = self._live.get(found.id)
        if live is None:
            live = self._start(found, found.session.follow(found.posted), is_new=False)
        await live.catch_up(len(found.facts))
        return live

    async def replay(self, found: AgentResponse, until: int) -> list[ResponseEvent]:
        """Build the events of a response again, from the log alone."""
        facts = await found.session.facts()
        seq = found.record.seq
        live = LiveRun(found.open_dialect(), seq, read_history(facts, seq), head=len(facts), is_new=False)
        for fact in facts[seq:until]:
            live.take(fact)
            live.show(fact)
        return live.events

    def _start(self, found: AgentResponse, run: Run, *, is_new: bool) -> LiveRun:
        history = read_history(found.facts, found.record.seq)
        head = found.record.seq if is_new else len(found.facts)
        live = LiveRun(found.open_dialect(), found.record.seq, history, head=head, is_new=is_new)
        self._live[found.id] = live
        following = follow_run(found.session, run, found.posted, self._detach, history.end)
        task = asyncio.create_task(self._write(found, live, following, is_new=is_new))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return live

    async def _write(
        self, found: AgentResponse, live: LiveRun, following: AsyncGenerator[ReplyEvent], *, is_new: bool
    ) -> None:
        session, coordinator = found.session, self._runtime.coordinator
        is_cancelled = False
        try:
            async with aclosing(following) as events:
                async for event in events:
                    record = live.take(event)
                    # The process that runs the session saw all its deltas.
                    if record is not None and (is_new or record.end or coordinator.is_running(session.id)):
                        await session.log.post(session.id, [build_fact(PROGRESS, record)], wake=False)
                    live.show(event)
                    if record is not None:
                        live.drop_events()
        except Refusal as refusal:
            is_cancelled = refusal.kind == CANCELLED
            live.failure = None if is_cancelled else refusal
        except TreadleError as error:  # the store failed, or the session was deleted
            live.failure = error
        except Exception:
            _logger.exception("a response of session %s could not be followed", session.id)
        finally:
            self._live.pop(found.id, None)
            live.close(is_cancelled=is_cancelled)

    async def close(self) -> None:
        """Stop to follow. The runs go on at the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
