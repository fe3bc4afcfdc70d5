"""Stored responses and conversations. Each is a position in a session of the log, so there is no second store.

A response that continues another is appended to its session, or to a copy of it when that went on already.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle import Grant, Runtime
from treadle.dialects.base import encode_frame
from treadle.dialects.responses_events import ResponseEvent, ResponsesDialect
from treadle.dialects.responses_objects import build_response
from treadle.dialects.responses_requests import ConversationReader, Item, ResponsesBody, read_tool_table
from treadle.errors import NotFound, PositionMoved
from treadle.events import (
    AgentConfig,
    AnyFact,
    Custom,
    Parent,
    ReasoningDelta,
    SessionCreated,
    TextDelta,
    validate_fact,
)
from treadle.log.base import RESPONSES_AGENT, Claim
from treadle.messages import Json, Reply
from treadle.server.guard import Refusal
from treadle.server.tokens import Token
from treadle.session import generate_session_id

INPUT, OUTPUT, DELETED = "responses.input", "responses.output", "responses.deleted"
CONVERSATION, ITEMS, ITEM_DELETED = "responses.conversation", "responses.items", "responses.item_deleted"
_ID = re.compile(r"[a-z]+_([0-9a-f]{32})(?:_(\d{1,10}))?(?:_\w+)?", re.ASCII)
_ITEM_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}
Piece = tuple[Literal["reasoning", "text"], int]
"""The kind and the length of one delta."""


class Position(NamedTuple):
    """Where in the log something is stored."""

    session_id: str
    seq: int


class InputRecord(Struct, frozen=True, omit_defaults=True):
    """A request, stored before its response is shown: its fields as they were sent, and its input items.

    `seq` is the position of the message or the result that an agent got.
    """

    created_at: int
    given: dict[str, Json]
    items: list[Item]
    seq: int = 0

    @property
    def body(self) -> ResponsesBody:
        return msgspec.convert(self.given, ResponsesBody)


class OutputRecord(Struct, frozen=True, omit_defaults=True):
    """How the response to the input at `seq` ended: the reply with the lengths of its deltas, or an error."""

    seq: int
    ended_at: int
    reply: Reply = Reply()
    pieces: list[Piece] = []
    status: Literal["", "failed", "cancelled"] = ""
    code: str = ""
    message: str = ""


class StoredTurn(Struct):
    """The input at one position and, once it ended, the output. Items that a client only added have no request."""

    seq: int
    items: list[Item]
    record: InputRecord | None = None
    output: OutputRecord | None = None
    end: int = 0
    """The position of the output, or of the items that were only added."""
    is_deleted: bool = False


class ResponseSession(Struct):
    """A session of stored responses. `metadata` is set if it is a conversation."""

    id: str
    grants: tuple[Grant, ...]
    facts: list[AnyFact]
    turns: dict[int, StoredTurn]
    metadata: dict[str, Json] | None = None
    deleted_items: set[str] = set()

    @property
    def head(self) -> int:
        return len(self.facts)

    @property
    def unfinished(self) -> StoredTurn | None:
        """The response that has no output yet."""
        turns = self.turns.values()
        return next((turn for turn in turns if turn.record is not None and turn.output is None), None)

    def select_turns(self, until: int) -> list[StoredTurn]:
        """The turns of the conversation up to a position. One that failed counts only if it is at that position."""
        turns = [turn for turn in self.turns.values() if turn.seq <= until]
        return [turn for turn in turns if turn.output is None or not turn.output.status or turn.seq == until]

    def open_dialect(self, turn: StoredTurn, *, wants_state: bool = False) -> ResponsesDialect:
        """Start to write the response of a turn."""
        record = turn.record
        assert record is not None
        body = record.body
        items = [item for before in self.select_turns(turn.seq) for item in before.items]
        response = build_response(format_id("resp", self.id, turn.seq), record.created_at, body, record.given)
        return ResponsesDialect(response, read_tool_table(body, items), wants_state=wants_state or body.wants_state)

    def list_items(self, until: int) -> list[Item]:
        """All items up to a position, in order: what clients sent and what models wrote."""
        items: list[Item] = []
        for turn in self.select_turns(until):
            items += (*turn.items, *self._list_output(turn))
        return self._drop_deleted(items)

    def _list_output(self, turn: StoredTurn) -> list[Item]:
        if turn.output is None or turn.output.status:
            return []
        dialect = self.open_dialect(turn, wants_state=True)
        replay_output(dialect, turn.output)
        return msgspec.json.decode(encode_frame(dialect.response.output))

    def _drop_deleted(self, items: list[Item]) -> list[Item]:
        return [item for item in items if item.get("id") not in self.deleted_items]

    def read_into(self, conversation: ConversationReader, until: int) -> None:
        """Add the turns up to a position to a conversation for a provider."""
        for turn in self.select_turns(until):
            conversation.add_items(self._drop_deleted(turn.items))
            output = self._list_output(turn)
            kept = self._drop_deleted(output)
            if len(kept) < len(output):
                conversation.add_items(kept)
            elif turn.output is not None and output:
                conversation.add_reply(turn.output.reply)


def format_id(prefix: str, session_id: str, seq: int) -> str:
    """The id of what is stored at a position. It cannot be guessed, because the session's id cannot."""
    return f"{prefix}_{session_id}_{seq}"


