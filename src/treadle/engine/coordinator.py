"""Who runs which session: at most one run per session, woken by posts, recovered after a crash.

A session that waits holds nothing here: it is claimed, driven until there is nothing to do, and released.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import cast

from treadle.engine.context import Projection
from treadle.engine.lease import Lease
from treadle.engine.loop import Loop
from treadle.engine.setup import Answer, Clock, Gate, Setup, SetupBuilder
from treadle.engine.state import CallState, State, apply, fold
from treadle.engine.steps import Rest, build_answer_key
from treadle.errors import (
    AlreadyAnswered,
    BadInput,
    ClaimLost,
    Conflict,
    Expired,
    NotFound,
    StoreBusy,
    StoreError,
    TreadleError,
)
from treadle.events import (
    AnyFact,
    ApprovalAnswered,
    ApprovalRequested,
    CancelRequested,
    InputAnswered,
    InputRequested,
    RunFinished,
    validate_fact,
)
from treadle.log.base import Claim, Log, SessionInfo, Watch

LEASE_SECONDS = 30.0
SCAN_SECONDS = 1.0
RETRY_SECONDS = 60.0
POLL_SECONDS = 0.2

_logger = logging.getLogger("treadle")


class Follower:
    """Looks after a watch: as a task, but only once the drive is over that it waits for. Most watches end before."""

    __slots__ = ("_begin", "_cancelled", "_drive", "_task")

    def __init__(self, begin: Callable[[], Coroutine[None, None, None]], drive: asyncio.Task[None] | None) -> None:
        self._begin, self._drive, self._cancelled = begin, drive, False
        self._task: asyncio.Task[None] | None = None
        if drive is not None:
            drive.add_done_callback(self._start)
        else:
            self._start()

    def _start(self, drive: asyncio.Task[None] | None = None) -> None:
        if not self._cancelled:
            self._task = asyncio.create_task(self._begin())

    def cancel(self) -> None:
        """Leave the watch alone."""
        self._cancelled = True
        if self._drive is not None:
            self._drive.remove_done_callback(self._start)
        if self._task is not None:
            self._task.cancel()


class Coordinator:
    """Runs the sessions of one log in this process; `failures` tells what stopped one that is not its own ending."""

    def __init__(
        self,
        log: Log,
        setup_for: SetupBuilder,
        owner: str,
        *,
        agents: Sequence[str],
        ttl: float = LEASE_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        self.log, self.owner, self.agents, self.ttl = log, owner, agents, ttl
        self._setup_for = setup_for
        self._clock = clock or Clock()
        self._scanning = False
        self._drives: dict[str, asyncio.Task[None]] = {}
        self._loops: dict[str, Loop] = {}
        self._leases: dict[str, Lease] = {}
        self._gates: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._kept: dict[str, tuple[State, Projection]] = {}
        self._wake_at: dict[str, float] = {}
        self._unreleased: dict[str, Claim] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False
        self.failures: dict[str, Exception] = {}
        self.on_rest: Callable[[State, Setup], None] | None = None
        self._before, log.listener = log.listener, self._posted

    def keep_state(self, session_id: str) -> None:
        """Remember the session's state between runs, because somebody has it open."""
        self._kept.setdefault(session_id, (State(), Projection()))

    def forget_state(self, session_id: str) -> None:
        """Nobody has the session open any more."""
        self._kept.pop(session_id, None)
        self._wake_at.pop(session_id, None)

    async def load_state(self, session_id: str) -> State:
        """The session's state as the log has it now; not to be changed by the one who asked."""
        kept = self._kept.get(session_id)
        if kept is None or session_id in self._drives:
            return fold(await self.log.read(session_id))
        state = kept[0]
        for fact in await self.log.read(session_id, after=state.seq):
            if fact.seq > state.seq:  # another caller may have been here while this one was reading
                apply(state, fact)
        return state

    async def build_setup(self, state: State) -> Setup:
        """What a session in this state runs with."""
        return await self._setup_for(state)

    def is_running(self, session_id: str) -> bool:
        """Whether this process runs the session just now."""
        return session_id in self._drives

    @property
    def is_closed(self) -> bool:
        """Whether this process has stopped running sessions; what was under way can be resumed."""
        return self._closed

    def check_open(self) -> None:
        """Raise `Conflict` when nothing can be run here any more."""
        if self._closed:
            raise Conflict("this runtime is closed; open it again to go on")

    async def wake(self, session_id: str) -> None:
        """See to it that what was posted is worked on: here, or by the process that runs the session."""
        self.check_open()
        if session_id in self._drives:
            self._posted(session_id)
            return
        if session_id in self._unreleased:
            await self._give_up(self._unreleased.pop(session_id), 0.0)
        claim = await self.log.claim(self.owner, self.ttl, session_id, self.agents)
        if claim is not None:
            self._start(claim)

    async def recover(self) -> int:
        """Take up every session of our agents that nobody runs and that is not finished; from now on too."""
        self._scanning = True
        started = await self._claim_due()
        self._ensure_keeper()
        return started

    async def wait_until_idle(self, session_id: str) -> None:
        """Wait until this process neither runs the session nor asks a person about it."""
        while True:
            tasks: list[asyncio.Task[None]] = [t for (sid, _), t in self._gates.items() if sid == session_id]
            if session_id in self._drives:
                tasks.append(self._drives[session_id])
            if not tasks:
                return
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)

    def follow(self, session_id: str, watch: Watch) -> Follower:
        """End a watch when nobody works on the session any more; should its owner die, take over."""
        self.failures.pop(session_id, None)  # what nobody waited for is no news to whoever waits from now on
        return Follower(lambda: self._follow(session_id, watch), self._drives.get(session_id))

    async def _follow(self, session_id: str, watch: Watch) -> None:
        try:
            while True:
                await self.wait_until_idle(session_id)
                info = await self.log.info(session_id)
                if session_id in self.failures or (not info.owner and not self._is_left(info)):
                    watch.stop_at(info.seq)
                    return
                if session_id not in self._drives:
                    await asyncio.sleep(POLL_SECONDS if info.owner else 0)
                    with suppress(StoreBusy):
                        await self.wake(session_id)
        except TreadleError as error:  # nobody would ever end the watch: whoever waits is told
            self.failures[session_id] = error
            watch.close()

    def _is_left(self, info: SessionInfo) -> bool:
        """Whether it was given back with work to do, by a process that left, and can be taken up here."""
        due = info.wake_at is not None and info.wake_at <= self._clock.now()
        return due and info.agent in self.agents and not self._closed

    async def answer(self, session_id: str, call_id: str, answer: Answer, digest: str = "") -> None:
        """Answer an approval or a question; the first answer counts, and the others are told whose it was."""
        if not isinstance(cast("object", answer), Answer):
            raise BadInput(
                f"an answer is an Answer(...), such as Answer('deny'), but this is a {type(answer).__name__}"
            )
        call = (await self.load_state(session_id)).calls.get(call_id)
        if call is None or (call.asked is None and call.input_asked is None):
            raise NotFound(f"session {session_id} has no question for call {call_id!r}")
        _refuse_if_closed(call)
        question = call.pending
        if question is not None and question.expires_at is not None and question.expires_at <= self._clock.now():
            await self.wake(session_id)
            raise _expired(call_id)
        if digest and call.asked is not None and digest != call.asked.digest:
            raise Conflict(f"call {call_id}: what was shown is not what would run; look at it again")
        fact = _answering(call, answer)
        posted = await self.log.post(session_id, [validate_fact(fact)], key=build_answer_key(call_id))
        if not posted.fresh:
            raise _already(call_id, posted.facts[0])
        await self.wake(session_id)

    async def cancel(self, session_id: str, by: str = "", why: str = "") -> RunFinished | None:
        """Stop the run and wait until that is recorded; None when there was nothing to stop."""
        state = await self.load_state(session_id)
        running, position = state.run is not None, state.seq
        if not running and not state.queue and state.requested is None:
            return None
        await self.log.post(session_id, [validate_fact(CancelRequested(by=by, why=why))])
        await self.wake(session_id)
        if not running:
            return None
        # From where it was seen to run: it may have ended by itself before the cancel was stored.
        watch = self.log.watch(session_id, after=position)
        follower = self.follow(session_id, watch)
        try:
            async for event in watch:
                if isinstance(event, RunFinished):
                    await self.wait_until_idle(session_id)
                    return event
        finally:
            follower.cancel()
            watch.close()
        return None

    async def close(self, grace: float = 0.0) -> None:
        """Stop driving: what runs gets `grace` seconds, then stops at a fact. Nothing is lost either way."""
        self._closed = True
        for task in self._gates.values():
            task.cancel()
        await asyncio.sleep(0)  # a drive that has not begun yet could not give its claim back
        if self._drives and grace > 0:
            await asyncio.wait(self._drives.values(), timeout=grace)
        stopping = [*self._drives.values(), *self._gates.values()]
        if self._keeper is not None:
            stopping.append(self._keeper)
        for task in stopping:
            task.cancel()
        await asyncio.gather(*stopping, return_exceptions=True)
        if self.log.listener == self._posted:
            self.log.listener = self._before

    def _posted(self, session_id: str) -> None:
        loop = self._loops.get(session_id)
        if loop is not None:
            loop.check_posts()
        elif self._before is not None:  # another runtime on the same log object has it
            self._before(session_id)

    def _start(self, claim: Claim) -> None:
        before = self._drives.get(claim.session_id)
        if before is not None:  # it slept through its lease, and this very process was the first to find that
            before.cancel()
        self._drives[claim.session_id] = asyncio.create_task(self._drive(claim, before))
        self._ensure_keeper()

    async def _drive(self, claim: Claim, before: asyncio.Task[None] | None = None) -> None:
        """Run a claimed session until there is nothing to do, then give it back."""
        session_id, lease = claim.session_id, Lease(self.log, claim)
        self._leases[session_id] = lease
        kept = session_id in self._kept
        self._wake_at.pop(session_id, None)
        self.failures.pop(session_id, None)
        seq = -1
        try:
            if before is not None:
                await asyncio.wait((before,))
            if self._closed:  # whoever only answered and left would take the call along that was just allowed
                await self._give_up(claim, 0.0)
                return
            loop = self._loops[session_id] = await self._load(lease)
            while True:
                rest = await loop.run()
                self._ask_people(loop, rest)
                if await self.log.release(claim, loop.state.seq, rest.wake_at, waiting=rest.waiting):
                    break
                await loop.catch_up()
            seq = loop.state.seq
            if self.on_rest is not None:
                self.on_rest(loop.state, loop.setup)
            if session_id in self._kept:
                self._kept[session_id] = (loop.state, loop.projection)
                if rest.wake_at is not None:
                    self._wake_at[session_id] = rest.wake_at
        except ClaimLost:
            _logger.warning("session %s was taken over by another process", session_id)
        except asyncio.CancelledError:
            await self._give_up(claim, 0.0)
            raise
        except Exception as error:  # the session is left as the log has it; whoever waits is told
            _logger.exception("session %s stopped; it can be resumed", session_id)
            self.failures[session_id] = error
            await self._give_up(claim, RETRY_SECONDS)
        finally:
            if self._drives.get(session_id) is asyncio.current_task():
                for mine in (self._drives, self._loops, self._leases):
                    mine.pop(session_id, None)
            if seq < 0 and kept and session_id in self._kept:
                self._kept[session_id] = (State(), Projection())
        if self.log.head(session_id) > seq >= 0:
            await self.wake(session_id)

    async def _give_up(self, claim: Claim, pause: float) -> None:
        """Give back a session that is not at rest, to be taken up again after a pause."""
        try:
            await self.log.release(claim, None, wake_at=self._clock.now() + pause)
        except (StoreError, ClaimLost, NotFound) as error:
            if isinstance(error, StoreError):
                self._unreleased[claim.session_id] = claim
            _logger.warning("session %s could not be released: %s", claim.session_id, error)

    async def _load(self, lease: Lease) -> Loop:
        session_id = lease.claim.session_id
        state, projection = self._kept.get(session_id) or (State(), Projection())
        for fact in await self.log.read(session_id, after=state.seq):
            apply(state, fact)
        if state.created is None:
            raise NotFound(f"session {session_id} has no beginning")
        return Loop(self.log, lease, self._setup_for, await self._setup_for(state), state, projection)

    def _ask_people(self, loop: Loop, rest: Rest) -> None:
        """Bring open questions to people, and take back those that were settled otherwise."""
        gate, questions = loop.setup.gate, loop.state.pending if rest.waiting else []
        pending = {(loop.session_id, question.call_id): question for question in questions}
        for key, asking in self._gates.items():
            if key[0] == loop.session_id and key not in pending:
                asking.cancel()
        for key, question in pending.items():
            asked = self._gates.get(key)
            if gate is not None and (asked is None or asked.done()):
                asking = self._gates[key] = asyncio.create_task(self._bring(key, gate, question))
                asking.add_done_callback(partial(self._asked, key))

    async def _bring(self, key: tuple[str, str], gate: Gate, question: ApprovalRequested | InputRequested) -> None:
        session_id, call_id = key
        digest = question.digest if isinstance(question, ApprovalRequested) else ""
        try:
            answer = await gate(question)
            if answer is not None:
                await self.answer(session_id, call_id, answer, digest)
        except Conflict as conflict:
            _logger.info("call %s: %s", call_id, conflict)
        except Exception:  # a broken gate leaves the question where it is: in the log
            _logger.exception("the gate failed; call %s still waits for an answer", call_id)

    def _asked(self, key: tuple[str, str], asking: asyncio.Task[None]) -> None:
        """Nobody is asked any more. Not left to the task itself: one that is stopped at once never begins."""
        if self._gates.get(key) is asking:
            del self._gates[key]

    def _ensure_keeper(self) -> None:
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        """Renew what is claimed and take up what is due, for as long as there is anything to keep."""
        while self._drives or self._gates or self._scanning or self._wake_at:
            await asyncio.sleep(min(self.ttl / 3, SCAN_SECONDS))
            try:
                await self._renew()
                now = self._clock.now()
                for session_id, wake_at in list(self._wake_at.items()):
                    if wake_at <= now:
                        with suppress(NotFound):  # it was deleted meanwhile
                            await self.wake(session_id)
                        self._wake_at.pop(session_id, None)
                await self._claim_due()
            except StoreError as error:  # busy or full now; the next look may find it usable again
                _logger.warning("the log could not be looked after: %s", error)

    async def _renew(self) -> None:
        for session_id, lease in list(self._leases.items()):
            try:
                await lease.renew_if_due(1 / 4)
            except (ClaimLost, NotFound):
                task = self._drives.get(session_id)
                if task is not None:
                    task.cancel()

    async def _claim_due(self) -> int:
        started = 0
        while self._scanning:
            claim = await self.log.claim(self.owner, self.ttl, agents=self.agents)
            if claim is None:
                break
            self._start(claim)
            started += 1
        return started


