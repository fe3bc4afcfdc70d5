"""Decide which calls may run: check schema, budget and policy. The model gets an answer to every other call.

Each call is authorized again right before it starts, so a log that ends between a reply and its questions is safe.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle import events
from treadle.engine.flow_check import find_flow_risk
from treadle.engine.hook_points import describe_session, run_before_tool, tighten_verdict
from treadle.engine.hook_result import HookCall
from treadle.engine.setup import Setup, describe_denial
from treadle.engine.state import CallState, State
from treadle.engine.steps import is_out_of_time
from treadle.errors import describe_error
from treadle.messages import Json
from treadle.permissions.data_flow import EFFECTS
from treadle.permissions.patterns import covers_call, pin_version, select_for_version, suggest_pattern, unpin_version
from treadle.permissions.policy import (
    PLAN_REFUSAL,
    Assessment,
    RememberedAnswer,
    Verdict,
    apply_aliases,
    decide_call,
    find_narrowest_tier,
    is_web_off,
)
from treadle.tools.base import ParsedArguments, Tool, ToolInputError

NOBODY_TO_ASK = (
    "Nobody can be asked here, so this call was denied ({why}). Keep to what the sandbox allows, or tell the user how "
    "to allow it: --approve and the tool's name, --full-access to run without the sandbox, or a place where questions "
    "can be answered."
)

NOBODY_TO_ASK_ABOUT_FLOW = (
    "Nobody can be asked here, so this call was denied ({why}). To approve the tool does not cover this. Do without "
    "it, or tell the user how to allow it: --approve-flow, or a place where questions can be answered."
)

NOBODY_TO_ASK_FOR_HOOK = (
    "Nobody can be asked here, so this call was denied ({why}). A hook of the user asks about it, and only a person's "
    "answer to this call counts. Do without it, or tell the user."
)

CHANGED_SINCE_APPROVAL = (
    "Denied: this is not what was approved. The program, its folder, its sandbox or what it could send has changed "
    "since. "
    "If you still need it, call it again: a person is then asked again."
)

WEB_IS_OFF = "Denied: the web is switched off for this session or its project. Do without it."

CHANGED_DESCRIPTION = "what its server says of it has changed since it was allowed"

_MAX_LENGTH_ON_LOOP = 2000
"""Arguments up to this length are judged at once. Longer ones are judged in a thread, so that other sessions go on."""

_logger = logging.getLogger("treadle")


class ReadyCall(Struct, frozen=True):
    """A call that may run now."""

    call: CallState
    tool: Tool
    parsed: ParsedArguments
    safety: events.Safety
    why: str
    attempt: int
    flow_risk: str = ""


class Authorization(Struct):
    """The facts to record, and the calls that may run, in order."""

    facts: list[events.AnyFact] = msgspec.field(default_factory=list[events.AnyFact])
    ready: list[ReadyCall] = msgspec.field(default_factory=list[ReadyCall])


async def authorize_calls(setup: Setup, state: State, calls: Iterable[CallState]) -> Authorization:
    """Authorize calls in the given order, so that their results are recorded in that order.

    The result of a call that may not run waits for the results of the calls before it. While it waits, no later call
    runs; only questions are asked at once. Calls of the agent and of the client wait for each other.
    """
    result, blocked, new_calls = Authorization(), set[str](), 0
    has_unfinished = must_wait = is_at_client = False
    for call in calls:
        try:
            outcome = await _authorize_call(setup, state, call, new_calls, blocked)
            # A tool can put anything into its arguments. The log must be able to store and read them.
            if isinstance(outcome, ReadyCall):
                msgspec.json.encode(outcome.parsed.arguments)
            elif outcome is not None:
                outcome = events.validate_fact(outcome)
        except Exception as error:  # a bug in a tool or in middleware: without a decision nothing runs
            _logger.exception("a call of %s was denied, because authorizing it failed", call.call.tool)
            why = f"whether it may run could not be found out ({describe_error(error)})"
            outcome = _close_call(call, "denied", f"Denied: {why}. Do without it.")
        if isinstance(outcome, events.Custom):  # the result of a hook is stored before anything follows from it
            return Authorization([outcome])
        if isinstance(outcome, events.CallStarted):
            if has_unfinished and not is_at_client:
                break
            is_at_client = True
        elif is_at_client:
            break
        elif isinstance(outcome, events.CallFinished) and not has_unfinished:
            result.facts.append(outcome)
            continue
        has_unfinished = True
        if isinstance(outcome, ReadyCall | events.CallStarted) and call.started is None:
            new_calls += 1
        if outcome is None or isinstance(outcome, events.CallFinished):
            must_wait = True
        elif not isinstance(outcome, ReadyCall):
            result.facts.append(outcome)
        elif not must_wait:
            result.ready.append(outcome)
    return result


async def _authorize_call(
    setup: Setup, state: State, call: CallState, new_calls: int, blocked: set[str]
) -> ReadyCall | events.AnyFact | None:
    """Return the call if it may run, or a fact. None: an earlier call of one of the `blocked` tools must end first."""
    run, turn = state.run, state.turn
    assert run is not None and turn is not None
    if any(other.finished and other.finished.fatal for other in turn.calls.values()):
        return _close_call(call, "cancelled", "Not run: an earlier call ended the run.")
    if run.is_looping:
        return _close_call(call, "refused", "Not run: the same calls were repeated too often.")
    if call.started is None and is_out_of_time(run, setup.clock.now()):
        return _close_call(call, "cancelled", "Not run: the time for this run is over.")
    if call.started is None and run.calls + new_calls >= run.limits.calls:
        return _close_call(call, "refused", f"Not run: the limit of {run.limits.calls} calls is used up.")
    name = setup.aliases.get(call.call.tool, call.call.tool)
    tool = setup.tools.get(name)
    if tool is None and name in setup.client_tools:
        return _start_at_client(setup, call)
    if tool is None:
        import difflib

        known = sorted({*setup.tools, *setup.client_tools})
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f" Did you mean {close[0]}?" if close else ""
        names = ", ".join(known) or "none"
        return _close_call(call, "error", f"There is no tool named {name!r}.{hint} The tools are: {names}.")
    try:
        tool, parsed = tool.resolve_call(tool.parse_call(call.call.arguments), state.notes)
        if blocked & {tool.name, *tool.decided_after}:
            return None
        tool, parsed = await tool.bind_call(parsed, setup.workspace, find_narrowest_tier(setup.grants))
    except ToolInputError as error:
        return _close_call(call, "error", str(error))
    name = tool.name
    if is_web_off(setup.grants, name):
        return _close_call(call, "denied", WEB_IS_OFF)
    if len(call.call.arguments) > _MAX_LENGTH_ON_LOOP:
        assessment, verdict = await asyncio.to_thread(_decide_call, setup, state, tool, parsed)
    else:
        assessment, verdict = _decide_call(setup, state, tool, parsed)
    if assessment.affects_later_calls:
        blocked.add(name)
    shown = HookCall(describe_session(setup, state), call.call.id, name, assessment.safety, parsed.arguments)
    verdict = await tighten_verdict(setup, call, shown, verdict)
    if verdict.action == "deny":
        return _close_call(call, "denied", f"Denied: {verdict.why}. Do without it.", assessment.safety)
    if (hooked := await run_before_tool(setup, call, shown)) is not None:
        return hooked
    questions = tool.questions(parsed)
    if questions:
        return _apply_user_answer(setup, call, questions)
    attempt = call.started.attempt + 1 if call.started is not None else 1
    ready = ReadyCall(call, tool, parsed, assessment.safety, verdict.why, attempt, assessment.flow_risk)
    return _apply_verdict(setup, ready, verdict, assessment)


def _start_at_client(setup: Setup, call: CallState) -> events.AnyFact:
    """Hand a call to the client. No policy decides, because the call has no effect here. In plan mode none is made."""
    if find_narrowest_tier(setup.grants) == "plan":
        return _close_call(call, "denied", f"Denied: {PLAN_REFUSAL}. Do without it.")
    try:
        arguments = msgspec.json.decode(call.call.arguments or "{}", type=dict[str, Json])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return _close_call(call, "error", f"The arguments of {call.call.tool} do not fit: {error}.")
    return events.CallStarted(
        call_id=call.call.id,
        tool=call.call.tool,
        arguments=arguments,
        sandbox=events.CLIENT_SANDBOX,
        why="the client runs its own tools",
        expires_at=_compute_expiry(setup),
    )


def _decide_call(setup: Setup, state: State, tool: Tool, parsed: ParsedArguments) -> tuple[Assessment, Verdict]:
    """Assess a call, and let the policy decide. Neither has effects: long calls are decided in a thread."""
    assessment = _assess_call(setup, state, tool, parsed)
    grants = [apply_aliases(grant, setup.aliases) for grant in setup.grants] if setup.aliases else setup.grants
    remembered = state.remembered
    if tool.version:
        grants, remembered, assessment = _select_for_tool_version(tool, parsed, grants, remembered, assessment)
    return assessment, decide_call(grants, remembered, tool.name, parsed.arguments, assessment)


def _assess_call(setup: Setup, state: State, tool: Tool, parsed: ParsedArguments) -> Assessment:
    """Take the tool's own assessment, and add doubts about the sandbox and about data leaks."""
    tier = find_narrowest_tier(setup.grants)
    assessment = tool.assess(parsed, setup.workspace, tier)
    doubts = list(assessment.doubts)
    if assessment.commands is not None and tool.describe_sandbox(tier) == "landlock":
        doubts.append("the sandbox is reduced on this machine, so every command is asked for")
    own = tool.list_traits(tier) | assessment.traits
    risk = find_flow_risk(setup, state, tool, own, assessment) if own & EFFECTS else ""
    return replace(assessment, doubts=tuple(doubts), flow_risk=risk) if doubts or risk else assessment


