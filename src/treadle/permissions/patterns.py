"""Patterns on tool calls: which calls they cover or touch, and which pattern a person may remember. Pure.

A pattern is a glob on the tool's name, with an optional glob on an argument in brackets: `read_*`, `shell(git *)`,
`write_file(src/**)`, `fetch(url=https://example.org/*)`. Without a name the bracket is about the first argument.
Arguments are matched as parsed values, never as JSON text, and commands part by part.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, cast

from treadle.messages import Json
from treadle.permissions.paths import normalize_path

UNREADABLE_MARK = "? "
"""How a command begins, in an assessment, when nobody can tell what it would run."""

PATH_ARGUMENT = re.compile(r"(^|_)(path|file|filename|folder|directory|dir)s?$")
"""How the name of an argument ends that takes paths."""

_MAX_REGEX_STEPS = 100_000
_MAX_OPTIONS = 100
_MAX_ROOT_DEPTH = 64
"""How many folders may lie above the workspace."""

_GLOB_PIECES = re.compile(r"(\[[*?]\]|\*\*/?|\*|\?)")
_ANY, _NO_SLASH = ".", "[^/]"
_COMMAND_ARGUMENT = re.compile(r"(^|_)(command|cmd|script)s?$")
_SHELL_OPERATORS = re.compile(r"[;&|<>`\n\r]|\$\(|\$\{")
_WORDS = re.compile(r"""(?:'[^']*'|"[^"]*"|[^ ])+""")
_BLANKS = re.compile(r"[ \t]+")
_AROUND_COMMAND = " \t(){}!\"'"
_EXPANSION = re.compile(r"[$`*?\[{]|^~")
_VERB = re.compile(r"[a-z][\w-]*")


# ── globs ──────────────────────────────────────────────────────────────────────────────────────────────────


class _GlobPosition(NamedTuple):
    """A position in a glob: which characters lead to the next one, which stay here, and which jumps are free."""

    step: str = ""
    stay: str = ""
    jumps: tuple[int, ...] = ()


class Glob:
    """A compiled glob: `**` is any text, `*` a run of characters, `?` one, `[*]` and `[?]` the characters themselves.

    Patterns come from requests, so the time for a match must not explode. A regular expression does the work where
    it has few ways to try. Otherwise all positions are followed at once.
    """

    __slots__ = ("_positions", "_regex", "_runs")

    def __init__(self, pattern: str, *, run: str, one: str, tail: Literal["", "[ \t\n]", "/"] = "") -> None:
        regex: list[str] = []
        positions: list[_GlobPosition] = []
        self._runs = 0
        for piece in _GLOB_PIECES.split(pattern):
            match piece:
                case "*" | "**":
                    kind = run if piece == "*" else _ANY
                    regex.append(f"{kind}*")
                    positions.append(_GlobPosition(stay=kind, jumps=(1,)))
                    self._runs += 1
                case "**/":
                    regex.append("(.*/)?")
                    positions += (_GlobPosition(jumps=(1, 2)), _GlobPosition("/", stay=_ANY))
                    self._runs += 1
                case "?":
                    regex.append(one)
                    positions.append(_GlobPosition(one))
                case _:
                    text = piece[1] if piece in ("[*]", "[?]") else piece
                    regex.append(re.escape(text))
                    positions += (_GlobPosition(re.escape(character)) for character in text)
        if tail:
            regex.append(f"({tail}.*)?")
            positions += (_GlobPosition(jumps=(1, 3)), _GlobPosition(tail), _GlobPosition(stay=_ANY, jumps=(1,)))
            self._runs += 1
        self._regex = re.compile("".join(regex), re.DOTALL)
        self._positions = positions

    def matches(self, text: str) -> bool:
        """Whether the glob matches the whole text."""
        if self._runs < 2 or len(text) ** self._runs <= _MAX_REGEX_STEPS:
            return self._regex.fullmatch(text) is not None
        return self.matches_without_backtracking(text)

    def matches_without_backtracking(self, text: str) -> bool:
        """Do the same in linear time. Each bit of `reached` is a position that the text so far can lead to."""
        jumps = [
            (length, sum(1 << number for number, position in enumerate(self._positions) if length in position.jumps))
            for length in (1, 2, 3)
        ]
        moves: dict[str, tuple[int, int]] = {}
        reached = _add_jumps(1, jumps)
        for character in text:
            move = moves.get(character)
            if move is None:
                move = moves[character] = self._find_moves(character)
            reached = _add_jumps((reached & move[0]) << 1 | reached & move[1], jumps)
            if not reached:
                return False
        return bool(reached >> len(self._positions) & 1)

    def _find_moves(self, character: str) -> tuple[int, int]:
        """Find the positions that this character leads on from, and those where it stays."""
        steps = stays = 0
        for number, position in enumerate(self._positions):
            steps |= bool(position.step and _is_in_class(character, position.step)) << number
            stays |= bool(position.stay and _is_in_class(character, position.stay)) << number
        return steps, stays


