"""The live objects of a session: model, tools, grants, gate, middleware, clock, lease. They are never stored."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from msgspec import Struct, field

from treadle import events
from treadle.engine.access import ParentAccess
from treadle.engine.context import Attachments
from treadle.engine.hook_result import HookCall, HookResult, HookSession
from treadle.engine.state import CallState, State
from treadle.engine.steps import stops_run
from treadle.errors import AlreadyAnswered, BadInput, Conflict, Expired, StoreAway, StoreTooNew
from treadle.errors import MessageRefused as MessageRefused
from treadle.log.base import Claim, Log
from treadle.messages import Json, Part, Reply, Request, ToolSpec
from treadle.models.base import Model
from treadle.permissions.policy import Verdict
from treadle.secrets.redact import Redactor
from treadle.tools.base import HelperHost, Recovery, Tool

TOOL_ATTEMPTS = 3
EFFECT_SHARE = 2 / 3
"""No effect starts when this share of a lease has passed without a renewal."""
AWAY_SECONDS = 0.2
"""How long a run waits before it asks a store again that is away."""

Value = TypeVar("Value")

_logger = logging.getLogger("treadle")


class Answer(Struct, frozen=True):
    """A person's answer to a question: a decision on an approval, or `answers` to `ask_user`."""

    decision: events.Decision = "allow"
    scope: events.Scope = "call"
    comment: str = ""
    answers: tuple[str, ...] = ()
    by: str = "user"


Gate = Callable[[events.ApprovalRequested | events.InputRequested], Awaitable[Answer | None]]
"""Brings a question to a person. None leaves the question open in the log, for anyone to answer later."""


async def later(question: events.ApprovalRequested | events.InputRequested) -> None:
    """The gate that asks nobody: the question stays open in the log until somebody answers it."""


def describe_denial(answer: events.ApprovalAnswered) -> str:
    """Say who said no and why. Where nobody could be asked, the comment says so."""
    if answer.by == events.NOBODY_ASKED and answer.comment:
        return answer.comment
    comment = f" They say: {answer.comment}" if answer.comment else ""
    return f"{answer.by or 'The user'} said no.{comment}"


def build_answer_fact(call: CallState, answer: Answer, digest: str) -> events.AnyFact:
    """Build the fact of an answer. Raises `Conflict` when the question is settled, or is not the one with the `digest`.

    An answer of the other kind is refused, so that no text counts as an approval.
    """
    call_id, answered = call.call.id, call.answer or call.input_answer
    if not isinstance(cast("object", answer), Answer):
        raise BadInput(f"an answer is an Answer(...), such as Answer('deny'), but this is a {type(answer).__name__}")
    if answered is not None:
        raise build_answered_error(call_id, answered)
    if call.finished is not None:
        raise Conflict(f"call {call_id} is finished ({call.finished.status}); there is nothing left to answer")
    if digest and call.asked is not None and digest != call.asked.digest:
        raise Conflict(f"call {call_id}: the call that would run is not the one that was shown; look at it again")
    if call.asked is not None:
        if answer.answers:
            raise BadInput(f"call {call_id} waits for an approval: approve or deny it")
        scope = "call" if call.asked.once and answer.decision == "allow" else answer.scope
        return events.ApprovalAnswered(
            call_id=call_id, decision=answer.decision, scope=scope, by=answer.by, comment=answer.comment
        )
    if answer.decision == "deny" and not answer.answers:
        comment = f" They say: {answer.comment}" if answer.comment else ""
        return events.InputAnswered(call_id=call_id, answers=(f"(They do not want to answer.{comment})",), by=answer.by)
    if not answer.answers:
        raise BadInput(f"call {call_id} waits for an answer in words")
    for question, said in zip(call.input_asked.questions if call.input_asked else (), answer.answers, strict=False):
        if question.strict and said not in question.options:
            options = ", ".join(map(repr, question.options))
            raise BadInput(f"call {call_id}: {said!r} is none of the answers to choose from: {options}")
    return events.InputAnswered(call_id=call_id, answers=answer.answers, by=answer.by)


