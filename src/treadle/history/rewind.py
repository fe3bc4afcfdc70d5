"""Rewinding a session: the files and git refs that its calls changed, and the conversation.

A rewind loses nothing. The content of every file and the value of every ref is recorded before it changes, so a rewind
can be undone, and one that a kill cut off can be repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.engine.fold import fold
from treadle.errors import BadInput, Conflict, NotFound, StoreDamaged
from treadle.events import AnyFact, Custom, FilesKept, KeptFile, Rewound, RunRequested, SessionCreated, validate_fact
from treadle.history.base import Contents
from treadle.history.changes import CHANGED_BY_OTHERS, ChangeKind, RewindChange, SkippedFile
from treadle.history.content_store import ContentStore
from treadle.history.git_rewind import RefHistory, RefStep, compare_refs, restore_refs
from treadle.history.snapshot import FileTree, hash_workspace
from treadle.log.base import Claim, Claimant, Log
from treadle.messages import Json, hash_content
from treadle.tools.base import FILE_NOTE_PREFIX, FOLDER_NOTE, LEFT_NOTE, FileNote, ToolError, read_file_note
from treadle.workspace.folder import FileContent, Folder, render_diff
from treadle.workspace.worker_threads import run_in_thread

RewindTarget: TypeAlias = Literal["files", "conversation", "both"]
_CLAIM_SECONDS = 60.0
_MAX_DIFF_LINES = 2000
_NOT_KEPT = "its old content was not stored: too large, too many, or secret"


class Rewind(Struct, frozen=True):
    """What a rewind did, or would do with `dry_run`. Each diff leads from now to then. `seq` is the head after it."""

    to: int
    what: RewindTarget
    changes: tuple[RewindChange, ...] = ()
    skipped: tuple[SkippedFile, ...] = ()
    done: bool = False
    seq: int = 0


class RunControl(Protocol):
    """What a rewind needs of the object that runs sessions."""

    @property
    def log(self) -> Log: ...

    @property
    def claimant(self) -> Claimant: ...

    async def wait_until_idle(self, session_id: str) -> None: ...

    async def wake(self, session_id: str) -> None: ...


class _Version(Struct, frozen=True):
    """A file's content just before something changed it at a position."""

    seq: int
    file: KeptFile
    call_id: str


class FileHistory:
    """What the facts say about files: per path the version before each change, and the content that was left last."""

    def __init__(self, facts: Sequence[AnyFact]) -> None:
        self.versions: dict[str, list[_Version]] = {}
        self.left: dict[str, set[str]] = {}
        self.left_out: list[tuple[int, str]] = []
        self.open_trees: list[FilesKept] = []
        for fact in facts:
            match fact:
                case FilesKept():
                    self._add_kept_files(fact)
                case Rewound(what="files" | "both"):
                    self._add_rewind(fact)
                case Custom(name=name, data=data):
                    self._add_note(name, data)
                case _:
                    pass

    def get_file_at(self, path: str, position: int) -> KeptFile | None:
        """Return the file at a path and position; None when nothing has changed it since."""
        return next((version.file for version in self.versions.get(path, ()) if version.seq > position), None)

    def list_calls(self, path: str, position: int) -> tuple[str, ...]:
        """List the calls that have changed a path since a position."""
        ids = (one.call_id for one in self.versions.get(path, ()) if one.seq > position and one.call_id)
        return tuple(dict.fromkeys(ids))

    def _add_kept_files(self, fact: FilesKept) -> None:
        for file in fact.files:
            self.versions.setdefault(file.path, []).append(_Version(fact.seq, file, fact.call_id))
            self.left.pop(file.path, None)
        if fact.tree:
            self.open_trees.append(fact)
        else:
            self.open_trees = [tree for tree in self.open_trees if tree.call_id != fact.call_id]
            self.left_out.extend((fact.seq, path) for path in fact.left_out)

    def _add_rewind(self, fact: Rewound) -> None:
        for file in fact.files:
            then = self.get_file_at(file.path, fact.to)
            self.versions.setdefault(file.path, []).append(_Version(fact.seq, file, ""))
            if then is not None:  # a rewind that was cut off may have left either
                self.left[file.path] = {then.before, file.before}

    def _add_note(self, name: str, data: Json) -> None:
        if name.startswith(FILE_NOTE_PREFIX):
            note = read_file_note(data)
            if note is not None and note.left:
                self.left[name.removeprefix(FILE_NOTE_PREFIX)] = {note.digest}
        elif name == LEFT_NOTE:
            try:
                left = msgspec.convert(data, dict[str, str])
            except msgspec.ValidationError:  # somebody else's fact under our name
                return
            self.left.update((path, {digest}) for path, digest in left.items())

    def load_open_trees(self, store: Contents) -> list[tuple[FilesKept, FileTree]]:
        """Load the lists of all files that commands stored before they were cut off."""
        trees: list[tuple[FilesKept, FileTree]] = []
        for fact in self.open_trees:
            self.left_out.extend((fact.seq, path) for path in fact.left_out)
            with suppress(NotFound, StoreDamaged):  # the command ended, and changed nothing worth recording
                trees.append((fact, msgspec.json.decode(store.get(fact.tree), type=FileTree)))
        return trees

    def add_interrupted_commands(self, trees: Sequence[tuple[FilesKept, FileTree]], now: Mapping[str, str]) -> None:
        """Add the changes of commands that were cut off before they recorded them.

        Each such command stored a list of all files before it ran. `now` has the hashes of the present files.
        """
        for fact, tree in trees:
            for listed in tree.files:
                if listed.id and self._get_next_hash(listed.path, fact.seq, now) != listed.id:
                    self._insert(_Version(fact.seq, KeptFile(listed.path, listed.id, listed.mode), fact.call_id))
            known = {listed.path for listed in tree.files}
            for path in {*now, *self.versions} - known if tree.whole else ():
                if self._get_next_hash(path, fact.seq, now):
                    self._insert(_Version(fact.seq, KeptFile(path), fact.call_id))

    def _get_next_hash(self, path: str, seq: int, now: Mapping[str, str]) -> str:
        then = self.get_file_at(path, seq)
        return then.before if then is not None else now.get(path, "")

    def _insert(self, version: _Version) -> None:
        known = self.versions.setdefault(version.file.path, [])
        if version not in known:
            known.append(version)
            known.sort(key=lambda one: one.seq)
            if known[-1] is version:  # the content that an earlier call left is outdated
                self.left.pop(version.file.path, None)


