"""What a running call asks for: the policy decides, and a person is asked where it says so.

The question is a fact of its own, so anyone can answer it, from any process. The run goes on meanwhile. A question ends
with its call, whatever becomes of the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import ExitStack, suppress

from msgspec import Struct

from treadle import events
from treadle.engine.authorize import ReadyCall, compute_digest
from treadle.engine.cancel_scope import CancelScope
from treadle.engine.flow_check import find_flow_risk
from treadle.engine.fold import apply
from treadle.engine.setup import Answer, Gate, Lease, Setup, build_answer_fact, describe_denial
from treadle.engine.state import CallState, State
from treadle.engine.steps import build_answer_key
from treadle.errors import Conflict
from treadle.messages import Json
from treadle.permissions.data_flow import Trait
from treadle.permissions.policy import Assessment, Verdict, choose_strictest
from treadle.permissions.requests import NETWORK, decide_request, suggest_request_rule
from treadle.tools.base import PermissionAnswer

MAX_WAIT_SECONDS = 600.0
"""How long a running call waits for a person."""

NOBODY_TO_ASK = (
    "Nobody could be asked ({why}). The user can allow it with --approve '{rule}', or with `network` or `[sandbox]` "
    "in the configuration."
)
NOBODY_ANSWERED = "Nobody answered in time."

_TRAITS: dict[str, frozenset[Trait]] = {NETWORK: frozenset(("way_out",))}
"""What a call could do with what it asks for. What is in a folder cannot leave without a way out."""

_logger = logging.getLogger("treadle")


class CallEnvironment(Struct, frozen=True):
    """Where a call runs: its session's setup and lease, and the `limits` of its time."""

    setup: Setup
    lease: Lease
    ready: ReadyCall
    limits: Sequence[CancelScope] = ()


