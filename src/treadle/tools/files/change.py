"""How every file tool changes files: keep the old contents, record that, then write. All changes are made, or none.

The changes are planned in memory first. A kill at any point leaves a session that can be rewound.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from treadle.events import KeptFile, Safety, Tier
from treadle.history.base import Contents
from treadle.messages import Json, hash_content
from treadle.permissions.data_flow import Trait
from treadle.permissions.paths import explain_write_risk, find_worktree_folder, is_secret_path
from treadle.permissions.policy import Assessment
from treadle.tools.base import FILE_NOTE_PREFIX, FileNote, ParsedArguments, ToolContext, ToolError, read_file_note
from treadle.tools.function import Function, FunctionTool, ToolOptions
from treadle.workspace.folder import MAX_FILE_BYTES, FileContent, Folder, render_diff
from treadle.workspace.worker_threads import run_in_thread

_LASTING: frozenset[Trait] = frozenset(("lasting",))
_HOME_DOUBT = "this is where the user's shell and desktop look for what they run, outside of the sandbox"


class FileChange(Struct, frozen=True):
    """A file before and after a change. None means that there is no file."""

    path: str
    before: FileContent | None
    after: bytes | None
    mode: int | None = None

    @property
    def old(self) -> bytes | None:
        return self.before.data if self.before is not None else None


class FileToolSettings(Struct, frozen=True):
    """What the file tools of one agent share: where old contents are kept, and which secrets they may touch."""

    kept: Contents
    granted: tuple[str, ...] = ()


class WritingTool(FunctionTool):
    """A function that changes files. A rewind finds their old contents in `kept`."""

    traits = frozenset(("workspace", "private"))  # it shows what it changed

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
            return Assessment("destructive", why, asks_each_time=True, traits=_LASTING)
        # Other programs of the user run files from home, such as `~/.profile`, but none from a worktree of a session.
        home, worktrees = os.path.realpath(os.path.expanduser("~")), os.path.realpath(find_worktree_folder())
        outside = [root for root in roots if not os.path.realpath(root).startswith(f"{worktrees}/")]
        places = [os.path.relpath(os.path.join(root, path), home) for root in outside for path in paths]
        names = [place.partition("/")[0] for place in places]
        is_at_home = any(name == "bin" or (name.startswith(".") and name != "..") for name in names)
        return Assessment("caution", doubts=(_HOME_DOUBT,), traits=_LASTING) if is_at_home else Assessment("caution")


def find_file(settings: FileToolSettings, context: ToolContext, path: str) -> tuple[str, FileContent | None]:
    """Return the real path of a file to write, and the file if there is one; raises when it changed unseen."""
    with Folder(context.workspace, settings.granted) as folder:
        name = folder.resolve_writable(path)
        file = folder.find(name)
    refuse_if_changed(context, name, file)
    return name, file


def refuse_if_changed(context: ToolContext, path: str, current: FileContent | None) -> None:
    """Raise `ToolError` when a file is not what this session last saw of it."""
    known = read_file_note(context.notes.get(FILE_NOTE_PREFIX + path))
    if current is not None and known is not None and known.digest != hash_content(current.data):
        raise ToolError(
            f"{path} was changed since you last read it, by a command or by somebody else, so nothing was written. "
            "Read it again first."
        )


async def apply_changes(settings: FileToolSettings, context: ToolContext, changes: Sequence[FileChange]) -> None:
    """Make the changes; raises `ToolError`, and then every file is as it was."""
    for change in changes:
        if change.after is not None and len(change.after) > MAX_FILE_BYTES:
            raise ToolError(
                f"{change.path} would have {len(change.after)} bytes, and {MAX_FILE_BYTES} is the most. "
                "Nothing was changed."
            )
    secret = [change.path for change in changes if is_secret_path(change.path)]
    plain = [change for change in changes if change.path not in secret]
    contents = [change.before.data for change in plain if change.before is not None]
    names = iter(await run_in_thread((context.services.contents or settings.kept).put, *contents))
    kept = [
        KeptFile(change.path, next(names), change.before.mode) if change.before is not None else KeptFile(change.path)
        for change in plain
    ]
    await context.services.record_kept_files(kept, left_out=secret)
    failure: ToolError | None = None
    try:
        await run_in_thread(_write_changes, context.workspace, settings.granted, changes)
    except ToolError as error:
        failure = error
    for change in changes:  # after a failure too: else a rewind would take the work of others for this call's
        left = change.after if failure is None else change.old
        note = FileNote(hash_content(left) if left is not None else "", left=True)
        await context.services.save_note(FILE_NOTE_PREFIX + change.path, msgspec.to_builtins(note))
    if failure is not None:
        raise failure


async def render_change(change: FileChange) -> str:
    """Write a change as a diff on its own lines. A thread compares the texts, because that can take long."""
    return "\n" + await run_in_thread(render_diff, change.old, change.after, change.path)


def _write_changes(root: Path, granted: Sequence[str], changes: Sequence[FileChange]) -> None:
    done: list[FileChange] = []
    with Folder(root, granted) as folder:
        for change in changes:
            current = folder.find(change.path)
            if (current.data if current else None) != change.old:
                raise ToolError(
                    f"{change.path} was changed by somebody else just now; nothing was written. Read it again."
                )
        try:
            for change in changes:
                _put(folder, change.path, change.after, change.mode)
                done.append(change)
        except ToolError as error:
            for change in reversed(done):
                try:
                    _put(folder, change.path, change.old, change.before.mode if change.before else None)
                except ToolError as worse:
                    raise ToolError(
                        f"{error} Then {change.path} could not be put back ({worse}): it holds the new content, and "
                        "the old one is kept. Tell the user to rewind."
                    ) from None
            raise


def _put(folder: Folder, path: str, data: bytes | None, mode: int | None) -> None:
    if data is None:
        folder.remove(path)
    else:
        folder.write(path, data, mode)
