"""AGENTS.md files: from the project's root down to the workspace, and nested ones once a call touches a file there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import cast

from treadle.knowledge.agents import AgentFile, read_sections
from treadle.knowledge.base import Origin, Problem
from treadle.knowledge.untrusted_text import LINK_SKIPPED, frame_text, read_beneath
from treadle.messages import Json

AGENTS_FILE = "AGENTS.md"
MAX_DEPTH = 32
MAX_FOLDERS = 50
"""Of the folders that one call names, so many are searched."""
_PATH_ARGUMENT = re.compile(r"(^|_)(path|file|filename|folder|directory|dir)s?$")


def list_instruction_folders(workspace: Path) -> list[tuple[str, Path]]:
    """List the folders whose AGENTS.md applies, with its path: from the project's root down to the workspace.

    The root is the nearest folder with a `.git`, but never the user's home. Without one, only the workspace counts.
    """
    here = workspace.absolute()
    above = [here, *here.parents]
    root = next((folder for folder in above if os.path.lexists(folder / ".git") and folder != Path.home()), here)
    inside = above[: above.index(root) + 1]
    return [
        (f"{os.path.relpath(folder, here)}/{AGENTS_FILE}".removeprefix("./"), folder) for folder in reversed(inside)
    ]


def read_instructions(workspace: Path) -> tuple[list[tuple[str, str]], list[AgentFile], list[Problem]]:
    """Read the text of each AGENTS.md as (path, text), the agents in them, and their problems."""
    texts: list[tuple[str, str]] = []
    agents: list[AgentFile] = []
    problems: list[Problem] = []
    for path, folder in list_instruction_folders(workspace):
        text = read_beneath(folder, (AGENTS_FILE,))
        if text is None:
            if (folder / AGENTS_FILE).is_symlink():
                problems.append(Problem(str(folder / AGENTS_FILE), 1, LINK_SKIPPED))
            continue
        rest, found, wrong = read_sections(str(folder / AGENTS_FILE), text, "workspace")
        agents.extend(found)
        problems.extend(wrong)
        if rest:
            texts.append((path, rest))
    return texts, agents, problems


def find_nested(workspace: Path, arguments: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """Find the AGENTS.md of the folders between the workspace and the files that a call names, as (path, text)."""
    for parts in sorted(set(islice(_list_folders(workspace, arguments), MAX_FOLDERS))):
        for depth in range(1, min(len(parts), MAX_DEPTH) + 1):
            text = read_beneath(workspace, (*parts[:depth], AGENTS_FILE))
            if text is not None and (rest := read_sections(AGENTS_FILE, text, "workspace")[0]):
                yield "/".join((*parts[:depth], AGENTS_FILE)), rest


def _list_folders(workspace: Path, arguments: Mapping[str, Json]) -> Iterator[tuple[str, ...]]:
    for name, value in arguments.items():
        if not _PATH_ARGUMENT.search(name):
            continue
        for path in cast("list[Json]", value) if isinstance(value, list) else [value]:
            if not isinstance(path, str) or not path or "\0" in path or len(path) > 4096:
                continue
            place = PurePosixPath(os.path.normpath(os.path.join(workspace, path)))
            if place.is_relative_to(workspace) and place != PurePosixPath(workspace):
                inside = place.relative_to(workspace).parts
                yield inside if os.path.isdir(place) else inside[:-1]


def frame_instructions(path: str, text: str, origin: Origin = "workspace") -> str:
    """Frame an instruction file for the model."""
    return frame_text("file", text, path=path, from_="the user's own folder" if origin == "user" else "the workspace")
