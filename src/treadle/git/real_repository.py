"""The user's repository, open for reading and for changes: its folders, its objects, its refs.

Refs change as git changes them: under `NAME.lock`, and only from the value that the caller expects.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from typing import Self

from treadle.git.git_folder import GitFolder, LockHeld, RepositoryUnsupported, UnsafeFile
from treadle.git.object_format import read_format
from treadle.git.object_store import ObjectStore
from treadle.git.refs import MAX_PACKED_BYTES, is_own_ref, read_packed_refs, read_ref_file, remove_packed_ref
from treadle.git.repository import Repository

TAKE_BACK_WAIT_S = 60.0
_POLL_S = 0.02
_MAX_SYMBOLIC = 5


class RefMoved(Exception):
    """A ref does not have the value that was expected. `value` is the one that it has; empty: it does not exist."""

    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.value = value


class RealRepository:
    """An open repository, for a `with` block. Raises `RepositoryUnsupported` when a part of it is a link."""

    def __init__(self, repository: Repository) -> None:
        self.places = repository
        self._stack = ExitStack()
        self._packed: tuple[tuple[int, int, int], dict[str, str]] | None = None
        try:
            self.git = self._stack.enter_context(GitFolder(repository.git_dir))
            self.common = self._stack.enter_context(GitFolder(repository.common_dir))
            self.form = read_format(self.common)
            self.objects = self._stack.enter_context(ObjectStore(repository.common_dir / "objects", self.form))
        except UnsafeFile as error:
            self._stack.close()
            raise RepositoryUnsupported(f"This repository cannot be used by commands: {error}") from None
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    @property
    def is_linked(self) -> bool:
        """Whether this is a linked worktree."""
        return self.places.git_dir != self.places.common_dir

    def choose_folder(self, ref: str) -> GitFolder:
        """Choose the folder in which a ref and its log lie."""
        return self.git if is_own_ref(ref) else self.common

    @contextmanager
    def hold(self) -> Generator[None]:
        """Keep other changes by treadle out for a while. It locks the folder, so no file of ours is left in it."""
        opened = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.common.fd)
        until = time.monotonic() + TAKE_BACK_WAIT_S
        try:
            while True:
                try:
                    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise LockHeld("another command is changing this repository") from None
                    time.sleep(_POLL_S)
                except OSError:
                    break  # a network file system without such locks: git's own locks still hold
            yield
        finally:
            os.close(opened)

    def remove_leftovers(self) -> None:
        """Remove what killed processes of treadle left here, unless one is at work now or it cannot be known."""
        opened = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.common.fd)
        try:
            with suppress(OSError):
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.common.remove_leftovers()
                if self.is_linked:
                    self.git.remove_leftovers()
        finally:
            os.close(opened)

    def read_ref(self, name: str) -> str:
        """Read the value of a ref or of HEAD; empty when it does not exist. Raises `UnsafeFile`."""
        value = read_ref_file(self.choose_folder(name), name, self.form)
        if not value and not is_own_ref(name):
            return self._read_packed().get(name, "")
        return value

    def _read_packed(self) -> dict[str, str]:
        """Read the packed refs, again only if their file was replaced: it may have very many, and each ref asks."""
        about = self.common.look_up("packed-refs")
        version = (about.st_ino, about.st_size, about.st_ctime_ns) if about else (0, 0, 0)
        if self._packed is None or self._packed[0] != version:
            self._packed = version, read_packed_refs(self.common, self.form)
        return self._packed[1]

    def resolve_ref(self, name: str) -> str:
        """Find the id at which a ref is, through symbolic refs; empty when there is none."""
        value = f"ref: {name}"
        for _ in range(_MAX_SYMBOLIC):
            if not value.startswith("ref: "):
                return value
            value = self.read_ref(value.removeprefix("ref: "))
        return ""

    def update_ref(self, name: str, before: str, after: str) -> None:
        """Move a ref, or HEAD, from one value to another. An empty value: it does not exist.

        Raises `RefMoved` when it is elsewhere, `LockHeld`, and `UnsafeFile` when the name is taken by other refs.
        """
        folder = self.choose_folder(name)
        try:
            with folder.lock_file(name) as lock:
                current = self.read_ref(name)
                if current != before:
                    raise RefMoved(current)
                if after:
                    self._make_room(folder, name)
                    lock.replace(f"{after}\n".encode())
                else:
                    self._remove_ref(folder, name)
        except (NotADirectoryError, IsADirectoryError):
            raise UnsafeFile(f"{name} is in the way of another name, or the other way round") from None
        except OSError as error:
            raise UnsafeFile(f"{name} cannot be written: {error.strerror}") from None
        if not after:
            folder.remove_empty_folders(name.rpartition("/")[0], "refs/heads")
            folder.remove_empty_folders(name.rpartition("/")[0], "refs/tags")

    def _make_room(self, folder: GitFolder, name: str) -> None:
        """Remove empty folders that have the name of a new ref, and refuse a name that other refs occupy."""
        if folder.is_folder(name) and not folder.remove_empty_tree(name):
            raise UnsafeFile(f"there are branches or tags below {name}")
        if is_own_ref(name) or self.read_ref(name):
            return
        packed = self._read_packed()
        parts = name.split("/")
        above = {"/".join(parts[:count]) for count in range(3, len(parts))}
        if above & packed.keys() or any(other.startswith(f"{name}/") for other in packed):
            raise UnsafeFile(f"{name} is in the way of another name, or the other way round")

    def _remove_ref(self, folder: GitFolder, name: str) -> None:
        """Remove a ref: first where it is packed, because the loose one hides that."""
        if not is_own_ref(name) and name in self._read_packed():
            with self.common.lock_file("packed-refs") as lock:
                data = self.common.read_file("packed-refs", MAX_PACKED_BYTES) or b""
                lock.replace(remove_packed_ref(data, name))
        folder.remove_file(name)
