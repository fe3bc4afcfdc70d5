"""The loop: fold the log, ask `next_step` what to do, do it, record what happened, repeat.

    facts ──fold──► State ──next_step──► Step ──act──► facts ──append──► log

Decisions are buffered and written together, always before the next effect. A fact that is not written did not happen.
All decisions are made in steps.py and authorize.py. This file only acts on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing, suppress

from msgspec.structs import replace

from treadle.engine import model_call, steps
from treadle.engine.authorize import Authorization, ReadyCall, authorize_calls
from treadle.engine.cancel_scope import CancelScope
from treadle.engine.context import Projection
from treadle.engine.fold import apply, fold
from treadle.engine.hook_points import DueHooks, Effect
from treadle.engine.permission_request import CallEnvironment
from treadle.engine.reply import build_reply_facts
from treadle.engine.setup import Lease, Setup, SetupBuilder, wait_for_store
from treadle.engine.state import CallState, State
from treadle.engine.tool_call import STOPPED_OUTCOME, build_finish_fact, build_start_fact, build_tool_context, run_tool
from treadle.errors import PositionMoved
from treadle.events import AnyFact, CallFinished, SignalDetected, stamp_fact


class Loop:
    """Runs one session for as long as there is something to do."""

    def __init__(
        self, lease: Lease, build_setup: SetupBuilder, setup: Setup, state: State, projection: Projection
    ) -> None:
        self.log, self.lease, self.build_setup, self.setup = lease.log, lease, build_setup, setup
        self.state, self.projection, self._configured = state, projection, state.configured
        self.session_id, self._hooks = lease.claim.session_id, DueHooks()
        self._buffer, self._writing = list[AnyFact](), asyncio.Lock()
        self._is_behind = self.log.get_head(self.session_id) > state.seq
        self._is_released = self._is_leaving = False
        self._run_scope, self._call_scope, self._pause_scope = CancelScope(), CancelScope(), CancelScope()
        self._check_task: asyncio.Task[None] | None = None

    async def run(self) -> steps.Rest:
        """Do one step after another, until there is nothing to do."""
        with closing(self._run_scope), closing(self._call_scope):
            while True:
                if self._is_behind:
                    await self.catch_up()
                if self.state.configured != self._configured or await self.setup.has_new_parent_access():
                    self.setup = await wait_for_store(lambda: self.build_setup(self.state))
                    self._configured = self.state.configured
                step = steps.next_step(self.state, self.setup.clock.now(), self.setup.limits, self.setup.model.window)
                hook = self._hooks.find(self.setup, self.state, step)
                if self._is_leaving and (hook or isinstance(step, steps.AskModel | steps.Work | steps.Compact)):
                    step, hook = steps.Rest(wake_at=0.0), None  # it is due at once, for another process
                match step:
                    case _ if hook is not None:
                        await self._perform(hook)
                    case steps.Record() if step.key:  # if somebody stored this key first, the log's fact counts
                        await self.lease.post(step.facts, step.key)
                        await self.catch_up()
                    case steps.Record():
                        self._record(*step.facts)
                    case steps.AskModel():
                        await self._ask_model(step.attempt)
                    case steps.Work():
                        await self._work(step.calls)
                    case steps.Compact():
                        stopped = model_call.build_compaction_failure("it was stopped")
                        await self._perform(model_call.compact_or_note_failure, stopped)
                    case steps.Rest():
                        if self._buffer:
                            await self._flush(release=step == steps.Rest())
                            if self._is_released:
                                return step
                        elif self._is_leaving or (pause := step.measure_pause(self.setup.clock.now())) is None:
                            return step
                        elif not self._is_behind:
                            with suppress(TimeoutError), self._pause_scope:
                                await self.setup.clock.sleep(pause)

    # ── the log ────────────────────────────────────────────────────────────────────────────────────────

    async def catch_up(self) -> None:
        """Apply the facts that others have posted."""
        self._is_behind = False
        if await self._flush():
            await self.lease.renew_if_due(0)  # a process that lost its claim must not act on a new owner's facts
            for fact in await self.lease.read(self.state.seq):
                apply(self.state, fact)

    def _record(self, *facts: AnyFact) -> None:
        now = self.setup.clock.now()
        for fact in facts:
            stamp_fact(fact, self.state.seq + 1, now)
            apply(self.state, fact)
            self._buffer.append(fact)

    async def _flush(self, *, release: bool = False) -> bool:
        """Write the buffer, which comes before every effect. The write may wait so long that the lease must be renewed.

        False when others posted first: effects are recorded again, decisions are made anew.
        """
        async with self._writing:  # while one call's facts wait for the store, the next ones wait behind them
            facts, self._buffer = self._buffer, []
            try:
                if facts:
                    await self.log.append(self.lease.claim, facts[0].seq - 1, facts, release=release)
            except PositionMoved:
                self.state, self.projection = fold(await self.lease.read()), Projection()
                self._record(*(fact for fact in facts if isinstance(fact, steps.EFFECT_FACTS)))
                return False
        self._is_released = release
        if not release:
            await self.lease.renew_if_due()
        return True

    async def release(self, rest: steps.Rest) -> bool:
        """Give the session back, unless the last write did. False when others posted: there is more to do."""
        return self._is_released or await self.lease.release(self.state.seq, rest.wake_at, waiting=rest.waiting)

    # ── being stopped ──────────────────────────────────────────────────────────────────────────────────

    def check_posts(self) -> None:
        """Somebody posted to this session: check at once whether the post stops the current effect."""
        self._is_behind = True
        self._pause_scope.stop()
        if self._run_scope.is_active and (self._check_task is None or self._check_task.done()):
            self._check_task = asyncio.create_task(self._stop_if_asked())

    async def _stop_if_asked(self) -> None:
        if await self.lease.is_stopped(self.state.seq - len(self._buffer)):
            self._run_scope.stop()

    def leave(self) -> None:
        """End the run after the step under way. Another process goes on with it."""
        self._is_leaving = True
        self._pause_scope.stop()

    def _stop_in_time(self) -> CancelScope:
        """A scope that ends when the run's time is over, or as soon as somebody stops the run."""
        return self._run_scope.limit_to(steps.compute_seconds_left(self.state, self.setup.clock.now()))

    # ── the model ──────────────────────────────────────────────────────────────────────────────────────

    async def _ask_model(self, attempt: int) -> None:
        if not await self._flush():
            return
        said = list[str]()
        try:
            with self._stop_in_time():
                request = model_call.build_request(self.setup, self.state, self.projection)
                reply = await model_call.ask_model(self.setup, self.lease, request, self.state.seq, said)
            facts = build_reply_facts(self.state, request, reply, self.setup.polling, self.setup.check_output)
        except Exception as error:
            failure = model_call.explain_failure(error, was_stopped=self._run_scope.was_stopped)
            facts = [model_call.build_failure_fact(self.setup, self.state, failure, attempt, "".join(said))]
        if self._is_behind:
            await self.catch_up()
        self._record(*facts)

    async def _perform(self, effect: Effect, *stopped: AnyFact) -> None:
        """Compact the context or run hooks, and record the facts: those of the effect, or `stopped`."""
        if not await self._flush():
            return
        facts: Sequence[AnyFact] = stopped
        with suppress(TimeoutError), self._stop_in_time():
            facts = await effect(self.setup, self.state)
        if self._is_behind:
            await self.catch_up()
        self._record(*facts)

    # ── the calls ──────────────────────────────────────────────────────────────────────────────────────

    async def _work(self, calls: Sequence[CallState]) -> None:
        if self.setup.middleware and not await self._flush():  # middleware may take long to decide
            return
        # Calls that are stopped before they are authorized do not run.
        authorization = Authorization([steps.build_unfinished_result(call) for call in calls])
        with suppress(TimeoutError), self._stop_in_time():
            authorization = await authorize_calls(self.setup, self.state, calls)
        if authorization.facts:
            self._record(*authorization.facts)
            return
        ready = authorization.ready
        safe = next((place for place, call in enumerate(ready) if call.safety != "safe"), len(ready))
        batch = ready[: max(safe, 1)]  # the safe calls at the front run at once, any other call runs alone
        self._record(*(build_start_fact(self.setup, self.lease.claim, call, call.attempt) for call in batch))
        if await self._flush():
            await self._run_batch(batch)

    async def _run_batch(self, batch: Sequence[ReadyCall]) -> None:
        """Run started calls at once, and record their results in the order of the calls.

        Only safe calls share a batch: a crash loses the results that wait for an earlier one, and these run again.
        """
        limits = [CancelScope() for _ in batch[1:]]
        running = [asyncio.ensure_future(self._run_call(*call)) for call in zip(batch[1:], limits, strict=True)]
        ended: Sequence[CallFinished | BaseException] = ()
        try:
            with suppress(TimeoutError), self._stop_in_time():
                await self._record_result(await self._run_call(batch[0], self._call_scope))
                for call in running:
                    await self._record_result(await call)
        finally:
            for call in running:
                call.cancel()
            ended = await asyncio.gather(*running, return_exceptions=True)
            for limit in limits:
                limit.close()
        for ready, fact in zip(batch, (None, *ended), strict=True):
            if self.state.calls[ready.call.call.id].finished is None:
                if not isinstance(fact, CallFinished):
                    fact = await build_finish_fact(self.lease, ready, STOPPED_OUTCOME)
                await self._record_result(fact)

    async def _run_call(self, ready: ReadyCall, limit: CancelScope) -> CallFinished:
        """Run a call, and again while the recovery says so. Return its result, which the caller records."""
        environment = CallEnvironment(self.setup, self.lease, ready, (self._run_scope, limit))
        context = build_tool_context(environment, self.state.notes)
        while True:
            outcome = await run_tool(ready, context, self.setup.redactor, limit)
            fact = await build_finish_fact(self.lease, ready, outcome, self.setup.model.window)
            if outcome.status not in ("error", "timed_out"):
                return fact
            recovery = self.setup.choose_recovery(ready.tool, outcome.text, context.attempt)
            fact = replace(fact, fatal=recovery == "stop")
            if recovery != "retry" or outcome.status == "timed_out":  # a call that timed out may still run
                return fact
            if self._is_behind:
                await self.catch_up()
            if self.state.configured != self._configured:  # the access may be narrower now
                return fact
            context.attempt += 1
            again = build_start_fact(self.setup, self.lease.claim, ready, context.attempt)
            self._record(SignalDetected(kind="tool_retry", detail=f"{ready.tool.name}: {outcome.text[:500]}"), again)
            if not await self._flush():
                return fact

    async def _record_result(self, fact: CallFinished) -> None:
        if self._is_behind:
            await self.catch_up()
        self._record(fact)
        if self.state.turn is not None and not self.state.turn.is_settled:
            await self._flush()
