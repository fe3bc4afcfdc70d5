"""Decides which sessions this process runs: at most one run per session, started by posts, recovered after a crash.

It claims a session, runs it until there is nothing to do, and releases it. A session that waits needs no task.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from treadle import events
from treadle.engine.claims import SCAN_SECONDS, ClaimKeeper
from treadle.engine.fold import apply, apply_pieces
from treadle.engine.loop import Loop
from treadle.engine.session_entry import Follower, SessionEntries, SessionEntry
from treadle.engine.setup import (
    Answer,
    Clock,
    Gate,
    Lease,
    Setup,
    SetupBuilder,
    Stopwatch,
    build_answer_fact,
    build_answered_error,
    build_expired_error,
    wait_for_store,
)
from treadle.engine.state import State
from treadle.engine.steps import Rest, build_answer_key
from treadle.engine.tool_call import build_client_result
from treadle.errors import AlreadyAnswered, ClaimLost, Conflict, NotFound, StoreAway, StoreBusy, StoreError
from treadle.events import AnyFact, ApprovalRequested, InputRequested
from treadle.log.base import Claim, Claimant, Log, PostResult, SessionInfo, Watch
from treadle.tools.base import ToolResult

RETRY_SECONDS = 60.0
POLL_SECONDS = 0.2

_logger = logging.getLogger("treadle")


class Coordinator:
    """Runs the sessions of one log in this process."""

    def __init__(self, log: Log, build_setup: SetupBuilder, claimant: Claimant, *, clock: Clock | None = None) -> None:
        self.log, self.build_setup, self.claimant = log, build_setup, claimant
        self.owner, self.agents = claimant.owner, claimant.agents or ()
        self.is_closed = False
        """Whether this process has stopped running sessions. Unfinished runs can be resumed."""
        self._leave_by = math.inf
        self._takes_posts = True
        self._clock = clock or Clock()
        self._entries = SessionEntries()
        self._claims = ClaimKeeper(log, claimant, self._clock, self._entries, self._start, self.wake)
        self.on_rest: Callable[[State, Setup], None] = lambda state, setup: None
        self.on_kept: Callable[[str, State], None] = lambda session_id, state: None  # for what stays in memory
        self._earlier_listener, log.listener = log.listener, self._handle_post

    # ── the states of sessions ─────────────────────────────────────────────────────────────────────────

    def keep_state(self, session_id: str) -> None:
        """Keep the session's state between runs until `forget_state` was called as often."""
        self._entries.open(session_id).users += 1

    def forget_state(self, session_id: str) -> None:
        """Count one user of the session fewer. After the last one the state is dropped."""
        entry = self._entries.open(session_id)
        entry.users -= 1
        if not entry.users:
            entry.wake_at = None
            entry.reset_state()
            self._entries.drop_if_unused(entry)

    async def load_state(self, session_id: str) -> State:
        """Return the session's current state. The caller must not change it."""
        entry = self._entries.get(session_id)
        if entry is not None and entry.users and entry.loop is None:
            state = entry.state  # that of a loop is its own, and ahead of the log
            if await apply_pieces(state, self.log.read_in_pieces(session_id, state.seq), lambda: entry.loop is None):
                self.on_kept(session_id, state)
                return state
        await apply_pieces(state := State(), self.log.read_in_pieces(session_id))
        return state

    def is_running(self, session_id: str) -> bool:
        """Whether this process runs the session just now."""
        entry = self._entries.get(session_id)
        return entry is not None and entry.task is not None

    def expects_run(self, info: SessionInfo) -> bool:
        """Whether the session was released with work to do, now or when its provider may be ready, and will be run.

        That may be here, or on another node.
        """
        is_due = info.wake_at is not None and (info.status == "running" or info.wake_at <= self._clock.now())
        return is_due and (self._can_run(info) or (self.log.is_shared and self._takes_posts))

    def _can_run(self, info: SessionInfo) -> bool:
        return not self.is_closed and self.claimant.serves(info.agent, info.workspace)

    async def take_over(self, info: SessionInfo) -> None:
        """Run the session here if its process has gone. A parked session is run when it is due or gets a post."""
        if info.owner or not self._can_run(info):
            await asyncio.sleep(POLL_SECONDS)
        while (left := (info.wake_at or 0.0) - self._clock.now()) > 0 and not info.owner and self._can_run(info):
            await self._clock.sleep(min(left, SCAN_SECONDS))
            info = await wait_for_store(partial(self.log.get_info, info.id))
        if self._can_run(info):
            with suppress(StoreBusy, StoreAway):
                await self.wake(info.id)
            if not self.is_running(info.id):  # another process runs it, or only a newer one can
                await asyncio.sleep(POLL_SECONDS)

    def check_open(self) -> None:
        """Raise `Conflict` when sessions cannot be used here any more."""
        if not self._takes_posts:
            raise Conflict("this runtime is closed; open it again to go on")

    # ── running and waiting ────────────────────────────────────────────────────────────────────────────

    async def post(self, session_id: str, fact: AnyFact, key: str = "", claim: Claim | None = None) -> PostResult:
        """Store a fact from outside and process it as `wake` does. Claiming the session is part of the same write.

        With the `claim` of the session that started this one, it raises `ClaimLost` if that one was taken over.
        """
        posting = self._post(session_id, fact, key, claim)
        if not self.log.is_shared:
            return await posting
        return await asyncio.shield(asyncio.create_task(posting))  # a cancelled caller must not lose a new claim

    async def _post(self, session_id: str, fact: AnyFact, key: str, claim: Claim | None) -> PostResult:
        fact, asked = events.validate_fact(fact), Stopwatch()
        claimant = None if self.is_closed or self.is_running(session_id) else self.claimant
        posted = await self.log.post(session_id, [fact], key, claim=claim, claimant=claimant)
        entry = self._entries.get(session_id)
        if entry is not None and entry.users and entry.loop is None and fact.seq == entry.state.seq + 1:
            apply(entry.state, fact)
        if posted.claim is None:
            await self.wake(session_id)
        else:
            self._start(Lease(self.log, posted.claim, asked))
        return posted

    async def wake(self, session_id: str) -> None:
        """Process the posts of a session: here, or in the process that runs the session."""
        self.check_open()
        entry = self._entries.get(session_id)
        if entry is not None and entry.task is not None:
            self._handle_post(session_id)
            return
        if self.is_closed:  # another node does it
            return
        if entry is not None and entry.unreleased is not None:
            await self._claims.give_up(entry.unreleased, 0.0)
        lease = await self._claims.claim(session_id)
        if lease is not None:
            self._start(lease)

    async def recover(self) -> int:
        """Take over every unfinished session that this process may run and no process runs, now and later."""
        return await self._claims.recover()

    async def wait_until_idle(self, session_id: str) -> None:
        """Wait until this process neither runs the session nor asks a person about it."""
        while (entry := self._entries.get(session_id)) is not None:
            tasks = [*entry.questions.values(), *filter(None, [entry.task])]
            if not tasks:
                return
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)

    def follow(self, session_id: str, watch: Watch) -> Follower:
        """End a watch when no process works on the session any more. If its owner dies, take the session over."""
        return Follower(self, self._entries, session_id, watch)

    async def answer(self, session_id: str, call_id: str, answer: Answer, digest: str = "") -> None:
        """Answer an approval or a question. The first answer counts; a later one raises `AlreadyAnswered`."""
        call = (await self.load_state(session_id)).calls.get(call_id)
        if call is None or (call.asked is None and call.input_asked is None):
            raise NotFound(f"session {session_id} has no question for call {call_id!r}")
        question = call.pending
        if question is not None and question.expires_at is not None and question.expires_at <= self._clock.now():
            await self.wake(session_id)
            raise build_expired_error(call_id)
        posted = await self.post(session_id, build_answer_fact(call, answer, digest), build_answer_key(call_id))
        if not posted.is_new:
            raise build_answered_error(call_id, posted.facts[0])

    async def finish_call(self, session_id: str, call_id: str, result: ToolResult) -> events.CallFinished:
        """Record the result of a call that the client ran, and continue. The same result again changes nothing."""
        state = await self.load_state(session_id)
        call = state.calls.get(call_id)
        if call is None or call.started is None or call.started.sandbox != events.CLIENT_SANDBOX:
            raise NotFound(f"session {session_id} waits for no result of a call {call_id!r}")
        fact = await build_client_result(await self.build_setup(state), self.log, session_id, call.call, result)
        stored = call.finished
        if stored is None:
            if call.started.expires_at is not None and call.started.expires_at <= self._clock.now():
                await self.wake(session_id)
            else:
                (stored,) = (await self.post(session_id, fact, build_answer_key(call_id))).facts
        if stored is None or (isinstance(stored, events.CallFinished) and stored.status == "timed_out"):
            raise build_expired_error(call_id)
        assert isinstance(stored, events.CallFinished)
        if (stored.status, stored.output, stored.parts) != (fact.status, fact.output, fact.parts):
            raise AlreadyAnswered(f"call {call_id} has another result already ({stored.status})", stored)
        return stored

    async def retry_now(self, session_id: str, by: str = "") -> None:
        """End the wait for the provider: the model is asked again at once. Raises `Conflict` if no run waits for it."""
        if (await self.load_state(session_id)).retry_at is None:
            raise Conflict(f"session {session_id} does not wait for its provider; there is nothing to retry")
        await self.post(session_id, events.RetryRequested(by=by))

    async def cancel(
        self, session_id: str, by: str = "", why: str = "", claim: Claim | None = None
    ) -> events.RunFinished | None:
        """Stop the run and wait until the log has its end. None when nothing was to stop. `claim` is as in `post`."""
        state = await self.load_state(session_id)
        has_run, position = state.run is not None, state.seq
        if not has_run and not state.queue and state.requested is None:
            return None
        await self.post(session_id, events.CancelRequested(by=by, why=why), claim=claim)
        if not has_run:
            return None
        # Watch from the position where it was running: it may have ended by itself before the cancel was stored.
        watch = self.log.watch(session_id, after=position)
        follower = self.follow(session_id, watch)
        try:
            async for event in watch:
                if isinstance(event, events.RunFinished):
                    await self.wait_until_idle(session_id)
                    return event
        finally:
            follower.close()
            watch.close()
        return None

    async def drain(self, grace: float = 0.0) -> None:
        """Stop running sessions, and let others go on with them. Posts are still stored.

        In a shared store each run ends after the step under way, and otherwise when it ends by itself. After `grace`
        seconds the others stop at a fact. Nothing is lost. The time counts from the first call.
        """
        self.is_closed, self._leave_by = True, min(self._leave_by, time.monotonic() + grace)
        await self._claims.stop_taking()
        for task in self._entries.list_questions():
            task.cancel()
        await asyncio.sleep(0)  # a task that has not started could not release its claim
        for entry in self._entries.values():
            self._ask_to_leave(entry)
        running = self._entries.list_runs()
        if running and (left := self._leave_by - time.monotonic()) > 0:
            await asyncio.wait(running, timeout=left)
        stopping = [*self._entries.list_runs(), *self._entries.list_questions()]
        for task in stopping:
            task.cancel()
        await asyncio.gather(*stopping, return_exceptions=True)

    async def close(self, grace: float = 0.0) -> None:
        """Drain, and take no more posts."""
        self._takes_posts = False
        await self.drain(grace)
        await self._claims.close()
        if self.log.listener == self._handle_post:
            self.log.listener = self._earlier_listener

    def _ask_to_leave(self, entry: SessionEntry) -> None:
        """Let a run end at its next step, if this process stops and another one can go on with it."""
        if self.is_closed and self.log.is_shared and entry.loop is not None:
            entry.loop.leave()

    # ── one run ────────────────────────────────────────────────────────────────────────────────────────

    def _handle_post(self, session_id: str) -> None:
        entry = self._entries.get(session_id)
        if entry is not None and entry.loop is not None:
            entry.loop.check_posts()
        elif self._earlier_listener is not None:  # another runtime on the same log object may run it
            self._earlier_listener(session_id)

    def _start(self, lease: Lease) -> None:
        entry = self._entries.open(lease.claim.session_id)
        earlier = entry.task
        if earlier is not None:  # the lease lapsed while this process was suspended, and nobody else took the session
            earlier.cancel()
        entry.task = asyncio.create_task(self._run_session(entry, lease, earlier))
        self._claims.ensure_keeper()

    async def _run_session(self, entry: SessionEntry, lease: Lease, earlier: asyncio.Task[None] | None) -> None:
        """Run a claimed session until there is nothing to do, then release it."""
        entry.lease, claim = lease, lease.claim
        entry.wake_at, seq = None, -1
        try:
            if earlier is not None:
                await asyncio.wait((earlier,))
            if self.is_closed:  # a process that posted an answer and is leaving must not begin the allowed call
                await self._claims.give_up(claim, 0.0)
                return
            loop = entry.loop = await self._build_loop(entry, lease)
            self._ask_to_leave(entry)
            while True:
                rest = await loop.run()
                self._ask_people(entry, loop, rest)
                if await loop.release(rest):
                    break
                await loop.catch_up()
            seq = loop.state.seq
            self.on_rest(loop.state, loop.setup)
            if entry.users:
                entry.state, entry.projection, entry.wake_at = loop.state, loop.projection, rest.wake_at
                self.on_kept(entry.id, entry.state)
        except ClaimLost:
            _logger.warning("session %s was taken over by another process", entry.id)
        except asyncio.CancelledError:
            await self._claims.give_up(claim, 0.0)
            raise
        except Exception as error:  # the session stays as the log has it
            is_bug = not isinstance(error, StoreError)
            _logger.error("session %s stopped; it can be resumed: %s", entry.id, error, exc_info=is_bug)
            for follower in entry.followers:
                follower.failure = error
            await self._claims.give_up(claim, RETRY_SECONDS)
        finally:
            if entry.task is asyncio.current_task():
                entry.task = entry.loop = entry.lease = None
            if seq < 0 or not entry.users:
                entry.reset_state()
            self._entries.drop_if_unused(entry)
        if self.log.get_head(entry.id) > seq >= 0:
            await self._wake_again(entry.id)

    async def _wake_again(self, session_id: str) -> None:
        """Process what was posted while a run ended. As long as the store is away, the keeper tries again."""
        try:
            await self.wake(session_id)
        except Conflict:
            _logger.info("session %s has new posts; this process is closed, and another one processes them", session_id)
        except StoreError as error:
            _logger.warning("session %s has new posts, and will go on later: %s", session_id, error)
            self._entries.open(session_id).wake_at = self._clock.now()
            self._claims.ensure_keeper()

    async def _build_loop(self, entry: SessionEntry, lease: Lease) -> Loop:
        state, projection = entry.state, entry.projection
        if self.log.get_head(entry.id) > state.seq:  # it is known since the claim
            for fact in await wait_for_store(lambda: self.log.read(entry.id, after=state.seq)):
                if fact.seq > state.seq:  # as in `load_state`
                    apply(state, fact)
        if state.created is None:
            raise NotFound(f"session {entry.id} has no beginning")
        setup = await wait_for_store(lambda: self.build_setup(state))
        return Loop(lease, self.build_setup, setup, state, projection)

    # ── questions ──────────────────────────────────────────────────────────────────────────────────────

    def _ask_people(self, entry: SessionEntry, loop: Loop, rest: Rest) -> None:
        """Bring open questions to people, and withdraw questions that were settled elsewhere."""
        gate, questions = loop.setup.gate, loop.state.pending if rest.waiting else []
        pending = {question.call_id: question for question in questions}
        for call_id, asking in entry.questions.items():
            if call_id not in pending:
                asking.cancel()
        for call_id, question in pending.items():
            asking = entry.questions.get(call_id)
            if gate is not None and (asking is None or asking.done()):
                asking = entry.questions[call_id] = asyncio.create_task(self._ask_person(entry.id, gate, question))
                asking.add_done_callback(partial(self._remove_question, entry, call_id))

    async def _ask_person(self, session_id: str, gate: Gate, question: ApprovalRequested | InputRequested) -> None:
        digest = question.digest if isinstance(question, ApprovalRequested) else ""
        try:
            answer = await gate(question)
            if answer is not None:
                await self.answer(session_id, question.call_id, answer, digest)
        except Conflict as conflict:
            _logger.info("call %s: %s", question.call_id, conflict)
        except Exception:  # the question stays open in the log
            _logger.exception("the gate failed; call %s still waits for an answer", question.call_id)

    def _remove_question(self, entry: SessionEntry, call_id: str, asking: asyncio.Task[None]) -> None:
        """Remove a gate that ended. Its task cannot do this: a task that is cancelled at once never starts."""
        if entry.questions.get(call_id) is asking:
            del entry.questions[call_id]
            self._entries.drop_if_unused(entry)
