"""The parts of a shell command: the values that reading a command gives and that classifying it takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from treadle.permissions.patterns import UNREADABLE_MARK

STANDARD_DEVICES = ("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/stdin", "/dev/tty")

PartKind = Literal["command", "redirect", "assignment", "unknown"]


class ShellWord(Struct, frozen=True):
    """One word: its value, or how it is written where only running it would tell (`is_literal` is False)."""

    text: str
    is_literal: bool = True


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
    """The parts as the policy sees them. `< FILE` in the workspace is left out: it only reads a file."""
    return tuple(
        part.text
        for part in parts
        if part.kind != "redirect" or part.name != "<" or not re.match(r"(?!\.\.)[\w.]", part.words[1].text)
    )
