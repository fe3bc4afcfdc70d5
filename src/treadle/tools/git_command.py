"""Translates between calls of `git_remote` and shell commands: one plain `git push`, `fetch`, `pull` or `clone`.

Whatever is not understood completely stays a command of the shell.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping

from msgspec import Struct

from treadle.messages import Json
from treadle.permissions.shell.parse import parse_command

_MAX_CHARACTERS = 2000
_BEGINNING = re.compile(r"\s*git\s+(push|fetch|pull|clone)\b")
_ERRORS_TO_OUTPUT = re.compile(r"\s+2>&1\s*$")


class _Verb(Struct, frozen=True):
    """The options of a verb: those that set an argument, those with a value, and how its plain words are called."""

    words: tuple[str, ...]
    flags: Mapping[str, str] = {}
    values: Mapping[str, str] = {}


_SILENT = dict.fromkeys(("-q", "--quiet", "-v", "--verbose", "--progress", "--no-progress"), "")
_VERBS = {
    "push": _Verb(
        ("remote", "branch"),
        {
            **_SILENT,
            "-u": "set_upstream",
            "--set-upstream": "set_upstream",
            "--tags": "tags",
            "--force-with-lease": "force_with_lease",
        },
    ),
    "fetch": _Verb(
        ("remote", "branch"),
        {**_SILENT, "--all": "", "-t": "tags", "--tags": "tags", "-p": "prune", "--prune": "prune"},
    ),
    "pull": _Verb(
        ("remote", "branch"),
        {**_SILENT, **dict.fromkeys(("--ff-only", "--ff", "--no-rebase", "--no-edit"), ""), "--rebase": "rebase"},
    ),
    "clone": _Verb(
        ("url", "folder"),
        {**_SILENT, "--single-branch": ""},
        {"-b": "branch", "--branch": "branch", "--depth": "depth"},
    ),
}


def read_git_command(command: str, folder: str) -> dict[str, Json] | None:
    """Read the arguments of `git_remote` from a command that starts in a folder of the workspace; None otherwise."""
    if len(command) > _MAX_CHARACTERS or not _BEGINNING.match(command):
        return None
    plain = _ERRORS_TO_OUTPUT.sub("", command)
    parts = parse_command(plain)
    if len(parts) != 1 or parts[0].kind != "command" or not all(word.is_literal for word in parts[0].words):
        return None
    words = [word.text for word in parts[0].words]
    try:
        if words != shlex.split(plain):  # a loop or a bracket is around it, or it stands there twice
            return None
    except ValueError:
        return None
    return _read_words(words[1], words[2:], folder)


def _read_words(verb: str, words: list[str], folder: str) -> dict[str, Json] | None:
    known = _VERBS[verb]
    arguments: dict[str, Json] = {"action": verb}
    plain: list[str] = []
    rest = iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        if not word.startswith("-"):
            plain.append(word)
        elif option in known.values:
            arguments[known.values[option]] = value if equals else next(rest, "")
        elif word in known.flags:
            arguments |= {known.flags[word]: True} if known.flags[word] else {}
        else:
            return None
    if len(plain) > len(known.words) or "" in plain:
        return None
    arguments |= dict(zip(known.words, plain, strict=False))
    if re.search(r"[:+]", arguments.get("branch", "")) or ("/" in arguments.get("remote", "")):
        return None  # a refspec or an address: git_remote has neither
    if "depth" in arguments:
        if not re.fullmatch(r"[1-9]\d{0,5}", arguments["depth"]):
            return None
        arguments["depth"] = int(arguments["depth"])
    if arguments["action"] != "clone":
        return arguments | ({"folder": folder} if folder else {})
    if "url" not in arguments:
        return None
    name = arguments.get("folder") or re.split(r"[/:]", arguments["url"].rstrip("/").removesuffix(".git"))[-1]
    return arguments | {"folder": name if name.startswith("/") else posixpath.join(folder, name)}


def render_git_commands(arguments: Mapping[str, Json]) -> tuple[str, ...]:
    """Render the commands that do the same as a call of `git_remote`, with the options in front and at the end."""
    options = [f"--{name.replace('_', '-')}" for name, value in arguments.items() if value is True]
    places = ("url", "folder") if arguments["action"] == "clone" else ("remote", "branch")
    words = [str(arguments[name]) for name in places if arguments.get(name)]
    verbs = ("pull", "fetch") if arguments["action"] == "pull" else (arguments["action"],)
    orders = ((*options, *words), (*words, *options))
    lines = [" ".join(("git", verb, *order)) for verb in verbs for order in orders]
    return tuple(dict.fromkeys(lines))
