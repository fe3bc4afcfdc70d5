"""A session as its user sees it: send, run, ask, answer, cancel, fork, rewind. All of it is in the log."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Generic, Literal, NoReturn

from msgspec import to_builtins
from msgspec.structs import replace

from treadle import events
from treadle.engine.cancel_scope import CancelScope
from treadle.engine.checkpoints import Checkpoint, build_checkpoints
from treadle.engine.compaction import Breakdown
from treadle.engine.coordinator import Coordinator
from treadle.engine.fold import apply_pieces
from treadle.engine.hook_result import HOOK_NOTE, HookRecord, HookResult
from treadle.engine.model_call import build_breakdown, compact_context
from treadle.engine.queued_messages import Content, build_parts, clean_parts, post_edit
from treadle.engine.setup import Answer, check_returned_type
from treadle.engine.state import State
from treadle.engine.tool_call import load_output
from treadle.errors import BadInput, Conflict, MessageRefused, MessageStopped, NotAnswered, NotFound, TreadleError
from treadle.log.base import Artifact, Log, Watch
from treadle.messages import Json, Message, Part, ToolSpec, replace_surrogates
from treadle.permissions.patterns import covers_call
from treadle.permissions.policy import WEB_TOOLS, find_narrowest_tier
from treadle.run import Run
from treadle.tools.base import ToolResult
from treadle.typed_output import T

if TYPE_CHECKING:
    from types import TracebackType

    from treadle.agent import Agent
    from treadle.export.spans import Span
    from treadle.history.rewind import Rewind, RewindChange, Rewinder, RewindTarget

_OPENING_ADVICE = "write `async with agent.session(...) as session:` and use `session` inside the block"


class Session(Generic[T]):
    """One conversation: its log, and the agent that continues it."""

    def __init__(self, coordinator: Coordinator, agent: Agent[T], session_id: str) -> None:
        self.id = session_id
        self.agent = agent
        self._coordinator = coordinator
        self._log = coordinator.log
        self._reading_scopes = set[CancelScope]()

    def run(self, content: Content, *, mode: events.MessageMode = "queue", key: str = "") -> Run:
        """Send a message and watch its run: `async with session.run("...") as run: async for event in run`."""
        message_id = f"msg_{os.urandom(8).hex()}"

        async def begin() -> int:
            if self.agent.model is None and not (await self._coordinator.load_state(self.id)).model:
                await self.agent.choose_model()  # without a model nothing is stored
            fact = await self._post_message(content, mode, key, message_id)
            run.message_id = fact.id  # an idempotent repeat follows the message that was stored first
            return fact.seq

        run = Run(self._coordinator, self.id, begin, message_id)
        return run

    async def ask(self, content: Content, *, key: str = "") -> T:
        """Send a message and get the answer: text, or a value of the agent's `output` type.

        Raises `NotAnswered` when the run ends without an answer or waits for somebody.
        """
        async with self.run(content, key=key) as run:
            outcome = await run.wait()
        if outcome is None:
            names = ", ".join(getattr(question, "tool", "a question") for question in run.pending)
            if not names:
                raise NotAnswered("nobody works on this message now; session.continue_() goes on with it", self.id)
            raise NotAnswered(f"the run waits for somebody: {names}", self.id)
        if outcome.reason != "answered":
            why = f": {outcome.error}" if outcome.error else ""
            text = f"the run ended without an answer ({outcome.reason}{why}); session.continue_() goes on"
            raise NotAnswered(text, self.id, outcome)
        return self.agent.parse_output(outcome.answer)

    async def send(self, content: Content, *, mode: events.MessageMode = "queue", key: str = "") -> str:
        """Send a message without watching, and get its id. It steers the current run, or interrupts it.

        With the mode `follow_up` it waits until the current run has answered, and then gets a run of its own.
        """
        return (await self.post(content, mode=mode, key=key)).id

    async def post(
        self, content: Content, *, mode: events.MessageMode = "queue", key: str = "", history: Sequence[Message] = ()
    ) -> events.MessageReceived:
        """Like `send`, but returns the message as it was stored. The same key returns the first message again.

        `history` is a conversation from elsewhere that the first message of a session continues.
        """
        return await self._post_message(content, mode, key, f"msg_{os.urandom(8).hex()}", history)

    async def edit_message(self, message_id: str, content: Content, *, by: str = "user") -> None:
        """Change a message that no run has taken yet. Raises `Conflict` when one has."""
        parts = await self._read_content(content)
        edit = events.MessageEdited(id=message_id, parts=parts, by=by)
        await post_edit(self._log, self.id, await self._coordinator.load_state(self.id), edit)

    async def withdraw_message(self, message_id: str, *, by: str = "user") -> None:
        """Take back a message that no run has taken yet. Raises `Conflict` when one has."""
        state, edit = await self._coordinator.load_state(self.id), events.MessageEdited(id=message_id, by=by)
        await post_edit(self._log, self.id, state, edit)

    def continue_(self, limits: events.Limits | None = None) -> Run:
        """Continue after a limit, a cancel or a failure, with a fresh budget."""
        return Run(self._coordinator, self.id, partial(self._post_request, "continue", limits))

    def regenerate(self, limits: events.Limits | None = None) -> Run:
        """Answer the last message again. The model does not see the earlier answer."""
        return Run(self._coordinator, self.id, partial(self._post_request, "regenerate", limits))

    async def go_on(
        self, trigger: events.Trigger = "continue", limits: events.Limits | None = None, *, key: str = ""
    ) -> int:
        """`continue_` or `regenerate` without watching. Returns the position of the request. A key can be used once."""
        position = await self._post_request(trigger, limits, key)
        await self._coordinator.wake(self.id)
        return position

    def run_command(self, command: str) -> Run:
        """Run a command of the user as the agent's `shell` would, without asking the model.

        The same policy, sandbox and limits apply. The model reads the command and its output with the next message.
        """
        if not command.strip():
            raise BadInput("the command is empty: say what to run")
        return Run(self._coordinator, self.id, partial(self._post_request, "command", command=command))

    def resume(self) -> Run:
        """Continue an unfinished run after a crash or a failure. Without one the run ends at once."""

        async def begin() -> int:
            state = await self._coordinator.load_state(self.id)
            if state.run is None and not state.queue and state.last is not None and state.last.reason == "failed":
                posted = await self._log.post(self.id, [events.RunRequested(trigger="recover")])
                return posted.facts[0].seq
            return state.seq

        return Run(self._coordinator, self.id, begin, is_running=True)

    def follow(self, posted: events.MessageReceived | events.CallFinished | int) -> Run:
        """Follow the run of a message that was posted, of a call that finished, or that was requested at a position.

        Unlike `run`, its iteration continues while a question is open, and leaving it stops nothing.
        """
        if isinstance(posted, events.CallFinished):
            return Run(self._coordinator, self.id, None, after=posted.seq, is_running=True)
        message_id, position = ("", posted) if isinstance(posted, int) else (posted.id, posted.seq)
        run = Run(self._coordinator, self.id, None, message_id, after=position)
        run.is_follow_up = not isinstance(posted, int) and posted.mode == "follow_up"
        return run

    async def approve(self, call_id: str, answer: Answer | None = None, *, digest: str = "") -> None:
        """Answer an approval: allow it once, or as `answer` says. Anyone with the log may answer, at any time.

        This process then continues the session. If it ends first, `resume` or another runtime continues it. With the
        `digest` of the question that was shown, the answer counts only for that question.
        """
        await self._coordinator.answer(self.id, call_id, answer or Answer(), digest)

    async def deny(self, call_id: str, comment: str = "", *, by: str = "user") -> None:
        """Refuse a call. The model reads the refusal with your comment, and the run continues."""
        await self._coordinator.answer(self.id, call_id, Answer("deny", comment=comment, by=by))

    async def answer(self, call_id: str, *answers: str, by: str = "user") -> None:
        """Answer what the model asked with `ask_user`."""
        await self._coordinator.answer(self.id, call_id, Answer(answers=answers, by=by))

    async def finish_call(
        self, call_id: str, output: str, *, parts: Sequence[Part] = (), ok: bool = True
    ) -> events.CallFinished:
        """Send the result of a call that the client runs, and continue. The same result again changes nothing.

        Raises `AlreadyAnswered` if the call has another result, and `Expired` if it comes too late.
        """
        return await self._coordinator.finish_call(self.id, call_id, ToolResult(output, tuple(parts), ok))

    async def cancel(self, by: str = "user", why: str = "") -> events.RunFinished | None:
        """Stop the run, its model call and its tools. Returns when that is recorded.

        A message that middleware still reads is not stored: its sender gets `MessageStopped`.
        """
        for scope in self._reading_scopes:
            scope.stop()
        return await self._coordinator.cancel(self.id, by, why)

    async def retry_now(self, by: str = "user") -> None:
        """Ask the model again now, instead of waiting until its provider may be ready.

        `state().retry_at` is when the wait would end. Raises `Conflict` if no run waits for its provider.
        """
        await self._coordinator.retry_now(self.id, by)

    async def rename(self, name: str, *, by: Literal["user", "auto"] = "user") -> None:
        """Name the session. A name given by a user is never replaced automatically."""
        await self._log.post(self.id, [events.validate_fact(events.SessionRenamed(name=name, by=by))], wake=False)

    async def mark(self, *, pinned: bool | None = None, archived: bool | None = None, by: str = "user") -> None:
        """Pin the session in lists, archive it, or take that back. None changes nothing."""
        fact = events.validate_fact(events.SessionMarked(pinned=pinned, archived=archived, by=by))
        await self._log.post(self.id, [fact], wake=False)

    async def choose_access(self, access: events.Tier, *, by: str = "user") -> None:
        """Choose what the session may do from its next call on, within what this process allows."""
        setup = await self._coordinator.build_setup(await self._coordinator.load_state(self.id))
        before = find_narrowest_tier(setup.grants)
        fact = events.validate_fact(events.SessionConfigured(access=access, access_before=before, by=by))
        await self._log.post(self.id, [fact], wake=False)

    @property
    def log(self) -> Log:
        """The log of the store that has this session."""
        return self._log

    async def configure(
        self,
        *,
        agent: str = "",
        model: str = "",
        limits: events.Limits | None = None,
        web: bool | None = None,
        client_tools: Sequence[ToolSpec] | None = None,
        by: str = "user",
    ) -> None:
        """Use another agent of this runtime, another model or other limits, from the next run on.

        `web=False` switches the web tools off. `web=True` switches them on again, as far as the operator and the
        project allow them. `client_tools` are offered to the model with the agent's own. The run waits when one is
        called, and `finish_call` sends its result. Raises `NotFound` for an unknown agent or model, and `BadInput` for
        a model without its key.
        """
        tools = tuple(client_tools) if client_tools is not None else None
        configured = events.SessionConfigured(
            agent=agent, model=model, limits=limits, web=web, client_tools=tools, by=by
        )
        fact = events.validate_fact(configured)
        if agent and agent not in self._coordinator.agents:
            names = ", ".join(self._coordinator.agents)
            raise NotFound(f"no agent named {agent!r} here; there are: {names or 'none'}")
        if model:  # a model that cannot be used would stop the session at its next message
            wanted = copy(await self._coordinator.load_state(self.id))
            wanted.agent, wanted.model = agent or wanted.agent, model
            await self._coordinator.build_setup(wanted)
        await self._log.post(self.id, [fact], wake=False)

    async def has_web(self) -> bool:
        """Whether the next run offers web tools: the operator, the project and the session allow them."""
        setup = await self._coordinator.build_setup(await self._coordinator.load_state(self.id))
        return any(covers_call(pattern, spec.name, {}) for pattern in WEB_TOOLS for spec in setup.specs)

    async def note(self, name: str, data: Json = None) -> None:
        """Store your own data in the log, under a namespaced name such as `acme.audit`."""
        if "." not in name:
            raise BadInput(f"{name!r}: a custom fact needs a namespaced name, such as acme.audit")
        await self._log.post(self.id, [events.validate_fact(events.Custom(name=name, data=data))], wake=False)

    async def state(self) -> State:
        """Return the current state of the session. Do not change it."""
        return await self._coordinator.load_state(self.id)

    async def at(self, seq: int) -> State:
        """Return the state of the session at a position."""
        await apply_pieces(state := State(), self._log.read_in_pieces(self.id, until=seq))
        if not seq == state.seq >= 1:
            raise BadInput(f"session {self.id} has positions 1 to {(await self._log.get_info(self.id)).seq}, not {seq}")
        return state

    async def facts(self, after: int = 0) -> list[events.AnyFact]:
        """Return the facts after a position."""
        return await self._log.read(self.id, after)

    def watch(self, after: int = 0) -> Watch:
        """Watch every fact after a position, then live events with deltas, until you stop. It never slows a run."""
        return self._log.watch(self.id, after)

    async def spans(self) -> list[Span]:
        """Return the session as tracing spans: each step with its duration and result."""
        from treadle.export.spans import build_spans

        return build_spans(await self._log.read(self.id))

    async def checkpoints(self, after: int = 0, limit: int | None = None) -> list[Checkpoint]:
        """List the positions after `after` that `resume_from`, `fork` and `at` take, with what the run had there."""
        state, setup = await self._coordinator.load_state(self.id), None
        with suppress(TreadleError):  # the model may have no key here; the session can be read all the same
            setup = await self._coordinator.build_setup(state)
        return build_checkpoints(await self._log.read(self.id), setup, after=after, limit=limit)

    def resume_from(self, seq: int, limits: events.Limits | None = None, *, files: bool = False) -> Run:
        """Go on from a checkpoint in this session: the conversation is rewound to it, and a run starts.

        Before tool calls, the calls of the reply run again. What ran after the checkpoint is not undone; `files` first
        rewinds the files that calls changed. Use `fork(seq)` and `resume` to keep this session as it is.
        """
        return Run(self._coordinator, self.id, partial(self._post_resume, seq, limits, files))

    async def go_on_from(self, seq: int, limits: events.Limits | None = None, *, files: bool = False) -> int:
        """`resume_from` without watching. Returns the position of the request."""
        position = await self._post_resume(seq, limits, files)
        await self._coordinator.wake(self.id)
        return position

    async def _post_resume(self, seq: int, limits: events.Limits | None, files: bool) -> int:
        point = next(iter(build_checkpoints(await self._log.read(self.id), after=seq - 1, limit=1)), None)
        if point is None or point.seq != seq:
            raise BadInput(f"position {seq} is no checkpoint of session {self.id}; session.checkpoints() lists them")
        rewinder = self._build_rewinder()
        if files:
            await rewinder.rewind(seq, "files", dry_run=False, force=False)
        to = seq - 1 if point.kind in ("before_llm", "before_tool_calls") else seq
        request = events.RunRequested(trigger="resume", limits=limits, after=seq)
        return (await rewinder.rewind(to, "conversation", dry_run=False, force=False, request=request)).seq

    async def fork(self, after: int | None = None) -> Session[T]:
        """Create a session with a copy of this one's log up to a position (default: all of it)."""
        facts = await self._log.read(self.id, limit=after)
        if not facts or (after is not None and not 1 <= after <= len(facts)):
            raise BadInput(f"session {self.id} has no position {after} to fork from; it starts with 1")
        first = facts[0]
        assert isinstance(first, events.SessionCreated)
        fork_id = generate_session_id()
        first = replace(first, session_id=fork_id, parent=events.Parent(self.id, len(facts)), at=0.0)
        # A copy of a session that was archived or pinned is a new session.
        unmarked = [events.SessionMarked(pinned=False, archived=False)] if _has_marks(facts) else []
        await self._log.create(fork_id, [first, *facts[1:], *unmarked])
        for fact in facts:
            if isinstance(fact, events.CallFinished) and fact.truncation is not None and fact.truncation.artifact:
                kept = await self._log.get_artifact(self.id, fact.truncation.artifact)
                await self._log.put_artifact(fork_id, kept.data, kept.media_type)
        return Session(self._coordinator, self.agent, fork_id)

    async def changes(self, after: int = 0) -> list[RewindChange]:
        """List how files and git branches that this session's calls changed differ from a position."""
        return await self._build_rewinder().list_changes(after)

    async def rewind(
        self, seq: int, what: RewindTarget = "both", *, dry_run: bool = False, force: bool = False
    ) -> Rewind:
        """Go back to a position: files, conversation or both. `dry_run` only returns the diffs. Nothing is lost.

        Git branches go back with the files; their commits stay in the reflog. Files and branches that somebody else
        changed since are skipped unless `force`. Raises `Conflict` during a run.
        """
        return await self._build_rewinder().rewind(seq, what, dry_run=dry_run, force=force)

    async def revert_file(self, path: str, to: int = 1, *, dry_run: bool = False, force: bool = False) -> Rewind:
        """Revert one file to what it was at a position; without one, before the session. `undo_rewind` undoes it."""
        return await self._build_rewinder().revert_file(path, to, dry_run=dry_run, force=force)

    async def undo_rewind(self, *, dry_run: bool = False, force: bool = False) -> Rewind:
        """Undo the last rewind. Calling it twice restores the rewind."""
        return await self._build_rewinder().undo(dry_run=dry_run, force=force)

    def _build_rewinder(self) -> Rewinder:
        from treadle.history.rewind import Rewinder, find_contents

        return Rewinder(self._coordinator, self.id, find_contents(self._log, self.agent.tools))

    async def artifact(self, artifact_id: str) -> Artifact:
        """Return the whole of an output that was too large for the model."""
        return await load_output(self._log, self.id, artifact_id)

    async def compact(self) -> events.ContextCompacted | None:
        """Summarize older turns to make room in the context. None when that gains nothing. The log keeps all turns."""
        state = await self._coordinator.load_state(self.id)
        fact = await compact_context(await self._coordinator.build_setup(state), state, asked=True)
        if fact is None or fact.tokens_after >= fact.tokens_before:
            return None
        await self._log.post(self.id, [events.validate_fact(fact)], wake=False)
        return fact

    async def undo_compaction(self) -> None:
        """Show the model again what the last compaction removed. A context that is still full is compacted again."""
        if not (await self._coordinator.load_state(self.id)).compacted:
            raise Conflict(f"session {self.id} has no compaction in effect; there is nothing to undo")
        await self._log.post(self.id, [events.ContextCompacted(kind="undo")], wake=False)

    async def context(self) -> Breakdown:
        """Measure how many tokens of the model's window the system, tools, skills, files and history use."""
        state = await self._coordinator.load_state(self.id)
        return build_breakdown(await self._coordinator.build_setup(state), state)

    async def delete(self) -> None:
        """Delete the session and everything in it. Refused while it runs."""
        await self._log.delete(self.id)

    async def _post_message(
        self, content: Content, mode: events.MessageMode, key: str, message_id: str, history: Sequence[Message] = ()
    ) -> events.MessageReceived:
        self._coordinator.check_open()
        parts = await self._read_content(content)
        received = events.MessageReceived(id=message_id, parts=parts, mode=mode, key=key, history=tuple(history))
        stored = (await self._coordinator.post(self.id, received, f"message:{key}" if key else "")).facts[0]
        assert isinstance(stored, events.MessageReceived)
        return stored

    async def _read_content(self, content: Content) -> tuple[Part, ...]:
        parts = build_parts(content)
        if self.agent.middleware:
            parts = await self._show_to_middleware(parts)
        return clean_parts(parts)

    async def _show_to_middleware(self, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        """Let middleware change or refuse a message. `cancel` ends it, also a hook that takes long."""
        scope = CancelScope()
        self._reading_scopes.add(scope)
        try:
            with scope:
                for middleware in self.agent.middleware:
                    changed = await middleware.on_user_message(self.id, parts)
                    changed = tuple(changed) if isinstance(changed, list) else changed
                    parts = check_returned_type(changed, tuple, middleware, "on_user_message")
        except MessageRefused as error:
            refusal = HookRecord("prompt", HookResult("deny", replace_surrogates(str(error))))
            await self.note(HOOK_NOTE, to_builtins(refusal))
            raise
        except TimeoutError:
            if scope.was_stopped:
                raise MessageStopped("the message was not sent: it was stopped") from None
            raise
        finally:
            self._reading_scopes.discard(scope)
        return parts

    async def _post_request(
        self, trigger: events.Trigger, limits: events.Limits | None = None, key: str = "", command: str = ""
    ) -> int:
        state = await self._coordinator.load_state(self.id)
        if state.run is not None:
            raise Conflict(f"session {self.id} has an unfinished run; wait for it, resume it or cancel it")
        has_message = state.queue or any(isinstance(entry, events.MessageReceived) for entry in state.entries)
        if not has_message and not command:
            raise Conflict(f"session {self.id} has no message yet; there is nothing to {trigger}")
        fact = events.validate_fact(events.RunRequested(trigger=trigger, limits=limits, command=command))
        posted = await self._log.post(self.id, [fact], key=f"request:{key}" if key else "")
        if not posted.is_new:
            raise Conflict(f"session {self.id} went on from there already")
        return posted.facts[0].seq


class SessionOpener(Generic[T]):
    """Opens a session: `async with agent.session(...) as session`. Every other use raises `BadInput`, which says so."""

    def __init__(self, opening: AbstractAsyncContextManager[Session[T]]) -> None:
        self._opening = opening

    async def __aenter__(self) -> Session[T]:
        return await self._opening.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._opening.__aexit__(kind, error, trace)

    if not TYPE_CHECKING:  # a type checker reports the wrong use itself

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(name)
            raise BadInput(f"the session is not open yet, so it has no {name!r}; {_OPENING_ADVICE}")

        def __await__(self) -> Generator[None, None, NoReturn]:
            raise BadInput(f"a session is opened by a block, not by await; {_OPENING_ADVICE}")


def _has_marks(facts: Sequence[events.AnyFact]) -> bool:
    return any(isinstance(fact, events.SessionMarked) for fact in facts)


def generate_session_id() -> str:
    """Generate an id of 128 random bits, which cannot be guessed and never repeats."""
    return os.urandom(16).hex()
