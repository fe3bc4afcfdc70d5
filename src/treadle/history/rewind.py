"""Taking back what calls did to files, and what was said: from the facts, what is on disk, and the kept contents.

Nothing is ever lost by it: what files held just before is kept and recorded first, so a rewind can be undone, and one
that a kill cut off can be repeated. Git is never touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from treadle.engine.coordinator import Coordinator
from treadle.engine.state import State, fold
from treadle.errors import BadInput, Conflict, NotFound, StoreDamaged
from treadle.events import AnyFact, Custom, FilesKept, KeptFile, Rewound, SessionCreated, validate_fact
from treadle.history.call_notes import FILE_NOTE_PREFIX, FOLDER_NOTE, FileNote, read_file_note
from treadle.history.kept_files import ContentStore, hash_content
from treadle.history.snapshot import LEFT, FileTree, hash_workspace
from treadle.log.owner import make_owner_name
from treadle.messages import Json
from treadle.tools.base import ToolError
from treadle.workspace.encoding import render_diff
from treadle.workspace.folder import FileContent, Folder
from treadle.workspace.worker_threads import run_in_thread

RewindTarget: TypeAlias = Literal["files", "conversation", "both"]
_CLAIM_SECONDS = 60.0
_DIFF_LINES = 2000
_NOT_KEPT = "what it held was not kept: too large, too many, or secret"


class RewindChange(Struct, frozen=True):
    """How a file differs: a unified diff, and the ids of the calls that changed it.

    `others` means that it is not what the last of these calls left: somebody else changed it since.
    """

    path: str
    kind: Literal["added", "modified", "deleted"]
    diff: str
    calls: tuple[str, ...] = ()
    others: bool = False


class SkippedFile(Struct, frozen=True):
    """A file that stays as it is, and why."""

    path: str
    why: str


class Rewind(Struct, frozen=True):
    """What a rewind did, or with `dry_run` would do: each change as a diff from now to then."""

    to: int
    what: RewindTarget
    changes: tuple[RewindChange, ...] = ()
    skipped: tuple[SkippedFile, ...] = ()
    done: bool = False


class _Before(Struct, frozen=True):
    """What a file held before something changed it at a position."""

    seq: int
    file: KeptFile
    call_id: str


class FileHistory:
    """What the facts tell of files: per path what was there before each change, and what was left there last."""

    def __init__(self, facts: Sequence[AnyFact]) -> None:
        self.befores: dict[str, list[_Before]] = {}
        self.left: dict[str, set[str]] = {}
        self.left_out: list[tuple[int, str]] = []
        self.open_trees: list[FilesKept] = []
        for fact in facts:
            match fact:
                case FilesKept():
                    self._kept(fact)
                case Rewound(what="files" | "both"):
                    self._rewound(fact)
                case Custom(name=name, data=data):
                    self._noted(name, data)
                case _:
                    pass

    def get_file_at(self, path: str, position: int) -> KeptFile | None:
        """What was at a path at a position; None when nothing has changed it since."""
        return next((one.file for one in self.befores.get(path, ()) if one.seq > position), None)

    def list_calls(self, path: str, position: int) -> tuple[str, ...]:
        """Which calls have changed a path since a position."""
        ids = (one.call_id for one in self.befores.get(path, ()) if one.seq > position and one.call_id)
        return tuple(dict.fromkeys(ids))

    def _kept(self, fact: FilesKept) -> None:
        for file in fact.files:
            self.befores.setdefault(file.path, []).append(_Before(fact.seq, file, fact.call_id))
            self.left.pop(file.path, None)
        if fact.tree:
            self.open_trees.append(fact)
        else:
            self.open_trees = [tree for tree in self.open_trees if tree.call_id != fact.call_id]
            self.left_out.extend((fact.seq, path) for path in fact.left_out)

    def _rewound(self, fact: Rewound) -> None:
        for file in fact.files:
            then = self.get_file_at(file.path, fact.to)
            self.befores.setdefault(file.path, []).append(_Before(fact.seq, file, ""))
            if then is not None:  # a rewind that was cut off may have left either
                self.left[file.path] = {then.before, file.before}

    def _noted(self, name: str, data: Any) -> None:
        if name.startswith(FILE_NOTE_PREFIX):
            noted = read_file_note(data)
            if noted is not None and noted.left:
                self.left[name.removeprefix(FILE_NOTE_PREFIX)] = {noted.digest}
        elif name == LEFT:
            try:
                self.left.update((path, {name}) for path, name in msgspec.convert(data, dict[str, str]).items())
            except msgspec.ValidationError:  # somebody else's fact under our name tells us nothing
                return

    def add_interrupted_commands(self, kept: ContentStore, now: Mapping[str, str]) -> None:
        """Take in what a command changed that was cut off before it could say so: its tree against what came next."""
        for fact in self.open_trees:
            self.left_out.extend((fact.seq, path) for path in fact.left_out)
            try:
                tree = msgspec.json.decode(kept.get(fact.tree), type=FileTree)
            except (NotFound, StoreDamaged):  # the command ended, and changed nothing worth telling
                continue
            for listed in tree.files:
                if listed.id and self._next(listed.path, fact.seq, now) != listed.id:
                    self._insert(_Before(fact.seq, KeptFile(listed.path, listed.id, listed.mode), fact.call_id))
            known = {listed.path for listed in tree.files}
            for path in {*now, *self.befores} - known if tree.whole else ():
                if self._next(path, fact.seq, now):
                    self._insert(_Before(fact.seq, KeptFile(path), fact.call_id))

    def _next(self, path: str, seq: int, now: Mapping[str, str]) -> str:
        then = self.get_file_at(path, seq)
        return then.before if then is not None else now.get(path, "")

    def _insert(self, before: _Before) -> None:
        known = self.befores.setdefault(before.file.path, [])
        if before not in known:
            known.append(before)
            known.sort(key=lambda one: one.seq)
            if known[-1] is before:  # what an earlier call left is not what this one did
                self.left.pop(before.file.path, None)


class _Step(Struct, frozen=True):
    """One file: what it holds now, and what it held then (`then` has no content where there was no file)."""

    then: KeptFile
    now: FileContent | None
    data: bytes | None
    change: RewindChange


class Rewinder:
    """The files and the conversation of one session, as they are and as they were."""

    def __init__(self, coordinator: Coordinator, session_id: str, kept: ContentStore) -> None:
        self._coordinator, self._log = coordinator, coordinator.log
        self._id, self._kept = session_id, kept

    async def list_changes(self, after: int = 0) -> list[RewindChange]:
        """How the workspace's files differ from what they were at a position, as far as calls changed them."""
        facts = await self._log.read(self._id)
        steps, _ = await run_in_thread(_compare, facts=facts, kept=self._kept, to=after, back=False)
        return [step.change for step in steps]

    async def rewind(self, to: int, what: RewindTarget, *, dry_run: bool, force: bool) -> Rewind:
        """Go back to a position; raises `Conflict` while a run is unfinished."""
        facts = await self._log.read(self._id)
        if not 1 <= to <= len(facts):
            raise BadInput(f"session {self._id} has positions 1 to {len(facts)}, not {to}")
        if dry_run:
            steps, skipped = await self._steps(facts, to, what, force=force)
            return Rewind(to, what, tuple(step.change for step in steps), tuple(skipped))
        _check_idle(fold(facts), self._busy())
        await self._coordinator.wait_until_idle(self._id)  # a run that has just ended may still hold its claim
        claim = await self._log.claim(make_owner_name(), _CLAIM_SECONDS, self._id)
        if claim is None:
            raise self._busy()
        posted = 0
        try:
            facts = await self._log.read(self._id)
            posted = len(facts)
            _check_idle(fold(facts), self._busy())
            steps, skipped = await self._steps(facts, to, what, force=force)
            files = await run_in_thread(_keep_now, kept=self._kept, steps=steps)
            if what != "files" or files:
                posted = await self._record(facts, Rewound(to=to, what=what, files=tuple(files), by="user"))
            skipped += await run_in_thread(_restore, root=_workspace(facts), steps=steps)
        finally:
            await self._log.release(claim, None)
            if (await self._log.get_info(self._id)).seq > posted:  # somebody wrote to the session meanwhile
                await self._coordinator.wake(self._id)
        not_done = {one.path for one in skipped}
        changes = tuple(step.change for step in steps if step.change.path not in not_done)
        return Rewind(to, what, changes, tuple(skipped), done=True)

    async def undo(self, *, dry_run: bool, force: bool) -> Rewind:
        """Take the last rewind back; that is a rewind too, so it can be undone as well."""
        facts = await self._log.read(self._id)
        last = next((fact for fact in reversed(facts) if isinstance(fact, Rewound)), None)
        if last is None:
            raise BadInput(f"session {self._id} was never rewound, so there is nothing to undo")
        return await self.rewind(last.seq - 1, last.what, dry_run=dry_run, force=force)

    async def _record(self, facts: Sequence[AnyFact], fact: Rewound) -> int:
        """Put the rewind into the log before a file changes; one that was cut off is not recorded a second time."""
        last = next(one for one in reversed(facts) if not isinstance(one, Custom))
        if (
            isinstance(last, Rewound)
            and (last.to, last.what) == (fact.to, fact.what)
            and set(fact.files) <= set(last.files)
        ):
            return facts[-1].seq
        posted = await self._log.post(self._id, [validate_fact(fact), *_notes_then(facts, fact)], wake=False)
        return posted.facts[-1].seq

    async def _steps(
        self, facts: Sequence[AnyFact], to: int, what: RewindTarget, *, force: bool
    ) -> tuple[list[_Step], list[SkippedFile]]:
        if what == "conversation":
            return [], []
        steps: list[_Step]
        steps, skipped = await run_in_thread(_compare, facts=facts, kept=self._kept, to=to, back=True)
        why = "somebody else changed it after the last call did; force=True rewinds it all the same"
        if not force:
            skipped += [SkippedFile(step.change.path, why) for step in steps if step.change.others]
            steps = [step for step in steps if not step.change.others]
        return steps, skipped

    def _busy(self) -> Conflict:
        return Conflict(f"session {self._id} has an unfinished run; wait for it or cancel it, then rewind")


