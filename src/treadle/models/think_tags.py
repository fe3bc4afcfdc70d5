"""Takes `<think>` blocks out of a model's text as it streams. Pure; holds back only what may be a tag."""

from __future__ import annotations

from typing import Literal

_OPEN, _CLOSE = "<think>", "</think>"


class ThinkSplitter:
    """Parts text that arrives in pieces into what was thought and what was said.

    Only a block at the very beginning counts: a tag in the middle of an answer is part of the answer.
    """

    __slots__ = ("_held", "_mode")

    def __init__(self) -> None:
        self._mode: Literal["start", "thought", "gap", "said"] = "start"
        self._held: str = ""

    def feed(self, text: str) -> tuple[str, str]:
        """`(thought, said)` of this piece."""
        if self._mode == "said":
            return "", text
        if self._mode == "gap":
            return "", self._after(text)
        text = self._held + text
        self._held = ""
        if self._mode == "start":
            bare = text.lstrip()
            if bare.startswith(_OPEN):
                self._mode = "thought"
                text = bare[len(_OPEN) :]
            elif _OPEN.startswith(bare):
                self._held = text
                return "", ""
            else:
                self._mode = "said"
                return "", text
        thought, tag, rest = text.partition(_CLOSE)
        if tag:
            self._mode = "gap"
            return thought, self._after(rest)
        keep = _tail(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], ""

    def _after(self, text: str) -> str:
        """What is said right after a block, without the empty lines between."""
        said = text.lstrip("\n")
        if said:
            self._mode = "said"
        return said

    def finish(self) -> tuple[str, str]:
        """What was still held back when the text ended."""
        held, self._held = self._held, ""
        return (held, "") if self._mode == "thought" else ("", held)


def _tail(text: str) -> int:
    """How many characters at the end of `text` may be the beginning of the closing tag."""
    for length in range(min(len(_CLOSE) - 1, len(text)), 0, -1):
        if _CLOSE.startswith(text[-length:]):
            return length
    return 0


def split_unopened_block(text: str) -> tuple[str, str]:
    """`(thought, said)` of a whole reply whose template swallowed the opening tag."""
    thought, tag, said = text.partition(_CLOSE)
    return (thought.strip(), said.lstrip()) if tag and _OPEN not in thought else ("", text)
