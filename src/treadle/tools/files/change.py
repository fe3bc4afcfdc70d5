"""How every file tool changes files: old contents kept, that recorded, and only then written; all of it or nothing.

What is to be changed is decided before, in memory. A kill at any point leaves a session that can be rewound.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from treadle.events import KeptFile, Safety, Tier
from treadle.history.kept_files import ContentStore, hash_content
from treadle.messages import Json
from treadle.permissions.data_flow import Trait
from treadle.permissions.paths import explain_write_risk, is_secret_path
from treadle.permissions.policy import Assessment
from treadle.tools.base import ParsedArguments, ToolContext, ToolError
from treadle.tools.function import Function, FunctionTool, ToolOptions
from treadle.workspace.encoding import render_diff
from treadle.workspace.folder import FileChanged, FileContent, Folder
from treadle.workspace.worker_threads import run_in_thread

NOTE_PREFIX = "treadle.file:"
"""What a call last saw or left at a path is noted under this and the path."""

_AT_HOME = "this is where the user's shell and desktop look for what they run, outside of the sandbox"


class FileChange(Struct, frozen=True):
    """A file as it is and as it is to be; None where there is none."""

    path: str
    before: FileContent | None
    after: bytes | None
    mode: int | None = None


class FileToolSettings(Struct, frozen=True):
    """What the file tools of one agent share: where old contents are kept, and which secrets they may touch."""

    kept: ContentStore
    granted: tuple[str, ...] = ()

    def open_folder(self, context: ToolContext) -> Folder:
        """The session's workspace, opened."""
        return Folder(context.workspace, self.granted)


class FileTool(FunctionTool):
    """A function that shows what files hold, which is the user's own."""

    def list_traits(self, tier: Tier) -> frozenset[Trait]:
        return frozenset(("private",))


class WritingTool(FileTool):
    """A function that changes files; `kept` is where their old contents are, for whoever rewinds the session."""

    def __init__(self, files: FileToolSettings, function: Function, options: ToolOptions) -> None:
        super().__init__(function, options)
        self.kept = files.kept

    def assess_safety(self, arguments: Mapping[str, Json]) -> Safety:
        return self._assessed(arguments, ()).safety

    def assess(self, parsed: ParsedArguments, workspace: Path, tier: Tier = "sandbox") -> Assessment:
        return self._assessed(parsed.arguments, (os.path.abspath(workspace), os.path.realpath(workspace)))

    def list_paths(self, arguments: Mapping[str, Json]) -> list[str]:
        """The files that a call would change."""
        return [str(arguments.get("path", ""))]

    def _assessed(self, arguments: Mapping[str, Json], roots: Sequence[str]) -> Assessment:
        reasons = (explain_write_risk(path, roots) for path in self.list_paths(arguments))
        why = next(filter(None, reasons), "")
        if why:  # such a file speaks to agents and programs of later days: a yes to one change is no yes to the next
            return Assessment("destructive", why, asks_each_time=True)
        at_home = any(_starts_things(os.path.join(root, path)) for root in roots for path in self.list_paths(arguments))
        return Assessment("caution", doubts=(_AT_HOME,) if at_home else ())


def _starts_things(path: str) -> bool:
    """Whether a path is in a place of the user's home that others run programs from, such as `~/.profile`."""
    home = os.path.realpath(os.path.expanduser("~"))
    first = os.path.relpath(os.path.normpath(path), home).partition("/")[0]
    return first != ".." and (first.startswith(".") or first == "bin")


class FileNote(Struct, frozen=True):
    """What is noted of a file: the digest of what it held (empty: no file), and whether a call left it so or saw it."""

    digest: str = ""
    left: bool = False


def build_note(data: bytes | None, *, left: bool) -> Json:
    """The note about a file that holds this."""
    return msgspec.to_builtins(FileNote(hash_content(data) if data is not None else "", left))


def read_note(data: Json) -> FileNote | None:
    """What such a note says; None when there is none."""
    try:
        return msgspec.convert(data, FileNote)
    except msgspec.ValidationError:
        return None


def refuse_if_changed(context: ToolContext, path: str, now: FileContent | None) -> None:
    """Raise `FileChanged` when a file is not what this session last saw of it."""
    known = read_note(context.notes.get(NOTE_PREFIX + path))
    if now is not None and known is not None and known.digest != hash_content(now.data):
        raise FileChanged(
            f"{path} was changed since you last read it, by a command or by somebody else, so nothing was written. "
            "Read it again first."
        )


async def apply_changes(files: FileToolSettings, context: ToolContext, changes: Sequence[FileChange]) -> None:
    """Make the changes; raises `ToolError`, and then every file is as it was."""
    kept, left_out = await run_in_thread(_keep, kept=files.kept, changes=changes)
    await context.services.record_kept_files(kept, left_out=left_out)
    try:
        await run_in_thread(_apply, root=context.workspace, granted=files.granted, changes=changes)
    except ToolError:
        for change in changes:  # so that a rewind does not take what others did for this call's work
            found = change.before.data if change.before is not None else None
            await context.services.save_note(NOTE_PREFIX + change.path, build_note(found, left=True))
        raise
    for change in changes:
        await context.services.save_note(NOTE_PREFIX + change.path, build_note(change.after, left=True))


async def render_change(change: FileChange) -> str:
    """What changed, as a diff on lines of its own; in a thread, because comparing can take its time."""
    before = change.before.data if change.before is not None else None
    return "\n" + await run_in_thread(render_diff, before=before, after=change.after, path=change.path)


def _keep(kept: ContentStore, changes: Sequence[FileChange]) -> tuple[list[KeptFile], list[str]]:
    plain = [change for change in changes if not is_secret_path(change.path)]
    olds = [change.before for change in plain if change.before is not None]
    names = iter(kept.put(*(old.data for old in olds)))
    recorded: list[KeptFile] = []
    for change in plain:
        if change.before is None:
            recorded.append(KeptFile(change.path))
        else:
            recorded.append(KeptFile(change.path, next(names), change.before.mode))
    return recorded, [change.path for change in changes if is_secret_path(change.path)]


def _apply(root: Path, granted: Sequence[str], changes: Sequence[FileChange]) -> None:
    done: list[FileChange] = []
    with Folder(root, granted) as folder:
        for change in changes:
            now = folder.find(change.path)
            if (now.data if now else None) != (change.before.data if change.before else None):
                raise FileChanged(
                    f"{change.path} was changed by somebody else just now; nothing was written. Read it again."
                )
        try:
            for change in changes:
                if change.after is None:
                    folder.remove(change.path)
                else:
                    folder.write(change.path, change.after, change.mode)
                done.append(change)
        except ToolError as error:
            _restore(folder, done, error)
            raise


def _restore(folder: Folder, done: Sequence[FileChange], error: ToolError) -> None:
    for change in reversed(done):
        try:
            if change.before is None:
                folder.remove(change.path)
            else:
                folder.write(change.path, change.before.data, change.before.mode)
        except ToolError as worse:
            raise ToolError(
                f"{error} Then {change.path} could not be put back ({worse}): it holds the new content, and the old "
                "one is kept. Tell the user to rewind."
            ) from None