def _select_for_tool_version(
    tool: Tool,
    parsed: ParsedArguments,
    grants: Sequence[events.Grant],
    remembered: Sequence[RememberedAnswer],
    assessment: Assessment,
) -> tuple[Sequence[events.Grant], Sequence[RememberedAnswer], Assessment]:
    """Select the permissions for this version of the tool. A yes to another version is a reason to ask.

    A yes to every version does not count for a tool that has changed: who gave it knew the tool as it was.
    """
    version = tool.version

    def select(patterns: Sequence[str]) -> tuple[str, ...]:
        kept = [one for one in patterns if unpin_version(one) != one] if assessment.is_changed else patterns
        return select_for_version(kept, version)

    allowed = [answer.pattern for answer in remembered if answer.decision == "allow"]
    patterns = {*allowed, *(pattern for grant in grants for pattern in (*grant.approve, *grant.always))}
    other_versions = (unpin_version(pattern) for pattern in patterns if not select_for_version((pattern,), version))
    if any(covers_call(pattern, tool.name, parsed.arguments) for pattern in other_versions):
        assessment = replace(
            assessment, why=assessment.why or CHANGED_DESCRIPTION, doubts=(CHANGED_DESCRIPTION, *assessment.doubts)
        )
    grants = [replace(grant, approve=select(grant.approve), always=select(grant.always)) for grant in grants]
    remembered = [
        replace(answer, pattern=pattern)
        for answer in remembered
        for pattern in (select((answer.pattern,)) if answer.decision == "allow" else (unpin_version(answer.pattern),))
    ]
    return grants, remembered, assessment