@lru_cache(maxsize=1024)
def _is_in_class(character: str, character_class: str) -> bool:
    return re.fullmatch(character_class, character, re.DOTALL) is not None


def _add_jumps(reached: int, jumps: list[tuple[int, int]]) -> int:
    """Add all positions that can be reached without another character."""
    while True:
        before = reached
        for length, positions in jumps:
            reached |= (reached & positions) << length
        if reached == before:
            return reached


@lru_cache(maxsize=1024)
def compile_name_glob(pattern: str) -> Glob:
    """Compile a glob for names."""
    return Glob(pattern, run=_ANY, one=_NO_SLASH if "/" in pattern else _ANY)


@lru_cache(maxsize=1024)
def compile_text_glob(pattern: str) -> Glob:
    """Compile a glob for text. `git *` matches git with or without more words, as a person would read it."""
    if pattern.endswith(" *"):
        return Glob(pattern[:-2], run=_ANY, one=_ANY, tail="[ \t\n]")
    return Glob(pattern, run=_ANY, one=_ANY)


@lru_cache(maxsize=1024)
def compile_path_glob(pattern: str) -> Glob:
    """Compile a glob for paths, where `*` stays within a folder. `src/**` also matches `src`."""
    if pattern.endswith("/**"):
        return Glob(pattern[:-3], run=_NO_SLASH, one=_NO_SLASH, tail="/")
    return Glob(pattern, run=_NO_SLASH, one=_NO_SLASH)


# ── versions ───────────────────────────────────────────────────────────────────────────────────────────────


def pin_version(pattern: str, version: str) -> str:
    """Make a pattern hold only for one version of its tool: `git__log@1f3a…(path=src/**)`."""
    name, bracket, rest = pattern.partition("(")
    return f"{name}@{version}{bracket}{rest}" if version else pattern


def unpin_version(pattern: str) -> str:
    """Make a pattern hold for every version of its tool."""
    name, bracket, rest = pattern.partition("(")
    return f"{name.partition('@')[0]}{bracket}{rest}"


def select_for_version(patterns: Sequence[str], version: str) -> tuple[str, ...]:
    """Select the patterns that hold for a version of a tool, and unpin them."""
    unpinned = {pattern: unpin_version(pattern) for pattern in patterns}
    return tuple(plain for pattern, plain in unpinned.items() if pattern in (plain, pin_version(plain, version)))


# ── matching ───────────────────────────────────────────────────────────────────────────────────────────────


def covers_call(
    pattern: str, tool: str, arguments: Mapping[str, Json], commands: tuple[str, ...] | None = None
) -> bool:
    """Whether the pattern is about the whole call, so that it can allow the call.

    Where the simple commands are known, the pattern must cover each of them. Where they are not, a command with shell
    operators is covered only by `*` or by the very same command. A path that leaves the workspace is covered only by
    a pattern that leaves it too.
    """
    found = _split_pattern(pattern, tool, arguments)
    if found is None:
        return False
    argument, glob = found
    if not glob:
        return True
    values, texts = _list_values(arguments.get(argument) if argument else None)
    if not values or len(texts) < len(values):
        return False
    return all(_covers_value(glob, text, _argument_kind(argument), commands) for text in texts)


