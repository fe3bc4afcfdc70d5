"""Render questions as text: what would run, why it needs approval, and the possible answers. Reads no keys."""

from __future__ import annotations

import difflib
import json
import textwrap
from collections.abc import Mapping, Sequence
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
    question: ApprovalRequested, tools: Mapping[str, Tool], folder: Path, width: int, *, colour: bool
) -> list[str]:
    """Render the whole question: tool, safety class, reason, every exact argument, and the resulting diff."""
    tool = style_text(escape_hidden(question.tool), "bold", colour)
    head = f"{style_text('?', 'bold yellow', colour)} {tool} wants to run  "
    head += style_text(f"[{question.safety}]", _STYLES[question.safety], colour)
    why = textwrap.wrap(escape_hidden(question.why), max(20, width - 16))  # the other texts are shown exactly
    lines = [head, f"  why asked: {why[0] if why else ''}", *(f"             {more}" for more in why[1:])]
    lines.append(f"  workspace: {escape_hidden(str(folder))}")
    for name, value in question.arguments.items():
        text = escape_hidden(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1))
        values = text.split("\n")
        lines.append(f"  {escape_hidden(name)}:{f' {text}' if len(values) == 1 else ''}")
        lines += [f"    {line}" for line in values if len(values) > 1]
    commands = _list_commands(question, tools, folder)
    if len(commands) > 1:
        lines += ["  it consists of:", *(f"    {escape_hidden(command)}" for command in commands)]
    diff = [escape_hidden(line) for line in preview_diff(question.tool, question.arguments, folder)]
    return lines + [f"  {line}" for line in render_diff(diff, width - 2, colour=colour)]


def _list_commands(question: ApprovalRequested, tools: Mapping[str, Tool], folder: Path) -> Sequence[str]:
    """List the simple commands of a compound command."""
    tool = tools.get(question.tool)
    if tool is None:
        return ()
    known = tool.spec.parameters.get("properties", {})  # the folder of a command is shown but is not a parameter
    arguments = {name: value for name, value in question.arguments.items() if name in known}
    try:
        return tool.assess(tool.parse(json.dumps(arguments)), folder).commands or ()
    except BadInput:
        return ()


def preview_diff(tool: str, arguments: Mapping[str, Json], folder: Path) -> list[str]:
    """Preview the diff of a call, if its arguments are enough to compute it."""
    path, content = arguments.get("path"), arguments.get("content")
    old, new = arguments.get("old"), arguments.get("new")
    if tool == "apply_patch" and isinstance(arguments.get("patch"), str):
        return str(arguments["patch"]).splitlines()
    if not isinstance(path, str):
        return []
    try:
        file = folder / path
        before = file.read_text("utf-8") if file.is_file() and file.stat().st_size <= MAX_PREVIEW_BYTES else ""
    except (OSError, ValueError):
        before = ""
    if tool == "write_file" and isinstance(content, str):
        return _build_diff(before, content, path)
    if tool == "edit_file" and isinstance(old, str) and isinstance(new, str):
        if old and old in before:
            return _build_diff(before, before.replace(old, new, -1 if arguments.get("replace_all") else 1), path)
        return _build_diff(old, new, path)
    return []


def _build_diff(before: str, after: str, path: str) -> list[str]:
    old, new = before.splitlines(), after.splitlines()
    return list(difflib.unified_diff(old, new, f"{path} (before)", f"{path} (after)", lineterm=""))


def render_choices(question: ApprovalRequested) -> list[str]:
    """Render the possible answers and their meaning."""
    lines = ["  y  yes, once"]
    if not question.once:
        lines.append(f"  t  yes, and allow {question.tool} in this session")
    if _has_rule(question):
        lines.append(f"  p  yes, and in this session also allow: {escape_hidden(question.rule)}")
        lines.append("  a  like p, but always in this workspace")
    return [*lines, "  n  no; the model gets the words after it: n too risky", "  l  later: it stays open"]


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
