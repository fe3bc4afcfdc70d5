"""The timeline of a session's runs: one row a step, with a bar for when it worked or waited."""

from __future__ import annotations

from collections.abc import Sequence

from treadle import events
from treadle.export.html.text import escape_text
from treadle.export.run_steps import Step, build_steps, split_runs

MAX_ROWS = 500
WIDTH = 1000
_WORDS = {"model": "Model", "tool": "", "person": "Asked you:", "provider": "Retry:"}


def render_timeline(facts: Sequence[events.AnyFact]) -> str:
    """Render the timeline of each run, under a line with what it took."""
    runs: list[str] = []
    for number, run in enumerate(split_runs(facts), 1):
        steps = build_steps(run)
        start, end = run[0].at, run[-1].at
        title = f"Run {number}"
        last = run[-1]
        facts_shown = [format_duration(end - start)]
        if isinstance(last, events.RunFinished):
            usage = last.usage
            facts_shown += [
                last.reason.replace("_", " "),
                f"{last.turns} turn{'s' * (last.turns != 1)}, {last.calls} call{'s' * (last.calls != 1)}",
                f"{format_number(usage.input_tokens)} tokens in, {format_number(usage.output_tokens)} out",
                *([f"${usage.cost:.4f}"] if usage.cost else []),
            ]
        waited = sum(step.end - step.start for step in steps if step.kind in ("person", "provider"))
        facts_shown += [f"{format_duration(waited)} of it waiting"] if waited >= 1 else []
        rows = "".join(render_step(step, start, max(end - start, 0.001)) for step in steps[:MAX_ROWS])
        more = f"<p>{len(steps) - MAX_ROWS} more steps</p>" if len(steps) > MAX_ROWS else ""
        head = f"<h3>{title} <span>{escape_text(' · '.join(facts_shown))}</span></h3>"
        runs.append(f"{head}<table><tbody>{rows}</tbody></table>{more}")
    if not runs:
        return ""
    icon = '<svg viewBox="0 0 12 12" aria-hidden="true"><rect class="{}" width="12" height="12"/></svg>'
    legend = "".join(
        f"<span>{icon.format(kind)}{word}</span>"
        for kind, word in (("model", "model"), ("tool", "tool"), ("person", "waiting"), ("failed", "failed"))
    )
    body = f'<p class="legend">{legend}</p>{"".join(runs)}'
    return f'<details class="timeline" open><summary>Timeline</summary>{body}</details>'


def format_duration(seconds: float) -> str:
    """A duration such as `40 ms`, `1.4 s`, `12 s`, `9:41` or `1:02:03`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def format_number(number: int) -> str:
    """A number with thin spaces between its thousands."""
    return f"{number:,}".replace(",", "\u2009")


def render_step(step: Step, start: float, length: float) -> str:
    """Render a step as a row: its name, its bar within the run, and how long it took."""
    x = WIDTH * (step.start - start) / length
    width = max(WIDTH * (step.end - step.start) / length, 3)
    label = " ".join(filter(None, (_WORDS[step.kind], step.label if step.label != "chat" else "")))
    kind = step.kind if step.is_ok else "failed"
    bar = f'<rect class="{kind}" x="{min(x, WIDTH - width):.1f}" width="{width:.1f}" height="8" rx="2"/>'
    svg = f'<svg viewBox="0 0 {WIDTH} 8" preserveAspectRatio="none" aria-hidden="true">{bar}</svg>'
    failed = "" if step.is_ok else " failed"
    took = format_duration(step.end - step.start)
    return f"<tr><th>{escape_text(label)}{failed}</th><td>{svg}</td><td>{took}</td></tr>"
