"""`read_file`: shows a text file with line numbers, or an image. It notes what it showed, so edits notice changes."""

from __future__ import annotations

import base64
import difflib
import posixpath
from collections.abc import Sequence
from pathlib import Path

import msgspec

from treadle.messages import ImagePart, hash_content
from treadle.tools.base import FILE_NOTE_PREFIX, FileNote, Tool, ToolContext, ToolResult, read_file_note
from treadle.tools.files.other_names import READ_ARGUMENTS, READ_NAMES
from treadle.tools.function import tool
from treadle.workspace.folder import FileContent, Folder, NoSuchFile, decode_text, split_lines
from treadle.workspace.worker_threads import run_in_thread

MAX_LINES = 2000
MAX_BYTES = 15_000
MAX_LINE_CHARACTERS = 2000
IMAGE_CAP = 4 * 1024 * 1024
_IMAGES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"RIFF", "image/webp"),
)


def build_read_file_tool(granted: Sequence[str]) -> Tool:
    """Build the tool. `granted` names the secret files that it may show."""

    @tool(
        safety="safe",
        timeout=30.0,
        aliases=READ_NAMES,
        argument_aliases=READ_ARGUMENTS,
        examples=(
            ("Read the file plan.txt", {"path": "plan.txt"}),
            ("What does letter.txt say?", {"path": "letter.txt"}),
            ("Show me ideas.md", {"path": "ideas.md"}),
            ("Open src/app.py", {"path": "src/app.py"}),
        ),
    )
    async def read_file(path: str, context: ToolContext, offset: int = 1, limit: int = MAX_LINES) -> str | ToolResult:
        """Read a file of the workspace. Text comes with line numbers, which are not part of the file; images are shown.

        Example: {"path": "src/app.py"}, or {"path": "src/app.py", "offset": 200, "limit": 50} for lines 200 to 249.

        Args:
            path: the file, relative to the workspace
            offset: the first line to show, counted from 1
            limit: how many lines to show at most
        """
        file = await run_in_thread(_read, context.workspace, granted, path)
        name, digest = FILE_NOTE_PREFIX + file.path, hash_content(file.data)
        known = read_file_note(context.notes.get(name))
        if known is None or known.digest != digest:
            await context.services.save_note(name, msgspec.to_builtins(FileNote(digest)))
        return _render_file(file, max(1, offset), max(1, limit))

    # Nobody can tell who wrote a file: the user, the author of a cloned repository, or an earlier session.
    read_file.traits = frozenset(("workspace", "private"))
    return read_file


def _read(workspace: Path, granted: Sequence[str], path: str) -> FileContent:
    with Folder(workspace, granted) as folder:
        try:
            return folder.read(path)
        except NoSuchFile as error:
            parent, last = posixpath.split(folder.resolve_path(path))
            close = difflib.get_close_matches(last, folder.list_names(parent or "."), n=3, cutoff=0.6)
            meant = " or ".join(posixpath.join(parent, name) for name in close)
            hint = f"Did you mean {meant}?" if meant else "list_files shows what there is."
            raise NoSuchFile(f"{error} {hint}") from None


def _render_file(file: FileContent, offset: int, limit: int) -> str | ToolResult:
    media = next((kind for mark, kind in _IMAGES if file.data.startswith(mark)), "")
    if media == "image/webp" and file.data[8:12] != b"WEBP":
        media = ""
    if media and len(file.data) <= IMAGE_CAP:
        image = ImagePart(base64.b64encode(file.data).decode(), media)
        return ToolResult(f"{file.path}: an image ({media}, {len(file.data)} bytes).", (image,))
    if media:
        return f"{file.path} is an image of {len(file.data)} bytes, and {IMAGE_CAP} is the most that can be shown."
    text = decode_text(file.data)
    if text is None:
        return f"{file.path} is not text: {len(file.data)} bytes, beginning with {file.data[:16].hex(' ')}."
    lines = split_lines(text.text)
    if not lines:
        return f"{file.path} is empty."
    if offset > len(lines):
        return f"{file.path} has only {len(lines)} lines; there is no line {offset}."
    shown: list[str] = []
    size = 0
    for number, line in enumerate(lines[offset - 1 : offset - 1 + limit], offset):
        if len(line) > MAX_LINE_CHARACTERS:
            line = f"{line[:MAX_LINE_CHARACTERS]} [… {len(line) - MAX_LINE_CHARACTERS} more characters in this line]"
        size += len(line.encode("utf-8", "replace")) + 8
        if size > MAX_BYTES and shown:
            break
        shown.append(f"{number:>5}\t{line}")
    last = offset + len(shown) - 1
    about: list[str] = []
    if offset > 1 or last < len(lines):
        more = f"; go on with offset={last + 1}" if last < len(lines) else ""
        about.append(f"lines {offset} to {last} of {len(lines)}{more}")
    if text.encoding != "utf-8":
        guess = ", which is a guess" if text.encoding == "latin-1" else ""
        about.append(f"encoding {text.encoding}{guess}")
    return "\n".join([*shown, f"[{file.path}: {'; '.join(about)}]"] if about else shown)
