"""Decides which sessions this process runs: at most one run per session, started by posts, recovered after a crash.

It claims a session, runs it until there is nothing to do, and releases it. A session that waits needs no task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct, field

from treadle import events
from treadle.engine.context import Projection
from treadle.engine.fold import apply, apply_pieces
from treadle.engine.loop import Loop
from treadle.engine.setup import (
    Answer,
    Clock,
    Gate,
    Lease,
    Setup,
    SetupBuilder,
    build_answer_fact,
    build_answered_error,
    build_expired_error,
)
from treadle.engine.state import State
from treadle.engine.steps import Rest, build_answer_key
from treadle.engine.tool_call import build_client_result
from treadle.errors import AlreadyAnswered, ClaimLost, Conflict, NotFound, StoreBusy, StoreError, TreadleError
from treadle.events import AnyFact, ApprovalRequested, InputRequested
from treadle.log.base import Claim, Claimant, Log, PostResult, SessionInfo, Watch
from treadle.tools.base import ToolResult

LEASE_SECONDS = 30.0
SCAN_SECONDS = 1.0
RETRY_SECONDS = 60.0
POLL_SECONDS = 0.2

_logger = logging.getLogger("treadle")


class SessionEntry(Struct, eq=False):
    """Everything that this process keeps for one session.

    `task` runs the session with `loop` under `lease`. `questions` are the gates that ask a person, by call id.
    `users` counts who has the session open: `state`, `projection` and `wake_at` are kept between runs only for them.
    `unreleased` is a claim that could not be released. `followers` wait for a run to end.
    """

    id: str
    task: asyncio.Task[None] | None = None
    loop: Loop | None = None
    lease: Lease | None = None
    questions: dict[str, asyncio.Task[None]] = {}
    users: int = 0
    state: State = field(default_factory=State)
    projection: Projection = field(default_factory=Projection)
    wake_at: float | None = None
    unreleased: Claim | None = None
    followers: set[Follower] = field(default_factory=set["Follower"])

    @property
    def is_unused(self) -> bool:
        """Whether nothing is lost without this entry."""
        return not (self.task or self.questions or self.users or self.unreleased or self.followers)

    @property
    def needs_keeper(self) -> bool:
        """Whether a claim must be renewed or a time must be waited for."""
        return self.task is not None or bool(self.questions) or self.wake_at is not None

    def reset_state(self) -> None:
        """Drop the state. It is read from the log when it is needed again."""
        self.state, self.projection = State(), Projection()


class Follower:
    """Ends a watch when no process works on its session any more.

    `failure` is the error that stopped the session, if its run did not end by itself. While this process runs the
    session, the follower needs no task. Most watches end before they need one.
    """

    __slots__ = ("_coordinator", "_entry", "_run", "_task", "failure", "watch")

    def __init__(self, coordinator: Coordinator, entry: SessionEntry, watch: Watch) -> None:
        self.watch = watch
        self.failure: Exception | None = None
        self._coordinator, self._entry, self._run = coordinator, entry, entry.task
        self._task: asyncio.Task[None] | None = None
        entry.followers.add(self)
        if self._run is not None:
            self._run.add_done_callback(self._start)
        else:
            self._start()

    def _start(self, run: asyncio.Task[None] | None = None) -> None:
        if self in self._entry.followers:
            self._task = asyncio.create_task(self._end_watch_when_idle())

    async def _end_watch_when_idle(self) -> None:
        coordinator, session_id = self._coordinator, self._entry.id
        try:
            while True:
                await coordinator.wait_until_idle(session_id)
                info = await coordinator.log.get_info(session_id)
                if self.failure is not None or (not info.owner and not coordinator.can_take_over(info)):
                    self.watch.stop_at(info.seq)
                    return
                if not coordinator.is_running(session_id):
                    await coordinator.take_over(info)
        except TreadleError as error:  # nobody else would end the watch
            self.failure = error
            self.watch.close()

    def close(self) -> None:
        """Stop following. The watch stays as it is."""
        self._entry.followers.discard(self)
        if self._run is not None:
            self._run.remove_done_callback(self._start)
        if self._task is not None:
            self._task.cancel()
        self._coordinator.drop_if_unused(self._entry)


class Coordinator:
    """Runs the sessions of one log in this process."""

    def __init__(
        self,
        log: Log,
        build_setup: SetupBuilder,
        owner: str,
        *,
        agents: Sequence[str],
        ttl: float = LEASE_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        self.log, self.owner, self.agents, self.ttl = log, owner, agents, ttl
        self.build_setup, self._claimant = build_setup, Claimant(owner, ttl, agents)
        self.is_closed = False
        """Whether this process has stopped running sessions. Unfinished runs can be resumed."""
        self._clock = clock or Clock()
        self._is_scanning = False
        self._entries: dict[str, SessionEntry] = {}
        self._keeper: asyncio.Task[None] | None = None
        self.on_rest: Callable[[State, Setup], None] = lambda state, setup: None
        self.on_kept: Callable[[str, State], None] = lambda session_id, state: None  # for what stays in memory
        self._earlier_listener, log.listener = log.listener, self._handle_post

    # ── the entries of sessions ─────────────────────────────────────────────────────────────────────

    def keep_state(self, session_id: str) -> None:
        """Keep the session's state between runs until `forget_state` was called as often."""
        self._open_entry(session_id).users += 1

    def forget_state(self, session_id: str) -> None:
        """Count one user of the session fewer. After the last one the state is dropped."""
        entry = self._open_entry(session_id)
        entry.users -= 1
        if not entry.users:
            entry.wake_at = None
            entry.reset_state()
            self.drop_if_unused(entry)

    def drop_if_unused(self, entry: SessionEntry) -> None:
        """Drop an entry that is unused."""
        if entry.is_unused and self._entries.get(entry.id) is entry:
            del self._entries[entry.id]

    def _open_entry(self, session_id: str) -> SessionEntry:
        entry = self._entries.get(session_id)
        if entry is None:
            entry = self._entries[session_id] = SessionEntry(session_id)
        return entry

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

    def can_take_over(self, info: SessionInfo) -> bool:
        """Whether the session was released with work to do, now or when its provider may be ready, and may run here."""
        is_due = info.wake_at is not None and (info.status == "running" or info.wake_at <= self._clock.now())
        return is_due and info.agent in self.agents and not self.is_closed

    async def take_over(self, info: SessionInfo) -> None:
        """Run the session here if its process has gone. A parked session is run when it is due or gets a post."""
        if info.owner:
            await asyncio.sleep(POLL_SECONDS)
        while (left := (info.wake_at or 0.0) - self._clock.now()) > 0 and not info.owner and not self.is_closed:
            await self._clock.sleep(min(left, SCAN_SECONDS))
            info = await self.log.get_info(info.id)
        if not self.is_closed:
            with suppress(StoreBusy):
                await self.wake(info.id)

    def check_open(self) -> None:
        """Raise `Conflict` when this process runs no sessions any more."""
        if self.is_closed:
            raise Conflict("this runtime is closed; open it again to go on")

    # ── running and waiting ────────────────────────────────────────────────────────────────────────────

    async def post(self, session_id: str, fact: AnyFact, key: str = "", claim: Claim | None = None) -> PostResult:
        """Store a fact from outside and process it as `wake` does. Claiming the session is part of the same write.

        With the `claim` of the session that started this one, it raises `ClaimLost` if that one was taken over.
        """
        fact, claimant = events.validate_fact(fact), None if self.is_closed else self._claimant
        posted = await self.log.post(session_id, [fact], key, claim=claim, claimant=claimant)
        entry = self._entries.get(session_id)
        if entry is not None and entry.users and entry.loop is None and fact.seq == entry.state.seq + 1:
            apply(entry.state, fact)
        if posted.claim is None:
            await self.wake(session_id)
        else:
            self._start(posted.claim)
        return posted

    async def wake(self, session_id: str) -> None:
        """Process the posts of a session: here, or in the process that runs the session."""
        self.check_open()
        entry = self._entries.get(session_id)
        if entry is not None and entry.task is not None:
            self._handle_post(session_id)
            return
        if entry is not None and entry.unreleased is not None:
            claim, entry.unreleased = entry.unreleased, None
            await self._give_up(claim, 0.0)
        claim = await self.log.claim(self.owner, self.ttl, session_id, self.agents)
        if claim is not None:
            self._start(claim)

    async def recover(self) -> int:
        """Take over every unfinished session of our agents that no process runs, now and later."""
        self._is_scanning = True
        started = await self._claim_due()
        self._ensure_keeper()
        return started

    async def wait_until_idle(self, session_id: str) -> None:
        """Wait until this process neither runs the session nor asks a person about it."""
        while (entry := self._entries.get(session_id)) is not None:
            tasks = [*entry.questions.values(), *filter(None, [entry.task])]
            if not tasks:
                return
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)

    def follow(self, session_id: str, watch: Watch) -> Follower:
        """End a watch when no process works on the session any more. If its owner dies, take the session over."""
        return Follower(self, self._open_entry(session_id), watch)

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

    async def close(self, grace: float = 0.0) -> None:
        """Stop running sessions. A run gets `grace` seconds, and then stops at a fact. Nothing is lost."""
        self.is_closed = True
        for task in self._list_questions():
            task.cancel()
        await asyncio.sleep(0)  # a task that has not started could not release its claim
        running = [entry.task for entry in self._entries.values() if entry.task is not None]
        if running and grace > 0:
            await asyncio.wait(running, timeout=grace)
        stopping = [*(entry.task for entry in self._entries.values() if entry.task), *self._list_questions()]
        if self._keeper is not None:
            stopping.append(self._keeper)
        for task in stopping:
            task.cancel()
        await asyncio.gather(*stopping, return_exceptions=True)
        if self.log.listener == self._handle_post:
            self.log.listener = self._earlier_listener

    def _list_questions(self) -> list[asyncio.Task[None]]:
        return [task for entry in self._entries.values() for task in entry.questions.values()]

    # ── one run ────────────────────────────────────────────────────────────────────────────────────────

    def _handle_post(self, session_id: str) -> None:
        entry = self._entries.get(session_id)
        if entry is not None and entry.loop is not None:
            entry.loop.check_posts()
        elif self._earlier_listener is not None:  # another runtime on the same log object may run it
            self._earlier_listener(session_id)

    def _start(self, claim: Claim) -> None:
        entry = self._open_entry(claim.session_id)
        earlier = entry.task
        if earlier is not None:  # the lease lapsed while this process was suspended, and nobody else took the session
            earlier.cancel()
        entry.task = asyncio.create_task(self._run_session(entry, claim, earlier))
        self._ensure_keeper()

    async def _run_session(self, entry: SessionEntry, claim: Claim, earlier: asyncio.Task[None] | None) -> None:
        """Run a claimed session until there is nothing to do, then release it."""
        lease = entry.lease = Lease(self.log, claim)
        entry.wake_at, seq = None, -1
        try:
            if earlier is not None:
                await asyncio.wait((earlier,))
            if self.is_closed:  # a process that posted an answer and is leaving must not begin the allowed call
                await self._give_up(claim, 0.0)
                return
            state, projection = entry.state, entry.projection
            if self.log.get_head(entry.id) > state.seq:  # it is known since the claim
                for fact in await self.log.read(entry.id, after=state.seq):
                    if fact.seq > state.seq:  # as in `load_state`
                        apply(state, fact)
            if state.created is None:
                raise NotFound(f"session {entry.id} has no beginning")
            setup = await self.build_setup(state)
            loop = entry.loop = Loop(self.log, lease, self.build_setup, setup, state, projection)
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
            await self._give_up(claim, 0.0)
            raise
        except Exception as error:  # the session stays as the log has it
            is_bug = not isinstance(error, StoreError)
            _logger.error("session %s stopped; it can be resumed: %s", entry.id, error, exc_info=is_bug)
            for follower in entry.followers:
                follower.failure = error
            await self._give_up(claim, RETRY_SECONDS)
        finally:
            if entry.task is asyncio.current_task():
                entry.task = entry.loop = entry.lease = None
            if seq < 0 or not entry.users:
                entry.reset_state()
            self.drop_if_unused(entry)
        if self.log.get_head(entry.id) > seq >= 0:
            await self.wake(entry.id)

    async def _give_up(self, claim: Claim, pause: float) -> None:
        """Release a session that has work left. It is due again after a pause."""
        try:
            await self.log.release(claim, None, wake_at=self._clock.now() + pause)
        except (ClaimLost, NotFound):
            _logger.warning("session %s was taken over by another process or deleted", claim.session_id)
        except StoreError as error:
            self._open_entry(claim.session_id).unreleased = claim
            _logger.warning("session %s could not be released: %s", claim.session_id, error)

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
            self.drop_if_unused(entry)

    # ── leases and times ───────────────────────────────────────────────────────────────────────────────

    def _ensure_keeper(self) -> None:
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.create_task(self._keep_claims())

    async def _keep_claims(self) -> None:
        """Renew claims and start due sessions, as long as an entry needs it."""
        while self._is_scanning or any(entry.needs_keeper for entry in self._entries.values()):
            await asyncio.sleep(min(self.ttl / 3, SCAN_SECONDS))
            try:
                for entry in list(self._entries.values()):
                    await self._renew_claim(entry)
                    if entry.wake_at is not None and entry.wake_at <= self._clock.now():
                        entry.wake_at = None
                        with suppress(NotFound):  # the session was deleted meanwhile
                            await self.wake(entry.id)
                await self._claim_due()
            except StoreError as error:  # the store may work again next time
                _logger.warning("claims could not be renewed: %s", error)

    async def _renew_claim(self, entry: SessionEntry) -> None:
        if entry.lease is None:
            return
        try:
            await entry.lease.renew_if_due(1 / 4)
        except (ClaimLost, NotFound):
            if entry.task is not None:
                entry.task.cancel()

    async def _claim_due(self) -> int:
        started = 0
        while self._is_scanning and (claim := await self.log.claim(self.owner, self.ttl, agents=self.agents)):
            self._start(claim)
            started += 1
        return started