def parse_id(text: str) -> Position | None:
    """The position that an id names."""
    found = _ID.fullmatch(text)
    return Position(found[1], int(found[2] or 0)) if found is not None else None


def replay_output(dialect: ResponsesDialect, output: OutputRecord) -> list[ResponseEvent]:
    """All events of a response that has ended, as they were sent at first."""
    events = list(dialect.begin())
    rest = {"reasoning": output.reply.reasoning, "text": output.reply.text}
    for kind, length in output.pieces:
        text, rest[kind] = rest[kind][:length], rest[kind][length:]
        events += dialect.feed(ReasoningDelta(text=text) if kind == "reasoning" else TextDelta(text=text))
    return [*events, *end_output(dialect, output)]


def end_output(dialect: ResponsesDialect, output: OutputRecord) -> Sequence[ResponseEvent]:
    """The last events of a response, after its deltas."""
    dialect.ended_at = output.ended_at
    if output.status:
        return dialect.fail(output.code, output.message, output.status)
    return dialect.feed(output.reply)


def build_session(facts: list[AnyFact]) -> ResponseSession:
    """Read the facts of a session of stored responses."""
    created = facts[0]
    assert isinstance(created, SessionCreated)
    stored = ResponseSession(created.session_id, created.grants, facts, {})
    for fact in facts:
        if not isinstance(fact, Custom):
            continue
        match fact.name:
            case "responses.input":
                record = msgspec.convert(fact.data, InputRecord)
                stored.turns[fact.seq] = StoredTurn(fact.seq, record.items, record)
            case "responses.output":
                output = msgspec.convert(fact.data, OutputRecord)
                turn = stored.turns[output.seq]
                if turn.output is None:  # the first one counts
                    turn.output, turn.end = output, fact.seq
            case "responses.deleted":
                stored.turns[fact.data].is_deleted = True
            case "responses.conversation":
                stored.metadata = fact.data
            case "responses.items":
                stored.turns[fact.seq] = StoredTurn(fact.seq, fact.data, end=fact.seq)
            case "responses.item_deleted":
                stored.deleted_items.add(fact.data)
            case _:
                pass
    return stored


def draft_session(
    stored: ResponseSession | None, after: int, record: InputRecord
) -> tuple[ResponseSession, StoredTurn]:
    """A request as a turn after a position of a session, before it is stored."""
    turns = {turn.seq: turn for turn in stored.select_turns(after)} if stored is not None else {}
    turn = StoredTurn(max(turns, default=0) + 1, record.items, record)
    deleted = stored.deleted_items if stored is not None else set[str]()
    return ResponseSession(generate_session_id(), (), [], {**turns, turn.seq: turn}, deleted_items=deleted), turn


def list_grants(token: Token) -> tuple[Grant, ...]:
    """The grants of a session that a token creates."""
    return () if token.grant is None else (token.grant,)


def build_fact(name: str, data: Struct | Json) -> AnyFact:
    """Build a fact of a stored response."""
    return validate_fact(Custom(name=name, data=msgspec.to_builtins(data)))


def name_items(items: Sequence[Item], session_id: str, seq: int) -> list[Item]:
    """Give an id to every item that has none."""
    return [
        item
        if isinstance(item.get("id"), str) and item["id"]
        else {**item, "id": f"{_ITEM_PREFIXES.get(str(item.get('type')), 'item')}_{session_id}_{seq}_i{n}"}
        for n, item in enumerate(items)
    ]


