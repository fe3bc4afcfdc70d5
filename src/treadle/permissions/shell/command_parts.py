"""The parts of a shell command: what `parse.py` finds, `classify.py` looks at and the policy sees."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from treadle.permissions.paths import normalize_path
from treadle.permissions.patterns import UNREADABLE_MARK

STANDARD_DEVICES = ("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/stdin", "/dev/tty")

_FIND_OPTIONS = ("-exec", "-execdir", "-ok", "-okdir")
_FD_OPTIONS = ("-x", "-X", "--exec", "--exec-batch")

PartKind = Literal["command", "redirect", "assignment", "unknown"]


class ShellWord(Struct, frozen=True):
    """One word: its value, or how it is written where only running it would tell (`is_literal` is False)."""

    text: str
    is_literal: bool = True

    @property
    def assigned_value(self) -> ShellWord:
        """The value in `NAME=VALUE`."""
        return ShellWord(self.text.partition("=")[2], self.is_literal)


class CommandPart(Struct, frozen=True):
    """One thing that a command line does. A command that `reads_pipe` gets the output of another one."""

    kind: PartKind
    words: tuple[ShellWord, ...]
    reads_pipe: bool = False

    @property
    def name(self) -> str:
        return self.words[0].text

    @property
    def text(self) -> str:
        """The part as the policy sees it: quotes, escapes and blanks in one form."""
        first, *rest = self.words
        name = _quote_word(first) if self.kind == "command" else first.text
        text = " ".join([name, *map(_quote_word, rest)])
        return f"{UNREADABLE_MARK}{text}" if self.kind == "unknown" else text


def _quote_word(word: ShellWord) -> str:
    return shlex.quote(word.text) if word.is_literal and re.search(r"[\s'\"\\]|^$", word.text) else word.text


def render_commands(parts: Sequence[CommandPart]) -> tuple[str, ...]:
    """Render the parts as the policy sees them. `< FILE` in the workspace is left out: it only reads a file."""
    return tuple(
        part.text
        for part in parts
        if part.kind != "redirect" or part.name != "<" or not re.match(r"(?!\.\.)[\w.]", part.words[1].text)
    )


def find_exec_commands(words: Sequence[ShellWord]) -> list[tuple[ShellWord, ...]]:
    """Find the commands that `find` and `fd` run on files; an empty one where it is not clear which."""
    found: list[tuple[ShellWord, ...]] = []
    start = 0
    is_find = words[0].text == "find"
    for number, word in enumerate(words):
        option, equals, _ = word.text.partition("=")
        if not start and option in (_FIND_OPTIONS if is_find else _FD_OPTIONS):
            if equals:  # `--exec=rm` of fd
                found.append(())
            start = number + 1
        elif start and word.text in (";", "+"):
            found.append(tuple(words[start:number]))
            start = 0
    if start:
        found.append(() if is_find else tuple(words[start:]))
    return found


def is_stream(word: ShellWord) -> bool:
    """Whether a word names a stream or a device in place of a file: `-`, `/dev/stdin`, `/proc/self/fd/0`."""
    return word.text == "-" or re.match(r"/(dev|proc)(/|$)", normalize_path(word.text)) is not None


def find_xargs_placeholder(options: Sequence[ShellWord]) -> str:
    """Find the text that `xargs` replaces with its input."""
    for number, word in enumerate(options):
        if found := re.match(r"-\w*I(.*)", word.text):
            return found[1] or (options[number + 1].text if number + 1 < len(options) else "") or "{}"
    return "{}"