def find_touched_part(
    pattern: str, tool: str, arguments: Mapping[str, Json], commands: tuple[str, ...] | None = None
) -> str | None:
    """Find the part of a call that a pattern matches, so that it can deny or ask; None when it matches none.

    The part is a command, or empty for the call as a whole.
    """
    found = _split_pattern(pattern, tool, arguments)
    if found is None:
        return None
    argument, glob = found
    if glob in ("", "*", "**"):
        return ""
    kind = _argument_kind(argument)
    for text in _list_values(arguments.get(argument) if argument else None)[1]:
        for reading in _list_readings(text, kind, commands):
            if (compile_path_glob(normalize_path(glob)) if kind == "path" else compile_text_glob(glob)).matches(
                reading
            ):
                return reading if kind == "command" and reading != text else ""
    return None


def find_possible_match(
    pattern: str, tool: str, arguments: Mapping[str, Json], commands: tuple[str, ...] | None
) -> str | None:
    """Find a command that the pattern may match: it agrees with all words that are known before the command runs."""
    found = _split_pattern(pattern, tool, arguments) if commands else None
    if found is None or _argument_kind(found[0]) != "command":
        return None
    globs = found[1].split(" ")
    for command in commands or ():
        if command.startswith(UNREADABLE_MARK):
            return command.removeprefix(UNREADABLE_MARK)
        if any(_may_match(globs, reading.split(" ")) for reading in (command, *_drop_options(command))):
            return command
    return None


def _may_match(globs: Sequence[str], words: Sequence[str]) -> bool:
    known = next((number for number, word in enumerate(words) if _EXPANSION.search(word)), len(words))
    agree = all(compile_text_glob(glob).matches(word) for glob, word in zip(globs, words[:known], strict=False))
    return known < len(words) and agree and (len(globs) > known or "*" in "".join(globs[:known]))


def _split_pattern(pattern: str, tool: str, arguments: Mapping[str, Json]) -> tuple[str, str] | None:
    """Split a pattern into an argument and its glob, both empty for the whole call; None for another tool."""
    name, bracket, rest = pattern.partition("(")
    if not compile_name_glob(name).matches(tool):
        return None
    if not bracket:
        return "", ""
    inside = rest.removesuffix(")")
    argument, equals, glob = inside.partition("=")
    if equals and argument in arguments:
        return argument, glob
    return next(iter(arguments), ""), inside


def _list_values(value: Json) -> tuple[list[Json], list[str]]:
    """List the values of an argument, and the texts of those that can be matched."""
    values = cast("list[Json]", value) if isinstance(value, list) else [value]
    return values, [str(one) for one in values if isinstance(one, str | int | float)]


def _argument_kind(argument: str) -> Literal["path", "command", "text"]:
    if PATH_ARGUMENT.search(argument):
        return "path"
    return "command" if _COMMAND_ARGUMENT.search(argument) else "text"


def _covers_value(glob: str, value: str, kind: str, commands: tuple[str, ...] | None) -> bool:
    if kind == "path":
        path, glob = normalize_path(value), normalize_path(glob)
        return _find_root(path) == _find_root(glob) and compile_path_glob(glob).matches(path)
    if kind == "command" and glob not in ("*", "**"):
        if len(glob) >= len(value) and glob == _escape_glob(value):
            return True
        if commands:
            return all(
                not command.startswith(UNREADABLE_MARK) and compile_text_glob(glob).matches(command)
                for command in commands
            )
        return not _SHELL_OPERATORS.search(value) and compile_text_glob(glob).matches(_trim_blanks(value))
    return compile_text_glob(glob).matches(value)