def _apply_verdict(
    setup: Setup, ready: ReadyCall, verdict: Verdict, assessment: Assessment
) -> ReadyCall | events.AnyFact:
    """Return the call if the policy or a person allowed it, or ask a person, or deny it."""
    call, answer, tool = ready.call, ready.call.answer, ready.tool
    has_hook_asked = call.hooked is not None and call.hooked.result.decision == "ask"
    if answer is not None:
        if answer.decision == "deny":
            if answer.by == "expiry":
                return _close_call(call, "denied", "Denied: Nobody answered in time.", ready.safety)
            return _close_call(call, "denied", f"Denied: {describe_denial(answer)}", ready.safety)
        if call.asked is not None:
            is_other_question = verdict.asks_flow and not call.asked.flow
            if is_other_question or call.asked.digest != compute_digest(setup, tool, ready.parsed.arguments):
                return _close_call(call, "denied", CHANGED_SINCE_APPROVAL, ready.safety)
        if verdict.action != "ask":
            return ready
        return replace(ready, why=f"{answer.by or 'a person'} allowed this call ({verdict.why})")
    if verdict.action == "allow":
        return ready
    if setup.gate is None:
        told = NOBODY_TO_ASK_ABOUT_FLOW if verdict.asks_flow else NOBODY_TO_ASK
        told = NOBODY_TO_ASK_FOR_HOOK if has_hook_asked else told
        return _close_call(call, "denied", told.format(why=verdict.why), ready.safety)
    arguments = ready.parsed.arguments
    pattern = suggest_pattern(tool.name, arguments, assessment.commands)
    return events.ApprovalRequested(
        call_id=call.call.id,
        tool=tool.name,
        arguments=arguments,
        safety=ready.safety,
        why=verdict.why,
        rule="" if verdict.is_once_only else pin_version(pattern, tool.version),
        once=verdict.is_once_only,
        flow=verdict.asks_flow,
        hook=has_hook_asked,
        digest=compute_digest(setup, tool, arguments),
        expires_at=_compute_expiry(setup),
    )


