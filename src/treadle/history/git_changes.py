"""What commands change in the git repositories of a workspace, recorded so that a rewind can undo it.

A sandbox reports it. On the host, and after a command that was cut off, the refs before and after are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from treadle.errors import TreadleError
from treadle.events import KeptRef
from treadle.git.find_repository import find_repository
from treadle.git.index_file import MAX_INDEX_BYTES, Content, DamagedIndex, parse_index
from treadle.git.names import is_branch, is_ref_name
from treadle.git.object_format import SHA1, ObjectFormat
from treadle.git.real_repository import RealRepository
from treadle.git.reflogs import read_log
from treadle.git.refs import STASH, read_loose_refs, read_packed_refs, read_ref_file
from treadle.git.repository import Repository
from treadle.git.restore_stash import list_stashes
from treadle.git.worktrees import list_foreign_branches
from treadle.history.base import Contents
from treadle.history.content_store import MAX_KEPT_BYTES
from treadle.sandbox.base import GitReport

HEAD = "HEAD"
INDEX = "index"
MAX_REPOSITORIES = 50
MAX_MOVED = 200
"""Refs that are recorded for one command in one repository."""

_MAX_REFS = 2000
_SYMBOLIC = "ref: "
_OPERATIONS = {
    "MERGE_HEAD": "merge",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
}


class RepositoryState(Struct, frozen=True):
    """A repository at one time: its refs and `HEAD`, its index file, the log of the stash, and what is unfinished.

    Linked worktrees have the same common folder, and all refs but `HEAD` in common. `foreign` are the branches that
    other worktrees have checked out. `commit` is the one that `HEAD` leads to.
    """

    name: str
    values: Mapping[str, str] = {}
    index: bytes = b""
    operations: tuple[str, ...] = ()
    form: ObjectFormat = SHA1
    places: Repository | None = None
    commit: str = ""
    stash_log: bytes = b""
    foreign: frozenset[str] = frozenset()

    @property
    def common_dir(self) -> Path:
        """Where the refs are that linked worktrees have in common."""
        return self.places.common_dir if self.places is not None else Path()

    @property
    def operation(self) -> str:
        """What is unfinished: a merge, a rebase, …"""
        return _OPERATIONS[self.operations[0]] if self.operations else ""

    def get_value(self, ref: str) -> str:
        """Return the value of a ref. Empty when there is none. That of the index and the stash also has a hash."""
        return hash_entries(self.index, self.form) if ref == INDEX else self.values.get(ref, "")

    def get_file(self, ref: str) -> bytes | None:
        """Return the file that the index or the stash is; None for any other ref."""
        return self.index if ref == INDEX else self.stash_log if ref == STASH else None


class KeptRepository(Struct, frozen=True):
    """A repository before a command, as the list of files keeps it. `contents` name the stored index and stash."""

    name: str
    values: dict[str, str]
    contents: dict[str, str] = {}


class GitChanges(Struct):
    """What a command changed in git, and what of that cannot be restored."""

    refs: list[KeptRef] = field(default_factory=list[KeptRef])
    left_out: list[str] = field(default_factory=list[str])

    def add(self, before: RepositoryState, now: RepositoryState, store: Contents) -> None:
        """Add how a repository changed. If too many refs moved, keep the most important ones."""
        moved = sorted(ref for ref in {**before.values, **now.values} if before.get_value(ref) != now.get_value(ref))
        unknown = [ref for ref in moved if not is_kept_ref(ref)]
        is_staged = before.index != now.index and before.get_value(INDEX) != now.get_value(INDEX)
        unknown += [INDEX] if is_staged and len(before.index) > MAX_KEPT_BYTES else []
        # HEAD is recorded also where it stayed: it says to which branch the index belongs.
        refs = [HEAD, INDEX] if is_staged and INDEX not in unknown else [HEAD] if moved else []
        branch = get_branch(now.get_value(HEAD))
        refs = [*dict.fromkeys((*refs, *(ref for ref in (branch, *moved) if ref in moved and ref not in unknown)))]
        for ref in refs[:MAX_MOVED]:
            file = before.get_file(ref)
            content = store.put(file)[0] if file else ""
            self.refs.append(KeptRef(ref, before.get_value(ref), now.get_value(ref), now.name, content))
        if len(refs) > MAX_MOVED:
            unknown.append(f"… and {len(refs) - MAX_MOVED} more refs")
        unknown += (name for name in before.operations if name not in now.operations)
        self.left_out += (build_ref_path(now.name, ref) for ref in unknown)


def keep_repository(state: RepositoryState, store: Contents) -> KeptRepository:
    """Store a repository before a command."""
    files = {ref: file for ref in (INDEX, STASH) if (file := state.get_file(ref))}
    return KeptRepository(state.name, dict(state.values), dict(zip(files, store.put(*files.values()), strict=True)))


def compare_reports(
    workspace: Path, reports: Iterable[GitReport], before: Mapping[str, RepositoryState], store: Contents
) -> GitChanges:
    """Find what a sandboxed command changed, by the reports about it."""
    changes = GitChanges()
    for report in reports:
        if not report.changes and report.index_before is None:
            continue
        try:
            now = read_repository_state(workspace, report.repository, [STASH])
        except TreadleError:
            changes.left_out.append(build_git_path(report.repository))
            continue
        head, index = now.get_value(HEAD), now.index if report.index_before is None else report.index_before
        then = {HEAD: head, **{change.ref: change.before for change in report.changes}}
        moved = {HEAD: head, **{change.ref: change.after for change in report.changes}}
        known = before.get(report.repository, RepositoryState(report.repository))
        if STASH in moved:  # the stash is a list, and a report names only the newest
            then[STASH], moved[STASH] = known.get_value(STASH), now.get_value(STASH)
        past = replace(now, values=then, index=index, operations=known.operations, stash_log=known.stash_log)
        changes.add(past, replace(now, values=moved), store)
    return changes


def compare_states(
    workspace: Path, names: Iterable[str], before: Mapping[str, RepositoryState], store: Contents
) -> GitChanges:
    """Find what a command changed, or somebody else at that time, by the repositories before and after it."""
    changes, present = GitChanges(), read_repositories(workspace, dict.fromkeys((*before, *names)))
    # What linked worktrees have in common is recorded once, if possible for the one in which it is checked out.
    owners = {(now.common_dir, get_branch(now.get_value(HEAD))): name for name, now in present.items()}
    for name, now in present.items():
        then = before.get(name, RepositoryState(name, form=now.form))
        shared = [ref for ref in (*then.values, *now.values) if ref != HEAD]
        others = {ref for ref in shared if owners.setdefault((now.common_dir, ref), name) != name}
        then, now = (
            replace(one, values={k: v for k, v in one.values.items() if k not in others}) for one in (then, now)
        )
        changes.add(then, now, store)
    changes.left_out += (build_git_path(name) for name in before if name not in present)
    return changes


def read_repositories(workspace: Path, names: Iterable[str]) -> dict[str, RepositoryState]:
    """Read the repositories in these folders of the workspace. One that cannot be read is left out."""
    found: dict[str, RepositoryState] = {}
    for name in list(names)[:MAX_REPOSITORIES]:
        with suppress(TreadleError):
            found[name] = read_repository_state(workspace, name)
    return found


def read_repository_state(workspace: Path, name: str, refs: Iterable[str] | None = None) -> RepositoryState:
    """Read a repository with these refs, or with all. No git runs, and no link is followed.

    Raises `NoRepository`, `RepositoryUnsupported` and `UnsafeFile`.
    """
    places = find_repository(workspace, name)
    with RealRepository(places) as real:
        values = read_packed_refs(real.common, real.form)
        if refs is None:
            for top in ("refs/heads", "refs/tags"):
                values |= read_loose_refs(real.common, real.form, top).values
        chosen = [ref for ref in values if is_kept_ref(ref)] if refs is None else [*filter(is_kept_ref, refs)]
        head = real.read_ref(HEAD)
        if refs is None and len(chosen) > _MAX_REFS:
            chosen = [get_branch(head)]
        chosen = [*dict.fromkeys((*chosen, STASH))]
        for ref in chosen:
            values[ref] = read_ref_file(real.choose_folder(ref), ref, real.form) or values.get(ref, "")
        log = read_log(real.common, STASH)
        stashes = list_stashes(log, real.form)
        if values[STASH] and len(stashes) > 1:  # the ref names only the newest
            values[STASH] += f" {sha256(' '.join(stashes).encode()).hexdigest()}"
        return RepositoryState(
            name=name,
            values={ref: values[ref] for ref in chosen if values[ref]} | {HEAD: head},
            index=real.git.read_file(INDEX, MAX_INDEX_BYTES) or b"",
            operations=tuple(one for one in _OPERATIONS if real.git.look_up(one) is not None),
            form=real.form,
            places=places,
            commit=real.resolve_ref(HEAD),
            stash_log=log,
            foreign=frozenset(list_foreign_branches(real)),
        )


def hash_entries(index: bytes, form: ObjectFormat) -> str:
    """Hash what an index says, without what git remembers of files: that changes with each look at them."""
    if not index:
        return ""
    try:
        content: object = sorted(parse_index(index, form))
    except DamagedIndex:  # or split: then any difference counts
        content = index
    return sha256(repr(content).encode()).hexdigest()


def list_staged(old: bytes, new: bytes, form: ObjectFormat) -> list[str]:
    """List the paths whose entries differ between two index files, as `A`, `M` or `D` and the path."""
    try:
        before, now = (parse_index(index, form).keys() if index else set[Content]() for index in (old, new))
    except DamagedIndex:
        return []
    gone, fresh = ({path for path, *_ in some} for some in (before - now, now - before))
    letters = ((path, "M" if path in gone & fresh else "A" if path in fresh else "D") for path in gone | fresh)
    return [f"{letter} {path.decode(errors='replace')}" for path, letter in sorted(letters)]


def is_kept_ref(ref: str) -> bool:
    """Whether a ref takes part in a rewind: HEAD, a branch, a tag, the stash."""
    return ref in (HEAD, STASH) or is_branch(ref) or (ref.startswith("refs/tags/") and is_ref_name(ref))


def get_branch(head: str) -> str:
    """Return the branch that HEAD names, or HEAD itself if it is at a commit."""
    return head.removeprefix(_SYMBOLIC) if head.startswith(_SYMBOLIC) else HEAD


def build_ref_path(repository: str, ref: str) -> str:
    """Build the path by which a ref is shown, such as `.git/refs/heads/main`."""
    return f"{build_git_path(repository)}/{ref}"


def build_git_path(name: str) -> str:
    """Build the path by which a repository is shown."""
    return f"{name}/.git" if name else ".git"