def _list_readings(value: str, kind: str, commands: tuple[str, ...] | None) -> list[str]:
    """List all that one argument may mean. A denial looks at each reading, so that no spelling gets around it."""
    if kind == "text":
        return [value]
    if kind == "path":
        path = normalize_path(value)
        if not _find_root(path):
            return [path]
        # Where the workspace lies is not known here, so each end of the path may be a path in it.
        pieces = [piece for piece in path.split("/") if piece not in ("", "..")]
        ends = ("/".join(pieces[start:]) for start in range(min(len(pieces), _MAX_ROOT_DEPTH)))
        return [path, f"/{'/'.join(pieces)}", *ends]
    plain = [command.removeprefix(UNREADABLE_MARK) for command in commands or ()]
    named = [posixpath.basename(name) + blank + rest for name, blank, rest in (one.partition(" ") for one in plain)]
    if not commands or any(command.startswith(UNREADABLE_MARK) for command in commands):
        plain += [part.strip(_AROUND_COMMAND) for part in _SHELL_OPERATORS.split(value)]
    without_options = [reading for command in named for reading in _drop_options(command)]
    return [value, *plain, *named, *without_options, *map(_trim_blanks, (value, *plain))]


def _drop_options(command: str) -> list[str]:
    """Drop the options before a command's verb: `git -C x push` is `git push`, whatever `-C` takes."""
    name, *words = _WORDS.findall(command) or [command]
    readings, starts = list[str](), {0}
    for number, word in enumerate(words[:_MAX_OPTIONS]):
        if number in starts and word.startswith("-"):
            starts |= {number + 1, number + 2}
        elif number in starts and number:
            readings.append(" ".join([name, *words[number:]]))
    return readings


def _trim_blanks(text: str) -> str:
    return _BLANKS.sub(" ", text).strip()


def _find_root(path: str) -> str:
    """Find where a path starts: in the workspace (empty), at the root, or so many folders above."""
    if path.startswith("/"):
        return "/"
    return "".join(piece for piece in path.split("/") if piece == "..")


def _escape_glob(value: str) -> str:
    """Make a glob that matches this value and nothing else."""
    return re.sub(r"[*?]", r"[\g<0>]", value)


# ── rules to remember ──────────────────────────────────────────────────────────────────────────────────────


def suggest_pattern(tool: str, arguments: Mapping[str, Json], commands: tuple[str, ...] | None = None) -> str:
    """Suggest the rule that scope `pattern` saves for this call. A person sees it before it is saved."""
    argument = next(iter(arguments), "")
    value = arguments.get(argument)
    if isinstance(value, list) and _argument_kind(argument) == "path":
        folders = [posixpath.dirname(normalize_path(path)) for path in _list_values(value)[1]]
        are_below = all(folder.split("/")[0] not in ("", "..") for folder in folders)
        folder = posixpath.commonpath(folders) if folders and are_below else ""
        return f"{tool}({argument}={_escape_glob(folder)}/**)" if folder else tool
    if not isinstance(value, str | int | float) or value == "":
        return tool
    kind, text = _argument_kind(argument), str(value)
    rule = ""
    if kind == "path":
        folder = posixpath.dirname(normalize_path(text))
        if folder not in ("", "/") and not folder.startswith(".."):
            rule = f"{_escape_glob(folder)}/**"
    elif kind == "command" and (len(commands) == 1 if commands else not _SHELL_OPERATORS.search(text)):
        beginning = _find_rule_words(commands[0] if commands else _trim_blanks(text))
        rule = f"{_escape_glob(beginning)} *" if beginning else ""
    return f"{tool}({argument}={rule or _escape_glob(text)})"


def build_exact_pattern(tool: str, arguments: Mapping[str, Json]) -> str:
    """Build the pattern that covers calls with exactly this first argument: `network(example.org)`."""
    return f"{tool}({_escape_glob(str(next(iter(arguments.values()), '')))})"


def _find_rule_words(command: str) -> str:
    """Find the first words of a command that make a rule; nothing where such a rule would allow too much."""
    from treadle.permissions.shell.command_table import load_command_table

    facts = load_command_table().rules
    words = command.split(" ")
    # `git status` and `git push` are different things: a plain second word belongs to the rule.
    verb = words[1] if len(words) > 1 and _VERB.fullmatch(words[1]) else ""
    if words[0] in facts.with_verbs and (not verb or verb in facts.running_verbs):
        return ""
    # What these run is in the rest of their words, so a rule on the first would be a rule for everything.
    if words[0] in facts.open_ended or _EXPANSION.search(words[0]):
        return ""
    return f"{words[0]} {verb}" if verb else words[0]
