"""`write_file`: writes a whole file, new or replaced. The old content is kept, and the result shows what changed."""

from __future__ import annotations

from treadle.tools.base import Tool, ToolContext, ToolError
from treadle.tools.files.change import (
    FileChange,
    FileToolSettings,
    WritingTool,
    apply_changes,
    refuse_if_changed,
    render_change,
)
from treadle.tools.function import ToolOptions
from treadle.workspace.encoding import describe_line_count
from treadle.workspace.folder import MAX_FILE_BYTES
from treadle.workspace.worker_threads import run_in_thread


def build_write_file_tool(settings: FileToolSettings) -> Tool:
    """Build the tool."""

    async def write_file(path: str, content: str, context: ToolContext) -> str:
        """Write a whole text file in the workspace: a new one, or in place of the old one. Folders are made.

        To change a part of a file, edit_file is better. Example: {"path": "notes/today.md", "content": "# Today\\n"}.

        Args:
            path: the file, relative to the workspace
            content: all that the file shall hold
        """
        change = await run_in_thread(_plan_change, settings, context, path, content)
        size = f"{len(change.after or b'')} bytes, {describe_line_count(content)}"
        if change.before is not None and change.before.data == change.after:
            return f"{change.path} holds exactly that already ({size})."
        await apply_changes(settings, context, [change])
        done = "Made" if change.before is None else "Replaced"
        return f"{done} {change.path} ({size}).{await render_change(change) if change.before is not None else ''}"

    options = ToolOptions(
        timeout=60.0,
        examples=(
            ("Write the file plan.txt: call the bank", {"path": "plan.txt", "content": "call the bank"}),
            ("Make a file letter.txt that says dear Tom", {"path": "letter.txt", "content": "dear Tom"}),
            ("Create names.md with the text Ann and Bob", {"path": "names.md", "content": "Ann and Bob"}),
        ),
    )
    return WritingTool(settings, write_file, options)


def _plan_change(settings: FileToolSettings, context: ToolContext, path: str, content: str) -> FileChange:
    try:
        data = content.encode()
    except UnicodeEncodeError as error:
        raise ToolError(f"The content has {content[error.start]!r}, which cannot be written as UTF-8.") from None
    if len(data) > MAX_FILE_BYTES:
        raise ToolError(f"The content has {len(data)} bytes, and {MAX_FILE_BYTES} is the most; nothing was written.")
    with settings.open_folder(context) as folder:
        name = folder.resolve_writable(path)
        before = folder.find(name)
    refuse_if_changed(context, name, before)
    return FileChange(name, before, data)
