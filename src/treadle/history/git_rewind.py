"""Rewinding git: the branches, tags, stash, `HEAD` and index that calls changed go back to a position.

A ref goes back only if nobody but calls moved it since. Its commits stay in the reflog. No git process runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from treadle.errors import NotFound, StoreDamaged, TreadleError
from treadle.events import AnyFact, FilesKept, KeptRef, Rewound
from treadle.git.commit_list import read_commits
from treadle.git.head_log import add_to_head_log
from treadle.git.names import is_branch
from treadle.git.real_repository import RealRepository
from treadle.git.refs import STASH
from treadle.git.restore import restore_index, restore_ref
from treadle.git.restore_stash import restore_stash
from treadle.history.base import Contents
from treadle.history.changes import CHANGED_BY_OTHERS, ChangeKind, RewindChange, SkippedFile
from treadle.history.git_changes import (
    HEAD,
    INDEX,
    KeptRepository,
    RepositoryState,
    build_git_path,
    build_ref_path,
    get_branch,
    hash_entries,
    is_kept_ref,
    list_staged,
    read_repository_state,
)
from treadle.sandbox.base import RefChange

RefKey: TypeAlias = tuple[str, str]
"""A repository and a ref in it."""

_ID_LENGTH = 7
_MAX_LINES = 200
_BRANCH_STAYS = "it belongs to a branch that stays where it is"
_IN_USE = "it is checked out, so it is not deleted"
_IN_USE_ELSEWHERE = "another worktree has it checked out"
_INVALID = "what is recorded of it is not valid"


class _RefVersion(Struct, frozen=True):
    """A ref just before something changed it at a position. `left` are the values that it may have after that."""

    seq: int
    kept: KeptRef
    call_id: str
    left: frozenset[str]


class RefStep(Struct, frozen=True):
    """One ref: its value now and then. For the index and the stash also the file now, and the name of the old one."""

    key: RefKey
    now: str
    then: str
    change: RewindChange
    file: bytes | None = None
    content: str = ""

    def build_kept_ref(self, content: str) -> KeptRef:
        """Build the record that lets the rewind be undone. `content` names the present file."""
        repository, ref = self.key
        return KeptRef(ref, self.now, self.then, repository, content)

    def restore(self, root: Path, store: Contents) -> str:
        """Restore the ref, and say why if it stays. No commit is lost: if need be, HEAD's log names it."""
        name, ref = self.key
        state = read_repository_state(root, name, [ref])
        assert state.places is not None
        if state.get_value(ref) != self.now:
            return CHANGED_BY_OTHERS
        file = store.get(self.content) if self.content else b""
        if ref == STASH:
            return restore_stash(state.places, file, state.stash_log)
        if ref == INDEX:
            return restore_index(state.places, file)
        if self.now and ref != HEAD and (not self.then or not is_branch(ref)):
            with RealRepository(state.places) as real:  # the log of a deleted branch goes with it, and a tag has none
                add_to_head_log(real, [self.now], f"treadle: {ref} before a rewind")
        return restore_ref(state.places, RefChange(ref, self.then, self.now))


