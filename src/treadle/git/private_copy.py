"""Builds the private `.git` that a sandboxed command works in. It has everything but the objects, which are borrowed.

It stands alone: also for a linked worktree, HEAD and branches lie in one folder. `take_back.py` reads it afterwards.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from treadle.git.git_folder import GitFolder, RepositoryUnsupported, UnsafeFile
from treadle.git.index_file import MAX_INDEX_BYTES, SKIP_WORKTREE, EntryState, is_plain_index, parse_index, render_index
from treadle.git.object_format import SHA1, ObjectFormat
from treadle.git.operation_state import read_state
from treadle.git.real_repository import RealRepository
from treadle.git.reflogs import read_log
from treadle.git.refs import STASH, is_own_ref, read_loose_refs, read_packed_refs, read_ref_file, render_packed_refs
from treadle.git.repository import Repository
from treadle.git.worktrees import list_other_worktrees

MARKER = "treadle-marker"
MAX_SMALL_BYTES = 1 << 20
_MAX_LISTED_LOGS = 20_000
_MAX_LOGS = 100
"""Logs that a command sees: those of HEAD and the stash, and the ones that changed last. Each takes a file."""

_MAX_COPIED = 200
_INFO_FILES = ("exclude", "attributes", "sparse-checkout")
_MAX_INFO_BYTES = 16 << 20
WATCHED_FOLDERS = ("hooks", "info")

Signature = tuple[int, int, int]
"""Size, place and time of change of a file. That time cannot be set back, so it shows whether a file was changed."""


class PrivateCopy(Struct, frozen=True):
    """A private copy and what was copied into it. `is_empty`: there was no repository yet.

    `refs`, `head`, `index`, `log_sizes`, `stash_log` and `state` are as they were in the real repository. `signatures`
    are those of files in the private copy.
    """

    repository: Repository
    folder: Path
    marker: str
    form: ObjectFormat = SHA1
    head: str = ""
    refs: Mapping[str, str] = field(default_factory=dict[str, str])
    index: bytes | None = None
    log_sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    stash_log: bytes = b""
    state: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    config: bytes = b""
    signatures: Mapping[str, Signature] = field(default_factory=dict[str, Signature])
    is_empty: bool = False
    head_name: str = "HEAD"


def create_private_copy(
    repository: Repository,
    folder: Path,
    *,
    config: str,
    objects: Sequence[str],
    excludes: str = "",
    has_filters: bool = False,
) -> PrivateCopy:
    """Build a private copy of a repository in a new folder.

    `config` is the text of its settings, and `objects` are the paths at which the command finds the real objects.
    `excludes` are patterns of files that git ignores, besides the repository's own. `has_filters`: files may have a
    filter, which does not run inside. Raises `RepositoryUnsupported` when the real repository has links or a format
    that is not known; nothing is left then.
    """
    for path in objects:
        if not path.startswith("/") or "\n" in path:
            raise RepositoryUnsupported(f"The objects are at {path!r}, which git cannot be told.")
    with RealRepository(repository) as real:
        real.remove_leftovers()
        return _CopyBuilder(real, folder).build(config, objects, excludes, has_filters=has_filters)


def create_empty_copy(repository: Repository, folder: Path) -> PrivateCopy:
    """Build an empty folder in which a command may run `git init`, for a work tree without a repository."""
    folder.mkdir(mode=0o700)
    return PrivateCopy(repository=repository, folder=folder, marker="", is_empty=True)


def hide_files(copy: PrivateCopy, paths: Iterable[str]) -> PrivateCopy:
    """Make git leave files alone that a command sees empty. `paths` are relative to the work tree.

    Tracked ones get the mark that git gives to files that are not checked out, others are ignored. Marks are never
    taken back, and neither are patterns.
    """
    names = [os.fsencode(path) for path in paths if "\n" not in path]
    if not names:
        return copy
    for place, start in (("info/exclude", b"\n/"), ("info/sparse-checkout", b"\n!/")):
        if start == b"\n/" or (copy.folder / place).exists():
            with (copy.folder / place).open("ab") as file:
                file.writelines(start + re.sub(rb"([\\\s*?\[])", rb"\\\1", name) for name in names)
    index, place = copy.index or b"", copy.folder / "index"
    # In version 4 a path is not written in full.
    if index[4:8] == b"\0\0\0\4" or any(name + b"\0" in index for name in names):
        entries, hidden = parse_index(index, copy.form), {*names}
        for content, state in entries.items():
            if content[0] in hidden:
                entries[content] = EntryState(state.stat, state.marks | SKIP_WORKTREE)
        time = place.stat().st_mtime_ns
        place.write_bytes(render_index(entries, copy.form))
        os.utime(place, ns=(time, time))
    return replace(copy, signatures=sign_files(copy.folder))


def copy_files(source: GitFolder, name: str, target: Path, *, only_programs: bool = False) -> None:
    """Copy the small regular files of a folder. Samples, links and what is in its folders are left out."""
    target.mkdir(exist_ok=True)
    for entry in source.list_entries(name, _MAX_COPIED):
        about = source.look_up(f"{name}/{entry.name}")
        if about is None or entry.name.endswith(".sample") or (only_programs and not about.st_mode & stat.S_IXUSR):
            continue
        with suppress(UnsafeFile):
            if (data := source.read_file(f"{name}/{entry.name}", MAX_SMALL_BYTES)) is not None:
                _write(target / entry.name, data)
                (target / entry.name).chmod(0o755 if about.st_mode & stat.S_IXUSR else 0o644)


def sign_file(folder: GitFolder, name: str) -> Signature | None:
    """Describe a file without reading it; None when there is nothing."""
    about = folder.look_up(name)
    return (about.st_size, about.st_ino, about.st_ctime_ns) if about else None


def sign_files(folder: Path) -> dict[str, Signature]:
    """Describe what is only compared in a private copy: the index, the packed refs, hooks, worktrees and more."""
    found: dict[str, Signature] = {}
    with GitFolder(folder) as opened:
        names = ["index", "packed-refs", "config", "shallow"]
        for top in (*WATCHED_FOLDERS, "worktrees"):
            names.extend(f"{top}/{entry.name}" for entry in opened.list_entries(top, 1000) if entry.name != "refs")
        for name in names:
            if signature := sign_file(opened, name):
                found[name] = signature
    return found


class _CopyBuilder:
    """Builds one copy. Everything that can be refused is read before the new folder is made."""

    def __init__(self, real: RealRepository, folder: Path) -> None:
        self._real, self._folder = real, folder

    def build(self, config: str, objects: Sequence[str], excludes: str, *, has_filters: bool) -> PrivateCopy:
        """Build the copy, and return it with what was copied."""
        head, refs = self._read_refs()
        index = self._read_index()
        state = read_state(self._real.git)
        texts = {
            "HEAD": f"{head}\n".encode(errors="surrogateescape"),
            "config": (config + self._render_format()).encode(),
            "objects/info/alternates": "".join(f"{path}\n" for path in objects).encode(errors="surrogateescape"),
            MARKER: secrets.token_hex(16).encode(),
            **{name: f"{value}\n".encode() for name, value in refs.items() if value.startswith("ref:")},
            **({"index": index} if index is not None else {}),
            **({"packed-refs": packed} if (packed := render_packed_refs(refs)) else {}),
            **state,
            **self._describe_worktrees(),
            **dict(self._read_small_files()),
        }
        if excludes:
            own = texts.get("info/exclude", b"")
            texts["info/exclude"] = own + f"\n{excludes}\n".encode(errors="surrogateescape")
        self._folder.mkdir(mode=0o700)
        for name in ("objects/info", "objects/pack", "refs/heads", "refs/tags", "logs", "info", "hooks"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        for name, data in texts.items():
            _write(self._folder / name, data)
        about = self._real.git.look_up("index")
        if index is not None and about:
            # git compares this time with those of files, and reads again the ones that changed in the same second. If
            # they had a filter, it would fail, so these are taken for unchanged.
            time = about.st_mtime_ns + (1_000_000_000 if has_filters else 0)
            os.utime(self._folder / "index", ns=(time, time))
        # The user's hooks run where the command runs: in the sandbox.
        copy_files(self._real.common, "hooks", self._folder / "hooks", only_programs=True)
        return PrivateCopy(
            repository=self._real.places,
            folder=self._folder,
            marker=texts[MARKER].decode(),
            form=self._real.form,
            head=head,
            refs=refs,
            index=index,
            log_sizes=self._copy_logs(),
            stash_log=self._read_stash_log(),
            state=state,
            config=texts["config"],
            signatures=sign_files(self._folder),
        )

    def _read_refs(self) -> tuple[str, dict[str, str]]:
        """Read HEAD and all refs as this worktree sees them."""
        for name in ("refs", "objects"):
            if not self._real.common.is_folder(name):
                raise RepositoryUnsupported(f"{name} of this repository is not a folder, so commands cannot change it.")
        try:
            head = read_ref_file(self._real.git, "HEAD", self._real.form)
            packed = read_packed_refs(self._real.common, self._real.form)
        except UnsafeFile as error:
            raise RepositoryUnsupported(f"This repository cannot be copied: {error}") from None
        if not head:
            raise RepositoryUnsupported("The HEAD of this repository is missing or damaged.")
        loose = read_loose_refs(self._real.common, self._real.form)
        refs = {**packed, **loose.values}
        odd = loose.odd
        if self._real.is_linked:
            own = read_loose_refs(self._real.git, self._real.form)
            refs = {name: value for name, value in refs.items() if not is_own_ref(name)}
            refs.update((name, value) for name, value in own.values.items() if is_own_ref(name))
            odd = [*odd, *own.odd]
        for name in odd:
            about = self._real.choose_folder(name).look_up(name)
            if about is not None and not stat.S_ISREG(about.st_mode):
                raise RepositoryUnsupported(f"{name} of this repository is a link or no regular file.")
        return head, refs

    def _read_index(self) -> bytes | None:
        try:
            data = self._real.git.read_file("index", MAX_INDEX_BYTES)
        except UnsafeFile as error:
            raise RepositoryUnsupported(f"This repository cannot be copied: {error}") from None
        if data is not None and not is_plain_index(data, self._real.form):
            raise RepositoryUnsupported(
                "The index of this repository is split or sparse. `git update-index --no-split-index` or "
                "`git sparse-checkout init --no-sparse-index` makes it one that commands can change."
            )
        return data

    def _render_format(self) -> str:
        """Write the settings without which git misreads the objects. The last value of a setting counts."""
        form = self._real.form
        if form.name == "sha1":
            return ""
        return f"\n[core]\n\trepositoryformatversion = 1\n[extensions]\n\tobjectformat = {form.name}\n"

    def _read_small_files(self) -> Iterator[tuple[str, bytes]]:
        places = [(self._real.common, "shallow"), (self._real.git, "FETCH_HEAD")]
        places.extend(
            (self._real.git if name == "sparse-checkout" else self._real.common, f"info/{name}") for name in _INFO_FILES
        )
        for folder, name in places:
            try:
                data = folder.read_file(name, _MAX_INFO_BYTES)
            except UnsafeFile as error:
                if name == "shallow":
                    raise RepositoryUnsupported(f"This repository cannot be copied: {error}") from None
                continue  # a command works without it
            if data is not None:
                yield name, data

    def _describe_worktrees(self) -> dict[str, bytes]:
        """Describe the other worktrees, so that git refuses to check out or delete their branches."""
        found: dict[str, bytes] = {}
        for number, other in enumerate(list_other_worktrees(self._real)):
            place = f"worktrees/{number}"
            found[f"{place}/HEAD"] = f"{other.head}\n".encode(errors="surrogateescape")
            found[f"{place}/gitdir"] = f"{other.work_tree}/.git\n".encode(errors="surrogateescape")
            found[f"{place}/commondir"] = b"../..\n"
        return found

    def _copy_logs(self) -> dict[str, int]:
        """Copy the logs of refs, and return their sizes by the name of the ref."""
        found: list[tuple[str, GitFolder]] = []
        for source in {self._real.common, self._real.git} if self._real.is_linked else {self._real.common}:
            for path, entry in source.walk_entries("logs", _MAX_LISTED_LOGS):
                name = path.removeprefix("logs/")
                is_ours = not self._real.is_linked or is_own_ref(name) == (source is self._real.git)
                if is_ours and entry.is_file(follow_symlinks=False):
                    found.append((name, source))
        if len(found) > _MAX_LOGS:
            found = sorted(found, key=lambda log: _rank_log(*log), reverse=True)[:_MAX_LOGS]
        return {name: size for name, source in found if (size := self._copy_log(source, name)) is not None}

    def _copy_log(self, source: GitFolder, name: str) -> int | None:
        with suppress(UnsafeFile):
            opened = source.open_file(f"logs/{name}")
            if opened is not None:
                with open(opened, "rb", buffering=0):
                    return self._copy_content(opened, self._folder / "logs" / name)
        return None

    def _read_stash_log(self) -> bytes:
        try:
            return read_log(self._real.common, STASH)
        except UnsafeFile:
            return b""  # it is compared again before it is changed

    def _copy_content(self, source: int, target: Path) -> int:
        """Copy a file in the kernel, and return how many bytes it has."""
        target.parent.mkdir(parents=True, exist_ok=True)
        done, left = 0, os.fstat(source).st_size
        with target.open("xb", buffering=0) as file:
            while left > done and (count := os.sendfile(file.fileno(), source, done, left - done)):
                done += count
        return done


def _rank_log(name: str, source: GitFolder) -> tuple[bool, float]:
    about = source.look_up(f"logs/{name}")
    return name in ("HEAD", STASH), about.st_mtime if about else 0.0


def _write(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb", buffering=0) as file:
        file.write(data)
