"""Bytes as text and back without loss: encodings, line ends, and short unified diffs. Pure."""

from __future__ import annotations

import codecs
import difflib
from collections.abc import Iterator, Sequence

from msgspec import Struct

from treadle.tools.base import ToolError

_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_SNIFFED = 8192
_ODD_CONTROLS = frozenset(range(32)) - frozenset(b"\t\n\r\f\b\x1b")
_COMPARED = 1_000_000
DIFF_LINES = 80
"""Lines of a diff that a result shows; more would only tell a model what it has just written."""


class Text(Struct, frozen=True):
    """A text file. `text` has plain line ends when all are CRLF (`crlf`); otherwise they are as in the file."""

    text: str
    encoding: str = "utf-8"
    crlf: bool = False

    def encode(self, text: str) -> bytes:
        """Other text in the same encoding and with the same line ends."""
        if self.crlf:
            text = text.replace("\r\n", "\n").replace("\n", "\r\n")
        try:
            if self.encoding.startswith("utf-16"):
                return (codecs.BOM_UTF16_LE if self.encoding == "utf-16-le" else codecs.BOM_UTF16_BE) + text.encode(
                    self.encoding
                )
            return text.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise ToolError(
                f"The file is in {self.encoding}, which cannot hold {text[error.start]!r}. Nothing was changed. "
                "Use characters that it has, or write the whole file anew with write_file, which writes UTF-8."
            ) from None


def decode(data: bytes) -> Text | None:
    """The text in `data`, or None when it is not text."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            try:
                return _text(data[len(mark) if encoding != "utf-8-sig" else 0 :].decode(encoding), encoding)
            except UnicodeDecodeError:
                return None
    head = data[:_SNIFFED]
    if b"\0" in head:
        return None
    try:
        return _text(data.decode(), "utf-8")
    except UnicodeDecodeError:
        odd = sum(byte in _ODD_CONTROLS for byte in head)
        return None if odd * 50 > len(head) else _text(data.decode("latin-1"), "latin-1")


def _text(text: str, encoding: str) -> Text:
    crlf = "\r\n" in text and text.count("\r\n") == text.count("\n")
    return Text(text.replace("\r\n", "\n") if crlf else text, encoding, crlf)


def split_lines(text: str) -> list[str]:
    """Lines as editors and ripgrep count them: ended by a line feed and nothing else."""
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def find_block(block: Sequence[str], lines: Sequence[str], start: int = 0) -> Iterator[int]:
    """Where the lines of a block stand together, from `start` on.

    In one pass (Knuth, Morris and Pratt): in a file whose lines are all alike, comparing the block anew at each of
    them takes hours.
    """
    back, fits = [0], 0
    for at in range(1, len(block)):
        while fits and block[at] != block[fits]:
            fits = back[fits - 1]
        fits += block[at] == block[fits]
        back.append(fits)
    fits = 0
    for at in range(start, len(lines)):
        while fits and lines[at] != block[fits]:
            fits = back[fits - 1]
        fits += lines[at] == block[fits]
        if fits == len(block):
            yield at + 1 - fits
            fits = back[fits - 1]


def _with_ends(text: str) -> list[str]:
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def count_lines(text: str) -> str:
    """How many lines, in words."""
    count = len(split_lines(text))
    return "1 line" if count == 1 else f"{count} lines"


def diff(before: bytes | None, after: bytes | None, path: str, most: int | None = DIFF_LINES) -> str:
    """What changed, as a unified diff that `apply_patch` takes; said in words where it is not text."""
    old, new = (decode(data) if data is not None else Text("") for data in (before, after))
    if old is None or new is None:
        return f"{path}: not text ({len(before or b'')} bytes before, {len(after or b'')} now)"
    if len(old.text) + len(new.text) > _COMPARED:
        return f"{path}: {count_lines(old.text)} before, {count_lines(new.text)} now (too large to be compared here)"
    names = ("/dev/null" if before is None else f"a/{path}", "/dev/null" if after is None else f"b/{path}")
    made = difflib.unified_diff(_with_ends(old.text), _with_ends(new.text), *names)
    shown: list[str] = []
    for line in made:
        shown.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    left_out = len(shown) - most if most is not None else 0
    if left_out > 0:
        shown[most:] = [f"[… {left_out} more lines of the diff]\n"]
    return "".join(shown).removesuffix("\n")