def _apply_user_answer(setup: Setup, call: CallState, questions: tuple[events.Question, ...]) -> events.AnyFact:
    """Return the user's answers as the result of the call, or ask the user."""
    answered = call.input_answer
    if answered is not None:
        if answered.by == "expiry":
            return _close_call(call, "timed_out", "Nobody answered in time.")
        text = answered.answers[0] if len(answered.answers) == 1 else msgspec.json.encode(answered.answers).decode()
        return _close_call(call, "ok", text)
    if setup.gate is None:
        return _close_call(call, "denied", "Nobody can be asked here. Decide yourself, and say what you assumed.")
    return events.InputRequested(call_id=call.call.id, questions=questions, expires_at=_compute_expiry(setup))


def _compute_expiry(setup: Setup) -> float | None:
    return setup.clock.now() + setup.approval_ttl if setup.approval_ttl is not None else None


def compute_digest(setup: Setup, tool: Tool | str, arguments: dict[str, Json]) -> str:
    """Identify what a person approves: the tool, its arguments, its folder and whether it is sandboxed.

    What a running call asks for has a name instead of a tool.

    Only this store can compute it, so no file from elsewhere can hold an approval. Grants and rules are no part of it:
    the policy checks them again when the call starts.
    """
    import hmac

    sandboxed = find_narrowest_tier(setup.grants) != "full"
    name, version = (tool, "") if isinstance(tool, str) else (tool.name, tool.version)
    approved = msgspec.json.encode((name, version, arguments, str(setup.workspace), sandboxed), order="sorted")
    return hmac.digest(setup.approval_key, approved, "sha256").hex()[:32]


def _close_call(
    call: CallState, status: events.CallStatus, output: str, safety: events.Safety | None = None
) -> events.CallFinished:
    return events.CallFinished(call_id=call.call.id, tool=call.call.tool, status=status, output=output, safety=safety)
