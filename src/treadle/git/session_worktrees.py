"""Linked worktrees of sessions, created and removed as files. No git runs here: the sandbox fills the folder.

Each lies in a folder of its own below the user's folder of worktrees. While it is created, a locked record beside that
folder says how to undo that, so that a crash leaves nothing behind. No command can write there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from treadle.errors import BadInput, Conflict, TreadleError
from treadle.git.git_folder import GitFolder, LockHeld, RepositoryUnsupported, UnsafeFile, remove_tree
from treadle.git.real_repository import RealRepository, RefMoved
from treadle.git.repository import Repository
from treadle.permissions.paths import list_own_folders

WORKTREE_NOTE = "treadle.worktree"
"""The note that holds the `Worktree` of a session."""

BRANCH_PREFIX = "treadle/"
_FOLDER_PREFIX = "treadle-"
_UNFINISHED = ".unfinished"
_FILLED = b"\n"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_MAX_BYTES = 16 * 1024
_MAX_WORKTREES = 10_000


class Worktree(Struct, frozen=True):
    """A session's own branch and folder.

    `repository` is the folder it was made from, `common_dir` where that keeps its branches, `base` its first commit.
    """

    repository: str
    common_dir: str
    branch: str
    base: str
    folder: str

    @property
    def ref(self) -> str:
        """The full name of the branch."""
        return f"refs/heads/{self.branch}"

    @property
    def holder(self) -> Path:
        """The folder around the worktree. It holds nothing else."""
        return Path(self.folder).parent

    @property
    def record(self) -> Path:
        """The file that exists while the worktree is created. What it says is done, so it is in no sandbox."""
        return self.holder.with_name(f"{self.holder.name}{_UNFINISHED}")

    @property
    def git_dir(self) -> str:
        """Where the repository keeps the HEAD and the index of the worktree, below `common_dir`."""
        return f"worktrees/{_FOLDER_PREFIX}{self.branch.removeprefix(BRANCH_PREFIX)}"


def parse_worktree(data: object) -> Worktree | None:
    """Read the note of a session. Return None if it has no worktree."""
    try:
        return msgspec.convert(data, Worktree)
    except msgspec.ValidationError:
        return None


def plan_worktree(repository: Repository, name: str, parent: Path) -> Worktree:
    """Choose the branch and the folder of a new worktree; raises `BadInput`. An empty name becomes a random one."""
    name = name or os.urandom(4).hex()
    if not _NAME.fullmatch(name):
        raise BadInput(
            f"{name!r} cannot be the name of a worktree: use at most 40 letters, digits, - and _. Nothing was created."
        )
    parent, work_tree = Path(os.path.realpath(parent)), repository.work_tree
    if any(parent.is_relative_to(folder) for folder in (work_tree, repository.common_dir, *list_own_folders())):
        raise BadInput(
            f"{parent} cannot hold worktrees: it is inside the repository, or holds treadle's own data. Nothing was "
            "created. Set worktree_folder in the user's configuration to another folder."
        )
    with _open_repository(repository) as real:
        base = real.resolve_ref("HEAD")
    if not base:
        raise BadInput(f"{work_tree} has no commit yet, and a worktree starts from one. Nothing was created.")
    mark = hashlib.blake2b(os.fsencode(repository.common_dir), digest_size=4).hexdigest()
    return Worktree(
        repository=str(work_tree),
        common_dir=str(repository.common_dir),
        branch=f"{BRANCH_PREFIX}{name}",
        base=base,
        folder=str(parent / f"{name}-{mark}" / work_tree.name),
    )


@contextmanager
def create_worktree(worktree: Worktree) -> Generator[int]:
    """Create a worktree without its files, for the time of the block. It stays when the block ends without an error.

    After an error it is removed. After a crash in the block, the next one that is created removes it first, unless
    somebody has worked in it since the block said `note_filled`. Yields the descriptor of its record.
    """
    with _open_record(worktree) as record:
        try:
            os.write(record, msgspec.json.encode(worktree))
            os.fsync(record)
            with _open_common(worktree) as real, real.hold():
                real.update_ref(worktree.ref, "", worktree.base)
                _write_links(worktree, real.common)
            yield record
        except BaseException:
            _undo(worktree)
            worktree.record.unlink()
            raise
        worktree.record.unlink()


def note_filled(record: int) -> None:
    """Note that the files of a new worktree are there. A session may use it from now on."""
    os.write(record, _FILLED)


@contextmanager
def _open_record(worktree: Worktree) -> Generator[int]:
    """Create an empty, locked record beside the folder of a worktree; raises `Conflict` if the name is taken.

    Nobody else creates or looks for one at the same time, so a record without a lock was left by a crash.
    """
    parent, record = worktree.holder.parent, worktree.record
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _open_locked(parent / ".lock"), _open_common(worktree) as real:
        _remove_unfinished(parent)
        if real.common.look_up("worktrees") and not real.common.is_folder("worktrees"):
            raise UnsafeFile("its folder of worktrees is a link or a file.")
        is_taken = os.path.lexists(record) or os.path.lexists(worktree.holder)
        if is_taken or real.common.look_up(worktree.git_dir) or real.read_ref(worktree.ref):
            raise Conflict(
                f"There is a branch or a worktree {worktree.branch} already. Nothing was created. Choose another name, "
                "or go on with the session that works there."
            )
        opened = os.open(record, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(opened, fcntl.LOCK_EX)
    try:
        yield opened
    finally:
        os.close(opened)


@contextmanager
def _open_locked(path: Path, how: int = fcntl.LOCK_EX) -> Generator[None]:
    opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(opened, how)
        yield
    finally:
        os.close(opened)


def _remove_unfinished(parent: Path) -> None:
    """Remove what processes that were killed left of new worktrees."""
    for record in sorted(parent.glob(f"*{_UNFINISHED}")):
        with suppress(BlockingIOError), _open_locked(record, fcntl.LOCK_EX | fcntl.LOCK_NB):
            try:
                data = record.read_bytes()
                worktree = msgspec.json.decode(data, type=Worktree)
                if not (data.endswith(_FILLED) and has_changed_since(worktree, record.stat().st_mtime_ns)):
                    _undo(worktree)
            except msgspec.DecodeError:  # it was not written yet, so nothing was begun
                pass
            except TreadleError:  # its repository is gone or in use: there is nothing to undo now
                continue
            record.unlink()


def has_changed_since(worktree: Worktree, since: int) -> bool:
    """Tell whether anything in a worktree was changed after a time: a session works there, although its start died."""
    for place in (worktree.folder, f"{worktree.common_dir}/{worktree.git_dir}"):
        for top, _, names in os.walk(place):
            try:
                if any(os.lstat(path).st_ctime_ns > since for path in (top, *(f"{top}/{name}" for name in names))):
                    return True
            except FileNotFoundError:  # it is removed just now
                return True
    return False


def _undo(worktree: Worktree) -> None:
    """Remove a worktree that no session has used. A branch that has moved stays."""
    with _open_common(worktree) as real:
        is_unused = real.read_ref(worktree.ref) == worktree.base
    remove_worktree(worktree, worktree.base if is_unused else "")


def _write_links(worktree: Worktree, common: GitFolder) -> None:
    """Create the folder of the worktree, and the files by which it and its repository find each other."""
    folder = Path(worktree.folder)
    folder.parent.mkdir(mode=0o700)
    folder.mkdir()
    # The last one makes git see the worktree, so it never sees a part of it.
    files = {"commondir": "../..", "HEAD": f"ref: {worktree.ref}", "gitdir": f"{folder}/.git"}
    for name, text in files.items():
        common.write_file(f"{worktree.git_dir}/{name}", os.fsencode(f"{text}\n"))
    with GitFolder(folder) as opened:
        opened.write_file(".git", os.fsencode(f"gitdir: {worktree.common_dir}/{worktree.git_dir}\n"))


def has_folder(worktree: Worktree) -> bool:
    """Whether the folder of the worktree exists. The user may have removed it."""
    return Path(worktree.folder).is_dir()


def find_inner_repositories(worktree: Worktree, names: Iterable[str]) -> tuple[str, ...]:
    """Find which of some folders in the worktree are repositories of their own."""
    return tuple(sorted(name for name in names if os.path.lexists(Path(worktree.folder, name, ".git"))))


def read_tip(worktree: Worktree) -> str:
    """Return the commit of the worktree's branch; empty if the branch is gone."""
    with _open_common(worktree) as real:
        return real.read_ref(worktree.ref)