class _FileStep(Struct, frozen=True):
    """One file: its present content, and its content then (`data` is None where there was no file)."""

    then: KeptFile
    now: FileContent | None
    data: bytes | None
    change: RewindChange


class _Plan(Struct, frozen=True):
    """What a rewind changes and what it leaves."""

    files: Sequence[_FileStep] = ()
    refs: Sequence[RefStep] = ()
    skipped: Sequence[SkippedFile] = ()

    def select_paths(self, paths: Collection[str]) -> _Plan:
        """Return the plan for these files. No paths stand for everything."""
        if not paths:
            return self
        files = [step for step in self.files if step.then.path in paths]
        return _Plan(files, (), [one for one in self.skipped if one.path in paths])

    def list_changes(self, skipped: Sequence[SkippedFile] = ()) -> tuple[RewindChange, ...]:
        """List the changes, without those that were skipped in the end."""
        not_done = {one.path for one in skipped}
        changes = (step.change for step in (*self.files, *self.refs))
        return tuple(change for change in changes if change.path not in not_done)


class Rewinder:
    """Compares and rewinds the files, the git refs and the conversation of one session."""

    def __init__(self, runs: RunControl, session_id: str, store: Contents) -> None:
        self._runs, self._log = runs, runs.log
        self._id, self._store = session_id, store

    async def list_changes(self, after: int = 0) -> list[RewindChange]:
        """List how files and git refs differ from what they were at a position, as far as calls changed them."""
        facts = await self._log.read(self._id)
        return list((await run_in_thread(_build_plan, facts, self._store, after, back=False)).list_changes())

    async def revert_file(self, path: str, to: int, *, dry_run: bool, force: bool) -> Rewind:
        """Revert one file to what it was at a position. That is a rewind of files, so `undo` undoes it."""
        if path not in FileHistory(await self._log.read(self._id)).versions:
            raise NotFound(f"no call of session {self._id} is known to have changed the file {path[:500]!r}")
        return await self.rewind(to, "files", dry_run=dry_run, force=force, paths=(path,))

    async def rewind(
        self,
        to: int,
        what: RewindTarget,
        *,
        dry_run: bool,
        force: bool,
        request: RunRequested | None = None,
        paths: Collection[str] = (),
    ) -> Rewind:
        """Go back to a position; raises `Conflict` while a run is unfinished. `request` is stored with the rewind.

        With `paths`, only these files go back.
        """
        facts = await self._log.read(self._id)
        if not 1 <= to <= len(facts):
            raise BadInput(f"session {self._id} has positions 1 to {len(facts)}, not {to}")
        if dry_run:
            plan = (await self._choose_steps(facts, to, what, force=force)).select_paths(paths)
            return Rewind(to, what, plan.list_changes(), tuple(plan.skipped))
        self._check_idle(facts)
        workspace = str(_get_workspace(facts))
        if what != "conversation" and not replace(self._runs.claimant, agents=None).serves("", workspace):
            raise Conflict(
                f"this node does not serve {workspace}; rewind the files of session {self._id} on one that does"
            )
        await self._runs.wait_until_idle(self._id)  # a run that has just ended may still hold its claim
        claim = await self._log.claim(self._runs.claimant.owner, _CLAIM_SECONDS, self._id)
        if claim is None:
            raise self._build_busy()
        seen = 0
        try:
            facts = await self._log.read(self._id)
            seen = len(facts)
            self._check_idle(facts)
            plan = (await self._choose_steps(facts, to, what, force=force)).select_paths(paths)
            fact = await run_in_thread(self._keep_present, plan, Rewound(to=to, what=what, by="user"))
            if what != "files" or fact.files or fact.refs:
                seen = await self._record(claim, facts, fact, request)
            skipped = (*plan.skipped, *await run_in_thread(self._restore, _get_workspace(facts), plan))
        finally:
            await self._log.release(claim, None)
            if (await self._log.get_info(self._id)).seq > seen:  # somebody posted in the meantime
                await self._runs.wake(self._id)
        return Rewind(to, what, plan.list_changes(skipped), skipped, done=True, seq=seen)

    async def undo(self, *, dry_run: bool, force: bool) -> Rewind:
        """Undo the last rewind. That is a rewind too, so it can be undone as well."""
        facts = await self._log.read(self._id)
        last = next((fact for fact in reversed(facts) if isinstance(fact, Rewound)), None)
        if last is None:
            raise BadInput(f"session {self._id} was never rewound, so there is nothing to undo")
        # A later run may have changed other files, which have nothing to do with this.
        paths = [file.path for file in last.files] if last.what == "files" and not last.refs else ()
        return await self.rewind(last.seq - 1, last.what, dry_run=dry_run, force=force, paths=paths)

    async def _record(self, claim: Claim, facts: Sequence[AnyFact], fact: Rewound, request: RunRequested | None) -> int:
        """Record the rewind before a file changes, and return the head. A repeated rewind is recorded once."""
        last = next(one for one in reversed(facts) if not isinstance(one, Custom))
        if (
            request is None
            and isinstance(last, Rewound)
            and (last.to, last.what) == (fact.to, fact.what)
            and set(fact.files) <= set(last.files)
            and _list_moves(fact) <= _list_moves(last)
        ):
            return facts[-1].seq
        notes: list[Custom] = []
        if fact.what != "files":  # notes go back too: where commands start, and what the model saw of files
            now, then = (fold(some).notes for some in (facts, facts[: fact.to]))
            names = (FOLDER_NOTE, *(name for name in now if name.startswith(FILE_NOTE_PREFIX)))
            pairs = ((name, _restore_note(name, now), _restore_note(name, then)) for name in names)
            notes = [Custom(name=name, data=before) for name, after, before in pairs if before != after]
        new = [fact, *notes, *filter(None, [request])]
        wake = request is not None
        posted = await self._log.post(self._id, [*map(validate_fact, new)], wake=wake, claim=claim)
        return posted.facts[-1].seq

    def _keep_present(self, plan: _Plan, fact: Rewound) -> Rewound:
        """Store the present contents, and add them and the present refs to the fact."""
        git_files = (step.file for step in plan.refs if step.file is not None)
        names = iter(self._store.put(*(step.now.data for step in plan.files if step.now), *git_files))
        files = tuple(
            KeptFile(step.then.path, next(names), step.now.mode) if step.now else KeptFile(step.then.path)
            for step in plan.files
        )
        refs = tuple(step.build_kept_ref("" if step.file is None else next(names)) for step in plan.refs)
        return replace(fact, files=files, refs=refs)

    def _restore(self, root: Path, plan: _Plan) -> list[SkippedFile]:
        """Restore files first: git compares them with the index."""
        return _restore_files(root, plan.files) + restore_refs(root, self._store, plan.refs)

    async def _choose_steps(self, facts: Sequence[AnyFact], to: int, what: RewindTarget, *, force: bool) -> _Plan:
        if what == "conversation":
            return _Plan()
        return await run_in_thread(_build_plan, facts, self._store, to, back=True, force=force)

    def _check_idle(self, facts: Sequence[AnyFact]) -> None:
        state = fold(facts)
        if state.run is not None or state.requested is not None or (state.queue and not state.is_held):
            raise self._build_busy()

    def _build_busy(self) -> Conflict:
        return Conflict(f"session {self._id} has an unfinished run; wait for it or cancel it, then rewind")


