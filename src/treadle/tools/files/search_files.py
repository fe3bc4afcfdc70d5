"""`search_files`: ripgrep finds the places, and the lines shown are read from the workspace itself.

So a folder that is swapped for a link while ripgrep looks can make it find something, but never show it.
"""

from __future__ import annotations

import base64

import msgspec
from msgspec import Struct

from treadle.permissions.paths import is_secret_path
from treadle.tools.base import Tool, ToolContext, ToolError
from treadle.tools.files.change import FileTool, FileToolSettings
from treadle.tools.files.ripgrep import build_descriptor_path, build_glob_flags, run_ripgrep
from treadle.tools.function import ToolOptions
from treadle.workspace.encoding import decode_text, split_lines
from treadle.workspace.folder import Folder
from treadle.workspace.worker_threads import run_in_thread

MAX_SHOWN = 100
_SECONDS = 25.0
_LINE_CHARACTERS = 300
_MOST_AROUND = 10


class _Words(Struct):
    text: str | None = None
    bytes: str = ""

    def raw(self) -> bytes:
        return self.text.encode() if self.text is not None else base64.b64decode(self.bytes)


class _Found(Struct):
    path: _Words
    lines: _Words
    line_number: int | None = None


class _Line(Struct):
    type: str
    data: msgspec.Raw


class _Place(Struct, frozen=True):
    path: str
    number: int
    line: str


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_found = msgspec.json.Decoder(_Found).decode


def build_search_files_tool(files: FileToolSettings) -> Tool:
    """The tool."""

    async def search_files(
        pattern: str, context: ToolContext, path: str = ".", glob: str = "", ignore_case: bool = False, around: int = 0
    ) -> str:
        """Search the text of files with a regular expression. Gives path, line number and line.

        What ignore files such as .gitignore name is left out. Examples: {"pattern": "TODO"},
        {"pattern": "class \\\\w+Error", "glob": "*.py"}, {"pattern": "port", "path": "config", "ignore_case": true}.

        Args:
            pattern: a regular expression; put a backslash before . ( [ and the like to mean them to the letter
            path: the folder or file to search, relative to the workspace
            glob: only files whose name or path fits this glob
            ignore_case: upper and lower case are the same
            around: how many lines before and after each place to show too
        """
        if not pattern:
            raise ToolError("The pattern is empty: say what to look for.")
        places: list[_Place] = []
        with files.open_folder(context) as folder, folder.open_for_program(path) as (opened, real, _):
            start = len(build_descriptor_path(opened)) + 1

            def take(line: bytes) -> bool:
                event = _decode_line(line)
                if event.type == "begin":
                    context.progress(f"searching, {len(places)} places so far", len(places))
                elif event.type == "match":
                    place = _place(_decode_found(event.data), real, start)
                    if not is_secret_path(place.path, files.granted):
                        places.append(place)
                return len(places) <= MAX_SHOWN

            case = ["--ignore-case"] if ignore_case else []
            options = ["--json", "--sort=path", "--crlf", "--max-filesize=10M", *case, f"--regexp={pattern}"]
            ended = await run_ripgrep([*options, *build_glob_flags(glob)], opened, take, _SECONDS)
            if ended.code == 2 and not places and ended.error:
                raise ToolError(f"ripgrep does not take this pattern:\n{ended.error}")
            around = min(max(0, around), _MOST_AROUND)
            shown = await run_in_thread(_shown, folder=folder, places=places[:MAX_SHOWN], around=around)
        if not shown and ended.is_complete:
            return f"Nothing in {'the workspace' if real == '.' else real} fits {pattern}."
        if len(places) > MAX_SHOWN:
            shown.append(f"[… there are more than {MAX_SHOWN} places; narrow the pattern, the path or the glob]")
        elif not ended.is_complete:
            shown.append(f"[Stopped after {_SECONDS:g} s: there may be more.]")
        return "\n".join(shown)

    options = ToolOptions(
        safety="safe",
        timeout=60.0,
        examples=(
            ("Search the files for timeout", {"pattern": "timeout"}),
            ("Where is the word garden used?", {"pattern": "garden"}),
            ("Find the word password in the files", {"pattern": "password"}),
            ("Which files mention Berlin?", {"pattern": "Berlin"}),
        ),
    )
    return FileTool(search_files, options)


def _place(found: _Found, real: str, start: int) -> _Place:
    inside = found.path.raw().decode("utf-8", "surrogateescape")[start:]
    path = inside if real == "." else f"{real}/{inside}" if inside else real
    return _Place(path, found.line_number or 0, _line_of(found.lines.raw()))


def _line_of(data: bytes) -> str:
    text = decode_text(data)
    return text.text.rstrip("\r\n") if text is not None else ""


def _shown(folder: Folder, places: list[_Place], around: int) -> list[str]:
    by_path: dict[str, list[_Place]] = {}
    for place in places:
        by_path.setdefault(place.path, []).append(place)
    shown: list[str] = []
    for path, found in by_path.items():
        lines = _lines_in(folder, path)
        hits = {one.number for one in found if _holds(lines, one)}
        wanted = {near for hit in hits for near in range(hit - around, hit + around + 1) if 1 <= near <= len(lines)}
        last = 0
        for number in sorted(wanted):
            if around and shown and number != last + 1:
                shown.append("--")
            mark = ":" if number in hits else "-"
            shown.append(f"{path}{mark}{number}{mark} {_cut(lines[number - 1])}")
            last = number
    return shown


def _lines_in(folder: Folder, path: str) -> list[str]:
    try:
        text = decode_text(folder.read(path).data)
    except ToolError:  # gone, masked, or not really in the workspace
        return []
    return split_lines(text.text) if text is not None else []


def _holds(lines: list[str], place: _Place) -> bool:
    """Whether the line that ripgrep saw is the line that is there."""
    return 1 <= place.number <= len(lines) and lines[place.number - 1].rstrip("\r") == place.line


def _cut(line: str) -> str:
    line = line.rstrip("\r")
    return line if len(line) <= _LINE_CHARACTERS else f"{line[:_LINE_CHARACTERS]} […]"
