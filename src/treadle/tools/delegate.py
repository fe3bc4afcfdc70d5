"""`delegate`: gives a part of the work to a helper with a session of its own.

A helper has its own log, agent and limits, and at most its parent's rights. Only its answer goes back. The id of its
session is derived from the call, so that a call that is run again after a crash goes on with the same helper.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from treadle import events
from treadle.engine.fold import fold
from treadle.engine.state import State
from treadle.errors import Conflict, NotFound, describe_wait
from treadle.git.session_worktrees import WORKTREE_NOTE, Worktree, parse_worktree
from treadle.permissions.paths import find_worktree_folder
from treadle.sandbox import backend
from treadle.sandbox.worktree_commands import start_worktree
from treadle.tools.base import HelperAgent, HelperHost, HelperSession, Tool, ToolContext, ToolError, ToolResult
from treadle.tools.function import tool
from treadle.tools.helper_worktree import finish_helper_worktree

MAX_DEPTH = 3
MAX_ATTEMPTS = 3
MAX_STEP = 120
"""Characters of the argument of a helper's call that are reported."""

_STEP_WORDS: dict[events.CallStatus, str] = {
    "ok": "ok",
    "error": "failed",
    "timed_out": "failed",
    "denied": "denied",
    "refused": "denied",
    "cancelled": "stopped",
    "interrupted": "unknown",
}
Number = TypeVar("Number", int, float)

_ABOUT = """Give a part of the work to a helper that knows nothing but what you tell it, and get its answer.

Say all that it needs: the goal, the files, what to answer with. Several calls in one reply run at the same time."""


def build_delegate_tool(agents: Mapping[str, str] | None = None, *, worktree_folder: Path | None = None) -> Tool:
    """Make the tool. `agents` are the agents it may name, with what each is for.

    `worktree_folder` is where the worktrees of helpers are created; the default is in the user's state folder.
    """
    listed = "".join(f"\n- {name}: {' '.join(about.split())[:120]}" for name, about in sorted((agents or {}).items()))

    # Safe: each call of the helper is authorized on its own, with no more rights than the parent has.
    @tool(
        name="delegate",
        safety="safe",
        timeout=None,
        description=f"{_ABOUT}\n\nThe agents are:{listed}" if listed else _ABOUT,
        examples=[("have somebody find out where the tests are", {"task": "Find the folder with the tests. Name it."})],
    )
    async def delegate(
        context: ToolContext,
        task: str,
        agent: str = "",
        folder: str = "",
        read_only: bool = False,
        worktree: bool = False,
    ) -> ToolResult:
        """Give a part of the work to a helper.

        Args:
            task: what to do, with all that is needed to do it
            agent: which agent does it; empty for one like you
            folder: a folder of the workspace that it works in; empty for all of it
            read_only: whether it must ask before it changes anything
            worktree: whether it works on a git branch of its own, from the last commit, in a folder that only it sees
        """
        if not task.strip():
            raise ToolError("The task is empty. Say what the helper is to do.")
        if context.services.helpers is None:
            raise ToolError("There are no helpers here. Do it yourself.")
        if worktree and context.tier == "plan":
            raise ToolError("A worktree changes the repository, and in plan mode nothing changes. Leave it out.")
        if worktree and folder:
            raise ToolError("A helper with a worktree has the whole repository. Leave out the folder.")
        helper = Helper(context.services.helpers, context, agent, folder)
        parent = worktree_folder or find_worktree_folder()
        return await helper.run(task, read_only=read_only, worktrees=parent if worktree else None)

    # A parent that is stopped waits until its helper has stopped: the next start would resume one left behind.
    delegate.ends_when_cancelled = True
    delegate.resumes = True  # with the same helper, which may wait days for its answer
    return delegate


def derive_helper_id(session_id: str, call_id: str) -> str:
    """Derive the id of the session that a call starts: always the same, and as hard to guess as its parent's."""
    return hashlib.sha256(f"helper\0{session_id}\0{call_id}".encode()).hexdigest()[:32]