class PermissionRequests:
    """The requests of one running call. It asks one question at a time, and each host or folder once."""

    def __init__(self, environment: CallEnvironment) -> None:
        self._setup, self._log, self._claim = environment.setup, environment.lease.log, environment.lease.claim
        self._ready, self._limits = environment.ready, environment.limits
        self._call_id = environment.ready.call.call.id
        self._state = State()
        self._turn = asyncio.Lock()
        self._is_unanswered = False

    async def decide(self, tool: str, arguments: dict[str, Json], why: str) -> PermissionAnswer:
        """Decide whether the call may do this too. The first argument is what rules and answers are about."""
        async with self._turn:
            await self._catch_up()
            rule = suggest_request_rule(tool, arguments)
            earlier = self._find_request(rule)
            if earlier is not None and earlier.answer is not None:
                return _describe_answer(earlier.answer)
            verdict = await self._apply_policy(tool, arguments, why)
            if verdict.action != "ask":
                return PermissionAnswer(verdict.action == "allow", f"{verdict.why[:1].upper()}{verdict.why[1:]}.")
            gate = self._setup.gate
            if gate is None:
                return PermissionAnswer(False, NOBODY_TO_ASK.format(why=verdict.why, rule=rule))
            if self._is_unanswered:  # nobody is there, so the call does not wait again
                return PermissionAnswer(False, NOBODY_ANSWERED)
            with ExitStack() as stack:
                for limit in self._limits:
                    stack.enter_context(limit.pause())
                answer = await self._ask(gate, self._build_question(tool, arguments, verdict.why, rule))
            self._is_unanswered = answer.by == "expiry"
            return _describe_answer(answer)

    async def _catch_up(self) -> None:
        for fact in await self._log.read(self._claim.session_id, after=self._state.seq):
            apply(self._state, fact)

    def _find_request(self, rule: str) -> CallState | None:
        """Find the last request of this call with that rule."""
        call = self._state.calls.get(self._call_id)
        found = [one for one in (call.requests if call else ()) if one.asked is not None and one.asked.rule == rule]
        return found[-1] if found else None

    async def _apply_policy(self, tool: str, arguments: dict[str, Json], why: str) -> Verdict:
        setup, assessment = self._setup, Assessment(why=why, doubts=(why,))
        traits = _TRAITS.get(tool)
        risk = find_flow_risk(setup, self._state, self._ready.tool, traits, assessment) if traits else ""
        assessment = Assessment(why=why, doubts=(f"{why}; {risk}" if risk else why,), flow_risk=risk)
        verdict = decide_request(setup.grants, self._state.remembered, tool, arguments, assessment)
        if verdict.asks_flow:  # the question shows the host, so its answer may be remembered
            verdict = Verdict("ask", assessment.doubts[0])
        for middleware in setup.middleware:
            verdict = choose_strictest(verdict, await middleware.may_run(tool, assessment.safety, arguments) or verdict)
        return verdict

    def _build_question(self, tool: str, arguments: dict[str, Json], why: str, rule: str) -> events.ApprovalRequested:
        number = 1
        while (question_id := f"{self._call_id}~{number}") in self._state.calls:
            number += 1
        wait = min(MAX_WAIT_SECONDS, self._setup.approval_ttl or MAX_WAIT_SECONDS)
        question = events.ApprovalRequested(
            call_id=question_id,
            tool=tool,
            arguments=arguments,
            safety="caution",
            why=why,
            rule=rule,
            digest=compute_digest(self._setup, tool, arguments),
            expires_at=self._setup.clock.now() + wait,
            during=self._call_id,
        )
        fact = events.validate_fact(question)
        assert isinstance(fact, events.ApprovalRequested)
        return fact

    async def _ask(self, gate: Gate, question: events.ApprovalRequested) -> events.ApprovalAnswered:
        """Ask a person, and wait for the answer of anyone. An answer for more than this call is one too."""
        await self._post(question)
        await self._catch_up()
        request = self._state.calls[question.call_id]
        question = request.asked or question  # with its position
        answering = asyncio.create_task(self._ask_person(gate, question))
        expiring = asyncio.create_task(self._expire(question))
        watch = self._log.watch(self._claim.session_id, after=self._state.seq)
        try:
            async for event in watch:
                if isinstance(event, events.Fact):
                    apply(self._state, event)
                if request.answer is not None:
                    return request.answer
                if request.finished is not None:
                    break
        finally:
            watch.close()
            answering.cancel()
            expiring.cancel()
            await asyncio.wait((answering, expiring))
        raise Conflict(f"the question {question.call_id} was closed; the call that asked it is over")

    async def _ask_person(self, gate: Gate, question: events.ApprovalRequested) -> None:
        try:
            answer = await gate(question)
            if answer is not None:
                await self._post_answer(question, answer)
        except Exception:  # the question stays open in the log
            _logger.exception("the gate failed; %s still waits for an answer", question.call_id)

    async def _expire(self, question: events.ApprovalRequested) -> None:
        clock = self._setup.clock
        while (left := (question.expires_at or 0.0) - clock.now()) > 0:
            await clock.sleep(left)
        await self._post_answer(question, Answer("deny", comment="nobody answered in time", by="expiry"))

    async def _post_answer(self, question: events.ApprovalRequested, answer: Answer) -> None:
        """Store an answer. If somebody was faster, theirs counts."""
        with suppress(Conflict):
            fact = build_answer_fact(self._state.calls[question.call_id], answer, question.digest)
            await self._post(fact, build_answer_key(question.call_id))

    async def _post(self, fact: events.AnyFact, key: str = "") -> None:
        fact = events.validate_fact(fact)
        await self._log.post(self._claim.session_id, [fact], key, wake=False, claim=self._claim)


def _describe_answer(answer: events.ApprovalAnswered) -> PermissionAnswer:
    if answer.decision == "allow":
        return PermissionAnswer(True, f"{answer.by or 'The user'} allowed it.")
    if answer.by == "expiry":
        return PermissionAnswer(False, NOBODY_ANSWERED)
    return PermissionAnswer(False, describe_denial(answer))