def find_content_store(tools: Sequence[object]) -> ContentStore:
    """Where an agent's tools keep old contents; the user's data folder if they do not say."""
    found = (getattr(tool, "kept", None) for tool in tools)
    return next((kept for kept in found if isinstance(kept, ContentStore)), None) or ContentStore()


def _check_idle(state: State, busy: Conflict) -> None:
    if state.run is not None or state.requested is not None or (state.queue and not state.held):
        raise busy


def _notes_then(facts: Sequence[AnyFact], fact: Rewound) -> list[Custom]:
    """Notes as they were then, since that is what the model remembers: where commands start, what it saw of files."""
    if fact.what == "files":
        return []
    now, then = (fold(some).notes for some in (facts, facts[: fact.to]))
    names = [FOLDER_NOTE, *(name for name in now if name.startswith(FILE_NOTE_PREFIX))]
    notes = [(name, _noted(name, now), _noted(name, then)) for name in names]
    return [Custom(name=name, data=before) for name, after, before in notes if before != after]


def _noted(name: str, notes: Mapping[str, Json]) -> Json:
    """A note, of a file as something seen: what was left there the rewind itself tells."""
    if not name.startswith(FILE_NOTE_PREFIX):
        return notes.get(name) or ""
    noted = read_file_note(notes.get(name))
    return msgspec.to_builtins(FileNote(noted.digest)) if noted is not None else ""