class Helper:
    """The session that does the work of one call."""

    def __init__(self, host: HelperHost, context: ToolContext, agent_name: str, folder: str) -> None:
        name = agent_name or host.created.agent.name
        if name not in host.agents:
            raise ToolError(f"There is no agent named {name!r}. The agents are: {', '.join(sorted(host.agents))}.")
        self._host, self._context, self._folder = host, context, context.workspace
        if folder:
            self._folder = Path(os.path.realpath(context.workspace / folder))
            if not self._folder.is_relative_to(os.path.realpath(context.workspace)) or not self._folder.is_dir():
                raise ToolError(f"{folder!r} is no folder inside the workspace.")
        self._agent: HelperAgent = host.agents[name]
        self._calls: dict[str, str] = {}
        self._id = derive_helper_id(context.session_id, context.call_id)

    async def run(self, task: str, *, read_only: bool, worktrees: Path | None = None) -> ToolResult:
        """Do the work, or go on with it where an earlier attempt stopped. Cancelling this cancels the work.

        With `worktrees`, the helper works in a worktree in that folder.
        """
        async with self._host.slots:
            if not await self._is_created():
                if await self._count_ancestors() >= MAX_DEPTH:
                    raise ToolError(f"Helpers may have helpers {MAX_DEPTH} deep, and no deeper. Do this part yourself.")
                async with AsyncExitStack() as creating:  # it removes a new worktree again if there is no session
                    worktree = None
                    if worktrees is not None:
                        starting = start_worktree(backend, self._folder, self._id[:12], worktrees)
                        worktree = await creating.enter_async_context(starting)
                    await self._create(task, worktree, read_only=read_only)
            claim = self._context.services.claim
            async with self._host.open_session(self._agent.name, self._id, claim) as session:
                outcome = await self._run_session(session, task)
                state = await session.state()
            note = await self._finish_worktree(state, task)
        sources = tuple(state.seen)  # its answer may be made of all that it has seen
        if outcome.reason == "answered":
            return ToolResult(f"{outcome.answer}{note}", usage=outcome.usage, sources=sources)
        why = f"{outcome.reason.replace('_', ' ')}{f', {outcome.error}' if outcome.error else ''}"
        so_far = f" So far: {outcome.answer}" if outcome.answer else ""
        text = f"The helper did not finish ({why}).{so_far}{note}"
        return ToolResult(text, ok=False, usage=outcome.usage, sources=sources)

    async def _finish_worktree(self, state: State, task: str) -> str:
        worktree = parse_worktree(state.notes.get(WORKTREE_NOTE))
        if worktree is None:
            return ""
        await self._context.services.check_claim()
        is_removed, note = await finish_helper_worktree(backend, worktree, task)
        if is_removed:
            gone = events.validate_fact(events.Custom(name=WORKTREE_NOTE, data=None))
            await self._host.log.post(self._id, [gone], wake=False, claim=self._context.services.claim)
        return f"\n\n[{note}]"

    async def _is_created(self) -> bool:
        """Whether an earlier attempt of this call created the session."""
        try:
            existing = (await self._host.log.get_info(self._id)).parent
        except NotFound:
            return False
        own = self._context.session_id, self._context.call_id
        if existing is None or (existing.session_id, existing.call_id) != own:
            raise ToolError("Another session has the id of this helper. Do this part yourself.")
        return True

    async def _create(self, task: str, worktree: Worktree | None, *, read_only: bool) -> None:
        host, context = self._host, self._context
        parent = fold(await host.log.read(context.session_id))
        if worktree is not None:
            self._folder = Path(worktree.folder)
        grants = (*host.grants, events.Grant(tier="read-only")) if read_only else host.grants
        origin = events.Parent(context.session_id, parent.seq, context.call_id)
        created = self._agent.build_created_fact(self._id, self._folder, grants, origin)
        facts: list[events.AnyFact] = [
            replace(created, sources=tuple(parent.seen)),
            events.SessionRenamed(name=" ".join(task.split())[:60], by="auto"),
            events.SessionConfigured(limits=self._share_limits(parent), by="delegate"),
        ]
        if worktree is not None:
            facts.append(events.Custom(name=WORKTREE_NOTE, data=msgspec.to_builtins(worktree)))
        facts = [events.validate_fact(fact) for fact in facts]
        try:
            await host.log.create(self._id, facts, claim=context.services.claim)
        except Conflict:
            if not await self._is_created():
                raise
            return
        note = {"session_id": self._id, "call_id": context.call_id, "agent": self._agent.name, "task": task[:500]}
        await context.services.save_note(f"treadle.helper.{context.call_id}", note)

    async def _count_ancestors(self) -> int:
        depth, parent = 0, self._host.created.parent
        while parent is not None and parent.call_id and depth < MAX_DEPTH:
            depth += 1
            try:
                parent = (await self._host.log.get_info(parent.session_id)).parent
            except NotFound:  # the depth of a deleted parent is not known any more
                break
        return depth

    def _share_limits(self, parent: State) -> events.Limits:
        """Build the helper's limits: at most the time its parent has left, and an even share of money and tokens."""
        own, call_id = self._agent.limits, self._context.call_id
        run, calls = parent.run, parent.turn.calls if parent.turn is not None else {}
        if run is None or call_id not in calls:
            return own
        name, limits = calls[call_id].call.tool, run.limits
        shares = sum(call.finished is None and call.call.tool == name for call in calls.values()) or 1
        cost, tokens, seconds = own.cost, own.tokens, own.seconds
        if limits.cost is not None:
            cost = _choose_least(cost, max((limits.cost - run.usage.cost) / shares, 1e-9))
        if limits.tokens is not None:
            tokens = _choose_least(tokens, max((limits.tokens - run.usage.output_tokens) // shares, 1))
        if limits.seconds is not None:
            elapsed = self._host.now() - run.started_at - run.waited
            seconds = _choose_least(seconds, max(limits.seconds - elapsed, 0.001))
        return replace(own, tokens=tokens, seconds=seconds, cost=cost)

    def _report_step(self, event: events.Event) -> None:
        """Report what the helper does: the state of a call in a word, its tool and its main argument."""
        match event:
            case events.CallStarted():
                value = next((value for value in event.arguments.values() if isinstance(value, str)), "")
                self._calls[event.call_id] = f"{event.tool} {' '.join(value[:MAX_STEP].split())}".strip()
                self._context.progress(f"running {self._calls[event.call_id]}")
            case events.CallFinished():
                call = self._calls.pop(event.call_id, event.tool)
                self._context.progress(f"{_STEP_WORDS[event.status]} {call}")
            case events.ModelFailed() if event.wait is not None:
                retry = f"retrying in {describe_wait(event.wait)}"
                self._context.progress(f"{self._agent.name}: provider {event.kind}, {retry}")
            case _:
                pass

    async def _run_session(self, session: HelperSession, task: str) -> events.RunFinished:
        failures = 0
        while failures < MAX_ATTEMPTS:
            await self._context.services.check_claim()
            async with session.run(task, key="task") as run:
                try:
                    async for event in run:
                        self._report_step(event)
                except asyncio.CancelledError:  # the host cancels the helper, if it still may
                    run.detach()
                    raise
            if run.outcome is not None:
                return run.outcome
            if not run.pending:
                failures += 1
                continue
            self._context.progress(f"{self._agent.name} waits for an answer")
            state = await session.state()
            if not state.pending:  # somebody has answered meanwhile
                continue
            with closing(session.watch(state.seq)) as watch:
                async for event in watch:
                    if isinstance(
                        event,
                        events.ApprovalAnswered | events.InputAnswered | events.CancelRequested | events.RunFinished,
                    ):
                        break
        raise ToolError(f"The helper broke off {MAX_ATTEMPTS} times. What it did is in session {self._id}.")


def _choose_least(own: Number | None, left: Number) -> Number:
    return left if own is None else min(own, left)
