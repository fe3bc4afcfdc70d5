"""Agents in Markdown: front matter and instructions, in their own files or in `## Name` sections of an AGENTS.md.

An agent of a workspace can narrow what its user allows. It can never widen it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import cast, get_args

from msgspec import Struct
from msgspec.structs import replace

from treadle.events import TURN_CEILING
from treadle.knowledge.base import Origin, Problem
from treadle.knowledge.front_matter import MAX_FRONT_LENGTH, Document, Fields, read_document
from treadle.permissions.policy import Posture

POSTURES: tuple[Posture, ...] = get_args(Posture)
AGENT_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 ._-]{0,62}[A-Za-z0-9._-])?")
_HEADING = re.compile(r"^#{1,2}[ \t]")
_CODE_FENCE = re.compile(r"^[ \t]*(```|~~~)")


class AgentFile(Struct, frozen=True):
    """An agent as its file describes it. A setting of None keeps the operator's value."""

    name: str
    instructions: str
    description: str = ""
    model: str = ""
    steps: int | None = None
    max_calls: int | None = None
    tools: tuple[str, ...] | None = None
    posture: Posture = "balanced"
    temperature: float | None = None
    web: bool | None = None
    origin: Origin = "builtin"
    path: str = ""
    line: int = 1


def read_agent(path: str, text: str, name: str, origin: Origin) -> tuple[AgentFile | None, list[Problem]]:
    """Read the agent in a file, and its problems. A file that cannot be understood has no agent."""
    document = read_document(path, text)
    if isinstance(document, Problem):
        return None, [document]
    if not document.fields:
        return None, [Problem(path, 1, "an agent needs front matter: a line of ---, `description: …`, and --- again")]
    return _build_agent(document, name, origin)


def _build_agent(document: Document, name: str, origin: Origin) -> tuple[AgentFile | None, list[Problem]]:
    fields = Fields(document)
    agent = AgentFile(
        name=fields.read_text("name", 64) or name,
        instructions=document.body,
        description=fields.read_text("description", MAX_FRONT_LENGTH),
        model=fields.read_text("model", 200),
        steps=fields.read_integer("steps", 0),
        max_calls=fields.read_integer("max_calls", 0, 10_000),
        tools=fields.read_words("tools"),
        posture=cast("Posture", fields.read_choice("posture", POSTURES) or "balanced"),
        temperature=fields.read_number("temperature", 0, 2),
        web=fields.read_flag("web"),
        origin=origin,
        path=document.path,
        line=document.first_line,
    )
    if not AGENT_NAME.fullmatch(agent.name):
        fields.add_problem(
            "name", f"{agent.name!r} cannot be an agent's name: use a to z, digits, spaces, dots, _ and -"
        )
    if fields.problems:
        return None, fields.problems
    notes = [
        document.build_problem(field, f"{field!r} is not a field of an agent; ignored")
        for field in fields.list_unknown()
    ]
    if agent.steps is not None and agent.steps > TURN_CEILING:
        why = f"steps: {agent.steps} is more than the ceiling of {TURN_CEILING}; taken as {TURN_CEILING}"
        notes.append(document.build_problem("steps", why))
        agent = replace(agent, steps=TURN_CEILING)
    if origin != "workspace":
        return agent, notes
    if agent.posture == "trusting":
        why = "a workspace cannot widen what its user allows: taken as balanced. Put the agent into your own folder"
        notes.append(document.build_problem("posture", why))
    if agent.model:  # the model reads the user's files
        why = "a workspace cannot choose the model: ignored. Choose it yourself, or put the agent into your own folder"
        notes.append(document.build_problem("model", why))
    return replace(agent, posture="balanced" if agent.posture == "trusting" else agent.posture, model=""), notes


def read_sections(path: str, text: str, origin: Origin) -> tuple[str, list[AgentFile], list[Problem]]:
    """Read an AGENTS.md: the text without its agents, the agents, and their problems.

    An agent is a section `## Name` with front matter below it.
    """
    lines, agents, problems = text.split("\n"), list[AgentFile](), list[Problem]()
    starts = list(_find_headings(lines))
    kept = lines[: starts[0]] if starts else lines
    for start, end in pairwise((*starts, len(lines))):
        # No regular expression: one that backtracks could take forever.
        heading = lines[start]
        title = heading[2:].strip().rstrip("#").rstrip() if heading.startswith("##") else ""
        below = next((number for number in range(start + 1, end) if lines[number].strip()), end)
        if not title or below == end or lines[below].rstrip() != "---":
            kept.extend(lines[start:end])
            continue
        document = read_document(path, "\n".join(lines[below:end]), below + 1)
        if isinstance(document, Problem):  # perhaps only a horizontal rule below a heading: keep the text
            kept.extend(lines[start:end])
            problems.append(document)
            continue
        agent, found = _build_agent(document, title, origin)
        problems.extend(found)
        if agent is not None:
            agents.append(agent)
    return "\n".join(kept).strip(), agents, problems


def _find_headings(lines: list[str]) -> Iterator[int]:
    """Find the lines where sections begin. Lines of code are not headings."""
    is_code = False
    for number, line in enumerate(lines):
        if _CODE_FENCE.match(line):
            is_code = not is_code
        elif not is_code and _HEADING.match(line):
            yield number
