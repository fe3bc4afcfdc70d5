"""Takes the state of a private copy back into the real repository, when all processes of the command are gone.

It is an allow-list: objects, branches, tags, the stash, HEAD, the index, logs and the state of an unfinished merge or
rebase. Settings, hooks and everything else are never taken over. Whatever it reads, an attacker may have written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from treadle.git.commit_list import describe_commit
from treadle.git.file_stat import FileStats
from treadle.git.git_folder import GitFolder, LockHeld, RepositoryUnsupported, UnsafeFile, remove_tree
from treadle.git.index_file import MAX_INDEX_BYTES, DamagedIndex, Entries, parse_index, render_index
from treadle.git.index_merge import IndexChecks, merge_index
from treadle.git.names import show_name
from treadle.git.new_objects import MAX_OBJECTS, NewObjects
from treadle.git.new_repository import SWITCHED_OFF_HEAD, create_repository, is_unfinished, move_aside, read_new_head
from treadle.git.object_format import MAX_CONFIG_BYTES, list_settings
from treadle.git.object_links import Commit, list_links, parse_commit
from treadle.git.object_store import ObjectStore
from treadle.git.operation_state import STATE_FOLDERS, TOP_FILES, StateChecks, take_state
from treadle.git.pack_file import DamagedObject, WorkLimit
from treadle.git.private_copy import MARKER, WATCHED_FOLDERS, PrivateCopy, Signature, sign_files
from treadle.git.real_repository import RealRepository
from treadle.git.repository import Repository
from treadle.git.take_refs import RefTaker
from treadle.sandbox.base import GitReport, RefChange

MAX_REJECTED = 20
_MAX_SENTENCE = 400
_MAX_COMMITS = 50
_WORK_BYTES = 8 << 30
_SHOWN_NAMES = 5
_MAX_MORE_INDEX_BYTES = 64 << 20

# What `git init` writes into the settings of a new repository.
_INITIAL_SETTINGS = {
    *(("core", name) for name in ("repositoryformatversion", "filemode", "bare", "logallrefupdates", "symlinks")),
    *(("core", name) for name in ("ignorecase", "precomposeunicode", "worktree")),
    ("extensions", "objectformat"),
}
# What git writes in its folder besides what is taken over, and what nobody misses.
_IGNORED = {
    *("HEAD", "index", "objects", "refs", "logs", "packed-refs", "config", "info", "hooks", "worktrees", "shallow"),
    *("FETCH_HEAD", "description", "branches", "gc.log", "gc.pid", "MERGE_RR", "rr-cache", "lost-found", MARKER),
    SWITCHED_OFF_HEAD,
    *(*TOP_FILES, *STATE_FOLDERS),
}

IsCleanGitlink = Callable[[str], bool]


def refuse_gitlink(path: str) -> bool:
    """Refuse every new submodule."""
    return False


def take_back(copy: PrivateCopy, is_clean_gitlink: IsCleanGitlink = refuse_gitlink) -> GitReport | None:
    """Take over what a command did in its private copy. None: it did nothing that matters.

    `is_clean_gitlink` says whether the index may have a submodule at a path. Only damage to the real repository raises.
    """
    name = copy.repository.name
    try:
        with GitFolder(copy.folder) as private:
            if copy.is_empty and not private.list_entries(".", 1):
                return None
            if copy.is_empty:
                return _take_new_repository(copy, private, is_clean_gitlink, is_bare=False)
            if private.look_up(MARKER) is None or private.read_file(MARKER, 100) != copy.marker.encode():
                return GitReport(name, rejected=("The repository was replaced by another one. Nothing was kept.",))
            with RealRepository(copy.repository) as real, real.hold():
                return _TakeBack(copy, private, real, is_clean_gitlink).run()
    except (UnsafeFile, RepositoryUnsupported, LockHeld) as error:
        return GitReport(name, rejected=(f"Nothing of .git was kept: {show_name(str(error))}",))


def adopt_repository(found: Repository, aside: Path, *, is_bare: bool) -> GitReport:
    """Replace a repository that a command made in the workspace by a clean one with the allowed content.

    All processes of the command are gone. The repository waits at `aside`, and after a crash this goes on from
    there. If it cannot be taken over, it is left there, switched off. Raises `UnsafeFile` if it cannot be moved.
    """
    if not move_aside(found.git_dir, aside):
        remove_tree(aside)
        return GitReport(found.name)
    copy = PrivateCopy(repository=found, folder=aside, marker="", is_empty=True, head_name=SWITCHED_OFF_HEAD)
    try:
        with GitFolder(aside) as private:
            report = _take_new_repository(copy, private, refuse_gitlink, is_bare=is_bare)
    except (UnsafeFile, RepositoryUnsupported, LockHeld) as error:
        reason = f"The repository {show_name(found.git_dir.name)} was switched off and is now {aside.name}: {error}"
        return GitReport(found.name, rejected=(reason[:_MAX_SENTENCE],))
    with suppress(OSError):  # what cannot be removed stays, and is no repository
        remove_tree(aside)
    return report


def _take_new_repository(
    copy: PrivateCopy, private: GitFolder, is_clean_gitlink: IsCleanGitlink, *, is_bare: bool
) -> GitReport:
    """Create a clean repository, unless a process did that and was killed, and take over what the command made."""
    form, head = read_new_head(private, copy.head_name)
    if copy.head_name != SWITCHED_OFF_HEAD or is_unfinished(copy.repository.git_dir):
        create_repository(copy.repository, form, head, is_bare=is_bare)
    clean = msgspec.structs.replace(copy, form=form, head=head)
    with RealRepository(copy.repository) as real:
        real.remove_leftovers()
        with real.hold():
            report = _TakeBack(clean, private, real, is_clean_gitlink).run() or GitReport(copy.repository.name)
    return msgspec.structs.replace(report, changes=(RefChange("HEAD", "", head), *report.changes))


class _TakeBack:
    """One take-back: objects first, then the index, refs with their logs, HEAD, and the state of operations."""

    def __init__(
        self, copy: PrivateCopy, private: GitFolder, real: RealRepository, is_clean_gitlink: IsCleanGitlink
    ) -> None:
        self._copy, self._private, self._real = copy, private, real
        self._is_clean_gitlink = is_clean_gitlink
        self._objects = NewObjects(real.objects)
        self._blobs: dict[str, bool] = {}
        self._index_before: bytes | None = None
        self._rejected: list[str] = []

    def run(self) -> GitReport | None:
        signatures = sign_files(self._copy.folder)
        self._take_objects()
        # Before the refs: the index fits the files at any time, and a commit of the user in between reverts nothing.
        if signatures.get("index") != self._copy.signatures.get("index"):
            self._take_index()
        refs = RefTaker(self._copy, self._private, self._real, self._objects)
        refs.take_refs()
        refs.take_head()
        checks = StateChecks(self._copy.form, self._objects.has, self._is_commit)
        state = take_state(self._copy.state, self._private, self._real.git, checks)
        self._report_ignored(signatures)
        rejected = [*refs.rejected, *state.rejected, *self._rejected, *self._objects.rejected]
        if not (refs.changes or rejected or state.is_changed or self._index_before is not None):
            return None
        return GitReport(
            repository=self._copy.repository.name,
            changes=tuple(refs.changes),
            commits=self._list_commits(refs.changes),
            rejected=limit_sentences(rejected),
            index_before=self._index_before,
        )

    def _take_objects(self) -> None:
        work = WorkLimit(_WORK_BYTES)
        try:
            with ObjectStore(self._copy.folder / "objects", self._copy.form, is_hostile=True, work=work) as private:
                self._objects.take(private, work)
        except UnsafeFile:
            self._rejected.append("The objects of .git were replaced by something that is no folder. None was kept.")

    def _is_commit(self, object_id: str) -> bool:
        return self._objects.read_kind(object_id) == "commit"

    def _is_blob(self, object_id: str) -> bool:
        if object_id not in self._blobs:  # very many entries may name it
            self._blobs[object_id] = self._objects.read_kind(object_id) == "blob"
        return self._blobs[object_id]

    def _take_index(self) -> None:
        form, base_data = self._copy.form, self._copy.index or b""
        try:
            data = self._private.read_file("index", min(MAX_INDEX_BYTES, len(base_data) + _MAX_MORE_INDEX_BYTES))
            if data is None or data == base_data:
                return
            base, command = _parse(base_data, self._copy), parse_index(data, form)
            if base.keys() == command.keys():  # only what git remembers of the files
                return
            if len(base.keys() ^ command.keys()) > 2 * MAX_OBJECTS:
                raise DamagedIndex(f"more than {MAX_OBJECTS} files were staged at once")
            with self._real.git.lock_file("index") as lock, FileStats(self._copy.repository, form) as files:
                about = self._real.git.look_up("index")
                current = self._real.git.read_file("index", MAX_INDEX_BYTES) or b""
                user = base if current == base_data else _parse(current, self._copy)
                checks = IndexChecks(self._is_blob, self._is_clean_gitlink, files.is_missing)
                result, rejected = merge_index(base, command, user, checks)
                self._rejected.extend(rejected)
                if result.keys() != user.keys():
                    files.refresh(result, int(about.st_mtime) if about else 0)
                    lock.replace(render_index(result, form))
                    self._index_before = current
        except (UnsafeFile, DamagedIndex, LockHeld) as error:
            self._rejected.append(f"What was staged was not kept: {show_name(str(error).rstrip('.'))}. Stage it again.")

    def _report_ignored(self, signatures: Mapping[str, Signature]) -> None:
        """Name what the command changed and what is never taken over."""
        names: list[str] = []
        if signatures.get("config") != self._copy.signatures.get("config") and self._has_new_settings():
            names.append("config")
        old, new = (self._select_watched(each) for each in (self._copy.signatures, signatures))
        names.extend(sorted({name.partition("/")[0] for name, _ in old.items() ^ new.items()}))
        if any(name.startswith("worktrees/") for name in signatures.keys() - self._copy.signatures.keys()):
            names.append("worktrees")
        for entry in self._private.list_entries(".", 1000):
            if entry.name not in _IGNORED and not entry.name.endswith(".lock"):
                names.append(entry.name)
        if names:
            shown = ", ".join(map(show_name, names[:_SHOWN_NAMES])) + (" …" if len(names) > _SHOWN_NAMES else "")
            self._rejected.append(f"Not kept in .git: {shown}. Only the user can change this: tell them the command.")

    def _select_watched(self, signatures: Mapping[str, Signature]) -> dict[str, Signature]:
        """Select the hooks and patterns of a copy. `git init` writes samples of hooks and a file of patterns."""
        watched = ("hooks/", "info/attributes") if self._copy.is_empty else WATCHED_FOLDERS
        return {
            name: signature
            for name, signature in signatures.items()
            if name.startswith(watched) and not name.endswith(".sample")
        }

    def _has_new_settings(self) -> bool:
        try:
            data = self._private.read_file("config", MAX_CONFIG_BYTES) or b""
        except UnsafeFile:
            return True
        settings = {setting[:2] for setting in list_settings(data.decode(errors="replace"))}
        return bool(settings - _INITIAL_SETTINGS) if self._copy.is_empty else data != self._copy.config

    def _list_commits(self, changes: Sequence[RefChange]) -> tuple[str, ...]:
        """List the new commits that the changed refs lead to, newest first."""
        waiting = [change.after for change in changes]
        found: dict[str, Commit] = {}
        with ObjectStore(self._copy.repository.common_dir / "objects", self._copy.form) as objects:
            while waiting and len(found) < _MAX_COMMITS:
                object_id = waiting.pop(0)
                if object_id in found or self._objects.taken.get(object_id) not in ("commit", "tag"):
                    continue
                try:
                    stored = objects.read(object_id)
                    if stored and stored.kind == "tag":
                        waiting.extend(target for target, _ in list_links(stored, self._copy.form))
                        continue
                    found[object_id] = parse_commit(stored.data if stored else b"", self._copy.form)
                except DamagedObject:
                    continue
                waiting.extend(found[object_id].parents)
        ordered = sorted(found.items(), key=lambda item: -item[1].time)
        return tuple(describe_commit(*item) for item in ordered)


def _parse(data: bytes, copy: PrivateCopy) -> Entries:
    return parse_index(data, copy.form) if data else {}


def limit_sentences(sentences: Sequence[str]) -> tuple[str, ...]:
    """Keep a report short: at most some sentences, none twice, none too long."""
    unique = [sentence[:_MAX_SENTENCE] for sentence in dict.fromkeys(sentences)]
    if len(unique) > MAX_REJECTED:
        unique[MAX_REJECTED - 1 :] = [f"{len(unique) - MAX_REJECTED + 1} more changes were not kept."]
    return tuple(unique)