def find_contents(log: Log, tools: Sequence[object]) -> Contents:
    """Find the contents that an agent's tools store: in the log, in a folder of theirs, or in the data folder."""
    if log.contents is not None:
        return log.contents
    stores = (getattr(tool, "kept", None) for tool in tools)
    return next((store for store in stores if isinstance(store, ContentStore)), None) or ContentStore()


def _restore_note(name: str, notes: Mapping[str, Json]) -> Json:
    """Return a note. One about a file says only what was seen: the rewind itself says what was left."""
    if not name.startswith(FILE_NOTE_PREFIX):
        return notes.get(name) or ""
    note = read_file_note(notes.get(name))
    return msgspec.to_builtins(FileNote(note.digest)) if note is not None else ""


def _list_moves(fact: Rewound) -> set[tuple[str, str, str, str]]:
    """List the refs that a rewind moves. Git rewrites an index that has not changed, so its content does not count."""
    return {(kept.repository, kept.ref, kept.before, kept.after) for kept in fact.refs}


def _get_workspace(facts: Sequence[AnyFact]) -> Path:
    first = facts[0]
    assert isinstance(first, SessionCreated)
    return Path(first.workspace or ".")


def _build_plan(facts: Sequence[AnyFact], store: Contents, to: int, *, back: bool, force: bool = False) -> _Plan:
    """Find everything that differs from a position. With `back`, leave out what others changed, unless `force`."""
    history, root = FileHistory(facts), _get_workspace(facts)
    trees = history.load_open_trees(store)
    if trees:
        history.add_interrupted_commands(trees, hash_workspace(root))
    files, skipped = _compare_files(history, root, store, to, back=back)
    moves = RefHistory(facts)
    for fact, tree in trees:
        moves.add_interrupted_command(fact, tree.repositories, root, store)
    refs = compare_refs(moves, root, store, to, back=back)
    if back:
        refs = refs.choose_steps(force=force)
    if back and not force:
        skipped += [SkippedFile(step.change.path, CHANGED_BY_OTHERS) for step in files if step.change.others]
        files = [step for step in files if not step.change.others]
    return _Plan(files, refs.steps, (*skipped, *refs.skipped))


