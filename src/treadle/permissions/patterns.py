"""Globs: `**` is anything, `*` any run, `?` one character, `[*]` and `[?]` themselves, the rest is literal.

Patterns come from requests, so a match costs what pattern and text are long, whatever they are: a regular expression
does it where it has few ways to try, and all ways at once are followed where it would have many.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, NamedTuple

_FEW = 100_000
_PIECES = re.compile(r"(\[[*?]\]|\*\*/?|\*|\?)")
_ANY, _SLASHLESS = ".", "[^/]"


class _Way(NamedTuple):
    """A place in a pattern: which characters lead on from it, which stay at it, and how far it can be left freely."""

    step: str = ""
    stay: str = ""
    leaps: tuple[int, ...] = ()


class Glob:
    """A pattern, ready to match."""

    __slots__ = ("_regex", "_runs", "_ways")

    def __init__(self, pattern: str, *, run: str, one: str, tail: Literal["", "[ \t\n]", "/"] = "") -> None:
        regex: list[str] = []
        ways: list[_Way] = []
        self._runs = 0
        for piece in _PIECES.split(pattern):
            match piece:
                case "*" | "**":
                    kind = run if piece == "*" else _ANY
                    regex.append(f"{kind}*")
                    ways.append(_Way(stay=kind, leaps=(1,)))
                    self._runs += 1
                case "**/":
                    regex.append("(.*/)?")
                    ways += (_Way(leaps=(1, 2)), _Way("/", stay=_ANY))
                    self._runs += 1
                case "?":
                    regex.append(one)
                    ways.append(_Way(one))
                case _:
                    text = piece[1] if piece in ("[*]", "[?]") else piece
                    regex.append(re.escape(text))
                    ways += (_Way(re.escape(character)) for character in text)
        if tail:
            regex.append(f"({tail}.*)?")
            ways += (_Way(leaps=(1, 3)), _Way(tail), _Way(stay=_ANY, leaps=(1,)))
            self._runs += 1
        self._regex = re.compile("".join(regex), re.DOTALL)
        self._ways = ways

    def matches(self, text: str) -> bool:
        """Whether the pattern is all of the text."""
        if self._runs < 2 or len(text) ** self._runs <= _FEW:
            return self._regex.fullmatch(text) is not None
        return self.matches_without_backtracking(text)

    def matches_without_backtracking(self, text: str) -> bool:
        """The same without trying: each bit of `here` is a place of the pattern that the text so far can lead to."""
        leaping = [
            (length, sum(1 << place for place, way in enumerate(self._ways) if length in way.leaps))
            for length in (1, 2, 3)
        ]
        moves: dict[str, tuple[int, int]] = {}
        here = _left(1, leaping)
        for character in text:
            move = moves.get(character)
            if move is None:
                move = moves[character] = self._moves(character)
            here = _left((here & move[0]) << 1 | here & move[1], leaping)
            if not here:
                return False
        return bool(here >> len(self._ways) & 1)

    def _moves(self, character: str) -> tuple[int, int]:
        """The places that this character leads on from, and those it stays at."""
        steps = stays = 0
        for place, way in enumerate(self._ways):
            steps |= bool(way.step and _is(way.step, character)) << place
            stays |= bool(way.stay and _is(way.stay, character)) << place
        return steps, stays


def _is(kind: str, character: str) -> bool:
    return _class(kind).fullmatch(character) is not None


@lru_cache(maxsize=1024)
def _class(kind: str) -> re.Pattern[str]:
    return re.compile(kind, re.DOTALL)


def _left(here: int, leaping: list[tuple[int, int]]) -> int:
    """All places that can be had without another character."""
    while True:
        before = here
        for length, places in leaping:
            here |= (here & places) << length
        if here == before:
            return here


@lru_cache(maxsize=1024)
def compile_name_glob(pattern: str) -> Glob:
    """A pattern for names."""
    return Glob(pattern, run=_ANY, one=_SLASHLESS if "/" in pattern else _ANY)


@lru_cache(maxsize=1024)
def compile_text_glob(pattern: str) -> Glob:
    """A pattern for text. `git *` means git with or without more words, as a person would read it."""
    if pattern.endswith(" *"):
        return Glob(pattern[:-2], run=_ANY, one=_ANY, tail="[ \t\n]")
    return Glob(pattern, run=_ANY, one=_ANY)


@lru_cache(maxsize=1024)
def compile_path_glob(pattern: str) -> Glob:
    """A pattern for paths, where `*` stays within a folder. `src/**` means src too."""
    if pattern.endswith("/**"):
        return Glob(pattern[:-3], run=_SLASHLESS, one=_SLASHLESS, tail="/")
    return Glob(pattern, run=_SLASHLESS, one=_SLASHLESS)