def read_checked_out(worktree: Worktree) -> str:
    """Return the branch or the commit that the worktree has checked out instead of its own branch; empty if none."""
    with _open_common(worktree) as real:
        text = _read_line(real.common, f"{worktree.git_dir}/HEAD")
    return "" if text == f"ref: {worktree.ref}" else text.removeprefix("ref: ")


def remove_worktree(worktree: Worktree, tip: str) -> None:
    """Remove a worktree with its folder, and its branch if that has the commit `tip`; raises `Conflict` if it moved.

    What is gone already is skipped, so a removal that was interrupted can be repeated. Without `tip` the branch stays.
    """
    with _open_common(worktree) as real, real.hold():
        if tip and real.read_ref(worktree.ref) not in ("", tip):
            raise Conflict(f"The branch {worktree.branch} got new commits just now. Nothing was removed. Run it again.")
        owner = _read_line(real.common, f"{worktree.git_dir}/gitdir")
        if owner not in ("", f"{worktree.folder}/.git"):
            raise Conflict(f"The worktree of {worktree.branch} was moved to {owner}. Nothing was removed. Use git.")
        remove_tree(Path(worktree.folder))
        if real.common.is_folder(worktree.git_dir):
            remove_tree(real.common.path / worktree.git_dir)
        with suppress(OSError):
            (real.common.path / "worktrees").rmdir()  # if it was the last one, as git does
        if tip and real.read_ref(worktree.ref):
            real.update_ref(worktree.ref, tip, "")
            real.common.remove_file(f"logs/{worktree.ref}")
            real.common.remove_empty_folders(f"logs/refs/heads/{BRANCH_PREFIX.rstrip('/')}", "logs/refs/heads")
    remove_tree(worktree.holder)


