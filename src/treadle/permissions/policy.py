"""Decides whether a call may run: allow, ask or deny. Pure.

What a pattern matches is in `patterns.py`. How a question reaches a person is the gate's task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from treadle.events import Decision, Grant, Safety, Tier
from treadle.messages import Json
from treadle.permissions.data_flow import Trait
from treadle.permissions.patterns import (
    UNREADABLE_MARK,
    compile_name_glob,
    covers_call,
    find_possible_match,
    find_touched_part,
)

Action = Literal["allow", "ask", "deny"]
Posture = Literal["cautious", "balanced", "trusting"]

_STRICTNESS: dict[Action, int] = {"allow": 0, "ask": 1, "deny": 2}
_TIERS: dict[Tier, dict[Safety, Action]] = {
    "plan": {"safe": "allow", "caution": "deny", "destructive": "deny"},
    "read-only": {"safe": "allow", "caution": "ask", "destructive": "deny"},
    "sandbox": {"safe": "allow", "caution": "allow", "destructive": "ask"},
    "full": {"safe": "allow", "caution": "allow", "destructive": "ask"},
}
WEB_TOOLS = ("fetch_url", "web_*", "search_web")
WEB_OFF = Grant(tier="full", forbid=WEB_TOOLS)
"""The grant of a session that may not use the web tools. It forbids nothing else."""
COMMAND_TOOL = "shell"
"""The tool whose commands `Assessment.same_as` names."""
_MAX_SHOWN = 200
_NARROWEST_FIRST: tuple[Tier, ...] = get_args(Tier)
PLAN_REFUSAL = "in plan mode nothing changes before the user accepts the plan, so put this step into the plan"


class Verdict(Struct, frozen=True):
    """A decision, and the rule that made it.

    If `is_once_only`, only an answer to this very call or one given beforehand allows it. If it `may_be_forbidden`, or
    `asks_flow` because of the flow of data, only an answer to this very call does.
    """

    action: Action
    why: str
    is_once_only: bool = False
    may_be_forbidden: bool = False
    asks_flow: bool = False


class Assessment(Struct, frozen=True):
    """What a call would do, as far as its tool can tell; `why` is the reason for its class.

    `commands` are the simple commands it would run, redirections (`> path`) and assignments (`NAME=value`) included.
    `doubts` are reasons to ask that lie outside of the call. With `asks_each_time` the tool itself says that no yes
    may be remembered. If the tool `is_changed`, only a yes to its present version counts. A call that
    `affects_later_calls` may change what later calls of its tool mean, so they are decided after it has ended. `traits`
    are those of this call besides its tool's. `address` is set when the call sends nothing but this address.
    `flow_risk` says how it could let private data out, or make a lasting change, because text of others asked for it.
    `same_as` are commands of the shell that would do the same: what forbids one of them forbids this call.
    """

    safety: Safety = "caution"
    why: str = ""
    commands: tuple[str, ...] | None = None
    doubts: tuple[str, ...] = ()
    asks_each_time: bool = False
    is_changed: bool = False
    affects_later_calls: bool = False
    traits: frozenset[Trait] = frozenset()
    address: str = ""
    flow_risk: str = ""
    same_as: tuple[str, ...] = ()

    @property
    def unreadable_command(self) -> str | None:
        """The first command that could not be read."""
        unreadable = (command for command in self.commands or () if command.startswith(UNREADABLE_MARK))
        first = next(unreadable, None)
        return first.removeprefix(UNREADABLE_MARK) if first is not None else None

    @property
    def is_once_only(self) -> bool:
        """Whether no yes may be remembered: the command is destructive or unreadable, or the tool says so."""
        is_dangerous = self.safety == "destructive" or self.unreadable_command is not None
        return self.asks_each_time or (self.commands is not None and is_dangerous)


class RememberedAnswer(Struct, frozen=True):
    """A person's answer that holds for more than one call. `--approve` gives one beforehand, before any question."""

    pattern: str
    decision: Decision
    by: str = ""
    was_given_beforehand: bool = False