class RefHistory:
    """What the facts say about refs: per repository and ref the value before and after each change."""

    def __init__(self, facts: Sequence[AnyFact]) -> None:
        self.versions: dict[RefKey, list[_RefVersion]] = {}
        for fact in facts:
            match fact:
                case FilesKept():
                    for kept in fact.refs:
                        self._add(_RefVersion(fact.seq, kept, fact.call_id, frozenset((kept.after,))))
                case Rewound():
                    for kept in fact.refs:  # a rewind that was cut off may have left either
                        self._add(_RefVersion(fact.seq, kept, "", frozenset((kept.before, kept.after))))
                case _:
                    pass

    def list_since(self, key: RefKey, position: int) -> list[_RefVersion]:
        """List the changes of a ref since a position."""
        return [version for version in self.versions.get(key, ()) if version.seq > position]

    def add_interrupted_command(
        self, fact: FilesKept, repositories: Sequence[KeptRepository], root: Path, store: Contents
    ) -> None:
        """Add what changed since a command that was cut off began. Nobody knows whether the command did it."""
        seen: set[tuple[Path, str]] = set()  # what linked worktrees have in common is added once
        for before in repositories:
            with suppress(TreadleError):  # the repository is gone, or the old index is
                now = read_repository_state(root, before.name)
                index = store.get(before.contents[INDEX]) if INDEX in before.contents else b""
                values = {**before.values, INDEX: hash_entries(index, now.form)}
                for ref in dict.fromkeys((*values, *now.values)):
                    value, later = values.get(ref, ""), self.list_since((before.name, ref), fact.seq)
                    place = now.common_dir / before.name if ref in (HEAD, INDEX) else now.common_dir
                    is_changed = (later[0].kept.before if later else now.get_value(ref)) != value
                    if is_changed and (place, ref) not in seen:
                        seen.add((place, ref))
                        kept = KeptRef(ref, value, "", before.name, before.contents.get(ref, ""))
                        self._add(_RefVersion(fact.seq, kept, fact.call_id, frozenset()))

    def _add(self, version: _RefVersion) -> None:
        known = self.versions.setdefault((version.kept.repository, version.kept.ref), [])
        known.append(version)
        known.sort(key=lambda one: one.seq)


class RefPlan(Struct, frozen=True):
    """The refs that differ from a position, the repositories that they are in, and what is skipped."""

    steps: Sequence[RefStep]
    states: Mapping[str, RepositoryState]
    skipped: Sequence[SkippedFile]

    def choose_steps(self, *, force: bool) -> RefPlan:
        """Leave out the refs that others moved, unless `force`, and those that depend on them."""
        stay = {} if force else {step.key: CHANGED_BY_OTHERS for step in self.steps if step.change.others}
        for name, state in self.states.items():
            head, now = (name, HEAD), state.get_value(HEAD)
            then = next((step.then for step in self.steps if step.key == head), now)
            if (name, get_branch(then)) in stay:
                stay.setdefault(head, _BRANCH_STAYS)
            if head in stay:  # the index belongs to HEAD
                stay.setdefault((name, INDEX), _BRANCH_STAYS)
                checked_out = (name, get_branch(now))
                stay.update((step.key, _IN_USE) for step in self.steps if step.key == checked_out and not step.then)
            foreign = (step.key for step in self.steps if step.key[0] == name and step.key[1] in state.foreign)
            stay.update(dict.fromkeys(foreign, _IN_USE_ELSEWHERE))
            if state.operation:
                why = f"a {state.operation} is unfinished there; finish it or abort it, then rewind again"
                stay.update((step.key, why) for step in self.steps if step.key[0] == name)
        skipped = [SkippedFile(step.change.path, stay[step.key]) for step in self.steps if step.key in stay]
        steps = [step for step in self.steps if step.key not in stay]
        return RefPlan(steps, self.states, (*self.skipped, *skipped))


def compare_refs(history: RefHistory, root: Path, store: Contents, to: int, *, back: bool) -> RefPlan:
    """Find every ref that differs from its value at a position. With `back`, the texts lead from now to then."""
    steps: list[RefStep] = []
    skipped: list[SkippedFile] = []
    states: dict[str, RepositoryState] = {}
    changed = {key: since for key in sorted(history.versions) if (since := history.list_since(key, to))}
    for name in dict.fromkeys(name for name, _ in changed):
        since = {ref: versions for (other, ref), versions in changed.items() if other == name}
        head = since[HEAD][0].kept.before if HEAD in since else ""
        try:
            states[name] = read_repository_state(root, name, (*since, get_branch(head)))
        except TreadleError as error:
            skipped.append(SkippedFile(build_git_path(name), str(error)))
            continue
        comparison = _Comparison(states[name], since, store, back)
        for ref in since:
            try:
                step = comparison.compare_ref(ref)
            except (NotFound, StoreDamaged) as error:
                skipped.append(SkippedFile(build_ref_path(name, ref), str(error)))
            else:
                steps += [step] if step is not None else []
    return RefPlan(steps, states, skipped)