class ResponseStore:
    """Reads and writes the sessions of stored responses. Only the owner of a claim answers."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def load_session(self, session_id: str, token: Token | None = None) -> ResponseSession:
        """Read a session. Raises `NotFound`, or refuses a token whose grant is not the session's."""
        facts = await self._runtime.log.read(session_id)
        created = facts[0]
        if not isinstance(created, SessionCreated) or created.agent.name != RESPONSES_AGENT:
            raise NotFound(f"session {session_id} holds no stored responses")
        if token is not None and token.grant is not None and token.grant not in created.grants:
            raise Refusal(403, "wider_session", "this response belongs to a token that may do more")
        return build_session(facts)

    async def find_turn(self, response_id: str, token: Token) -> tuple[ResponseSession, StoredTurn]:
        """Find a response by its id. Raises `NotFound`."""
        position = parse_id(response_id) if response_id.startswith("resp_") else None
        try:
            if position is not None:
                stored = await self.load_session(position.session_id, token)
                turn = stored.turns.get(position.seq)
                if turn is not None and turn.record is not None and not turn.is_deleted:
                    return stored, turn
        except NotFound:
            pass
        raise NotFound(f"there is no response {response_id[:100]!r}; it was not stored, or it was deleted")

    async def find_conversation(self, conversation_id: str, token: Token) -> ResponseSession:
        """Find a conversation by its id. Raises `NotFound`."""
        position = parse_id(conversation_id) if conversation_id.startswith("conv_") else None
        try:
            if position is not None:
                stored = await self.load_session(position.session_id, token)
                if stored.metadata is not None:
                    return stored
        except NotFound:
            pass
        raise NotFound(f"there is no conversation {conversation_id[:100]!r}; POST /v1/conversations makes one")

    async def find_item(self, item_id: str, token: Token) -> Item | None:
        """Find a stored item by its id."""
        position = parse_id(item_id)
        if position is None:
            return None
        try:
            stored = await self.load_session(position.session_id, token)
        except NotFound:
            return None
        return next((item for item in stored.list_items(stored.head) if item.get("id") == item_id), None)

    async def create_session(
        self, session_id: str, grants: tuple[Grant, ...], facts: Sequence[AnyFact], parent: Parent | None = None
    ) -> None:
        """Create a session for stored responses. A copy of another one names it as its parent."""
        agent = AgentConfig(name=RESPONSES_AGENT)
        created = SessionCreated(session_id=session_id, agent=agent, grants=grants, parent=parent)
        await self._runtime.log.create(session_id, [created, *facts])

    async def add_facts(self, stored: ResponseSession, *facts: AnyFact) -> None:
        """Add facts that need no claim."""
        await self._runtime.log.post(stored.id, facts, wake=False)

    async def begin(self, record: InputRecord, token: Token, stored: ResponseSession | None, after: int) -> ClaimedTurn:
        """Store a request after a position of a session, or in a new one. Only the caller may answer it.

        A request that names a conversation goes to its end. Any other request leaves conversations alone: it gets a
        copy, as it does for a session that went on after the position.
        """
        log, in_conversation = self._runtime.log, bool(record.body.conversation_id)
        if stored is not None and (in_conversation or (stored.metadata is None and after == max(stored.turns))):
            claim = await self.claim(stored.id)
            if claim is not None:
                named = replace(record, items=name_items(record.items, stored.id, stored.head + 1))
                try:
                    await log.append(claim, stored.head, [build_fact(INPUT, named)])
                    return ClaimedTurn(claim, stored.head + 1)
                except PositionMoved:
                    await log.release(claim, None)
            if in_conversation:
                message = "another response of this conversation is in progress; wait for it"
                raise Refusal(409, "conversation_locked", message, field="conversation")
        session_id, grants = generate_session_id(), list_grants(token)
        copied, parent = list[AnyFact](), None
        if stored is not None:
            for fact in stored.facts[1 : stored.turns[after].end]:  # the copy is no conversation; positions stay
                is_conversation = isinstance(fact, Custom) and fact.name == CONVERSATION
                copied.append(build_fact(ITEMS, []) if is_conversation else fact)
            parent, grants = Parent(stored.id, len(copied) + 1), stored.grants
        seq = len(copied) + 2
        named = replace(record, items=name_items(record.items, session_id, seq))
        await self.create_session(session_id, grants, [*copied, build_fact(INPUT, named)], parent)
        claim = await self.claim(session_id)
        assert claim is not None  # nobody else knows the new id
        return ClaimedTurn(claim, seq)

    async def claim(self, session_id: str = "") -> Claim | None:
        """Become the one who answers in a session, or in any session whose process has gone."""
        claimant = self._runtime.coordinator.claimant
        return await self._runtime.log.claim(claimant.owner, claimant.ttl, session_id, (RESPONSES_AGENT,))

    async def record_output(self, claimed: ClaimedTurn, output: OutputRecord) -> OutputRecord:
        """Store how a response ended. Returns the output that counts, which may be an earlier one."""
        claim, log = claimed.claim, self._runtime.log
        while True:
            stored = build_session(await log.read(claim.session_id))
            earlier = stored.turns[claimed.seq].output
            if earlier is not None:
                return earlier
            try:
                await log.append(claim, stored.head, [build_fact(OUTPUT, output)])
                return output
            except PositionMoved:  # somebody cancelled it, or deleted another response
                continue

    async def delete_response(self, stored: ResponseSession, turn: StoredTurn) -> None:
        """Delete a response. Its session goes with the last response, unless it is a conversation."""
        created = stored.facts[0]
        assert isinstance(created, SessionCreated)
        copied = created.parent.seq if created.parent is not None else 0  # the ids of copies were never given out
        others = [one for one in stored.turns.values() if one.seq > copied and not one.is_deleted]
        if others != [turn] or stored.metadata is not None:
            await self.add_facts(stored, build_fact(DELETED, turn.seq))
        else:
            await self._runtime.log.delete(stored.id)

    async def delete_session(self, stored: ResponseSession) -> None:
        """Delete a conversation with everything in it."""
        await self._runtime.log.delete(stored.id)


class ClaimedTurn(NamedTuple):
    """The right to answer the request at a position."""

    claim: Claim
    seq: int
