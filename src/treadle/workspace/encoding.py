"""Bytes to text and back without loss: encodings, line ends, and short unified diffs. Pure."""

from __future__ import annotations

import codecs
import difflib
from collections.abc import Iterator, Sequence

from msgspec import Struct

from treadle.tools.base import ToolError

_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_SNIFFED_BYTES = 8192
_ODD_CONTROLS = frozenset(range(32)) - frozenset(b"\t\n\r\f\b\x1b")
_MAX_COMPARED = 1_000_000
MAX_DIFF_LINES = 80
"""Lines of a diff that a result shows. The model has just written them, so more would tell it nothing."""


class DecodedText(Struct, frozen=True):
    """The text of a file. If all line ends are CRLF (`crlf`), `text` has plain ones; otherwise they are unchanged."""

    text: str
    encoding: str = "utf-8"
    crlf: bool = False

    def encode(self, text: str) -> bytes:
        """Encode another text in the same encoding and with the same line ends."""
        if self.crlf:
            text = text.replace("\r\n", "\n").replace("\n", "\r\n")
        try:
            encoded = text.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise ToolError(
                f"The file is in {self.encoding}, which cannot hold {text[error.start]!r}. Nothing was changed. "
                "Use characters that it has, or write the whole file anew with write_file, which writes UTF-8."
            ) from None
        marks = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}
        return marks.get(self.encoding, b"") + encoded


def decode_text(data: bytes) -> DecodedText | None:
    """Decode a text; None when the bytes are not text."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            try:
                return _normalize_line_ends(
                    data[len(mark) if encoding != "utf-8-sig" else 0 :].decode(encoding), encoding
                )
            except UnicodeDecodeError:
                return None
    head = data[:_SNIFFED_BYTES]
    if b"\0" in head:
        return None
    try:
        return _normalize_line_ends(data.decode(), "utf-8")
    except UnicodeDecodeError:
        odd = sum(byte in _ODD_CONTROLS for byte in head)
        return None if odd * 50 > len(head) else _normalize_line_ends(data.decode("latin-1"), "latin-1")


def _normalize_line_ends(text: str, encoding: str) -> DecodedText:
    crlf = "\r\n" in text and text.count("\r\n") == text.count("\n")
    return DecodedText(text.replace("\r\n", "\n") if crlf else text, encoding, crlf)


def split_lines(text: str) -> list[str]:
    """Split a text into lines as editors and ripgrep do: only a line feed ends a line."""
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def find_block(block: Sequence[str], lines: Sequence[str], start: int = 0) -> Iterator[int]:
    """Find where the lines of a block stand together, from `start` on.

    The search takes one pass (Knuth, Morris and Pratt). Comparing the block anew at each line would take hours in a
    file whose lines are all alike.
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


def _split_with_ends(text: str) -> list[str]:
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def describe_line_count(text: str) -> str:
    """Say how many lines a text has, such as "1 line"."""
    count = len(split_lines(text))
    return "1 line" if count == 1 else f"{count} lines"


def render_diff(before: bytes | None, after: bytes | None, path: str, limit: int | None = MAX_DIFF_LINES) -> str:
    """Render a unified diff that `apply_patch` accepts. Contents that are not text are described in words."""
    old, new = (decode_text(data) if data is not None else DecodedText("") for data in (before, after))
    if old is None or new is None:
        return f"{path}: not text ({len(before or b'')} bytes before, {len(after or b'')} now)"
    if len(old.text) + len(new.text) > _MAX_COMPARED:
        counts = describe_line_count(old.text), describe_line_count(new.text)
        return f"{path}: {counts[0]} before, {counts[1]} now (too large to be compared here)"
    names = ("/dev/null" if before is None else f"a/{path}", "/dev/null" if after is None else f"b/{path}")
    lines = [
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(_split_with_ends(old.text), _split_with_ends(new.text), *names)
    ]
    if limit is not None and len(lines) > limit:
        lines[limit:] = [f"[… {len(lines) - limit} more lines of the diff]\n"]
    return "".join(lines).removesuffix("\n")
