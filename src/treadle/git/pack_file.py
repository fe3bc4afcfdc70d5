"""Reads objects out of pack files, with their deltas. Every size is checked: a pack may be written by an attacker.

What is read here is only what a file says. Whoever takes an object over computes its hash.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from mmap import mmap

from msgspec import Struct

from treadle.errors import TreadleError

MAX_DELTAS = 4096
"""The longest chain of deltas. It is also the longest that git writes."""

_INSTRUCTION_BYTES = 1024
"""As how many unpacked bytes an instruction of a delta counts: it takes about as long, however little it copies."""

_CHUNK = 1 << 16
_CACHE_BYTES = 32 << 20
_HEADER = 8
_FAN_OUT = 1024
_KINDS = {1: "commit", 2: "tree", 3: "blob", 4: "tag"}
_OFFSET_DELTA, _ID_DELTA = 6, 7


class DamagedObject(TreadleError):
    """An object cannot be read, or is larger than allowed."""


class GitObject(Struct, frozen=True):
    """The kind of an object (`commit`, `tree`, `blob` or `tag`) and its content."""

    kind: str
    data: bytes


class WorkLimit:
    """Counts the bytes that were unpacked. Many small deltas on one large object would otherwise take for ever."""

    def __init__(self, left: int) -> None:
        self.left = left

    def spend(self, count: int) -> None:
        """Count bytes, and raise `DamagedObject` when there were too many."""
        self.left -= count
        if self.left < 0:
            raise DamagedObject("unpacking takes more work than is allowed")


class PackIndex:
    """The index of a pack: which ids it has and where. Raises `DamagedObject` for anything but version 2."""

    def __init__(self, data: bytes | mmap, id_size: int) -> None:
        self._data, self._id_size = data, id_size
        if len(data) < _HEADER + _FAN_OUT or data[:_HEADER] != b"\xfftOc\0\0\0\2":
            raise DamagedObject("the index of a pack has an unknown format")
        self._fan_out = struct.unpack(">256I", data[_HEADER : _HEADER + _FAN_OUT])
        self.count = self._fan_out[255]
        self._ids = _HEADER + _FAN_OUT
        self._offsets = self._ids + self.count * (id_size + 4)
        self._large = self._offsets + self.count * 4
        if list(self._fan_out) != sorted(self._fan_out) or self._large + 2 * id_size > len(data):
            raise DamagedObject("the index of a pack is damaged")

    def find(self, object_id: str) -> int | None:
        """Find where an object begins in the pack; None when the pack does not have it."""
        wanted = bytes.fromhex(object_id)
        low = self._fan_out[wanted[0] - 1] if wanted[0] else 0
        high = self._fan_out[wanted[0]]
        while low < high:
            middle = (low + high) // 2
            found = self._read_id(middle)
            if found == wanted:
                return self._read_offset(middle)
            low, high = (middle + 1, high) if found < wanted else (low, middle)
        return None

    def list_ids(self) -> Iterator[str]:
        """List all ids."""
        return (self._read_id(position).hex() for position in range(self.count))

    def _read_id(self, position: int) -> bytes:
        start = self._ids + position * self._id_size
        return self._data[start : start + self._id_size]

    def _read_offset(self, position: int) -> int:
        start = self._offsets + position * 4
        (offset,) = struct.unpack(">I", self._data[start : start + 4])
        if offset & 0x80000000:
            start = self._large + (offset & 0x7FFFFFFF) * 8
            raw = self._data[start : start + 8]
            if len(raw) < 8:
                raise DamagedObject("the index of a pack is damaged")
            (offset,) = struct.unpack(">Q", raw)
        return offset


class _Entry(Struct, frozen=True):
    """One object as the pack stores it. A delta has either the place or the id of its base."""

    kind: str
    data: bytes
    base_offset: int = -1
    base_id: str = ""


class Pack:
    """An open pack. `limit` is the largest object in bytes, and `work` counts everything that is unpacked."""

    def __init__(self, opened: int, index: PackIndex, id_size: int, limit: int, work: WorkLimit) -> None:
        self.index = index
        self._opened, self._id_size, self._limit, self._work = opened, id_size, limit, work
        self._size = os.fstat(opened).st_size
        self._cache: OrderedDict[int, GitObject] = OrderedDict()
        self._cached_bytes = 0

    def close(self) -> None:
        """Close the file."""
        os.close(self._opened)

    def read(self, offset: int, read_base: Callable[[str], GitObject | None]) -> GitObject:
        """Read the object at an offset. `read_base` finds a base that is not in this pack. Raises `DamagedObject`."""
        chain: list[tuple[int, bytes]] = []
        while True:
            if found := self._cache.get(offset):
                self._cache.move_to_end(offset)
                break
            entry = self._read_entry(offset)
            if entry.kind:
                found = GitObject(entry.kind, entry.data)
                self._remember(offset, found)
                break
            chain.append((offset, entry.data))
            if len(chain) > MAX_DELTAS:
                raise DamagedObject("a chain of deltas is too long")
            place = entry.base_offset if entry.base_offset >= 0 else self.index.find(entry.base_id)
            if place is None:
                found = read_base(entry.base_id)
                break
            offset = place
        if found is None:
            raise DamagedObject("the base of a delta is missing")
        for place, delta in reversed(chain):
            found = GitObject(found.kind, apply_delta(found.data, delta, self._limit, self._work))
            self._work.spend(len(found.data))
            self._remember(place, found)
        return found

    def read_kind(self, offset: int, read_base: Callable[[str], GitObject | None]) -> str:
        """Read only the kind of the object at an offset."""
        for _ in range(MAX_DELTAS):
            entry = self._read_entry(offset, is_head=True)
            if entry.kind:
                return entry.kind
            place = entry.base_offset if entry.base_offset >= 0 else self.index.find(entry.base_id)
            if place is None:
                base = read_base(entry.base_id)
                return base.kind if base else ""
            offset = place
        return ""

    def _remember(self, offset: int, found: GitObject) -> None:
        if len(found.data) > _CACHE_BYTES // 4 or offset in self._cache:
            return
        self._cache[offset] = found
        self._cached_bytes += len(found.data)
        while self._cached_bytes > _CACHE_BYTES:
            _, old = self._cache.popitem(last=False)
            self._cached_bytes -= len(old.data)

    def _read_entry(self, offset: int, *, is_head: bool = False) -> _Entry:
        if not 12 <= offset < self._size:
            raise DamagedObject("an offset leads out of its pack")
        head = os.pread(self._opened, 64, offset)
        number, size, position = self._read_size(head)
        base_offset, base_id = -1, ""
        if number == _OFFSET_DELTA:
            distance, position = self._read_distance(head, position)
            base_offset = offset - distance
            if not 0 < distance < offset:
                raise DamagedObject("a delta has its base outside of the pack")
        elif number == _ID_DELTA:
            base_id = head[position : position + self._id_size].hex()
            position += self._id_size
            if len(base_id) != self._id_size * 2:
                raise DamagedObject("a pack ends too early")
        elif number not in _KINDS:
            raise DamagedObject("an object of unknown kind")
        data = b"" if is_head else self._inflate(offset + position, size)
        return _Entry(_KINDS.get(number, ""), data, base_offset, base_id)

    def _inflate(self, position: int, size: int) -> bytes:
        if size > self._limit:
            raise DamagedObject(f"an object has more than {self._limit} bytes")
        self._work.spend(size)
        stream = zlib.decompressobj()
        pieces: list[bytes] = []
        left = size + 1  # one more: an object that is longer than it says is seen
        try:
            while not stream.eof and left > 0:
                chunk = stream.unconsumed_tail
                if not chunk:
                    chunk = os.pread(self._opened, _CHUNK, position)
                    position += len(chunk)
                    if not chunk:
                        break
                piece = stream.decompress(chunk, left)
                pieces.append(piece)
                left -= len(piece)
        except zlib.error:
            raise DamagedObject("an object cannot be unpacked") from None
        if not stream.eof or left != 1:
            raise DamagedObject("an object has another size than it says")
        return b"".join(pieces)

    @staticmethod
    def _read_size(head: bytes) -> tuple[int, int, int]:
        """Read the kind and size in front of an object, and how many bytes they take."""
        value, shift, position = 0, 4, 1
        if not head:
            raise DamagedObject("a pack ends too early")
        byte = head[0]
        kind, value = (byte >> 4) & 7, byte & 15
        while byte & 0x80:
            if position >= min(len(head), 12):
                raise DamagedObject("a pack has a damaged size")
            byte = head[position]
            value |= (byte & 0x7F) << shift
            shift += 7
            position += 1
        return kind, value, position

    @staticmethod
    def _read_distance(head: bytes, position: int) -> tuple[int, int]:
        """Read how far before a delta its base begins."""
        value = -1
        for _ in range(10):
            if position >= len(head):
                break
            byte = head[position]
            position += 1
            value = ((value + 1) << 7) | (byte & 0x7F)
            if not byte & 0x80:
                return value, position
        raise DamagedObject("a pack has a damaged delta")


def apply_delta(base: bytes, delta: bytes, limit: int, work: WorkLimit) -> bytes:
    """Build an object from its base and a delta. Raises `DamagedObject`."""
    base_size, position = _read_delta_size(delta, 0)
    size, position = _read_delta_size(delta, position)
    if base_size != len(base) or size > limit:
        raise DamagedObject("a delta does not fit its base")
    made = bytearray()
    end = len(delta)
    while position < end and len(made) <= size:
        work.spend(_INSTRUCTION_BYTES)
        code = delta[position]
        position += 1
        if code & 0x80:
            start, count, position = _read_copy(delta, position, code)
            if start + count > len(base):
                raise DamagedObject("a delta copies from outside of its base")
            made += base[start : start + count]
        else:
            count = code
            if not count or position + count > end:
                raise DamagedObject("a delta is damaged")
            made += delta[position : position + count]
            position += count
    if len(made) != size:
        raise DamagedObject("a delta gives another size than it says")
    return bytes(made)


def _read_copy(delta: bytes, position: int, code: int) -> tuple[int, int, int]:
    start = count = 0
    try:
        for bit in range(4):
            if code & (1 << bit):
                start |= delta[position] << (8 * bit)
                position += 1
        for bit in range(3):
            if code & (0x10 << bit):
                count |= delta[position] << (8 * bit)
                position += 1
    except IndexError:
        raise DamagedObject("a delta ends too early") from None
    return start, count or 0x10000, position


def _read_delta_size(delta: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(delta) and shift < 64:
        byte = delta[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, position
    raise DamagedObject("a delta ends too early")