def _compare_files(
    history: FileHistory, root: Path, store: Contents, to: int, *, back: bool
) -> tuple[list[_FileStep], list[SkippedFile]]:
    """Find every file that differs from its content at a position. With `back`, diffs lead from now to then."""
    steps: list[_FileStep] = []
    skipped = [SkippedFile(path, _NOT_KEPT) for seq, path in history.left_out if seq > to]
    with Folder(root) as folder:
        for path in sorted(history.versions):
            then = history.get_file_at(path, to)
            if then is None:
                continue
            try:
                step = _compare_file(folder, store, then, back=back)
            except (ToolError, NotFound, StoreDamaged) as error:
                skipped.append(SkippedFile(path, str(error)))
                if not back:  # the file has changed, but cannot be compared
                    is_there = folder.look_up(path) is not None
                    kind: ChangeKind = "added" if not then.before else "modified" if is_there else "deleted"
                    change = RewindChange(path, kind, str(error), history.list_calls(path, to))
                    steps.append(_FileStep(then, None, None, change))
                continue
            if step is not None:
                left = history.left.get(path)
                others = left is not None and _hash_file(step.now) not in left
                change = replace(step.change, calls=history.list_calls(path, to), others=others)
                steps.append(replace(step, change=change))
    return steps, skipped


def _compare_file(folder: Folder, store: Contents, then: KeptFile, *, back: bool) -> _FileStep | None:
    above = (then.path[:end] for end, letter in enumerate(then.path) if letter == "/")
    is_blocked = folder.look_up(then.path) == "folder" or "file" in map(folder.look_up, above)
    now = None if is_blocked else folder.find(then.path)
    if _hash_file(now) == then.before and (now is None or now.mode == then.mode):
        return None
    data = store.get(then.before) if then.before else None
    old, new = (now.data if now else None, data) if back else (data, now.data if now else None)
    kind: ChangeKind = "added" if old is None else "deleted" if new is None else "modified"
    text = render_diff(old, new, then.path, _MAX_DIFF_LINES)
    if not text and now is not None:
        modes = (now.mode, then.mode) if back else (then.mode, now.mode)
        text = f"{then.path}: mode {modes[0]:o} before, {modes[1]:o} now"
    return _FileStep(then, now, data, RewindChange(then.path, kind, text))


def _hash_file(file: FileContent | None) -> str:
    return hash_content(file.data) if file is not None else ""


def _restore_files(root: Path, steps: Sequence[_FileStep]) -> list[SkippedFile]:
    skipped: list[SkippedFile] = []
    with Folder(root) as folder:
        # Removals first: a file may have to go where a folder is to be, and the other way round.
        for step in sorted(steps, key=lambda step: step.data is not None):
            path = step.then.path
            try:
                if step.data is None:
                    folder.remove(path)
                else:
                    folder.write(path, step.data, step.then.mode)
            except ToolError as error:
                skipped.append(SkippedFile(path, str(error)))
    return skipped