def _workspace(facts: Sequence[AnyFact]) -> Path:
    first = facts[0]
    assert isinstance(first, SessionCreated)
    return Path(first.workspace or ".")


def _compare(
    facts: Sequence[AnyFact], kept: ContentStore, to: int, back: bool
) -> tuple[list[_Step], list[SkippedFile]]:
    """Every file that is not what it was at a position; `back` shows the way from now to then, not from then to now."""
    past, root = FileHistory(facts), _workspace(facts)
    if past.open_trees:
        past.add_interrupted_commands(kept, hash_workspace(root))
    steps: list[_Step] = []
    skipped = [SkippedFile(path, _NOT_KEPT) for seq, path in past.left_out if seq > to]
    with Folder(root) as folder:
        for path in sorted(past.befores):
            then = past.get_file_at(path, to)
            if then is None:
                continue
            try:
                step = _step(folder, kept, then, back=back)
            except (ToolError, NotFound, StoreDamaged) as error:
                skipped.append(SkippedFile(path, str(error)))
                if not back:  # it has changed, if not to something that can be compared
                    calls = past.list_calls(path, to)
                    steps.append(_Step(then, None, None, RewindChange(path, _kind(folder, then), str(error), calls)))
                continue
            if step is not None:
                left = past.left.get(path)
                others = left is not None and _digest(step.now) not in left
                change = msgspec.structs.replace(step.change, calls=past.list_calls(path, to), others=others)
                steps.append(msgspec.structs.replace(step, change=change))
    return steps, skipped


def _step(folder: Folder, kept: ContentStore, then: KeptFile, *, back: bool) -> _Step | None:
    now = folder.find(then.path) if not _is_elsewise(folder, then.path) else None
    if _digest(now) == then.before and (now is None or now.mode == then.mode):
        return None
    data = kept.get(then.before) if then.before else None
    old, new = (now.data if now else None, data) if back else (data, now.data if now else None)
    kind: Literal["added", "modified", "deleted"]
    kind = "added" if old is None else "deleted" if new is None else "modified"
    text = render_diff(old, new, then.path, _DIFF_LINES)
    if not text and now is not None:
        modes = (now.mode, then.mode) if back else (then.mode, now.mode)
        text = f"{then.path}: mode {modes[0]:o} before, {modes[1]:o} now"
    return _Step(then, now, data, RewindChange(then.path, kind, text))


def _is_elsewise(folder: Folder, path: str) -> bool:
    """Whether there can be no file at a path: a folder is there, or a file where one of its folders would be."""
    there = folder.look_up(path)
    ways = [path[:at] for at, letter in enumerate(path) if letter == "/"]
    above = (folder.look_up(way) for way in ways)
    return there.kind == "folder" if there is not None else any(one is not None and one.kind == "file" for one in above)


def _kind(folder: Folder, then: KeptFile) -> Literal["added", "modified", "deleted"]:
    if not then.before:
        return "added"
    return "modified" if folder.look_up(then.path) is not None else "deleted"


def _digest(held: FileContent | None) -> str:
    return hash_content(held.data) if held is not None else ""


def _keep_now(kept: ContentStore, steps: Sequence[_Step]) -> list[KeptFile]:
    """Keep what the files hold just before they are changed."""
    names = iter(kept.put(*(step.now.data for step in steps if step.now is not None)))
    return [
        KeptFile(step.then.path, next(names), step.now.mode) if step.now is not None else KeptFile(step.then.path)
        for step in steps
    ]


def _restore(root: Path, steps: Sequence[_Step]) -> list[SkippedFile]:
    skipped: list[SkippedFile] = []
    with Folder(root) as folder:
        # What is to go may be a folder or a file where the other is to be.
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
