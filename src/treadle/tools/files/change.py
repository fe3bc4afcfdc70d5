"""How every file tool changes files: keep the old contents, record that, then write. All changes are made, or none.

The changes are planned in memory first. A kill at any point leaves a session that can be rewound.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from treadle.events import KeptFile, Safety, Tier
from treadle.history.call_notes import FILE_NOTE_PREFIX, build_file_note, read_file_note
from treadle.history.content_store import ContentStore
from treadle.messages import Json
from treadle.permissions.data_flow import Trait
from treadle.permissions.paths import explain_write_risk, is_secret_path
from treadle.permissions.policy import Assessment
from treadle.tools.base import ParsedArguments, ToolContext, ToolError
from treadle.tools.function import Function, FunctionTool, ToolOptions
from treadle.workspace.encoding import render_diff
from treadle.workspace.folder import FileChanged, FileContent, Folder, hash_content
from treadle.workspace.worker_threads import run_in_thread

_HOME_DOUBT = "this is where the user's shell and desktop look for what they run, outside of the sandbox"


class FileChange(Struct, frozen=True):
    """A file before and after a change. None means that there is no file."""

    path: str
    before: FileContent | None
    after: bytes | None
    mode: int | None = None


class FileToolSettings(Struct, frozen=True):
    """What the file tools of one agent share: where old contents are kept, and which secrets they may touch."""

    kept: ContentStore
    granted: tuple[str, ...] = ()

    def open_folder(self, context: ToolContext) -> Folder:
        """Open the session's workspace."""
        return Folder(context.workspace, self.granted)


class FileTool(FunctionTool):
    """A function that shows the content of files, which is the user's own."""

    def list_traits(self, tier: Tier) -> frozenset[Trait]:
        return frozenset(("private",))


class WritingTool(FileTool):
    """A function that changes files. A rewind finds their old contents in `kept`."""

    def __init__(self, settings: FileToolSettings, function: Function, options: ToolOptions) -> None:
        super().__init__(function, options)
        self.kept = settings.kept

    def assess_safety(self, arguments: Mapping[str, Json]) -> Safety:
        return self._assess_paths(arguments, ()).safety

    def assess(self, parsed: ParsedArguments, workspace: Path, tier: Tier = "sandbox") -> Assessment:
        return self._assess_paths(parsed.arguments, (os.path.abspath(workspace), os.path.realpath(workspace)))

    def list_paths(self, arguments: Mapping[str, Json]) -> list[str]:
        """List the files that a call would change."""
        return [str(arguments.get("path", ""))]

    def _assess_paths(self, arguments: Mapping[str, Json], roots: Sequence[str]) -> Assessment:
        paths = self.list_paths(arguments)
        why = next(filter(None, (explain_write_risk(path, roots) for path in paths)), "")
        if why:  # the file instructs later agents and programs, so approving one change does not approve the next
            return Assessment("destructive", why, asks_each_time=True)
        is_at_home = any(_is_run_from_home(os.path.join(root, path)) for root in roots for path in paths)
        return Assessment("caution", doubts=(_HOME_DOUBT,) if is_at_home else ())


def _is_run_from_home(path: str) -> bool:
    """Tell whether a path is where other programs of the user run files from, such as `~/.profile`."""
    home = os.path.realpath(os.path.expanduser("~"))
    first = os.path.relpath(os.path.normpath(path), home).partition("/")[0]
    return first != ".." and (first.startswith(".") or first == "bin")


def refuse_if_changed(context: ToolContext, path: str, current: FileContent | None) -> None:
    """Raise `FileChanged` when a file is not what this session last saw of it."""
    known = read_file_note(context.notes.get(FILE_NOTE_PREFIX + path))
    if current is not None and known is not None and known.digest != hash_content(current.data):
        raise FileChanged(
            f"{path} was changed since you last read it, by a command or by somebody else, so nothing was written. "
            "Read it again first."
        )


async def apply_changes(settings: FileToolSettings, context: ToolContext, changes: Sequence[FileChange]) -> None:
    """Make the changes; raises `ToolError`, and then every file is as it was."""
    kept, left_out = await run_in_thread(_keep_old_contents, settings.kept, changes)
    await context.services.record_kept_files(kept, left_out=left_out)
    try:
        await run_in_thread(_write_changes, context.workspace, settings.granted, changes)
    except ToolError:  # the notes keep a rewind from taking the work of others for this call's
        await _save_notes(context, {change.path: change.before.data if change.before else None for change in changes})
        raise
    await _save_notes(context, {change.path: change.after for change in changes})


async def _save_notes(context: ToolContext, contents: Mapping[str, bytes | None]) -> None:
    for path, data in contents.items():
        await context.services.save_note(FILE_NOTE_PREFIX + path, build_file_note(data, left=True))


async def render_change(change: FileChange) -> str:
    """Write a change as a diff on its own lines. A thread compares the texts, because that can take long."""
    before = change.before.data if change.before is not None else None
    return "\n" + await run_in_thread(render_diff, before, change.after, change.path)


def _keep_old_contents(kept: ContentStore, changes: Sequence[FileChange]) -> tuple[list[KeptFile], list[str]]:
    """Keep the old contents of files that are not secret. Return these, and the paths of the secret ones."""
    secret = [change.path for change in changes if is_secret_path(change.path)]
    plain = [change for change in changes if change.path not in secret]
    names = iter(kept.put(*(change.before.data for change in plain if change.before is not None)))
    recorded: list[KeptFile] = []
    for change in plain:
        if change.before is None:
            recorded.append(KeptFile(change.path))
        else:
            recorded.append(KeptFile(change.path, next(names), change.before.mode))
    return recorded, secret


def _write_changes(root: Path, granted: Sequence[str], changes: Sequence[FileChange]) -> None:
    done: list[FileChange] = []
    with Folder(root, granted) as folder:
        for change in changes:
            current = folder.find(change.path)
            if (current.data if current else None) != (change.before.data if change.before else None):
                raise FileChanged(
                    f"{change.path} was changed by somebody else just now; nothing was written. Read it again."
                )
        try:
            for change in changes:
                _put(folder, change.path, change.after, change.mode)
                done.append(change)
        except ToolError as error:
            _undo_changes(folder, done, error)
            raise


def _undo_changes(folder: Folder, done: Sequence[FileChange], error: ToolError) -> None:
    for change in reversed(done):
        before = change.before
        try:
            _put(folder, change.path, before.data if before else None, before.mode if before else None)
        except ToolError as worse:
            raise ToolError(
                f"{error} Then {change.path} could not be put back ({worse}): it holds the new content, and the old "
                "one is kept. Tell the user to rewind."
            ) from None


def _put(folder: Folder, path: str, data: bytes | None, mode: int | None) -> None:
    if data is None:
        folder.remove(path)
    else:
        folder.write(path, data, mode)
