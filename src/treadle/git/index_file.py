"""Reads and writes the index of a repository (versions 2 to 4). Every byte of it may come from an attacker.

What git may add is dropped: caches, the watcher of files, the parts of a split index. git builds them anew.
"""

from __future__ import annotations

import struct

from msgspec import Struct

from treadle.errors import TreadleError
from treadle.git.object_format import SHA1, ObjectFormat

MAX_INDEX_BYTES = 256 << 20
ASSUME_VALID, SKIP_WORKTREE, INTENT_TO_ADD = 0x8000, 0x4000, 0x2000
NO_STAT = bytes(36)
_EXTENDED, _NAME_MASK = 0x4000, 0xFFF
_GITLINK_BYTES = b"\0\0\xe0\0"
_GITLINK = 0o160000
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
    version, count = struct.unpack(">II", data[4:12])
    running = form.start_hash()
    running.update(data[:end])
    if data[end:] not in (running.digest(), bytes(form.size)):
        raise DamagedIndex("the index has a wrong checksum")
    if version not in (2, 3, 4) or count > end // (42 + form.size):
        raise DamagedIndex(f"the index has version {version} and {count} entries, which cannot be")
    found, position = _parse_entries(data, form, version, count)
    _check_extensions(data, position, end)
    return found


def _parse_entries(data: bytes, form: ObjectFormat, version: int, count: int) -> tuple[Entries, int]:
    found: Entries = {}
    fixed = struct.Struct(f">24sI12s{form.size}sH")
    size, end = fixed.size, len(data) - form.size
    position, path, last = 12, b"", (b"", -1)
    for _ in range(count):
        start = position
        if start + size + 2 > end:
            raise DamagedIndex("the index is cut off")
        head, mode, tail, object_id, flags = fixed.unpack_from(data, start)
        position = start + size
        extra = 0
        if flags & _EXTENDED:
            extra = (data[position] << 8) | data[position + 1]
            position += 2
        if version == 4:
            strip, position = _read_number(data, position, end)
            stop = data.find(b"\0", position, end)
            path = path[: len(path) - strip] + data[position:stop] if strip <= len(path) else b""
            position = stop + 1
        else:
            stop = data.find(b"\0", position, end)
            path = data[position:stop]
            position = start + ((stop - start + 8) & ~7)
        stage = (flags >> 12) & 3
        if stop < 0 or not 0 < len(path) <= _MAX_PATH or (path, stage) <= last or extra & ~0x6000:
            raise DamagedIndex("the entries of the index are damaged")
        if version == 2 and flags & _EXTENDED:
            raise DamagedIndex("the entries of the index are damaged")
        last = path, stage
        marks = (flags & ASSUME_VALID) | (extra & SKIP_WORKTREE)
        found[path, stage, mode, object_id, bool(extra & INTENT_TO_ADD)] = EntryState(head + tail, marks)
    return found, position


def _read_number(data: bytes, position: int, end: int) -> tuple[int, int]:
    value = -1
    for _ in range(5):
        if position >= end:
            break
        byte = data[position]
        position += 1
        value = ((value + 1) << 7) | (byte & 0x7F)
        if not byte & 0x80:
            return value, position
    raise DamagedIndex("the index is cut off")


def _check_extensions(data: bytes, position: int, end: int) -> None:
    """Refuse extensions without which the entries cannot be understood: their names begin with a small letter."""
    while position < end:
        name, size = data[position : position + 4], int.from_bytes(data[position + 4 : position + 8], "big")
        position += 8 + size
        if position > end or not name[:1].isupper():
            raise DamagedIndex("the index is split, sparse or damaged, which cannot be read here")


def is_plain_index(data: bytes, form: ObjectFormat) -> bool:
    """Whether an index is neither split nor sparse. It is fast: the entries are not read."""
    return not any(_has_extension(data, name, len(data) - form.size) for name in (b"link", b"sdir"))


def _has_extension(data: bytes, name: bytes, end: int) -> bool:
    """Whether an extension begins somewhere: from there on, extensions must follow each other exactly to the end."""
    start = data.find(name, 12, end)
    while start >= 0:
        position = start
        while position + 8 <= end:
            position += 8 + int.from_bytes(data[position + 4 : position + 8], "big")
        if position == end:
            return True
        start = data.find(name, start + 1, end)
    return False


def list_gitlinks(data: bytes, form: ObjectFormat = SHA1) -> list[str]:
    """List the paths of the submodules in an index. An index without any is seen at once. Raises `DamagedIndex`."""
    if _GITLINK_BYTES not in data:
        return []
    return [path.decode(errors="surrogateescape") for path, _, mode, *_ in parse_index(data, form) if mode == _GITLINK]


def find_newest_file(data: bytes, form: ObjectFormat) -> int:
    """Find the newest time of a file in an index, in seconds; 0 when the index cannot be read.

    An old index that is put back gets it as its own time. Then git looks again at the files that may be newer.
    """
    try:
        return max((int.from_bytes(state.stat[8:12], "big") for state in parse_index(data, form).values()), default=0)
    except DamagedIndex:
        return 0


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
