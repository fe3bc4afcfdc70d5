"""The text of an approval question: what would run, what its parts do, why it is asked, where, and the rule."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path

from treadle import ApprovalRequested, Tool
from treadle.app.approval_preview import assess_arguments, preview_diff
from treadle.app.hidden_text import HIDDEN, escape_hidden
from treadle.cli.console import measure_width, truncate_line, wrap_rows
from treadle.cli.draw.diff import render_whole_diff
from treadle.cli.draw.glyphs import Theme
from treadle.messages import Json
from treadle.permissions.requests import NETWORK, READ_FOLDER, USUAL_PORTS, WRITE_FOLDER

_MAX_COMMAND_COLUMNS = 50
_WISHES = {NETWORK: "wants", READ_FOLDER: "wants to read", WRITE_FOLDER: "wants to change"}
_DIFF_STYLES = {"+": "ok", "-": "bad", "@": "ref"}
_SHOWN_BY_DIFF = {"write_file": ("content",), "edit_file": ("old", "new"), "apply_patch": ("patch",)}


def describe_request(question: ApprovalRequested) -> str:
    """Say in one line what is asked."""
    if question.during:
        return describe_wish(question)
    what = "wants to run a command" if "command" in question.arguments else "wants to run"
    return f"{escape_hidden(question.tool)} {what}"


def describe_wish(question: ApprovalRequested) -> str:
    """Say what a running call wants besides what it has: a host, or a folder."""
    command = truncate_line(escape_hidden(str(question.arguments.get("command", "the command"))), _MAX_COMMAND_COLUMNS)
    return f"`{command}` {escape_hidden(_describe_wanted(question))}"


def summarize_request(question: ApprovalRequested) -> str:
    """Return the command or the main argument of a question on one line."""
    if question.during:
        return describe_wish(question)
    names = [name for name in ("command", "path", "url") if isinstance(question.arguments.get(name), str)]
    value = question.arguments[names[0]] if names else json.dumps(question.arguments, ensure_ascii=False)
    text = " ".join(escape_hidden(str(value)).split())
    return text if names == ["command"] else f"{escape_hidden(question.tool)} {text}"


def render_approval(
    question: ApprovalRequested, tools: Mapping[str, Tool], folder: Path, width: int, theme: Theme
) -> list[str]:
    """Render everything that decides an answer. No line is wider than `width`, and nothing is cut.

    Hidden characters are spelled out. An empty line separates the parts.
    """
    diff = [escape_hidden(row) for row in preview_diff(question.tool, question.arguments, folder)]
    shown_by_diff = _SHOWN_BY_DIFF.get(question.tool, ()) if diff and _is_plain(question.arguments) else ()
    what: list[str] = []
    for name, value in question.arguments.items():
        text = escape_hidden(_render_argument(value))
        if name == "command" and not question.during:
            what += [theme.paint(row, "strong") for row in wrap_exactly(text, width)]
        elif name not in shown_by_diff:
            what += _render_value(escape_hidden(name), text, width, theme)
    groups = [what, _render_parts(question, tools, folder, width, theme)]
    if question.tool == "apply_patch":  # the model wrote it, so it is shown as it is
        groups.append([line for row in diff for line in _render_diff_row(row, width, theme)])
    else:
        groups.append(render_whole_diff(diff, width, theme))
    groups.append(_render_facts(question, folder, width, theme))
    lines: list[str] = []
    for group in groups:
        lines += ["", *group] if lines and group else group
    return lines


def _render_value(name: str, text: str, width: int, theme: Theme) -> list[str]:
    """Render an argument: behind its name if it fits there, else below it."""
    if "\n" not in text and measure_width(name) + measure_width(text) + 2 <= width:
        return [f"{theme.paint(f'{name}:', 'quiet')} {text}"]
    return [theme.paint(f"{name}:", "quiet"), *(f"  {row}" for row in wrap_exactly(text, width - 2))]


def wrap_exactly(text: str, width: int) -> list[str]:
    """Break a text into rows of at most `width` columns. Every character stays."""
    return [row for line in text.split("\n") for row in wrap_rows(line.expandtabs(4), width) or [""]]


def _render_parts(
    question: ApprovalRequested, tools: Mapping[str, Tool], folder: Path, width: int, theme: Theme
) -> list[str]:
    """Render the simple commands of a compound command, each with what it does. Harm is marked."""
    commands = assess_arguments(question, question.arguments, tools, folder).commands or ()
    if len(commands) < 2:
        return []
    shown = [escape_hidden(command) for command in commands]
    column = min(max(map(measure_width, shown)), width // 2)
    lines: list[str] = []
    for number, (command, text) in enumerate(zip(commands, shown, strict=True), 1):
        part = assess_arguments(question, {**question.arguments, "command": command}, tools, folder)
        why = escape_hidden(part.why)
        effect = theme.paint(why, "quiet")
        if part.safety == "destructive":
            effect = f"{theme.paint('!', 'danger')} {theme.paint(why, 'strong')}"
        rows = wrap_exactly(text, width - 2)
        lines += [f"{theme.paint(f'{number} ' if not place else '  ', 'quiet')}{row}" for place, row in enumerate(rows)]
        if not why:
            continue
        plain = measure_width(why) + 2
        if len(rows) == 1 and measure_width(text) <= column and column + 4 + plain <= width:
            lines[-1] += " " * (column - measure_width(text)) + f"  {effect}"
        else:
            cut = theme.paint(truncate_line(why, width - 5), "quiet")
            lines.append(f"    {effect if plain + 4 <= width else cut}")
    return lines


def _render_facts(question: ApprovalRequested, folder: Path, width: int, theme: Theme) -> list[str]:
    text = question.why
    if question.during and (wanted := _describe_wanted(question)) in text:
        text = text.partition(wanted)[2].lstrip("; ")  # the rest of it is in the title
    where = shorten_home(folder)
    spelled = sorted(
        {mark for value in map(_render_argument, question.arguments.values()) for mark in find_hidden(value)}
    )
    hidden = f"characters that do not show are spelled out: {', '.join(spelled)}" if spelled else ""
    facts = {"why": escape_hidden(text), "where": escape_hidden(where), "hidden": hidden}
    if question.rule and not question.once:
        facts["rule"] = escape_hidden(question.rule)
    elif question.once:
        facts["rule"] = "none: this is asked each time"
    lines: list[str] = []
    for name, value in facts.items():
        # Words may move to the next line, but a rule is pasted elsewhere.
        rows = wrap_exactly(value, width - 8) if name == "rule" else textwrap.wrap(value, max(10, width - 8))
        style = "strong" if name == "rule" and not question.once else ""
        for place, row in enumerate(rows):
            head = theme.paint(f"{'' if place else name:<6}", "quiet")
            lines.append(f"{head}  {theme.paint(row, style)}")
    return lines


def shorten_home(folder: Path) -> str:
    """Return the path of a folder with `~` for the home folder."""
    home = Path.home()
    is_below = folder.is_relative_to(home) and home != Path("/")
    return str(Path("~") / folder.relative_to(home)) if is_below else str(folder)


def find_hidden(text: str) -> list[str]:
    """List the characters of a text that do not show, as they are spelled out."""
    return [escape_hidden(character) for character in HIDDEN.findall(text)]


def _render_diff_row(row: str, width: int, theme: Theme) -> list[str]:
    style = "strong" if row.startswith(("+++", "---")) else _DIFF_STYLES.get(row[:1], "")
    return [theme.paint(part, style) for part in wrap_exactly(row, width)]


def _render_argument(value: Json) -> str:
    """Render a text as it is, a list of lines with one item on each, and everything else as JSON."""
    match value:
        case str():
            return value
        case [str(), *_] if all(isinstance(item, str) and item.splitlines() == [item] for item in value):
            return "\n".join(f"- {item}" for item in value)
        case _:
            return json.dumps(value, ensure_ascii=False, indent=1)


def _is_plain(arguments: Mapping[str, Json]) -> bool:
    """Whether line feeds are the only line breaks, so that a diff shows all of the text."""
    return all(
        value.splitlines() == value.removesuffix("\n").split("\n")
        for value in arguments.values()
        if isinstance(value, str)
    )


def _describe_wanted(question: ApprovalRequested) -> str:
    wanted, port = next(iter(question.arguments.values()), ""), question.arguments.get("port", USUAL_PORTS[0])
    return f"{_WISHES.get(question.tool, question.tool)} {wanted}{'' if port in USUAL_PORTS else f':{port}'}"