def decide_call(
    grants: Sequence[Grant],
    remembered: Sequence[RememberedAnswer],
    tool: str,
    arguments: Mapping[str, Json],
    assessment: Assessment,
) -> Verdict:
    """Take the strictest verdict of all grants. A remembered answer can deny, or turn ask into allow.

    A flow risk is a question of its own. To approve a tool does not answer it, neither beforehand nor for the session.
    """
    verdict = decide_use(grants, remembered, tool, arguments, assessment)
    risk, operator = assessment.flow_risk, grants[0] if grants else Grant()
    if not risk or verdict.action == "deny" or operator.yes:
        return verdict
    if _find_covering_patterns(operator.approve_flow, tool, arguments, assessment.commands):
        return verdict
    why = risk if verdict.action == "allow" else f"{verdict.why}; {risk}"
    return Verdict("ask", why, is_once_only=True, may_be_forbidden=verdict.may_be_forbidden, asks_flow=True)


def decide_use(
    grants: Sequence[Grant],
    remembered: Sequence[RememberedAnswer],
    tool: str,
    arguments: Mapping[str, Json],
    assessment: Assessment,
) -> Verdict:
    """Decide whether a tool may be used in this way, whatever the session has seen."""
    verdicts = [_decide_by_grant(grant, tool, arguments, assessment) for grant in grants or (Grant(),)]
    verdict = verdicts[0] if len(verdicts) == 1 else choose_strictest(*verdicts)
    if verdict.action == "deny":
        return verdict
    commands = assessment.commands
    for answer in remembered:
        if answer.decision == "deny":
            part = _find_denied_part(answer.pattern, tool, arguments, assessment)
            if part is not None:
                who = answer.by or "a person"
                return Verdict("deny", f"{who} denied {answer.pattern} for this session{_in_brackets(part)}")
    if verdict.action == "ask" and not verdict.may_be_forbidden:
        allowed = [
            answer
            for answer in remembered
            if answer.decision == "allow" and (answer.was_given_beforehand or not verdict.is_once_only)
        ]
        rules = _find_covering_patterns([answer.pattern for answer in allowed], tool, arguments, commands)
        if rules:
            who = next(answer.by for answer in allowed if answer.pattern == rules[0]) or "a person"
            return Verdict("allow", f"{who} allowed {' and '.join(rules)} for this session")
    return verdict


def find_narrowest_tier(grants: Sequence[Grant]) -> Tier:
    """Find the narrowest tier in a chain of grants."""
    if len(grants) == 1:
        return grants[0].tier
    tiers: list[Tier] = [grant.tier for grant in grants or (Grant(),)]
    return choose_narrowest(*tiers)


def choose_narrowest(*tiers: Tier) -> Tier:
    """Choose the tier that allows least."""
    return min(tiers, key=_NARROWEST_FIRST.index)


def limit_access(grant: Grant, allowed: Tier | None, *chosen: Tier | None) -> Grant:
    """Give the operator's grant the access that was chosen for its session, where a choice was made.

    The process allows the tier of the grant, or the one that a person `allowed` for the session at its terminal.
    """
    choices: list[Tier] = [tier for tier in chosen if tier is not None]
    tier = choose_narrowest(allowed or grant.tier, *(choices or [grant.tier]))
    return replace(grant, tier=tier) if tier != grant.tier else grant


def choose_strictest(*verdicts: Verdict) -> Verdict:
    """Choose the verdict that allows least; the first of equals."""
    return max(
        verdicts,
        key=lambda verdict: (
            _STRICTNESS[verdict.action],
            verdict.is_once_only,
            verdict.asks_flow,
            verdict.may_be_forbidden,
        ),
    )


def apply_posture(grant: Grant, posture: Posture) -> Grant:
    """Narrow or widen a grant to an agent's posture.

    A cautious agent asks for every call that is not safe. A trusting one asks only for what must be asked each time;
    only the user's own configuration may make an agent trusting.
    """
    if posture == "cautious":
        return replace(grant, cautious=True)
    return replace(grant, always=(*grant.always, "*")) if posture == "trusting" else grant


def is_web_off(grants: Sequence[Grant], tool: str) -> bool:
    """Whether a tool reads the web and the web is switched off."""
    return WEB_OFF in grants and any(covers_call(pattern, tool, {}) for pattern in WEB_TOOLS)


