"""Render questions as text: what would run, why it needs approval, and the possible answers. Reads no keys."""

from __future__ import annotations

import difflib
import json
import textwrap
from collections.abc import Mapping
from pathlib import Path

from treadle import Answer, ApprovalRequested, Tool
from treadle.app.settings import data_folder
from treadle.cli.console import escape_hidden, style_text
from treadle.cli.screen import render_diff
from treadle.errors import BadInput
from treadle.events import Question
from treadle.messages import Json
from treadle.permissions.saved_rules import save_rule

MAX_PREVIEW_BYTES = 1 << 20
_STYLES = {"safe": "green", "caution": "yellow", "destructive": "bold red"}


def render_approval(
    question: ApprovalRequested, tools: Mapping[str, Tool], folder: Path, room: int, *, colour: bool
) -> list[str]:
    """Render the whole question: tool, safety class, reason, every exact argument, and the resulting diff."""
    tool = style_text(escape_hidden(question.tool), "bold", colour)
    head = f"{style_text('?', 'bold yellow', colour)} {tool} wants to run  "
    head += style_text(f"[{question.safety}]", _STYLES[question.safety], colour)
    why = textwrap.wrap(
        escape_hidden(question.why), max(20, room - 16)
    )  # only our own text is wrapped: the rest is shown exactly
    lines = [head, f"  why asked: {why[0] if why else ''}", *(f"             {more}" for more in why[1:])]
    lines.append(f"  workspace: {escape_hidden(str(folder))}")
    for name, value in question.arguments.items():
        lines += _argument(name, value)
    lines += _parts(question, tools, folder)
    diff = preview_diff(question.tool, question.arguments, folder)
    return lines + [
        f"  {line}" for line in render_diff([escape_hidden(line) for line in diff], room - 2, colour=colour)
    ]


def _argument(name: str, value: Json) -> list[str]:
    text = escape_hidden(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1))
    first, *rest = text.split("\n")
    if not rest:
        return [f"  {escape_hidden(name)}: {first}"]
    return [f"  {escape_hidden(name)}:", *(f"    {line}" for line in (first, *rest))]


def _parts(question: ApprovalRequested, tools: Mapping[str, Tool], folder: Path) -> list[str]:
    """List the simple commands of a compound command, one per line."""
    tool = tools.get(question.tool)
    if tool is None:
        return []
    known = tool.spec.parameters.get("properties", {})  # the folder of a command is shown but is not a parameter
    given = {name: value for name, value in question.arguments.items() if name in known}
    try:
        parts = tool.assess(tool.parse(json.dumps(given)), folder).commands or ()
    except BadInput:
        return []
    return ["  it consists of:", *(f"    {escape_hidden(part)}" for part in parts)] if len(parts) > 1 else []


def preview_diff(tool: str, arguments: Mapping[str, Json], folder: Path) -> list[str]:
    """Preview the diff of a call, if its arguments are enough to compute it."""
    path, content = arguments.get("path"), arguments.get("content")
    old, new = arguments.get("old"), arguments.get("new")
    if tool == "apply_patch" and isinstance(arguments.get("patch"), str):
        return str(arguments["patch"]).splitlines()
    if not isinstance(path, str):
        return []
    before = _now(folder / path)
    if tool == "write_file" and isinstance(content, str):
        return _diff(before, content, path)
    if tool == "edit_file" and isinstance(old, str) and isinstance(new, str):
        if old and old in before:
            return _diff(before, before.replace(old, new, -1 if arguments.get("replace_all") else 1), path)
        return _diff(old, new, path)
    return []


def _now(file: Path) -> str:
    try:
        return file.read_text("utf-8") if file.is_file() and file.stat().st_size <= MAX_PREVIEW_BYTES else ""
    except (OSError, ValueError):
        return ""


def _diff(before: str, after: str, path: str) -> list[str]:
    old, new = before.splitlines(), after.splitlines()
    return list(difflib.unified_diff(old, new, f"{path} (now)", f"{path} (then)", lineterm=""))


def render_choices(question: ApprovalRequested) -> list[str]:
    """Render the possible answers and their meaning."""
    lines = ["  y  yes, once"]
    if not question.once:
        lines.append(f"  t  yes, and {question.tool} needs no asking in this session")
    if _has_rule(question):
        lines.append(f"  p  yes, and in this session also: {escape_hidden(question.rule)}")
        lines.append("  a  yes, and always in this workspace, the same as p")
    return [*lines, "  n  no; the model sees the words after it: n too risky", "  l  later: it waits in the log"]


def parse_decision(line: str, question: ApprovalRequested, folder: Path) -> Answer | None:
    """Parse the typed answer. None means later. Raises `BadInput` for an unknown answer.

    A permanent approval is saved in the user's rules, for this folder only.
    """
    word, _, rest = line.strip().partition(" ")
    match word.lower():
        case "y" | "yes":
            return Answer()
        case "t" if not question.once:
            return Answer(scope="tool")
        case "p" if _has_rule(question):
            return Answer(scope="pattern")
        case "a" if _has_rule(question):
            save_rule(data_folder(), question.rule, workspace=folder)
            return Answer(scope="pattern")
        case "n" | "no":
            return Answer("deny", comment=rest.strip())
        case "l" | "later":
            return None
        case _:
            keys = [line.split()[0] for line in render_choices(question)]
            raise BadInput(f"answer {', '.join(keys[:-1])} or {keys[-1]}")


def _has_rule(question: ApprovalRequested) -> bool:
    return bool(question.rule) and not question.once


def render_input_question(question: Question, *, colour: bool) -> list[str]:
    """Render a question of the agent and its options."""
    lines = [f"{style_text('?', 'bold yellow', colour)} {escape_hidden(question.text)}"]
    return lines + [f"  {number}  {escape_hidden(option)}" for number, option in enumerate(question.options, 1)]


def parse_reply(line: str, question: Question) -> str:
    """Return the typed text, or the option with the typed number. Raises `BadInput` for an invalid answer."""
    text = line.strip()
    if text.isdigit() and 1 <= int(text) <= len(question.options):
        return question.options[int(text) - 1]
    if not text or (question.strict and text not in question.options):
        raise BadInput("type the number of an option" if question.options else "type an answer")
    return text
