"""Runs hooks around tool calls and at the end of a run, and turns what they say into facts.

A result is recorded before anything follows from it, so after a crash no recorded hook runs again. A hook that a crash
interrupted runs again. What hooks say about messages is no part of this: `Session` stores the changed message.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec

from treadle import events
from treadle.engine.hook_result import HOOK_NOTE, HookCall, HookRecord, HookResult, HookSession
from treadle.engine.setup import Middleware, Setup
from treadle.engine.state import CallState, State
from treadle.engine.steps import Record, Step
from treadle.errors import BadInput, describe_error
from treadle.messages import replace_surrogates
from treadle.permissions.policy import Verdict, choose_strictest

MAX_CONTINUES = 3
"""How often hooks may continue one run."""
MAX_NOTE_LENGTH = 8000
_MARK_LENGTH = 50

Effect = Callable[[Setup, State], Awaitable[Sequence[events.AnyFact]]]

_logger = logging.getLogger("treadle")


def describe_session(setup: Setup, state: State) -> HookSession:
    """Describe a session for hooks."""
    created = state.created
    parent = created.parent.session_id if created is not None and created.parent is not None else ""
    return HookSession(created.session_id if created is not None else "", str(setup.workspace), parent)


async def tighten_verdict(setup: Setup, call: CallState, shown: HookCall, verdict: Verdict) -> Verdict:
    """Apply what middleware says about a call, and what hooks said before it. Neither can weaken the verdict."""
    for one in setup.middleware:
        verdict = choose_strictest(verdict, await one.may_run(shown.tool, shown.safety, shown.arguments) or verdict)
    return call.hooked.result.tighten(verdict) if call.hooked is not None else verdict


async def run_before_tool(setup: Setup, call: CallState, shown: HookCall) -> events.Custom | None:
    """Run the hooks before a call, unless their result is recorded. Raises what a hook raises: the call is denied."""
    if call.hooked is not None or call.started is not None:
        return None
    result: HookResult | None = None
    for one in _find_overriding(setup, "before_tool"):
        said = _check_result(await one.before_tool(shown), one, "before_tool")
        if said is not None:
            result = result.merge(said) if result is not None else said
            if result.decision == "deny":
                break
    return _build_fact(setup, HookRecord("before_tool", result, shown.call_id)) if result is not None else None


class DueHooks:
    """Finds the hooks that are due after calls and at the end of a run.

    It remembers what ran here and said nothing. What hooks said is in the log.
    """

    def __init__(self) -> None:
        self._done: set[tuple[str, int | str]] = set()

    def find(self, setup: Setup, state: State, step: Step) -> Effect | None:
        """Find hooks that must run before the next step. Nothing runs before a run that was stopped ends."""
        run, turn = state.run, state.turn
        if not setup.middleware or run is None or turn is None or run.cancel is not None or run.is_interrupted:
            return None
        if _find_overriding(setup, "after_tool"):
            for call in turn.calls.values():
                is_done = call.finished is not None and call.started is not None and not call.has_after_hooks
                if is_done and call.at_client is None and ("after_tool", call.call.id) not in self._done:
                    return partial(self._run_after_tool, call)
        end = step.facts[-1] if isinstance(step, Record) else None
        if isinstance(end, events.RunFinished) and run.hooked_turn != turn.number:
            if _find_overriding(setup, "on_run_end") and ("run_end", f"{run.id}:{turn.number}") not in self._done:
                return partial(self._run_at_end, end)
        return None

    async def _run_after_tool(self, call: CallState, setup: Setup, state: State) -> Sequence[events.AnyFact]:
        started, finished = call.started, call.finished
        assert started is not None and finished is not None
        self._done.add(("after_tool", call.call.id))
        shown = HookCall(
            describe_session(setup, state), call.call.id, started.tool, started.safety or "caution", started.arguments
        )
        result = await _collect(setup, "after_tool", lambda one: one.after_tool(shown, finished))
        if result is None:
            return []
        fact = _build_fact(setup, HookRecord("after_tool", result, call.call.id))
        return [fact, *_build_note(setup, result.note)]

    async def _run_at_end(self, end: events.RunFinished, setup: Setup, state: State) -> Sequence[events.AnyFact]:
        run, turn = state.run, state.turn
        assert run is not None and turn is not None
        self._done.add(("run_end", f"{run.id}:{turn.number}"))
        session = describe_session(setup, state)
        result = await _collect(setup, "on_run_end", lambda one: one.on_run_end(session, end))
        if result is None:
            return []
        fact = _build_fact(setup, HookRecord("run_end", result, run_id=run.id, turn=turn.number))
        may_continue = end.reason == "answered" and run.continues < MAX_CONTINUES
        goes_on = result.decision == "continue" and may_continue
        return [fact, *(_build_note(setup, result.reason or "Go on.") if goes_on else ())]


def _find_overriding(setup: Setup, method: str) -> list[Middleware]:
    """Find the middleware that has a hook of this name."""
    return [one for one in setup.middleware if getattr(type(one), method) is not getattr(Middleware, method)]


async def _collect(
    setup: Setup, point: str, call: Callable[[Middleware], Awaitable[HookResult | None]]
) -> HookResult | None:
    """Run the hooks of a point one after another, and merge what they say. One that raises counts as failed."""
    result: HookResult | None = None
    for one in _find_overriding(setup, point):
        try:
            said = _check_result(await call(one), one, point)
        except Exception as error:
            _logger.exception("a hook failed")
            said = HookResult(failures=(describe_error(error),))
        if said is not None:
            result = result.merge(said) if result is not None else said
    return result


def _check_result(said: HookResult | None, by: Middleware, point: str) -> HookResult | None:
    """Check what a hook returned. The log could not read another result again, and the hook would run without end."""
    if said is None:
        return None
    try:
        checked = msgspec.convert(msgspec.to_builtins(said), HookResult)
    except msgspec.ValidationError as error:
        raise BadInput(f"{type(by).__name__}.{point} must return a HookResult or None: {error}") from None
    failures = tuple(map(_clean_text, checked.failures))
    return HookResult(checked.decision, _clean_text(checked.reason), _clean_text(checked.note), failures)


def _clean_text(text: str) -> str:
    return replace_surrogates(shorten_note(text))


def _build_fact(setup: Setup, record: HookRecord) -> events.Custom:
    data = setup.redactor.redact_value(msgspec.to_builtins(record))
    fact = events.validate_fact(events.Custom(name=HOOK_NOTE, data=data))
    assert isinstance(fact, events.Custom)
    return fact


def shorten_note(text: str, limit: int = MAX_NOTE_LENGTH) -> str:
    """Cut a text of a hook that is too long. The result says how much was left out, and is never too long itself."""
    if len(text) <= limit:
        return text
    kept = limit - _MARK_LENGTH
    return f"{text[:kept]}\n[… {len(text) - kept} characters left out …]"


def _build_note(setup: Setup, text: str) -> list[events.AnyFact]:
    """Build the fact that shows a note to the model."""
    if not text.strip():
        return []
    detail = setup.redactor.redact_text(shorten_note(text))
    return [events.SignalDetected(kind="hook", detail=detail)]
