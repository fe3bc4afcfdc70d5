"""May these calls run? Schema, then budget, then policy; whatever may not is answered to the model.

Judging is repeated right before a call starts, so a log cut between a reply and its questions is safe.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.engine.setup import Setup
from treadle.engine.state import CallState, RunState, State
from treadle.engine.steps import is_out_of_time
from treadle.errors import describe_error
from treadle.events import (
    AnyFact,
    ApprovalRequested,
    CallFinished,
    CallStatus,
    Grant,
    InputRequested,
    Question,
    Safety,
    Tier,
    validate_fact,
)
from treadle.permissions.data_flow import UNKNOWN_TOOL_TRAITS, Trait, explain_leak_risk, list_tools_seen
from treadle.permissions.patterns import covers_call, pin_version, select_for_version, suggest_pattern, unpin_version
from treadle.permissions.policy import (
    Assessment,
    RememberedAnswer,
    Verdict,
    apply_aliases,
    choose_strictest,
    decide_call,
    find_narrowest_tier,
)
from treadle.tools.base import ParsedArguments, Tool, ToolInputError

NOBODY_TO_ASK = (
    "Nobody can be asked here, so this call was denied ({why}). Do without it, or tell the user to allow it: "
    "approve the tool by name, or run where questions can be answered."
)

CHANGED_SINCE_APPROVAL = (
    "Denied: this is not what was approved, because the program, the folder it would run in or the walls around it "
    "have changed since. If it is still wanted, call it again, so that it is asked for again."
)

CHANGED_DESCRIPTION = "what its server says of it has changed since it was allowed"

_logger = logging.getLogger("treadle")


class ReadyCall(Struct, frozen=True):
    """A call that may run now."""

    call: CallState
    tool: Tool
    parsed: ParsedArguments
    safety: Safety
    why: str
    attempt: int


class Authorization(Struct):
    """What became of the calls: facts to record, and those that may run, in order."""

    facts: list[AnyFact] = msgspec.field(default_factory=list[AnyFact])
    ready: list[ReadyCall] = msgspec.field(default_factory=list[ReadyCall])


async def authorize_calls(setup: Setup, state: State, calls: Iterable[CallState]) -> Authorization:
    """Judge calls in the order given."""
    run = state.run
    assert run is not None and state.turn is not None
    stopped = any(call.finished and call.finished.fatal for call in state.turn.calls.values())
    result, moving = Authorization(), set[str]()
    for call in calls:
        fact = _out_of_budget(setup, run, call, len(result.ready), stopped=stopped)
        outcome = fact or await _judge_or_deny(setup, state, call, moving)
        if isinstance(outcome, ReadyCall):
            result.ready.append(outcome)
        elif outcome is not None:
            result.facts.append(outcome)
    return result


def _out_of_budget(setup: Setup, run: RunState, call: CallState, ready: int, *, stopped: bool) -> CallFinished | None:
    if stopped:
        return _closed(call, "cancelled", "Not run: an earlier call ended the run.")
    if run.doomed:
        return _closed(call, "refused", "Not run: the same calls were repeated too often.")
    if call.started is None and is_out_of_time(run, setup.clock.now()):
        return _closed(call, "cancelled", "Not run: the time for this run is over.")
    if call.started is None and run.calls + ready >= run.limits.calls:
        return _closed(call, "refused", f"Not run: the limit of {run.limits.calls} calls is used up.")
    return None


async def _judge_or_deny(setup: Setup, state: State, call: CallState, moving: set[str]) -> ReadyCall | AnyFact | None:
    try:
        outcome = await _judge_one(setup, state, call, moving)
        if outcome is None:
            return None
        # What a tool makes of its arguments is anybody's: it must be possible to store and read it again.
        if isinstance(outcome, ReadyCall):
            msgspec.json.encode(outcome.parsed.arguments)
            return outcome
        return validate_fact(outcome)
    except Exception as error:  # a bug in a tool or in middleware: what cannot be judged does not run
        _logger.exception("a call of %s could not be judged, so it was denied", call.call.tool)
        why = f"whether it may run could not be found out ({describe_error(error)})"
        return _closed(call, "denied", f"Denied: {why}. Do without it.")


async def _judge_one(setup: Setup, state: State, call: CallState, moving: set[str]) -> ReadyCall | AnyFact | None:
    """What becomes of a call; None when that can only be told after an earlier one of the `moving` tools has ended."""
    name = setup.aliases.get(call.call.tool, call.call.tool)
    tool = setup.tools.get(name)
    if tool is None:
        return _closed(call, "error", _unknown(name, setup))
    try:
        tool, parsed = tool.resolve_call(tool.parse(call.call.arguments), state.notes)
    except ToolInputError as error:
        return _closed(call, "error", str(error))
    name = tool.name
    if name in moving:
        return None
    assessment = _assessed(setup, state, tool, parsed)
    if assessment.affects_later_calls:
        moving.add(name)
    grants = [apply_aliases(grant, setup.aliases) for grant in setup.grants] if setup.aliases else setup.grants
    remembered = state.remembered
    if tool.version:
        grants, remembered, assessment = _as_it_is_now(tool, parsed, grants, remembered, assessment)
    verdict = decide_call(grants, remembered, name, parsed.arguments, assessment)
    for middleware in setup.middleware:
        verdict = choose_strictest(
            verdict, await middleware.may_run(name, assessment.safety, parsed.arguments) or verdict
        )
    if verdict.action == "deny":
        return _closed(call, "denied", f"Denied: {verdict.why}. Do without it.")
    questions = tool.questions(parsed)
    if questions:
        return _question(setup, call, questions)
    attempt = call.started.attempt + 1 if call.started is not None else 1
    ready = ReadyCall(call, tool, parsed, assessment.safety, verdict.why, attempt)
    return _ask(setup, call, ready, verdict, assessment)


def _assessed(setup: Setup, state: State, tool: Tool, parsed: ParsedArguments) -> Assessment:
    """What the tool says of the call, and what speaks against it from outside."""
    tier = find_narrowest_tier(setup.grants)
    assessment = tool.assess(parsed, setup.workspace, tier)
    doubts = list(assessment.doubts)
    if assessment.commands is not None and tool.describe_sandbox(tier) == "landlock":
        doubts.append("the sandbox is reduced on this machine, so every command is asked for")
    own = tool.list_traits(tier)
    if "way_out" in own:
        seen = (_find_traits(setup, name, tier) for name in list_tools_seen(state.used, state.notes))
        if risk := explain_leak_risk(own, assessment.safety, seen):
            doubts.append(risk)
    return replace(assessment, doubts=tuple(doubts)) if doubts else assessment


def _as_it_is_now(
    tool: Tool,
    parsed: ParsedArguments,
    grants: Sequence[Grant],
    remembered: Sequence[RememberedAnswer],
    assessment: Assessment,
) -> tuple[Sequence[Grant], Sequence[RememberedAnswer], Assessment]:
    """What was said for this version of the tool; where a yes was for another one, that is a reason to ask."""
    version = tool.version
    yes = [answer.pattern for answer in remembered if answer.decision == "allow"]
    every = {*yes, *(pattern for grant in grants for pattern in (*grant.approve, *grant.always))}
    others = (unpin_version(one) for one in every if not select_for_version((one,), version))
    if any(covers_call(one, tool.name, parsed.arguments) for one in others):
        assessment = replace(
            assessment, why=assessment.why or CHANGED_DESCRIPTION, doubts=(CHANGED_DESCRIPTION, *assessment.doubts)
        )
    grants = [
        replace(
            grant, approve=select_for_version(grant.approve, version), always=select_for_version(grant.always, version)
        )
        for grant in grants
    ]
    current = [replace(one, pattern=now) for one in remembered for now in select_for_version((one.pattern,), version)]
    return grants, current, assessment


def _find_traits(setup: Setup, name: str, tier: Tier) -> frozenset[Trait]:
    """What the calls of a tool bring in."""
    hidden = (tool.find_hidden_tool(name) for tool in setup.tools.values())
    found = setup.tools.get(name) or next(filter(None, hidden), None)
    return found.list_traits(tier) if found is not None else UNKNOWN_TOOL_TRAITS


def _ask(
    setup: Setup, call: CallState, ready: ReadyCall, verdict: Verdict, assessment: Assessment
) -> ReadyCall | AnyFact:
    if call.answer is not None:
        answer = call.answer
        if answer.decision == "deny":
            comment = f" They say: {answer.comment}" if answer.comment else ""
            who = "Nobody answered in time" if answer.by == "expiry" else f"{answer.by or 'The user'} said no"
            return _closed(call, "denied", f"Denied: {who}.{'' if answer.by == 'expiry' else comment}")
        if call.asked is not None and call.asked.digest != _digest(setup, ready):
            return _closed(call, "denied", CHANGED_SINCE_APPROVAL)
        asked = verdict.action == "ask"
        return replace(ready, why=f"{answer.by or 'a person'} allowed this call ({verdict.why})") if asked else ready
    if verdict.action == "allow":
        return ready
    if setup.gate is None:
        return _closed(call, "denied", NOBODY_TO_ASK.format(why=verdict.why))
    arguments = ready.parsed.arguments
    return ApprovalRequested(
        call_id=call.call.id,
        tool=ready.tool.name,
        arguments=arguments,
        safety=ready.safety,
        why=verdict.why,
        rule="" if verdict.is_once_only else _rule(ready, assessment),
        once=verdict.is_once_only,
        digest=_digest(setup, ready),
        expires_at=setup.clock.now() + setup.approval_ttl if setup.approval_ttl is not None else None,
    )


def _rule(ready: ReadyCall, assessment: Assessment) -> str:
    rule = suggest_pattern(ready.tool.name, ready.parsed.arguments, assessment.commands)
    return pin_version(rule, ready.tool.version)


def _question(setup: Setup, call: CallState, questions: tuple[Question, ...]) -> AnyFact:
    answered = call.input_answer
    if answered is not None:
        if answered.by == "expiry":
            return _closed(call, "timed_out", "Nobody answered in time.")
        text = answered.answers[0] if len(answered.answers) == 1 else msgspec.json.encode(answered.answers).decode()
        return _closed(call, "ok", text)
    if setup.gate is None:
        return _closed(call, "denied", "Nobody can be asked here. Decide yourself, and say what you assumed.")
    expires = setup.clock.now() + setup.approval_ttl if setup.approval_ttl is not None else None
    return InputRequested(call_id=call.call.id, questions=questions, expires_at=expires)


def _digest(setup: Setup, ready: ReadyCall) -> str:
    """What would run, and whether walls are around it. What else is allowed or forbidden now is judged by itself."""
    import hashlib

    walls = find_narrowest_tier(setup.grants) != "full"
    shown = msgspec.json.encode(
        (ready.tool.name, ready.tool.version, ready.parsed.arguments, str(setup.workspace), walls), order="sorted"
    )
    return hashlib.sha256(shown).hexdigest()[:32]


def _unknown(name: str, setup: Setup) -> str:
    import difflib

    close = difflib.get_close_matches(name, setup.tools, n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]}?" if close else ""
    return f"There is no tool named {name!r}.{hint} The tools are: {', '.join(sorted(setup.tools)) or 'none'}."


def _closed(call: CallState, status: CallStatus, output: str) -> CallFinished:
    return CallFinished(call_id=call.call.id, tool=call.call.tool, status=status, output=output)