def apply_aliases(grant: Grant, aliases: Mapping[str, str]) -> Grant:
    """Let a grant's patterns also match a tool by its other names: to forbid `bash` is to forbid `shell`."""
    if not aliases:
        return grant

    def add_real_names(patterns: tuple[str, ...]) -> tuple[str, ...]:
        more = (
            f"{real}{pattern[len(name) :]}"
            for pattern in patterns
            if (name := pattern.partition("(")[0]) != "*"  # which means every name already
            for alias, real in aliases.items()
            if compile_name_glob(name).matches(alias) and not compile_name_glob(name).matches(real)
        )
        return (*patterns, *more)

    names = ("approve", "ask", "forbid", "tools", "always", "approve_flow")
    return replace(grant, **{name: add_real_names(getattr(grant, name)) for name in names})


def make_printable(text: str) -> str:
    """Make a text fit to show: short, and without characters that a screen hides or reverses."""
    shown = (one if one.isprintable() else repr(one)[1:-1] for one in text[:_MAX_SHOWN])
    return "".join(shown) + ("…" if len(text) > _MAX_SHOWN else "")


def _decide_by_grant(grant: Grant, tool: str, arguments: Mapping[str, Json], assessment: Assessment) -> Verdict:
    commands = assessment.commands
    is_named = tool in grant.tools or "*" in grant.tools
    if not is_named and not any(compile_name_glob(pattern).matches(tool) for pattern in grant.tools):
        return Verdict("deny", f"{tool} is not among the tools that may be used here")
    for pattern in grant.forbid:
        if (part := _find_denied_part(pattern, tool, arguments, assessment)) is not None:
            return Verdict("deny", f"forbidden by {pattern}{_in_brackets(part)}")
    action = _TIERS[grant.tier][assessment.safety]
    why = f"{assessment.safety} in tier {grant.tier}" + (f": {assessment.why}" if assessment.why else "")
    if action == "deny":
        return Verdict("deny", f"{PLAN_REFUSAL} ({why})" if grant.tier == "plan" else why)
    for pattern in grant.forbid:
        if (part := find_possible_match(pattern, tool, arguments, commands)) is not None:
            unsure = f"nobody can tell whether {pattern} forbids this: {make_printable(part)}"
            return Verdict("ask", unsure, is_once_only=True, may_be_forbidden=True)
    for pattern in grant.ask:
        if (part := find_touched_part(pattern, tool, arguments, commands)) is not None:
            if grant.yes:
                return Verdict("allow", "approved by --yes")
            reason = f"asked for by {pattern}{_in_brackets(part)}"
            return Verdict("ask", reason, is_once_only=assessment.is_once_only)
    if action == "ask":
        reason = why
    elif (unreadable := assessment.unreadable_command) is not None:
        reason = f"nobody can tell what this would run: {make_printable(unreadable)}"
    elif assessment.doubts:
        reason = assessment.doubts[0]
    elif grant.ask_all:
        reason = "every tool is asked for unless approved"
    elif grant.cautious and assessment.safety != "safe":
        reason = f"{assessment.safety}, and this agent is cautious"
    else:
        return Verdict("allow", why)
    patterns = grant.approve if assessment.is_once_only else (*grant.approve, *grant.always)
    rules = _find_covering_patterns(patterns, tool, arguments, commands)
    if rules:
        return Verdict("allow", f"approved by {' and '.join(rules)}")
    if grant.yes:
        return Verdict("allow", "approved by --yes")
    return Verdict("ask", reason, is_once_only=assessment.is_once_only)


def _find_denied_part(pattern: str, tool: str, arguments: Mapping[str, Json], assessment: Assessment) -> str | None:
    """Find the part of a call, or of a command that would do the same, that a pattern denies."""
    part = find_touched_part(pattern, tool, arguments, assessment.commands)
    if part is not None or not assessment.same_as:
        return part
    same = {"command": assessment.same_as[0]}
    return find_touched_part(pattern, COMMAND_TOOL, same, assessment.same_as)


def _in_brackets(part: str) -> str:
    return f" ({make_printable(part)})" if part else ""


def _find_covering_patterns(
    patterns: Sequence[str], tool: str, arguments: Mapping[str, Json], commands: tuple[str, ...] | None
) -> list[str]:
    """Find the patterns that together cover the whole call; none when a part of it is not covered."""
    rules: list[str] = []
    for part in [(command,) for command in commands] if commands else [None]:
        rule = next((pattern for pattern in patterns if covers_call(pattern, tool, arguments, part)), None)
        if rule is None:
            return []
        rules.append(rule)
    return list(dict.fromkeys(rules))
