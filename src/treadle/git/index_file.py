"""Reads and writes the index of a repository (versions 2 to 4). Every byte of it may come from an attacker.

What git may add is dropped: caches, the watcher of files, the parts of a split index. git builds them anew.
"""

from __future__ import annotations

import struct

from msgspec import Struct

from treadle.errors import TreadleError
from treadle.git.object_format import GITLINK, SHA1, ObjectFormat

MAX_INDEX_BYTES = 256 << 20
ASSUME_VALID, SKIP_WORKTREE, INTENT_TO_ADD = 0x8000, 0x4000, 0x2000
NO_STAT = bytes(36)
_EXTENDED, _NAME_MASK = 0x4000, 0xFFF
_GITLINK_BYTES = b"\0\0\xe0\0"
_MAX_PATH = 4096

Content = tuple[bytes, int, int, bytes, bool]
"""What an entry says: path, stage, mode, id, and whether it only announces a file (`git add -N`)."""


class DamagedIndex(TreadleError):
    """The index cannot be read, or is of a kind that is not read here."""


class EntryState(Struct, frozen=True, gc=False):
    """What git remembers of the file of an entry, and the user's marks for it: assume-valid, skip-worktree."""

    stat: bytes = NO_STAT
    marks: int = 0


Entries = dict[Content, EntryState]


def parse_index(data: bytes, form: ObjectFormat) -> Entries:
    """Read the entries of an index. Raises `DamagedIndex`."""
    if len(data) < 12 + form.size or data[:4] != b"DIRC":
        raise DamagedIndex("the index is cut off or is no index")
    end = len(data) - form.size
    running = form.start_hash()
    running.update(data[:end])
    if data[end:] not in (running.digest(), bytes(form.size)):
        raise DamagedIndex("the index has a wrong checksum")
    return _IndexReader(data, end).read(form.size)


class _IndexReader:
    """Goes through an index from its start to its checksum."""

    def __init__(self, data: bytes, end: int) -> None:
        self._data, self._end = data, end
        self._position = 12

    def read(self, id_size: int) -> Entries:
        version, count = struct.unpack(">II", self._data[4:12])
        if version not in (2, 3, 4) or count > self._end // (42 + id_size):
            raise DamagedIndex(f"the index has version {version} and {count} entries, which cannot be")
        found: Entries = {}
        fixed = struct.Struct(f">24sI12s{id_size}sH")
        path, last = b"", (b"", -1)
        for _ in range(count):
            start = self._position
            if start + fixed.size + 2 > self._end:
                raise DamagedIndex("the index is cut off")
            head, mode, tail, object_id, flags = fixed.unpack_from(self._data, start)
            self._position += fixed.size
            extra = 0
            if flags & _EXTENDED:
                extra = int.from_bytes(self._data[self._position : self._position + 2], "big")
                self._position += 2
            path = self._read_short_path(path) if version == 4 else self._read_path(start)
            stage = (flags >> 12) & 3
            is_odd = extra & ~(SKIP_WORKTREE | INTENT_TO_ADD) or (version == 2 and flags & _EXTENDED)
            if is_odd or not 0 < len(path) <= _MAX_PATH or (path, stage) <= last:
                raise DamagedIndex("the entries of the index are damaged")
            last = path, stage
            marks = (flags & ASSUME_VALID) | (extra & SKIP_WORKTREE)
            found[path, stage, mode, object_id, bool(extra & INTENT_TO_ADD)] = EntryState(head + tail, marks)
        self._check_extensions()
        return found

    def _read_text(self) -> bytes:
        stop = self._data.find(b"\0", self._position, self._end)
        if stop < 0:
            raise DamagedIndex("the index is cut off")
        text = self._data[self._position : stop]
        self._position = stop + 1
        return text

    def _read_path(self, start: int) -> bytes:
        """Read a path that is filled up with zeros, so that its entry has a multiple of 8 bytes."""
        path = self._read_text()
        self._position = start + ((self._position - start + 7) & ~7)
        return path

    def _read_short_path(self, last: bytes) -> bytes:
        """Read a path that begins like the last one: how much of the last one is cut off, then the rest."""
        cut = -1
        for _ in range(5):
            byte = self._data[self._position]
            self._position += 1
            cut = ((cut + 1) << 7) | (byte & 0x7F)
            if not byte & 0x80 or self._position >= self._end:
                break
        return last[: len(last) - cut] + self._read_text() if cut <= len(last) else b""

    def _check_extensions(self) -> None:
        """Refuse extensions without which the entries cannot be understood: their names begin with a small letter."""
        while self._position < self._end:
            name = self._data[self._position : self._position + 4]
            size = int.from_bytes(self._data[self._position + 4 : self._position + 8], "big")
            self._position += 8 + size
            if self._position > self._end or not name[:1].isupper():
                raise DamagedIndex("the index is split, sparse or damaged, which cannot be read here")


def is_plain_index(data: bytes, form: ObjectFormat) -> bool:
    """Whether an index is neither split nor sparse. It is fast: the entries are not read.

    Where the name of an extension stands, extensions must follow each other exactly to the end. Otherwise it is a path.
    """
    end = len(data) - form.size
    for name in (b"link", b"sdir"):
        start = data.find(name, 12, end)
        while start >= 0:
            position = start
            while position + 8 <= end:
                position += 8 + int.from_bytes(data[position + 4 : position + 8], "big")
            if position == end:
                return False
            start = data.find(name, start + 1, end)
    return True


def list_gitlinks(data: bytes, form: ObjectFormat = SHA1) -> list[str]:
    """List the paths of the submodules in an index. An index without any is seen at once. Raises `DamagedIndex`."""
    if _GITLINK_BYTES not in data:
        return []
    return [path.decode(errors="surrogateescape") for path, _, mode, *_ in parse_index(data, form) if mode == GITLINK]


def find_newest_file(data: bytes, form: ObjectFormat, now: int) -> int:
    """Find the newest time of a file in an index that is not after `now`; 0 when the index cannot be read.

    An old index that is put back gets it as its own time. Then git looks again at the files that may be newer.
    """
    try:
        times = [int.from_bytes(state.stat[8:12], "big") for state in parse_index(data, form).values()]
    except DamagedIndex:
        return 0
    return max((time for time in times if time <= now), default=0)


def render_index(entries: Entries, form: ObjectFormat) -> bytes:
    """Write an index with these entries, sorted as git needs them. It is version 2, or 3 if an entry has marks."""
    is_extended = any(content[4] or state.marks & SKIP_WORKTREE for content, state in entries.items())
    pieces = [b"DIRC" + struct.pack(">II", 3 if is_extended else 2, len(entries))]
    fixed = struct.Struct(f">24sI12s{form.size}sH")
    for content in sorted(entries):
        path, stage, mode, object_id, is_announced = content
        state = entries[content]
        extra = (state.marks & SKIP_WORKTREE) | (INTENT_TO_ADD if is_announced else 0)
        flags = (state.marks & ASSUME_VALID) | (_EXTENDED if extra else 0) | (stage << 12) | min(len(path), _NAME_MASK)
        entry = fixed.pack(state.stat[:24], mode, state.stat[24:], object_id, flags)
        entry += (struct.pack(">H", extra) if extra else b"") + path
        pieces.append(entry + bytes(8 - len(entry) % 8))
    data = b"".join(pieces)
    running = form.start_hash()
    running.update(data)
    return data + running.digest()
