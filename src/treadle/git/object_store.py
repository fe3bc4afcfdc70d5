"""Finds and reads the objects of a repository: loose ones, packed ones, and those of its alternates.

It serves for the real repository and for a private copy. It writes nothing and checks no hash.
"""

from __future__ import annotations

import os
import re
import zlib
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Self

from treadle.git.git_folder import GitFolder, UnsafeFile
from treadle.git.object_format import KINDS, ObjectFormat
from treadle.git.pack_file import DamagedObject, GitObject, Pack, PackIndex, WorkLimit

MAX_READ_BYTES = 128 << 20
"""The largest object that is held in memory as a whole."""

MAX_HEAD_BYTES = 32
_MAX_PACKS = 10_000
_MAX_LOOSE_IN_FOLDER = 1_000_000
_MAX_HOSTILE_PACKS = 200
_MAX_HOSTILE_INDEX_BYTES = 64 << 20
"""Of all packs together. A command can make a file that is large and takes no space, but it is read into memory."""

_MAX_ALTERNATES = 16
_CHUNK = 1 << 16
_UNBOUNDED_WORK = 1 << 62
_LOOSE_HEAD = re.compile(rb"(commit|tree|blob|tag) (0|[1-9][0-9]{0,18})\0")


class ObjectStore:
    """The objects below a folder, for a `with` block.

    `is_hostile`: a command wrote here. Then nothing is mapped into memory, and `work` bounds what is unpacked.
    """

    def __init__(
        self, path: Path, form: ObjectFormat, *, is_hostile: bool = False, work: WorkLimit | None = None, depth: int = 0
    ) -> None:
        self.folder, self.form = GitFolder(path), form
        self._is_hostile, self._work = is_hostile, work or WorkLimit(_UNBOUNDED_WORK)
        self._loose: dict[str, frozenset[str]] = {}
        self._packs: list[Pack] | None = None
        self._index_bytes = _MAX_HOSTILE_INDEX_BYTES
        self._maps: list[mmap] = []
        self._alternates: list[ObjectStore] = []
        try:
            for place in () if is_hostile or depth > 4 else list_alternates(self.folder):
                try:
                    self._alternates.append(ObjectStore(place, form, depth=depth + 1))
                except UnsafeFile:  # an alternate that is gone is what git skips, too
                    continue
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all files."""
        for pack in self._packs or ():
            pack.close()
        for place in self._maps:
            place.close()
        for store in self._alternates:
            store.close()
        self.folder.close()

    def has(self, object_id: str) -> bool:
        """Whether an object is there. Its content is not looked at."""
        if object_id[2:] in self._list_loose(object_id[:2]):
            return True
        if any(pack.index.find(object_id) is not None for pack in self._list_packs()):
            return True
        return any(store.has(object_id) for store in self._alternates)

    def list_ids(self, limit: int) -> list[str]:
        """List the ids of loose and packed objects here, not those of alternates: at most `limit`, and one more."""
        found: dict[str, None] = {}
        for entry in self.folder.list_entries(".", 1000):
            if re.fullmatch(r"[0-9a-f]{2}", entry.name):
                found.update((entry.name + rest, None) for rest in sorted(self._list_loose(entry.name, limit + 1)))
                if len(found) > limit:
                    return list(found)[: limit + 1]
        for pack in self._list_packs():
            for object_id in pack.index.list_ids():
                found[object_id] = None
                if len(found) > limit:
                    return list(found)
        return list(found)

    def read(self, object_id: str) -> GitObject | None:
        """Read an object; None when it is missing. Raises `DamagedObject`, also when it is too large."""
        if object_id[2:] in self._list_loose(object_id[:2]):
            return self._read_loose(object_id)
        for pack in self._list_packs():
            if (offset := pack.index.find(object_id)) is not None:
                return pack.read(offset, self._read_base)
        for store in self._alternates:
            if found := store.read(object_id):
                return found
        return None

    def read_kind(self, object_id: str) -> str:
        """Read the kind of an object; empty when it is missing or damaged."""
        try:
            if object_id[2:] in self._list_loose(object_id[:2]):
                return self._read_loose(object_id, is_head=True).kind
            for pack in self._list_packs():
                if (offset := pack.index.find(object_id)) is not None:
                    return pack.read_kind(offset, self._read_base)
        except DamagedObject:
            return ""
        return next((kind for store in self._alternates if (kind := store.read_kind(object_id))), "")

    def open_loose(self, object_id: str) -> int | None:
        """Open the file of a loose object; None when it is not loose. Raises `UnsafeFile`."""
        return self.folder.open_file(f"{object_id[:2]}/{object_id[2:]}")

    def _read_base(self, object_id: str) -> GitObject | None:
        """Read a base that lies outside of its pack. A base in another pack could lead back: only loose ones count."""
        return self._read_loose(object_id) if object_id[2:] in self._list_loose(object_id[:2]) else None

    def _list_loose(self, start: str, limit: int = _MAX_LOOSE_IN_FOLDER) -> frozenset[str]:
        names = self._loose.get(start)
        if names is None:
            rest = re.compile(f"[0-9a-f]{{{self.form.size * 2 - 2}}}")
            entries = self.folder.list_entries(start, limit)
            names = frozenset(entry.name for entry in entries if rest.fullmatch(entry.name))
            self._loose[start] = names
        return names

    def _read_loose(self, object_id: str, *, is_head: bool = False) -> GitObject:
        try:
            opened = self.open_loose(object_id)
        except UnsafeFile as error:
            raise DamagedObject(str(error)) from None
        if opened is None:
            raise DamagedObject("an object is gone")
        with open(opened, "rb") as file:
            stream = zlib.decompressobj()
            try:
                text = stream.decompress(file.read(_CHUNK), MAX_HEAD_BYTES)
                kind, size, start = read_loose_head(text)
                if is_head:
                    return GitObject(kind, b"")
                if size > MAX_READ_BYTES:
                    raise DamagedObject(f"an object has more than {MAX_READ_BYTES} bytes")
                self._work.spend(size)
                pieces, left = [text[start:]], size + 1 - len(text) + start
                while left > 0 and not stream.eof and (chunk := stream.unconsumed_tail or file.read(_CHUNK)):
                    pieces.append(stream.decompress(chunk, left))
                    left -= len(pieces[-1])
            except zlib.error:
                raise DamagedObject("an object cannot be unpacked") from None
        if not stream.eof or left != 1:
            raise DamagedObject("an object has another size than it says")
        return GitObject(kind, b"".join(pieces))

    def _list_packs(self) -> list[Pack]:
        if self._packs is None:
            self._packs = []
            for entry in self.folder.list_entries("pack", _MAX_PACKS):
                if entry.name.endswith(".idx") and not (self._is_hostile and len(self._packs) >= _MAX_HOSTILE_PACKS):
                    try:
                        self._packs.append(self._open_pack(f"pack/{entry.name.removesuffix('.idx')}"))
                    except (DamagedObject, UnsafeFile):
                        continue  # as git does: what only this pack has is missing then, and that is noticed
        return self._packs

    def _open_pack(self, name: str) -> Pack:
        opened = self.folder.open_file(f"{name}.pack")
        if opened is None:
            raise DamagedObject("an index without a pack")
        try:
            return Pack(opened, self._read_index(f"{name}.idx"), self.form.size, MAX_READ_BYTES, self._work)
        except BaseException:
            os.close(opened)
            raise

    def _read_index(self, name: str) -> PackIndex:
        if self._is_hostile:
            data = self.folder.read_file(name, self._index_bytes) or b""
            self._index_bytes -= len(data)
            return PackIndex(data, self.form.size)
        opened = self.folder.open_file(name)
        if opened is None or not os.fstat(opened).st_size:
            raise DamagedObject("an empty index")
        try:
            place = mmap(opened, 0, access=ACCESS_READ)
        finally:
            os.close(opened)
        self._maps.append(place)
        return PackIndex(place, self.form.size)


def read_loose_head(text: bytes) -> tuple[str, int, int]:
    """Read the kind and size in front of a loose object, and where its content begins. Raises `DamagedObject`."""
    head = _LOOSE_HEAD.match(text)
    if head is None or head[1].decode() not in KINDS:
        raise DamagedObject("an object has no proper head")
    return head[1].decode(), int(head[2]), head.end()


def list_alternates(objects: GitFolder) -> list[Path]:
    """List the folders from which a store borrows objects, as its `info/alternates` names them."""
    try:
        text = objects.read_file("info/alternates", _CHUNK) or b""
    except UnsafeFile:
        return []
    lines = [line for line in os.fsdecode(text).splitlines() if line and line[0] not in '#"']
    return [Path(os.path.realpath(objects.path / line)) for line in lines[:_MAX_ALTERNATES]]
