"""Reading rows out of the pages of an SQLite file, whatever its trees say: what a damaged file still holds.

It follows the file format (https://sqlite.org/fileformat2.html). It knows nothing of tables: the caller tells rows
apart by their columns.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

MAGIC = b"SQLite format 3\0"
TABLE_LEAF, INDEX_LEAF, INDEX_INTERIOR = 0x0D, 0x0A, 0x02
_PAGE_SIZES = frozenset(1 << power for power in range(9, 17))
_WAL_HEADER, _FRAME_HEADER = 32, 24
_WAL_MAGIC = (0x377F0682, 0x377F0683)

Value = int | float | str | bytes | None


class Row(NamedTuple):
    """A row of a table, or an entry of an index, whose `rowid` is 0."""

    kind: int
    rowid: int
    values: tuple[Value, ...]


class PageFile:
    """The pages of a file, with those of its write-ahead log in place of older ones. Neither file is changed.

    `missing` counts the pages that the file should have at its end, `unreadable` pages and rows that could not be read.
    """

    def __init__(self, path: Path) -> None:
        self._data = path.read_bytes() if not path.stat().st_size else _map(path)
        log = path.with_name(f"{path.name}-wal")
        self._log = _map(log) if log.is_file() and log.stat().st_size > _WAL_HEADER else b""
        self.page_size = self._find_page_size()
        self._newer: dict[int, int] = {}
        self._read_log()
        self.count = max(len(self._data) // self.page_size, max(self._newer, default=0))
        self.missing = max(self._read_count() - self.count, 0)
        self.unreadable = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for data in (self._data, self._log):
            if isinstance(data, mmap.mmap):
                data.close()

    def read_page(self, number: int) -> bytes:
        """Read a page. It is empty when the file ends before it."""
        if number in self._newer:
            return self._log[self._newer[number] : self._newer[number] + self.page_size]
        page = self._data[(number - 1) * self.page_size : number * self.page_size] if number > 0 else b""
        return page if len(page) == self.page_size else b""

    def iterate_rows(self) -> Iterator[tuple[int, Row]]:
        """Yield the number of the page and the row, for all pages that are in use."""
        free = self._find_free_pages()
        for number in range(1, self.count + 1):
            page = b"" if number in free else self.read_page(number)
            start = 100 if number == 1 else 0
            if not page or page[start] not in (TABLE_LEAF, INDEX_LEAF, INDEX_INTERIOR):
                continue
            kind = page[start]
            cells = struct.unpack_from(">H", page, start + 3)[0]
            first = start + (12 if kind == INDEX_INTERIOR else 8)
            if first + 2 * cells > len(page):
                self.unreadable += 1
                continue
            for (offset,) in struct.iter_unpack(">H", page[first : first + 2 * cells]):
                try:
                    yield number, self._read_cell(page, offset, kind)
                except (IndexError, ValueError, struct.error):
                    self.unreadable += 1

    def _find_page_size(self) -> int:
        if self._data[:16] == MAGIC:
            size = struct.unpack_from(">H", self._data, 16)[0]
            if (size := 65536 if size == 1 else size) in _PAGE_SIZES:
                return size
        size = struct.unpack_from(">I", self._log, 8)[0] if self._log else 0
        return size if size in _PAGE_SIZES else 4096

    def _read_count(self) -> int:
        """Read how many pages the file should have."""
        header = self.read_page(1)
        return struct.unpack_from(">I", header, 28)[0] if header[:16] == MAGIC else 0

    def _read_log(self) -> None:
        """Find the pages of committed transactions. Frames of an earlier use of the log have another salt."""
        if len(self._log) < _WAL_HEADER or struct.unpack_from(">I", self._log)[0] not in _WAL_MAGIC:
            return
        salt, pending = self._log[16:24], dict[int, int]()
        step = _FRAME_HEADER + self.page_size
        for start in range(_WAL_HEADER, len(self._log) - step + 1, step):
            number, size = struct.unpack_from(">II", self._log, start)
            if self._log[start + 8 : start + 16] != salt:
                return
            pending[number] = start + _FRAME_HEADER
            if size:
                self._newer.update(pending)
                pending.clear()

    def _find_free_pages(self) -> frozenset[int]:
        """Find the pages that are not in use. They may hold deleted rows."""
        header, free = self.read_page(1), set[int]()
        if header[:16] == MAGIC:
            trunk = struct.unpack_from(">I", header, 32)[0]
            while 0 < trunk <= self.count and trunk not in free and (page := self.read_page(trunk)):
                free.add(trunk)
                trunk, leaves = struct.unpack_from(">II", page)
                if leaves * 4 + 8 > len(page):
                    break
                free.update(struct.unpack_from(f">{leaves}I", page, 8))
        return frozenset(free)

    def _read_cell(self, page: bytes, at: int, kind: int) -> Row:
        usable = self.page_size - (self._data[20] if self._data[:16] == MAGIC else 0)
        at += 4 if kind == INDEX_INTERIOR else 0
        length, at = _read_varint(page, at)
        rowid = 0
        largest = (usable - 12) * 64 // 255 - 23
        if kind == TABLE_LEAF:
            rowid, at = _read_varint(page, at)
            rowid -= (rowid >> 63) << 64
            largest = usable - 35
        if length > self.count * usable:
            raise ValueError("longer than the file")
        least = (usable - 12) * 32 // 255 - 23
        local = least + (length - least) % (usable - 4)
        local = length if length <= largest else local if local <= largest else least
        if at + local > len(page):
            raise ValueError("beyond the page")
        payload = bytearray(page[at : at + local])
        following = struct.unpack_from(">I", page, at + local)[0] if local < length else 0
        while len(payload) < length:
            overflow = self.read_page(following)
            if not overflow:
                raise ValueError("a page of the row is missing")
            following = struct.unpack_from(">I", overflow)[0]
            payload += overflow[4 : min(usable, 4 + length - len(payload))]
        return Row(kind, rowid, _read_record(bytes(payload)))


def _map(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for number in range(9):
        byte = data[at + number]
        if number == 8:
            return value << 8 | byte, at + 9
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + number + 1
    raise AssertionError("a varint has nine bytes at the most")


def _read_record(data: bytes) -> tuple[Value, ...]:
    end, at = _read_varint(data, 0)
    body, values = end, list[Value]()
    while at < end:
        kind, at = _read_varint(data, at)
        value, body = _read_value(data, body, kind)
        values.append(value)
    return tuple(values)


def _read_value(data: bytes, at: int, kind: int) -> tuple[Value, int]:
    if kind >= 12:
        end = at + (kind - 12) // 2
        if end > len(data):
            raise ValueError("beyond the row")
        piece = data[at:end]
        return piece.decode() if kind % 2 else piece, end
    if kind in (0, 8, 9):
        return (None, 0, 1)[(0, 8, 9).index(kind)], at
    if kind == 7:
        return struct.unpack_from(">d", data, at)[0], at + 8
    size = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}.get(kind, 0)
    if not size or at + size > len(data):
        raise ValueError("not a value")
    return int.from_bytes(data[at : at + size], "big", signed=True), at + size
