"""Draw the lines about a run as a whole: what it does now, retries, errors, limits and its end."""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec import Struct

from treadle import events
from treadle.cli.console import Console, escape_controls, format_count, format_duration
from treadle.cli.draw.glyphs import Theme, choose_theme
from treadle.engine.state import OWN_ERRORS
from treadle.messages import Usage

_FAILURES = {
    "overloaded": "Provider overloaded",
    "network": "Provider unreachable",
    "stalled": "Provider silent",
    "quota": "Quota used up",
}
_LIMITS = {
    "turn_limit": "the turn limit",
    "call_limit": "the call limit",
    "token_limit": "the token limit",
    "time_limit": "the time limit",
    "cost_limit": "the cost limit",
}
_ENDINGS = {
    "doom_loop": "Stopped: the agent repeated the same calls",
    "stuck": "Stopped: the agent is stuck",
    "yielded": "Stopped: the agent asks you to take over",
    "cancelled": "Cancelled",
    "failed": "Failed",
}


class RunFacts(Struct):
    """What a run has used: since when, turns, calls and the usage of its models."""

    since: float = 0.0
    turns: int = 0
    calls: int = 0
    usage: Usage = Usage()
    limits: events.Limits = events.Limits()


def describe_failure(fact: events.ModelFailed, left: float, limits: events.Limits) -> str:
    """Describe a failure after which the model is asked again, in `left` seconds."""
    what = _FAILURES.get(fact.kind, "Provider error")
    status = f" {fact.status}" if fact.status else ""
    tries = f"{fact.attempt + 1}"
    if fact.kind in OWN_ERRORS:
        tries += f" of {limits.attempts}"
    elif fact.give_up_at:
        tries += f", until {time.strftime('%H:%M', time.localtime(fact.give_up_at))}"
    return f"{what}{status}, retrying in {format_duration(left, whole=True)} ({tries})"


def describe_retries(failures: Sequence[events.ModelFailed]) -> str:
    """Describe the failures of a turn, when the model has answered after all."""
    last = failures[-1]
    what = _FAILURES.get(last.kind, "Provider error").lower() + (f" {last.status}" if last.status else "")
    lost = format_duration(sum(one.wait or 0.0 for one in failures), whole=True)
    return f"{len(failures)} retries, {lost} lost: {what}"


def render_work_line(word: str, facts: Sequence[str], keys: str, spin: int, width: int, theme: Theme) -> str:
    """Render what the agent does now. The keys at the end are never dropped."""
    mark = theme.glyphs.spinner[spin % len(theme.glyphs.spinner)] if spin >= 0 else theme.glyphs.running
    tail = f"{theme.dot}{keys}" if keys else ""
    word = theme.cut(word, max(8, width - 2 - len(tail)))
    shown = theme.join_facts(f"  {word}{tail}", [fact for fact in facts if fact], width)
    return f"{theme.paint(mark, 'accent')} {word}{theme.paint(shown + tail, 'quiet')}"


def render_fields(rows: Sequence[tuple[str, str]], theme: Theme) -> list[str]:
    """Render pairs of a quiet word and its text. What can be pasted is never broken, so no text is wrapped."""
    return [f"  {theme.paint(f'{name:<10}', 'quiet')}{text}" for name, text in rows if text]


def describe_ending(outcome: events.RunFinished) -> str:
    """Describe how a run ended if it ended without an answer."""
    if outcome.reason in _LIMITS:
        text = f"Stopped at {_LIMITS[outcome.reason]}"
    else:
        text = _ENDINGS.get(outcome.reason, outcome.reason)
    error = escape_controls(outcome.error).strip()
    if not error or error.lower().startswith(text.lower()):
        return error[:1].upper() + error[1:] if error else text
    return f"{text}: {error}"


def render_ending(
    outcome: events.RunFinished, failure: events.ModelFailed | None, facts: RunFacts, width: int, theme: Theme
) -> list[str]:
    """Render how a run ended without an answer: what happened, why in the provider's words, and what to do."""
    if outcome.reason == "failed":
        what, says = describe_ending(outcome), ""
        if failure is not None and failure.message:
            name = _FAILURES.get(failure.kind, "Provider error")
            what = f"{name} {failure.status}".strip() if failure.status else name
            what = f"Failed: {what[:1].lower()}{what[1:]}" + (
                f", {failure.attempt} tries" if failure.attempt > 1 else ""
            )
            says = escape_controls(failure.message)
        head = f"{theme.paint(theme.glyphs.failed, 'bad')} {theme.paint(what, 'strong')}"
        return [head, *render_fields([("it says", says)], theme)]
    text = describe_ending(outcome)
    if outcome.reason == "turn_limit":
        text = f"Stopped at {facts.limits.turns} turn{'s' * (facts.limits.turns != 1)}"
    elif outcome.reason == "cost_limit" and facts.limits.cost:
        text = f"Stopped at ${facts.limits.cost:.2f}"
    head = f"{theme.paint(theme.glyphs.stopped, 'need')} {theme.paint(text, 'strong')}"
    return [head + theme.paint(theme.join_facts(f"  {text}", list_run_facts(facts, outcome.at), width), "quiet")]


def list_run_facts(facts: RunFacts, end: float = 0.0) -> list[str]:
    """List what a run has used, the most important first."""
    usage = facts.usage
    seconds = (end or time.time()) - facts.since if facts.since else 0.0
    tokens = usage.input_tokens + usage.output_tokens
    cached = (
        f", {usage.cached_tokens / usage.input_tokens:.0%} cached" if usage.cached_tokens and usage.input_tokens else ""
    )
    counts = f"{facts.turns} turn{'s' * (facts.turns != 1)}, {facts.calls} call{'s' * (facts.calls != 1)}"
    return [
        *([format_duration(seconds)] if seconds >= 0.1 else []),
        *([format_cost(usage.cost)] if usage.cost else []),
        *([counts] if facts.turns or facts.calls else []),
        *([f"{format_count(tokens)} tokens{cached}"] if tokens else []),
    ]


def format_cost(dollars: float) -> str:
    """Format a cost in dollars: in cents, or finer below a cent."""
    return f"${dollars:.2f}" if dollars >= 0.01 else f"${dollars:.4f}"


def render_summary(facts: RunFacts, session: str, console: Console, *, is_done: bool) -> list[str]:
    """Render the end of a run: what it used, if it is done, and how to go on."""
    theme = choose_theme(has_colour=console.has_colour, has_style=console.has_style)
    lines: list[str] = []
    if is_done:
        used = theme.join_facts("  Done", list_run_facts(facts), console.width - 1)
        mark = theme.paint(theme.glyphs.done, "ok")
        lines.append(f"{mark} {theme.paint('Done', 'strong')}{theme.paint(used, 'quiet')}")
    return lines + render_fields([("talk", theme.paint(f"treadle chat --session {session}", "strong"))], theme)


def render_message(text: str, theme: Theme, fact: str = "") -> str:
    """Render a message of the user. `fact` says where it took effect."""
    first, *others = escape_controls(text).split("\n")
    mark = theme.paint(theme.glyphs.you, "pick")
    end = f"  {theme.paint(fact.replace(' - ', theme.dot), 'quiet')}" if fact else ""
    lines = [f"{mark} {theme.paint(first, 'strong')}", *(f"  {theme.paint(line, 'strong')}" for line in others)]
    return "\n".join(lines) + end
