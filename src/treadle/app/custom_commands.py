"""Custom slash commands: Markdown files of the user and of the workspace, whose text becomes a message.

A command grants no rights, runs no program and reads no file: `!` and `@` in its text are plain characters.
"""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct

from treadle.knowledge.base import Origin, Problem
from treadle.knowledge.file_knowledge import LINK_SKIPPED, WORKSPACE_FOLDER, list_names, read_beneath
from treadle.knowledge.front_matter import Fields, read_document
from treadle.knowledge.skills import frame_text
from treadle.messages import Part, TextPart

COMMANDS_FOLDER = "commands"
WORKSPACE_NOTE = "The user runs this command. A file of the workspace defines it, and it grants no rights:"

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_PLACE = re.compile(r"\$(ARGUMENTS\b|[1-9](?!\d))")
_WORD = re.compile(r'"([^"]*)"|(\S+)')


class CustomCommand(Struct, frozen=True):
    """A command: the words that describe it and its arguments, its text, and who wrote it."""

    name: str
    description: str
    body: str
    origin: Origin
    path: str
    hint: str = ""

    def expand(self, arguments: str) -> str:
        """Replace `$ARGUMENTS` and `$1` to `$9`. Arguments that the text does not use are added at its end."""
        words = [quoted or plain for quoted, plain in _WORD.findall(arguments)]

        def fill(found: re.Match[str]) -> str:
            if found[1] == "ARGUMENTS":
                return arguments
            place = int(found[1]) - 1
            return words[place] if place < len(words) else ""

        text, count = _PLACE.subn(fill, self.body)
        return f"{text}\n\n{arguments}" if arguments and not count else text

    def build_parts(self, arguments: str) -> list[Part]:
        """Build the message. The text of a workspace is marked: the user did not write it."""
        text = self.expand(arguments)
        if self.origin == "user":
            return [TextPart(text)]
        framed = frame_text("command", text, name=self.name, from_="the workspace")
        return [TextPart(f"/{self.name} {arguments}".strip()), TextPart(f"{WORKSPACE_NOTE}\n{framed}", f"/{self.name}")]


class CustomCommands(Struct, frozen=True):
    """The commands of a workspace and its user by name, and the problems in their files."""

    commands: dict[str, CustomCommand]
    problems: tuple[Problem, ...] = ()

    def describe(self) -> dict[str, str]:
        """Describe each command for a menu, with where it comes from."""
        return {
            one.name: " ".join(f"{one.description} {one.hint} ({one.origin})".split()) for one in self.commands.values()
        }


def list_custom_commands(workspace: Path, user_folder: Path, taken: frozenset[str] = frozenset()) -> CustomCommands:
    """List the custom commands. Names in `taken` are ignored, and so are names of the user's in a workspace."""
    commands: dict[str, CustomCommand] = {}
    problems: list[Problem] = []
    places: list[tuple[Path, tuple[str, ...], Origin]] = [
        (user_folder, (COMMANDS_FOLDER,), "user"),
        (workspace, (WORKSPACE_FOLDER, COMMANDS_FOLDER), "workspace"),
    ]
    for folder, parts, origin in places:
        linked = origin == "user"
        names = list_names(folder, parts, "file", linked=linked)
        links = [] if linked else list_names(folder, parts, "link")
        problems += [Problem(str(folder.joinpath(*parts, name)), 1, LINK_SKIPPED) for name in links]
        for file in names:
            text = read_beneath(folder, (*parts, file), linked=linked) if file.endswith(".md") else None
            if text is None:
                continue
            command, found = read_command(str(folder.joinpath(*parts, file)), text, file.removesuffix(".md"), origin)
            problems += found
            if command is None:
                continue
            if command.name in taken or command.name in commands:
                owner = "treadle" if command.name in taken else "the user"
                problems.append(Problem(command.path, 1, f"ignored: /{command.name} is a command of {owner}"))
            else:
                commands[command.name] = command
    return CustomCommands(commands, tuple(problems))


def read_command(path: str, text: str, name: str, origin: Origin) -> tuple[CustomCommand | None, list[Problem]]:
    """Read the command in a file, and its problems."""
    document = read_document(path, text)
    if isinstance(document, Problem):
        return None, [document]
    fields = Fields(document)
    hint = fields.read_text("argument-hint", 100)
    description = fields.read_text("description", 200) or next(iter(document.body.splitlines()), "").lstrip("# ")[:80]
    if not _NAME.fullmatch(name):
        fields.add_problem("", f"{name!r} is no name of a command; use lower-case letters, digits, - and _")
    if not document.body:
        fields.add_problem("", "the command has no text")
    if fields.problems:
        return None, fields.problems
    ignored = [key for key in document.fields if key not in ("description", "argument-hint")]
    notes = [document.build_problem(key, f"{key} has no effect: a command is only a text") for key in ignored]
    about, hint = (" ".join(text.split()) for text in (description, hint))
    return CustomCommand(name, about, document.body, origin, path, hint), notes
