"""Takes the objects that a command made into the real repository, each checked by its hash.

An object is written only if everything it refers to is there, so whatever a repository has is complete. What is new is
found by name; nothing here trusts that a name is right.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec import Struct

from treadle.git.git_folder import UnsafeFile, read_limited
from treadle.git.names import show_name
from treadle.git.object_format import ObjectFormat
from treadle.git.object_links import Link, list_links
from treadle.git.object_store import MAX_HEAD_BYTES, ObjectStore, read_loose_head
from treadle.git.pack_file import DamagedObject, GitObject, WorkLimit
from treadle.git.tree_size import MAX_DEPTH, MAX_ENTRIES, measure_tree

MAX_OBJECTS = 200_000
"""Objects that are taken over from one command."""

MAX_OBJECT_BYTES = 1 << 30
MAX_PARSED_BYTES = 32 << 20
_CHUNK = 1 << 18
_FEW = 8


class NewObject(Struct, frozen=True):
    """A checked object that waits in a temporary file. `links` are what it refers to."""

    kind: str
    temporary: str
    links: tuple[Link, ...]


class NewObjects:
    """What was found in a private copy. `taken` has the kinds of the objects that the real repository got."""

    def __init__(self, real: ObjectStore) -> None:
        self._real = real
        self._kinds: dict[str, str] = {}
        self.taken: dict[str, str] = {}
        self.rejected: list[str] = []

    def has(self, object_id: str) -> bool:
        """Whether the real repository has an object now, with everything it refers to."""
        return object_id in self.taken or object_id == self._empty_tree or self._real.has(object_id)

    def read_kind(self, object_id: str) -> str:
        """Read the kind of an object of the real repository; empty when it is missing or incomplete."""
        if not self.has(object_id):
            return ""
        return self.taken.get(object_id) or self._real.read_kind(object_id)

    @property
    def _empty_tree(self) -> str:
        return self._real.form.hash_object("tree", b"")  # git knows it without having it

    def take(self, private: ObjectStore, work: WorkLimit) -> None:
        """Check and write all objects that the real repository does not have."""
        ids = private.list_ids(MAX_OBJECTS)
        if len(ids) > MAX_OBJECTS:
            self.rejected.append(
                f"The command made more than {MAX_OBJECTS} git objects. Only some were kept: commit less at a time."
            )
            ids = ids[:MAX_OBJECTS]
        found: dict[str, NewObject] = {}
        try:
            for object_id in ids:
                if not self._real.has(object_id):
                    try:
                        found[object_id] = self._check_object(private, object_id, work)
                    except (DamagedObject, UnsafeFile) as error:
                        self.rejected.append(f"The git object {object_id[:12]} was not kept: {show_name(str(error))}")
            order = self._sort_complete(found)
            self._flush([found[object_id].temporary for object_id in order])
            for object_id in order:
                self._real.folder.publish_file(found[object_id].temporary, f"{object_id[:2]}/{object_id[2:]}")
                self.taken[object_id] = found[object_id].kind
        finally:
            for one in found.values():
                with suppress(OSError):
                    self._real.folder.remove_file(one.temporary)
        if missing := len(found) - len(order):
            self.rejected.append(
                f"{missing} git objects were not kept: what they refer to is missing or of another kind, or they stand "
                f"for more than {MAX_ENTRIES} files, {MAX_DEPTH} folders in each other or a chain of tags."
            )

    def _check_object(self, private: ObjectStore, object_id: str, work: WorkLimit) -> NewObject:
        # git removes files of this name itself when they are old, so a crash leaves nothing behind for long.
        temporary = f"tmp_obj_treadle_{secrets.token_hex(8)}"
        target = self._real.folder.create_file(temporary, 0o444)
        try:
            with open(target, "wb") as file:
                source = private.open_loose(object_id)
                if source is not None:
                    with open(source, "rb", buffering=0):
                        found = copy_loose(source, file.write, object_id, private.form, work)
                else:
                    found = private.read(object_id) or GitObject("", b"")
                    if private.form.hash_object(found.kind, found.data) != object_id:
                        raise DamagedObject("its content has another hash than its name says")
                    if found.kind != "blob" and len(found.data) > MAX_PARSED_BYTES:
                        raise DamagedObject("an object is too large")
                    file.write(zlib.compress(b"%s %d\0" % (found.kind.encode(), len(found.data)) + found.data, 1))
            return NewObject(found.kind, temporary, tuple(list_links(found, private.form)))
        except BaseException:
            self._real.folder.remove_file(temporary)
            raise

    def _sort_complete(self, found: dict[str, NewObject]) -> list[str]:
        """Sort the objects so that each comes after what it refers to. Those that git could not use are left out."""
        order: dict[str, bool] = {}  # whether git can use it
        for start in found:
            waiting = [start]
            while waiting:
                here = waiting[-1]
                links = found[here].links
                if here in order:
                    waiting.pop()
                elif inner := [link for link, kind in links if kind and link in found and link not in order]:
                    waiting.extend(inner)
                else:
                    is_complete = all(
                        found[link].kind == kind and order[link] if link in found else self._has_kind(link, kind)
                        for link, kind in links
                        if kind
                    )
                    order[here] = is_complete and not self._is_bomb(here, found)
                    waiting.pop()
        return [object_id for object_id, is_usable in order.items() if is_usable]

    def _has_kind(self, object_id: str, kind: str) -> bool:
        if object_id not in self._kinds:
            is_empty_tree = object_id == self._empty_tree
            self._kinds[object_id] = "tree" if is_empty_tree else self._real.read_kind(object_id)
        return self._kinds[object_id] == kind

    def _is_bomb(self, object_id: str, found: dict[str, NewObject]) -> bool:
        """Whether it is a tree that git could not go through, or a tag of a tag of a tag, which takes git very long."""

        def read_links(here: str) -> Sequence[Link]:
            if here in found:
                return found[here].links
            try:
                stored = self._real.read(here)
                return list_links(stored, self._real.form) if stored else ()
            except DamagedObject:  # nothing that a command made is damaged: git has read it before
                return ()

        if found[object_id].kind == "tag":
            targets = [target for target, kind in found[object_id].links if kind == "tag"]
            return any(kind == "tag" for target in targets for _, kind in read_links(target))
        return found[object_id].kind == "tree" and measure_tree(object_id, read_links).is_too_large

    def _flush(self, names: list[str]) -> None:
        """Put files on the disk before they get their names. Many are written by one call for the file system."""
        if len(names) > _FEW:
            sync_file_system = getattr(ctypes.CDLL(None), "syncfs", None)
            if sync_file_system is None or sync_file_system(self._real.folder.fd) != 0:
                os.sync()
            return
        for name in names:
            opened = self._real.folder.open_file(name)
            if opened is not None:
                os.fsync(opened)
                os.close(opened)


def copy_loose(
    source: int, write: Callable[[bytes], object], object_id: str, form: ObjectFormat, work: WorkLimit
) -> GitObject:
    """Copy the file of a loose object and check it on the way. The content of a blob is not returned.

    Raises `DamagedObject` when the hash is wrong, the object is too large, or something follows it.
    """
    stream, running = zlib.decompressobj(), form.start_hash()
    head, kind, size, done = b"", "", -1, 0
    kept: list[bytes] = []
    while chunk := read_limited(source, _CHUNK):
        write(chunk)
        while chunk:
            if stream.eof:
                raise DamagedObject("something follows the object in its file")
            try:
                piece = stream.decompress(chunk, MAX_HEAD_BYTES if size < 0 else _CHUNK * 4)
            except zlib.error:
                raise DamagedObject("an object cannot be unpacked") from None
            chunk = stream.unconsumed_tail or stream.unused_data
            running.update(piece)
            if size < 0:
                head += piece
                if len(head) < MAX_HEAD_BYTES and not stream.eof:
                    continue
                kind, size, start = read_loose_head(head)
                if size > (MAX_OBJECT_BYTES if kind == "blob" else MAX_PARSED_BYTES):
                    raise DamagedObject("an object is too large")
                work.spend(size)
                piece = head[start:]
            done += len(piece)
            if done > size:
                raise DamagedObject("an object has another size than it says")
            if kind != "blob":
                kept.append(piece)
    if not stream.eof or done != size or running.hexdigest() != object_id:
        raise DamagedObject("its content has another hash than its name says")
    return GitObject(kind, b"".join(kept))
