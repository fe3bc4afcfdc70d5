"""Build the page of a session: what was said and done, times, tokens, cost, and the timeline of its runs."""

from __future__ import annotations

import base64
import functools
import hashlib
import time
from collections.abc import Sequence
from pathlib import Path

from treadle import events
from treadle.export.html.diff import render_with_diffs
from treadle.export.html.text import escape_text, render_markdown
from treadle.export.html.timeline import format_duration, format_number, render_timeline
from treadle.export.transcript import TranscriptBlock, build_blocks, describe_session, read_arguments
from treadle.messages import Json, Usage

MAX_OUTPUT = 100_000
MAX_SUMMARY = 200

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p class="about">{about}</p>
</header>
{timeline}
<main>
{body}
</main>
</body>
</html>
"""


def render_page(facts: Sequence[events.AnyFact]) -> str:
    """Render the session as one HTML page. It runs no script and loads nothing."""
    title, about = describe_session(facts)
    style = read_style()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    usage = [fact.usage for fact in facts if isinstance(fact, events.RunFinished)]
    tokens = describe_usage(Usage(sum(u.input_tokens for u in usage), sum(u.output_tokens for u in usage)))
    return _PAGE.format(
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        title=escape_text(title),
        style=style,
        about="<br>".join(escape_text(line) for line in [*about, *([tokens] if tokens else [])]),
        timeline=render_timeline(facts),
        body="\n".join(render_block(block) for block in build_blocks(facts)),
    )


@functools.cache
def read_style() -> str:
    """The style sheet: the tokens of the design, and what the page makes of them."""
    folder = Path(__file__).parent
    return "".join((folder / name).read_text("utf-8") for name in ("tokens.css", "page.css"))


def render_block(block: TranscriptBlock) -> str:
    """Render one block of the transcript."""
    when = time.strftime("%H:%M:%S", time.gmtime(block.at)) if block.at else ""
    match block.kind:
        case "user":
            meta = f'<p class="meta"><b>You</b><time>{when}</time></p>'
            return f'<section class="user">{meta}<pre>{escape_text(block.text.strip())}</pre></section>'
        case "agent":
            meta = " · ".join(filter(None, (describe_usage(block.usage), when)))
            head = f'<p class="meta"><b>Agent</b><span>{escape_text(meta)}</span></p>'
            return f'<section class="agent">{head}{render_markdown(block.text)}</section>'
        case "reasoning":
            return f'<details class="call"><summary>Thought</summary>{render_markdown(block.text)}</details>'
        case "call":
            return render_call(block)
        case "note":
            text = f"<pre>{escape_text(block.text.strip())}</pre>" if block.text.strip() else ""
            return f'<section class="note">{escape_text(block.head)}{text}</section>'


def describe_usage(usage: Usage) -> str:
    """The tokens and the cost of a reply or a run, or nothing if they are unknown."""
    if not usage.input_tokens and not usage.output_tokens:
        return ""
    cost = f" · ${usage.cost:.4f}" if usage.cost else ""
    return f"{format_number(usage.input_tokens)} tokens in, {format_number(usage.output_tokens)} out{cost}"


def render_call(block: TranscriptBlock) -> str:
    """Render a call as one line that opens. A call that did not succeed, or has a diff, is open."""
    values = read_arguments(block.arguments)
    patch = values.pop("patch", "")
    is_empty = patch or block.arguments in ("", "{}")
    line = " ".join(str(value) for value in values.values()) if values else "" if is_empty else block.arguments
    line = " ".join(line.split())
    is_cut = len(line) > MAX_SUMMARY or any("\n" in str(value) for value in values.values())
    dropped = len(block.text) - MAX_OUTPUT
    rest = f"<p>{format_number(dropped)} more characters are left out of this page.</p>" if dropped > 0 else ""
    body = f"{render_with_diffs(str(patch))}{render_with_diffs(block.text[:MAX_OUTPUT])}{rest}"
    has_diff = '<div class="diff">' in body
    if is_cut and not has_diff:
        body = f"<pre>{escape_text(render_values(values))}</pre>{body}"
    is_ok = block.status in ("ok", "")
    mark, word = ("✓", "") if is_ok else ("✗", block.status)
    took = format_duration(block.seconds) if block.seconds else ""
    meta = " · ".join(filter(None, (word, took)))
    name = escape_text(block.tool or block.head)
    shown = escape_text(line[:MAX_SUMMARY]) + ("…" if len(line) > MAX_SUMMARY else "")
    state = "call" if is_ok else "call failed"
    head = f"<i>{mark}</i><b>{name}</b><code>{shown}</code><span>{escape_text(meta)}</span>"
    is_open = " open" if has_diff or not is_ok else ""
    return f'<details class="{state}"{is_open}><summary>{head}</summary>{body}</details>'


def render_values(values: dict[str, Json]) -> str:
    """Write the arguments of a call one below the other."""
    return "\n".join(
        f"{name}: {value}" if "\n" not in str(value) else f"{name}:\n{value}" for name, value in values.items()
    )