def _answering(call: CallState, answer: Answer) -> AnyFact:
    """The answer as a fact; an answer of the other kind is refused, so that no text can pass for a yes."""
    call_id = call.call.id
    if call.asked is not None:
        if answer.answers:
            raise BadInput(f"call {call_id} waits for an approval: approve or deny it")
        scope = "call" if call.asked.once and answer.decision == "allow" else answer.scope
        return ApprovalAnswered(
            call_id=call_id, decision=answer.decision, scope=scope, by=answer.by, comment=answer.comment
        )
    if answer.decision == "deny" and not answer.answers:
        comment = f" They say: {answer.comment}" if answer.comment else ""
        return InputAnswered(call_id=call_id, answers=(f"(They do not want to answer.{comment})",), by=answer.by)
    if not answer.answers:
        raise BadInput(f"call {call_id} waits for an answer in words")
    for question, said in zip(call.input_asked.questions if call.input_asked else (), answer.answers, strict=False):
        if question.strict and said not in question.options:
            options = ", ".join(map(repr, question.options))
            raise BadInput(f"call {call_id}: {said!r} is none of the answers to choose from: {options}")
    return InputAnswered(call_id=call_id, answers=answer.answers, by=answer.by)


def _refuse_if_closed(call: CallState) -> None:
    given = call.answer or call.input_answer
    if given is not None:
        raise _already(call.call.id, given)
    if call.finished is not None:
        raise Conflict(f"call {call.call.id} is finished ({call.finished.status}); there is nothing left to answer")


def _already(call_id: str, fact: AnyFact) -> Conflict:
    by = getattr(fact, "by", "")
    if by == "expiry":
        return _expired(call_id)
    what = getattr(fact, "decision", "answered")
    return AlreadyAnswered(f"call {call_id} was answered already, by {by or 'somebody'}: {what}", fact)


def _expired(call_id: str) -> Expired:
    return Expired(f"call {call_id}: the time to answer is over; the model is told that nobody answered")