def list_worktree_folders(repository: Repository) -> list[str]:
    """List the folders of the worktrees that sessions have of a repository."""
    with GitFolder(repository.common_dir) as common:
        entries = common.list_entries("worktrees", _MAX_WORKTREES)
        names = sorted(entry.name for entry in entries if entry.name.startswith(_FOLDER_PREFIX))
        lines = [_read_line(common, f"worktrees/{name}/gitdir") for name in names]
    return [line.removesuffix("/.git") for line in lines if line]


@contextmanager
def _open_repository(repository: Repository) -> Generator[RealRepository]:
    """Open a repository, and say in plain words what does not work."""
    try:
        with RealRepository(repository) as real:
            yield real
    except (RepositoryUnsupported, UnsafeFile, LockHeld) as error:
        raise Conflict(f"{repository.work_tree}: {error} Nothing was changed.") from None
    except RefMoved:
        raise Conflict(f"A branch of {repository.work_tree} moved just now. Run it again.") from None


def _open_common(worktree: Worktree) -> AbstractContextManager[RealRepository]:
    common = Path(worktree.common_dir)
    return _open_repository(Repository(Path(worktree.repository), common, common))


def _read_line(folder: GitFolder, name: str) -> str:
    return os.fsdecode(folder.read_file(name, _MAX_BYTES) or b"").strip("\n")
