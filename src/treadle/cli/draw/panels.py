"""Draw what fills the context window, and what a session cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treadle import events
from treadle.cli.console import escape_controls, format_count, measure_width
from treadle.cli.draw.calls import summarize_arguments
from treadle.cli.draw.glyphs import Theme
from treadle.cli.draw.run_lines import format_cost, render_fields
from treadle.engine.compaction import Breakdown
from treadle.engine.steps import COMPACTION_SHARE
from treadle.messages import NO_USAGE, Usage

BAR_COLUMNS = 48
"""Cells of a bar for the whole window, in a wide terminal."""


def render_context(found: Breakdown, facts: Sequence[events.AnyFact], width: int, theme: Theme) -> list[str]:
    """Render the parts of the context, the largest results in it, and what the provider read from its cache."""
    whole = found.window or max(found.used, 1)
    used = (
        f"{format_count(found.used)} of {format_count(whole)}" if found.window else f"{format_count(found.used)} tokens"
    )
    more = [f"{found.used / found.window:.0%}"] if found.window else []
    more.append("estimated" if found.estimated else "counted by the provider")
    shown = theme.paint(theme.join_facts(f"Context  {used}", more, width), "quiet")
    lines = [f"{theme.paint('Context', 'strong')}  {used}{shown}"]
    for name in ("system", "tools", "skills", "files", "history", "free"):
        if size := getattr(found, name):
            bar = theme.glyphs.rule if name == "free" else theme.glyphs.full
            bar *= max(1, round(size / whole * min(BAR_COLUMNS, width - 28)))
            share = theme.paint(f"{size / whole:>5.0%}", "quiet")
            drawn = theme.paint(bar, "quiet" if name == "free" else "accent")
            lines.append(f"  {name:<9}{format_count(size):>7}{share}  {drawn}")
    last = next((one.usage for one in reversed(facts) if isinstance(one, events.ModelReplied)), NO_USAGE)
    cached = last.cached_tokens / max(last.input_tokens, 1)
    names = {one.call_id: one for one in facts if isinstance(one, events.CallStarted)}
    largest = ""
    for call_id, size in found.largest:
        if call_id in names:
            call = names[call_id]
            name = theme.cut(
                f"{call.tool} {summarize_arguments(call.tool, call.arguments)}".rstrip(), min(30, width - 20)
            )
            largest += theme.join_facts(f"{'':12}{largest}", [f"{name} {format_count(size)}"], width)
    rows = [
        ("largest", largest.removeprefix(theme.dot)),
        ("cache", f"{cached:.0%} of the last prompt was read from it" if cached else ""),
        ("compacts", f"by itself at {COMPACTION_SHARE:.0%}; /compact does it now" if found.window else ""),
    ]
    fields = render_fields(rows, theme)
    return [*lines, "", *fields] if fields else lines


def measure_usage(facts: Sequence[events.AnyFact]) -> dict[str, Usage]:
    """Sum up what each model used. What calls used, such as helpers, is a sum of its own, and so are summaries."""
    used: dict[str, Usage] = {}
    for fact in facts:
        match fact:
            case events.ModelReplied(usage=usage):
                name = fact.model or "model"
            case events.CallFinished(usage=usage) if usage != NO_USAGE:
                name = "helpers" if fact.tool == "delegate" else f"{fact.tool} (tool)"
            case events.ContextCompacted(usage=usage) if usage != NO_USAGE:
                name = "summaries"
            case _:
                continue
        used[name] = used.get(name, NO_USAGE) + usage
    return used


def render_cost(used: Mapping[str, Usage], today: float, limit: float | None, width: int, theme: Theme) -> list[str]:
    """Render what a session cost: in all, and for each model. A model without a known price has no cost."""
    cost = sum(usage.cost for usage in used.values())
    if not used:
        return [f"{theme.paint('Cost', 'strong')}  nothing yet"]
    head = f"{format_cost(cost)} for this session" if cost else "unknown: the model has no price in the table"
    facts = [f"{format_cost(today)} today"] if today > cost else []
    facts += [f"at most {format_cost(limit)} a run"] if limit is not None else []
    shown = theme.paint(theme.join_facts(f"Cost  {head}", facts, width), "quiet")
    rows = [["model", "in", "cached", "out", "cost"]]
    for name, usage in used.items():
        cached = f"{usage.cached_tokens / usage.input_tokens:.0%}" if usage.input_tokens else "0%"
        sizes = [format_count(usage.input_tokens), cached, format_count(usage.output_tokens)]
        rows.append([escape_controls(name), *sizes, format_cost(usage.cost) if usage.cost else theme.glyphs.rule])
    widths = [max(map(measure_width, column)) for column in zip(*rows, strict=True)]
    widths[0] = min(widths[0], max(8, width - 10 - sum(widths[1:])))
    lines = [f"{theme.paint('Cost', 'strong')}  {head}{shown}"]
    for number, (name, *cells) in enumerate(rows):
        name = theme.cut(name, widths[0])
        line = "  ".join(f"{cell:>{size}}" for cell, size in zip(cells, widths[1:], strict=True))
        line = f"  {name}{'':{widths[0] - measure_width(name)}}  {line}"
        lines.append(line if number else theme.paint(line, "quiet"))
    return lines
