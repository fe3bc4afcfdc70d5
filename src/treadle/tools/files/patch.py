"""`apply_patch`: applies a unified diff to several files, all of it or nothing."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from treadle.messages import Json
from treadle.tools.base import ParsedArguments, Tool, ToolContext, ToolError
from treadle.tools.files.change import FileChange, FileToolSettings, WritingTool, apply_changes, refuse_if_changed
from treadle.tools.files.other_names import PATCH_ARGUMENTS
from treadle.tools.files.unified_diff import apply_hunks, read_patch
from treadle.tools.function import ToolOptions
from treadle.workspace.folder import FileContent, Folder, decode_text, describe_line_count
from treadle.workspace.worker_threads import run_in_thread

_EXAMPLE = "--- a/greeting.txt\n+++ b/greeting.txt\n@@ -1,2 +1,2 @@\n Dear all,\n-hello\n+good morning\n"


class PatchTool(WritingTool):
    """Names for the policy the files that a patch changes, so that rules about paths hold for it too."""

    def parse(self, arguments: str) -> ParsedArguments:
        parsed = super().parse(arguments)
        try:
            patches = read_patch(str(parsed.arguments["patch"]))
        except ToolError:  # the call reports it when it runs; until then, nothing in the patch is known to be harmless
            patches = []
        names = sorted({name for patch in patches for name in (patch.source, patch.target) if name})
        return ParsedArguments({"files": names, **parsed.arguments}, parsed.values)

    def list_paths(self, arguments: Mapping[str, Json]) -> list[str]:
        return msgspec.convert(arguments.get("files", []), list[str])


def build_apply_patch_tool(settings: FileToolSettings) -> Tool:
    """Build the tool."""

    async def apply_patch(patch: str, context: ToolContext) -> str:
        """Change several files at once with a unified diff: all of it or nothing. It can make, delete and rename files.

        The lines of context and those removed must be in the file to the letter; line numbers may be off. New files
        have --- /dev/null, deleted ones +++ /dev/null. Example:
        {"patch": "--- a/x.py\\n+++ b/x.py\\n@@ -1,2 +1,2 @@\\n def f():\\n-    return 1\\n+    return 2\\n"}

        Args:
            patch: the diff, as `git diff` writes it
        """
        changes = await run_in_thread(_plan_changes, settings, context, patch)
        await apply_changes(settings, context, changes)
        lines = ["Patched:"]
        for change in changes:
            text = decode_text(change.after or b"")
            size = describe_line_count(text.text) if text is not None else "not text"
            done = "made" if change.before is None else "changed"
            lines.append(f"- {change.path}: {'deleted' if change.after is None else f'{done}, {size} now'}")
        return "\n".join(lines)

    examples = (("apply this patch to greeting.txt", {"patch": _EXAMPLE}),)
    return PatchTool(
        settings, apply_patch, ToolOptions(timeout=60.0, examples=examples, argument_aliases=PATCH_ARGUMENTS)
    )


def _plan_changes(settings: FileToolSettings, context: ToolContext, diff: str) -> list[FileChange]:
    """Plan what a diff does. It may name a file more than once."""
    planned: dict[str, FileChange] = {}
    with Folder(context.workspace, settings.granted) as folder:
        for patch in read_patch(diff):
            source = folder.resolve_writable(patch.source) if patch.source else ""
            target = folder.resolve_writable(patch.target) if patch.target else ""
            file = _read_planned(folder, context, source, planned) if source else None
            if source and file is None and target and target != source:  # `diff` writes the names as it was given them
                source, file = target, _read_planned(folder, context, target, planned)
            if source and file is None:
                raise ToolError(f"{source}: there is no such file to patch. Nothing was changed in any file.")
            if target and target != source and _read_planned(folder, context, target, planned) is not None:
                raise ToolError(f"{target} is there already, so it cannot be made. Nothing was changed in any file.")
            after = file.data if file is not None else b""
            if file is None or patch.hunks:
                text = decode_text(after)
                if text is None:
                    raise ToolError(f"{source} is not text, so it cannot be patched. Nothing was changed in any file.")
                patched = apply_hunks(text.text, patch.hunks, source or target)
                if not target and patched:
                    raise ToolError(
                        f"{source} would be deleted, but the patch leaves lines of it. Nothing was changed in any file."
                    )
                after = text.encode(patched)
            if target != source and source:
                planned[source] = FileChange(source, folder.find(source), None)
            if target:
                mode = patch.mode if patch.mode is not None else file.mode if file is not None else None
                planned[target] = FileChange(target, folder.find(target), after, mode)
    changes = [
        change
        for change in planned.values()
        if change.after != change.old or (change.before and change.mode not in (None, change.before.mode))
    ]
    if not changes:
        raise ToolError("The patch changes nothing: every file it names is already so.")
    return changes


def _read_planned(
    folder: Folder, context: ToolContext, path: str, planned: Mapping[str, FileChange]
) -> FileContent | None:
    """Return a file as it will be after the changes planned so far."""
    if path in planned:
        change = planned[path]
        mode = change.mode if change.mode is not None else 0o644
        return FileContent(path, change.after, mode) if change.after is not None else None
    file = folder.find(path)
    refuse_if_changed(context, path, file)
    return file
