"""Helpers: a call's work given to a session of its own, whose id comes from the call, so that a crash resumes it.

A helper has its own log, agent and limits, and at most its parent's rights. Only its answer goes back.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from treadle.engine.setup import Setup
from treadle.engine.state import State
from treadle.errors import Conflict, NotFound
from treadle.events import (
    AnyFact,
    ApprovalAnswered,
    CallStarted,
    CancelRequested,
    Custom,
    Event,
    Grant,
    InputAnswered,
    Limits,
    Parent,
    RunFinished,
    SessionConfigured,
    SessionCreated,
    SessionRenamed,
    TurnStarted,
    validate_fact,
)
from treadle.permissions.data_flow import SEEN_NOTE, list_tools_seen
from treadle.session import Session
from treadle.tools.base import HelperRunner, HelperTask, ToolContext, ToolError, ToolResult

if TYPE_CHECKING:
    from treadle.agent import Agent
    from treadle.runtime import Runtime

MAX_PARALLEL_HELPERS = 5
MAX_DEPTH = 3
MAX_ATTEMPTS = 3
Number = TypeVar("Number", int, float)


class Delegation(HelperRunner):
    """Runs helpers for one session; several at once, within a limit."""

    def __init__(self, runtime: Runtime, created: SessionCreated, setup: Setup) -> None:
        self._runtime, self._created, self._setup = runtime, created, setup
        self._slots = asyncio.Semaphore(MAX_PARALLEL_HELPERS)

    async def run(self, task: HelperTask, context: ToolContext) -> ToolResult:
        agent = self._agent(task.agent)
        async with self._slots:
            session = Session(self._runtime.coordinator, agent, await self._open(task, agent, context))
            with self._runtime.kept(session.id, self._setup.gate):
                try:
                    outcome = await self._outcome(session, task, context)
                except asyncio.CancelledError:
                    if not self._runtime.coordinator.is_closed:  # then it is only to be resumed
                        await session.cancel(by="delegate", why="its parent was stopped")
                    raise
            # What it answers may be made of what it has seen.
            state = await session.state()
            seen = sorted(list_tools_seen(state.used, state.notes))
            await context.services.save_note(f"{SEEN_NOTE}{context.call_id}", seen)
        return _told(outcome)

    def _agent(self, name: str) -> Agent:
        agents = self._runtime.agents
        if (name or self._created.agent.name) not in agents:
            raise ToolError(f"There is no agent named {name!r}. The agents are: {', '.join(sorted(agents))}.")
        return agents[name or self._created.agent.name]

    async def _open(self, task: HelperTask, agent: Agent, context: ToolContext) -> str:
        """The session of this very call: made now, or by an attempt that was broken off."""
        child_id = derive_helper_id(context.session_id, context.call_id)
        parent = await self._runtime.coordinator.load_state(context.session_id)
        if await self._depth() >= MAX_DEPTH:
            raise ToolError(f"Helpers may have helpers {MAX_DEPTH} deep, and no deeper. Do this part yourself.")
        narrower = (Grant(tier="read-only"),) if task.read_only else ()
        created = SessionCreated(
            session_id=child_id,
            agent=agent.config(),
            model=agent.resolved_model().name,
            workspace=str(_inside(context.workspace, task.folder)),
            limits=agent.limits,
            grants=(agent.grant, *self._setup.grants, *narrower),
            parent=Parent(context.session_id, parent.seq, context.call_id),
        )
        facts: list[AnyFact] = [
            created,
            SessionRenamed(name=" ".join(task.text.split())[:60], by="auto"),
            SessionConfigured(limits=self._what_is_left(parent, agent.limits, context.call_id), by="delegate"),
        ]
        if seen := list_tools_seen(parent.used, parent.notes):
            facts.append(Custom(name=f"{SEEN_NOTE}parent", data=sorted(seen)))
        try:
            await self._runtime.log.create(child_id, [validate_fact(fact) for fact in facts])
        except Conflict:
            return child_id
        note = {"session_id": child_id, "call_id": context.call_id, "agent": agent.name, "task": task.text[:500]}
        await context.services.save_note(f"treadle.helper.{context.call_id}", note)
        return child_id

    async def _depth(self) -> int:
        depth, parent = 0, self._created.parent
        while parent is not None and parent.call_id and depth < MAX_DEPTH:
            depth += 1
            try:
                parent = (await self._runtime.log.get_info(parent.session_id)).parent
            except NotFound:  # a parent that was deleted had a depth too, but nobody knows it any more
                break
        return depth

    def _what_is_left(self, parent: State, own: Limits, call_id: str) -> Limits:
        """The helper's own limits; of time at most what the parent has left, of money and tokens an even share."""
        run, calls = parent.run, parent.turn.calls if parent.turn is not None else {}
        if run is None or call_id not in calls:
            return own
        tool, given = calls[call_id].call.tool, run.limits
        shares = sum(one.finished is None and one.call.tool == tool for one in calls.values()) or 1
        cost, tokens, seconds = own.cost, own.tokens, own.seconds
        if given.cost is not None:
            cost = _least(cost, max((given.cost - run.usage.cost) / shares, 1e-9))
        if given.tokens is not None:
            tokens = _least(tokens, max((given.tokens - run.usage.output_tokens) // shares, 1))
        if given.seconds is not None:
            gone = self._setup.clock.now() - run.started_at - run.waited
            seconds = _least(seconds, max(given.seconds - gone, 0.001))
        return Limits(own.turns, own.calls, tokens, seconds, cost, own.attempts, own.doom_loop)

    async def _outcome(self, session: Session, task: HelperTask, context: ToolContext) -> RunFinished:
        name, broken = session.agent.name, 0
        while broken < MAX_ATTEMPTS:
            async with session.run(task.text, key="task") as run:
                async for event in run:
                    if said := _progress(name, event):
                        context.progress(said)
            if run.outcome is not None:
                return run.outcome
            if run.pending:
                context.progress(f"{name} waits for an answer")
                await _until_answered(session)
            else:
                broken += 1
        raise ToolError(f"The helper broke off {MAX_ATTEMPTS} times. What it did is in session {session.id}.")


def derive_helper_id(session_id: str, call_id: str) -> str:
    """The id of the session that a call starts: the same for the same call, and as hard to guess as its parent's."""
    import hashlib

    return hashlib.sha256(f"helper\0{session_id}\0{call_id}".encode()).hexdigest()[:32]


def _least(own: Number | None, left: Number) -> Number:
    return left if own is None else min(own, left)


def _inside(workspace: Path, folder: str) -> Path:
    if not folder:
        return workspace
    place = Path(os.path.realpath(workspace / folder))
    if not place.is_relative_to(os.path.realpath(workspace)) or not place.is_dir():
        raise ToolError(f"{folder!r} is no folder inside the workspace.")
    return place


def _progress(name: str, event: Event) -> str:
    match event:
        case TurnStarted(turn=turn, wrap_up=None):
            return f"{name}: turn {turn}"
        case CallStarted(tool=tool):
            return f"{name}: {tool}"
        case _:
            return ""


async def _until_answered(session: Session) -> None:
    """Wait for what goes on with a session that waits for a person."""
    state = await session.state()
    if not state.pending:
        return
    watch = session.watch(state.seq)
    try:
        async for event in watch:
            if isinstance(event, ApprovalAnswered | InputAnswered | CancelRequested | RunFinished):
                return
    finally:
        watch.close()


def _told(outcome: RunFinished) -> ToolResult:
    if outcome.reason == "answered":
        return ToolResult(outcome.answer, usage=outcome.usage)
    why = f"{outcome.reason.replace('_', ' ')}{f', {outcome.error}' if outcome.error else ''}"
    so_far = f" So far: {outcome.answer}" if outcome.answer else ""
    return ToolResult(f"The helper did not finish ({why}).{so_far}", ok=False, usage=outcome.usage)