class _Comparison(Struct, frozen=True):
    """A repository now, the changes of its refs since a position, and the direction of the texts."""

    state: RepositoryState
    since: Mapping[str, Sequence[_RefVersion]]
    store: Contents
    back: bool

    def compare_ref(self, ref: str) -> RefStep | None:
        """Compare one ref; None when it is the same. Raises `NotFound` when it cannot be restored."""
        state, since = self.state, self.since[ref]
        kept = since[0].kept
        if not self._is_valid(kept):
            raise NotFound(_INVALID)
        now, then = state.get_value(ref), kept.before
        if now == then or (ref == HEAD and not then):  # a repository that a call created stays, without its branches
            return None
        is_moved_between = any(later.kept.before not in one.left for one, later in pairwise(since))
        others = now not in since[-1].left or (is_moved_between and ref != INDEX)
        calls = tuple(dict.fromkeys(version.call_id for version in since if version.call_id))
        kind, lines = self._describe_index(kept) if ref == INDEX else self._describe_move(ref, then, now)
        more = [f"… and {len(lines) - _MAX_LINES} more"] if len(lines) > _MAX_LINES else []
        text = "\n".join((*lines[:_MAX_LINES], *more))
        change = RewindChange(build_ref_path(state.name, ref), kind, text, calls, others)
        return RefStep((state.name, ref), now, then, change, state.get_file(ref), kept.content)

    def _is_valid(self, kept: KeptRef) -> bool:
        """Whether a record of the log may be written into a repository."""
        is_symbolic = kept.ref == HEAD and is_branch(get_branch(kept.before))
        value = kept.before.partition(" ")[0] if kept.ref == STASH else kept.before
        is_value = not value or is_symbolic or self.state.form.is_id(value)
        return kept.ref == INDEX or (is_kept_ref(kept.ref) and is_value)

    def _describe_index(self, kept: KeptRef) -> tuple[ChangeKind, list[str]]:
        then = self.store.get(kept.content) if kept.content else b""
        old, new = (self.state.index, then) if self.back else (then, self.state.index)
        return "staged", list_staged(old, new, self.state.form)

    def _describe_move(self, ref: str, then: str, now: str) -> tuple[ChangeKind, list[str]]:
        added = self._list_commits(ref, then or self._find_start(ref), now)
        removed = self._list_commits(ref, now or self.state.commit, then)
        plus, minus = ("-", "+") if self.back else ("+", "-")
        lines = [*(f"{minus}{commit}" for commit in removed), *(f"{plus}{commit}" for commit in added)]
        old, new = (now, then) if self.back else (then, now)
        kind: ChangeKind = "committed" if added and not self.back else "moved"
        return kind, [f"{_shorten(old)} → {_shorten(new)}", *lines]

    def _list_commits(self, ref: str, before: str, after: str) -> list[str]:
        """List the commits between two values of a branch, or of HEAD if it is at a commit."""
        places, is_listed = self.state.places, ref == HEAD or is_branch(ref)
        if places is None or not is_listed or not self.state.form.is_id(after):
            return []
        return read_commits(places, before, after, _MAX_LINES + 1)

    def _find_start(self, ref: str) -> str:
        """Find the commit from which a new branch or tag started: that at which HEAD was then."""
        head = self.since[HEAD][0].kept.before if HEAD in self.since else ""
        branch = get_branch(head)
        if branch in (HEAD, ref):
            return "" if branch == ref else head
        return self.since[branch][0].kept.before if branch in self.since else self.state.get_value(branch)


def restore_refs(root: Path, store: Contents, steps: Sequence[RefStep]) -> list[SkippedFile]:
    """Move refs to their values then, and write the index. Each is done for itself, so that a repetition goes on."""
    skipped: list[SkippedFile] = []
    failed: set[str] = set()
    for step in sorted(steps, key=lambda step: (step.key[1] == INDEX, step.key)):
        name, ref = step.key
        try:
            if name in failed and (ref == INDEX or not step.then):
                why = _BRANCH_STAYS
            else:
                why = step.restore(root, store)
        except TreadleError as error:
            why = str(error)
        if why:
            failed.add(name)
            skipped.append(SkippedFile(step.change.path, why))
    return skipped


def _shorten(value: str) -> str:
    return get_branch(value) if value.startswith("ref: ") else value[:_ID_LENGTH] or "none"
