"""What decides an answer to an approval question: the parts of a command, the diff of a change, and where it runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, cast

from msgspec import Struct

from treadle.app.hidden_text import HIDDEN
from treadle.engine.setup import Setup
from treadle.engine.state import State
from treadle.errors import BadInput
from treadle.events import ApprovalRequested, Safety
from treadle.messages import Json
from treadle.permissions.patterns import UNREADABLE_MARK
from treadle.permissions.policy import COMMAND_TOOL, Action, Assessment, apply_aliases, decide_use, find_narrowest_tier
from treadle.tools.base import Tool, ToolError
from treadle.workspace.folder import Folder, decode_text
from treadle.workspace.line_diff import diff_lines
from treadle.workspace.worker_threads import run_in_thread

MAX_PREVIEW_BYTES = 1 << 20
PartVerdict = Literal["allowed", "asks", "denied"]
_VERDICTS: dict[Action, PartVerdict] = {"allow": "allowed", "ask": "asks", "deny": "denied"}


class CommandPreview(Struct, frozen=True):
    """A simple command of a compound one: what it does, and what the policy says of it alone."""

    text: str
    safety: Safety
    verdict: PartVerdict
    why: str


class ApprovalPreview(Struct, frozen=True):
    """A question as a person should see it. `hidden` says that a text has characters that do not show."""

    parts: tuple[CommandPreview, ...]
    diff: str
    folder: str
    network: str
    hidden: bool


async def build_preview(setup: Setup, state: State, question: ApprovalRequested) -> ApprovalPreview:
    """Build the preview of a question. It reads only files that the session's own tools may read."""
    folder = setup.workspace
    where = question.arguments.get("folder", "")
    diff = await run_in_thread(preview_diff, question.tool, question.arguments, folder, read_inside)
    return ApprovalPreview(
        parts=list_parts(setup, state, question),
        diff="\n".join(diff),
        folder=str(folder / where) if isinstance(where, str) else str(folder),
        network=describe_network(setup, question),
        hidden=has_hidden(question.arguments),
    )


def has_hidden(value: object) -> bool:
    """Whether a text in a JSON value, or the name of a field, has characters that do not show."""
    if isinstance(value, str):
        return HIDDEN.search(value) is not None
    if isinstance(value, dict):
        pairs = cast("dict[str, Json]", value).items()
        return any(HIDDEN.search(name) is not None or has_hidden(one) for name, one in pairs)
    return isinstance(value, list) and any(map(has_hidden, cast("list[Json]", value)))


def list_parts(setup: Setup, state: State, question: ApprovalRequested) -> tuple[CommandPreview, ...]:
    grants = [apply_aliases(grant, setup.aliases) for grant in setup.grants]
    parts: list[CommandPreview] = []
    for command in assess_arguments(question, question.arguments, setup.tools, setup.workspace).commands or ():
        arguments = {**question.arguments, "command": command.removeprefix(UNREADABLE_MARK)}
        assessment = assess_arguments(question, arguments, setup.tools, setup.workspace)
        verdict = decide_use(grants, state.remembered, question.tool, arguments, assessment)
        why = assessment.why if verdict.action == "allow" else verdict.why
        text = command.removeprefix(UNREADABLE_MARK)
        parts.append(CommandPreview(text, assessment.safety, _VERDICTS[verdict.action], why))
    return tuple(parts)


def describe_network(setup: Setup, question: ApprovalRequested) -> str:
    """Say what a command reaches: nothing, named hosts, or everything. Empty for a tool that runs no command."""
    hosts = find_reachable_hosts(setup.tools.get(COMMAND_TOOL if question.during else question.tool))
    if hosts is None:
        return ""
    if find_narrowest_tier(setup.grants) == "full" or "*" in hosts:
        return "on"
    return f"named hosts {', '.join(hosts)}" if hosts else "off"


def find_reachable_hosts(tool: Tool | None) -> tuple[str, ...] | None:
    """Find the hosts that commands of a tool reach without a question. None for a tool that runs no command."""
    from treadle.tools.shell import Shell

    return tool.reachable_hosts if isinstance(tool, Shell) else None


def assess_arguments(
    question: ApprovalRequested, arguments: Mapping[str, Json], tools: Mapping[str, Tool], folder: Path
) -> Assessment:
    """Assess a call with these arguments. A tool that is not known here, or other arguments, say nothing."""
    tool = tools.get(question.tool)
    if tool is None:
        return Assessment(safety=question.safety)
    known = tool.spec.parameters.get("properties", {})  # the folder of a command is shown but is not a parameter
    try:
        parsed = tool.parse(json.dumps({name: value for name, value in arguments.items() if name in known}))
        return tool.assess(parsed, folder)
    except BadInput:
        return Assessment(safety=question.safety)


def read_anywhere(folder: Path, path: str) -> str:
    """Read the present text of a file that the person at this machine could read anyway."""
    try:
        file = folder / path
        return file.read_text("utf-8") if file.is_file() and file.stat().st_size <= MAX_PREVIEW_BYTES else ""
    except (OSError, ValueError):
        return ""


def read_inside(folder: Path, path: str) -> str:
    """Read the present text of a file of the workspace, for somebody elsewhere. Secrets and other files stay unread."""
    try:
        with Folder(folder) as opened:
            file = opened.find(path)
    except (ToolError, OSError, ValueError):
        return ""
    text = decode_text(file.data) if file is not None and len(file.data) <= MAX_PREVIEW_BYTES else None
    return text.text if text is not None else ""


def preview_diff(
    tool: str, arguments: Mapping[str, Json], folder: Path, read: Callable[[Path, str], str] = read_anywhere
) -> list[str]:
    """Preview the diff of a call, if its arguments are enough to compute it."""
    path, content = arguments.get("path"), arguments.get("content")
    old, new = arguments.get("old"), arguments.get("new")
    if tool == "apply_patch" and isinstance(arguments.get("patch"), str):
        return str(arguments["patch"]).splitlines()
    if not isinstance(path, str):
        return []
    if tool == "write_file" and isinstance(content, str):
        return _build_diff(read(folder, path), content, path)
    if tool == "edit_file" and isinstance(old, str) and isinstance(new, str):
        before = read(folder, path)
        if old and old in before:
            return _build_diff(before, before.replace(old, new, -1 if arguments.get("replace_all") else 1), path)
        return _build_diff(old, new, path)
    return []


def _build_diff(before: str, after: str, path: str) -> list[str]:
    old, new = before.splitlines(), after.splitlines()
    return list(diff_lines(old, new, f"{path} (before)", f"{path} (after)", ""))