def build_answered_error(call_id: str, fact: events.AnyFact) -> Conflict:
    """Build the error for a second answer. `fact` is the first answer."""
    by = getattr(fact, "by", "")
    if by == "expiry":
        return build_expired_error(call_id)
    what = getattr(fact, "decision", "answered")
    return AlreadyAnswered(f"call {call_id} was answered already, by {by or 'somebody'}: {what}", fact)


def build_expired_error(call_id: str) -> Expired:
    """Build the error for an answer that comes after the question expired."""
    return Expired(f"call {call_id}: the time to answer is over; the model is told that nobody answered")


class Middleware:
    """Rewrites messages, requests and replies, refuses calls, and adds notes to them. Override the methods you need.

    The results of `before_tool`, `after_tool` and `on_run_end` are recorded, so each counts once, also after a crash.
    None is not recorded, and the method may be called again.
    """

    async def on_user_message(self, session_id: str, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        """Called before a message is stored."""
        return parts

    async def on_pre_llm(self, request: Request) -> Request:
        """Called before a model call. A rewritten request is not stored."""
        return request

    async def on_post_llm(self, reply: Reply) -> Reply:
        """Called before a reply is stored."""
        return reply

    async def may_run(self, tool: str, safety: events.Safety, arguments: Mapping[str, Json]) -> Verdict | None:
        """Decide whether a call may run. The result can make the policy's verdict stricter, never weaker."""
        return None

    async def before_tool(self, call: HookCall) -> HookResult | None:
        """Called once before a call that the policy does not deny. It may ask a person or deny. An error denies."""
        return None

    async def after_tool(self, call: HookCall, result: events.CallFinished) -> HookResult | None:
        """Called when the result of a call is stored. The model reads the `note` after the results."""
        return None

    async def on_run_end(self, session: HookSession, end: events.RunFinished) -> HookResult | None:
        """Called before a run ends, unless it was cancelled. `continue` lets an answered run go on with the reason."""
        return None


def check_returned_type(value: Value, kind: type, by: Middleware, point: str) -> Value:
    """Check what middleware returned: a forgotten `return` is an easy mistake."""
    if not isinstance(value, kind):
        what = type(value).__name__
        raise BadInput(
            f"{type(by).__name__}.{point} returned a {what}; it must return a {kind.__name__}, changed or not"
        )
    return value


class Clock:
    """Tells the time and waits. Tests replace it with a clock that they move themselves."""

    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Stopwatch:
    """Measures the seconds since it was made, by two clocks, of which the later one counts.

    A wall clock may be set back, and a monotonic clock stands still while a laptop sleeps.
    """

    __slots__ = ("_monotonic", "_wall")

    def __init__(self) -> None:
        self._monotonic, self._wall = time.monotonic(), time.time()

    def measure(self) -> float:
        """Return the seconds that have passed."""
        return max(time.monotonic() - self._monotonic, time.time() - self._wall)


class Lease:
    """A claim on a session, when this process asked for it last, and what an owner does with it.

    The time counts from the question and not from the answer: a frozen process may read the answer much later.
    """

    def __init__(self, log: Log, claim: Claim, asked: Stopwatch | None = None) -> None:
        self.log, self.claim = log, claim
        self._asked = asked or Stopwatch()

    def is_due(self, share: float) -> bool:
        """Whether that share of the lease has passed without a renewal."""
        return self._asked.measure() > self.claim.ttl * share

    async def renew_if_due(self, share: float = EFFECT_SHARE) -> None:
        """Renew the claim when that share of its time has passed. Call it before an effect.

        It returns only with a lease that is young enough for one. Raises `ClaimLost` when another owner has taken over.
        """
        if self.is_due(share):
            await self._renew()
        while self.is_due(EFFECT_SHARE):  # the answer came too late
            await self._renew()

    async def read(self, after: int = 0) -> list[events.AnyFact]:
        """Read the session's facts after a position."""
        return await wait_for_store(lambda: self.log.read(self.claim.session_id, after))

    async def is_stopped(self, after: int) -> bool:
        """Whether a fact after a position stops the run. One of a newer release does: a newer node goes on."""
        seen = -1
        try:
            while seen < (seen := self.log.get_head(self.claim.session_id)):  # others post while it reads
                if any(map(stops_run, await self.read(after))):
                    return True
        except StoreTooNew:
            return True
        return False

    async def post(self, facts: Sequence[events.AnyFact], key: str) -> None:
        """Store facts that anyone may store. If somebody stored this key first, nothing is added."""
        await wait_for_store(lambda: self.log.post(self.claim.session_id, facts, key, wake=False, claim=self.claim))

    async def put_artifact(self, data: bytes) -> str:
        """Store a text as an artifact, and return its id."""
        put = partial(self.log.put_artifact, self.claim.session_id, data, claim=self.claim)
        return await wait_for_store(put)

    async def release(self, seq: int, wake_at: float | None, *, waiting: bool) -> bool:
        """Give the session back. Returns False when others posted after the position `seq`."""
        return await wait_for_store(lambda: self.log.release(self.claim, seq, wake_at, waiting=waiting))

    async def _renew(self) -> None:
        asked = Stopwatch()
        await self.log.renew(self.claim)
        if asked.measure() < self._asked.measure():  # another renewal may have been asked for later
            self._asked = asked


async def wait_for_store(action: Callable[[], Awaitable[Value]]) -> Value:
    """Repeat a read, or a write with a key, until the store answers: a database that is away must not end a run."""
    is_waiting = False
    while True:
        try:
            return await action()
        except StoreAway as error:
            if not is_waiting:
                _logger.warning("a run waits for its store: %s", error)
            is_waiting = True
            await asyncio.sleep(AWAY_SECONDS)


RecoveryStrategy = Callable[[str, str, int], Recovery]
"""(tool, error, attempt) -> the reaction to a failed call."""


class Setup(Struct, frozen=True):
    """Everything that the loop of a session needs, except the log.

    `sources` name the texts in the instructions that the agent's author did not write. `parents` is set for a helper.
    """

    model: Model
    tools: Mapping[str, Tool]
    config: events.AgentConfig
    limits: events.Limits
    grants: tuple[events.Grant, ...]
    workspace: Path
    gate: Gate | None = None
    middleware: tuple[Middleware, ...] = ()
    on_error: Recovery | RecoveryStrategy = "tell"
    approval_ttl: float | None = None
    check_output: Callable[[str], str] | None = None
    clock: Clock = Clock()
    specs: tuple[ToolSpec, ...] = ()
    client_tools: frozenset[str] = frozenset()
    polling: frozenset[str] = frozenset()
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    redactor: Redactor = field(default_factory=lambda: Redactor(()))
    attachments: Attachments | None = None
    helpers: HelperHost | None = None
    approval_key: bytes = field(default_factory=lambda: os.urandom(32))
    """The secret of the store. Without one, no approval outlives this setup."""
    sources: tuple[str, ...] = ()
    parents: ParentAccess | None = None

    async def has_new_parent_access(self) -> bool:
        """Whether the access of a session that started this one has changed since this setup was built."""
        return self.parents is not None and await wait_for_store(self.parents.update)

    def find_tool(self, name: str) -> Tool | None:
        """Find a tool that is offered, or that calls of another tool can resolve to."""
        hidden = (tool.find_hidden_tool(name) for tool in self.tools.values())
        return self.tools.get(name) or next(filter(None, hidden), None)

    def choose_recovery(self, tool: Tool, error: str, attempt: int) -> Recovery:
        """Decide what follows a failed call. A call is retried twice at most."""
        chosen = tool.on_error or self.on_error
        try:
            recovery = chosen(tool.name, error, attempt) if callable(chosen) else chosen
        except Exception:
            _logger.exception("on_error raised an error; the run stops after the failed call of %s", tool.name)
            return "stop"
        return "tell" if recovery == "retry" and attempt >= TOOL_ATTEMPTS else recovery


SetupBuilder = Callable[[State], Awaitable[Setup]]
"""Builds the setup of a session in a given state."""
