"""`list_files` and `search_files`: ripgrep finds names and places, and only contents of the workspace are shown.

If a folder is exchanged for a link during the search, ripgrep may find something outside, but it is never shown.
"""

from __future__ import annotations

import base64
import posixpath
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import msgspec
from msgspec import Struct

from treadle.permissions.paths import is_secret_path
from treadle.tools.base import Tool, ToolContext, ToolError
from treadle.tools.files.other_names import LIST_ARGUMENTS, LIST_NAMES, SEARCH_ARGUMENTS, SEARCH_NAMES
from treadle.tools.files.ripgrep import build_descriptor_path, build_glob_flags, run_ripgrep
from treadle.tools.function import tool
from treadle.workspace.folder import Folder, decode_text, split_lines
from treadle.workspace.worker_threads import run_in_thread

MAX_LISTED = 200
_MAX_FOUND = 200_000
_PROGRESS_INTERVAL = 10_000
_LIST_TIMEOUT = 20.0
MAX_PLACES = 100
_SEARCH_TIMEOUT = 25.0
_MAX_LINE_CHARACTERS = 300
_MAX_AROUND = 10
_SEARCH_EXAMPLES = (
    ("Search the files for timeout", {"pattern": "timeout"}),
    ("Where is the word garden used?", {"pattern": "garden"}),
    ("Find the word password in the files", {"pattern": "password"}),
    ("Which files mention Berlin?", {"pattern": "Berlin"}),
)


def build_list_files_tool(granted: Sequence[str]) -> Tool:
    """Build the tool. `granted` names the secret files that it may show."""

    @tool(
        safety="safe",
        timeout=60.0,
        aliases=LIST_NAMES,
        argument_aliases=LIST_ARGUMENTS,
        examples=(
            ("What files are here?", {}),
            ("List all the files", {}),
            ("Show me what is in the folder", {}),
            ("List the files in src/app", {"path": "src/app"}),
        ),
    )
    async def list_files(context: ToolContext, path: str = ".", pattern: str = "", depth: int = 2) -> str:
        """List the files of the workspace, or of a folder in it. What ignore files such as .gitignore name is left out.

        Examples: {}, {"path": "src", "depth": 4}, {"pattern": "*.py"}, {"pattern": "docs/**/*.md"}.

        Args:
            path: the folder, relative to the workspace
            pattern: only files whose name or path fits this glob; then the depth does not matter
            depth: how many folders deep to show names; below that only counts
        """
        names: list[str] = []
        with Folder(context.workspace, granted) as folder, folder.open_for_program(path) as (descriptor, real, kind):
            if kind == "file":
                return real
            prefix = f"{build_descriptor_path(descriptor)}/".encode()

            def take(line: bytes) -> bool:
                if not line.startswith(prefix):  # the name has a line break
                    return True
                names.append(line.removeprefix(prefix).decode("utf-8", "surrogateescape"))
                if len(names) % _PROGRESS_INTERVAL == 0:
                    context.progress(f"listing, {len(names)} files so far", len(names))
                return len(names) < _MAX_FOUND

            result = await run_ripgrep(["--files", *build_glob_flags(pattern)], descriptor, take, _LIST_TIMEOUT)
            shown = await run_in_thread(_render_names, folder, real, names, 99 if pattern else max(1, depth))
        if shown:
            cut = "" if result.is_complete else "\n[It took too long or there is too much: not all was seen.]"
            return "\n".join(shown) + cut
        where = "the workspace" if real == "." else real
        if pattern:
            return f"No file in {where} fits {pattern}."
        return f"No files in {where}, or only ones that ignore files leave out."

    list_files.traits = frozenset(("workspace", "private"))  # names can be private, and can say something
    return list_files


def _render_names(folder: Folder, real: str, names: list[str], depth: int) -> list[str]:
    """Write the names down to a depth. Below it, count the files of each folder."""
    below: Counter[str] = Counter()
    entries: set[str] = set()
    for name in names:
        parts = name.split("/")
        if len(parts) > depth:
            below["/".join(parts[:depth])] += 1
        else:
            entries.add(name)
    ordered = sorted([*entries, *below], key=lambda name: (posixpath.dirname(name), name))
    shown: list[str] = []
    for index, name in enumerate(ordered):
        if len(shown) == MAX_LISTED:
            shown.append(f"[… {len(ordered) - index} more; name a folder or a pattern to see them]")
            break
        path = name if real == "." else f"{real}/{name}"
        if folder.look_up(path) is None:  # gone meanwhile, or not really in the workspace
            continue
        count = below[name]
        shown.append(f"{path}/ ({count} {'file' if count == 1 else 'files'})" if name in below else path)
    return shown


class _RipgrepText(Struct, frozen=True):
    text: str | None = None
    bytes: str = ""

    def decode(self) -> bytes:
        return self.text.encode() if self.text is not None else base64.b64decode(self.bytes)


class _RipgrepData(Struct):
    path: _RipgrepText = _RipgrepText()
    lines: _RipgrepText = _RipgrepText()
    line_number: int | None = None


class _RipgrepEvent(Struct):
    type: str
    data: _RipgrepData


class _Place(Struct, frozen=True):
    path: str
    number: int
    line: str


_decode_event = msgspec.json.Decoder(_RipgrepEvent).decode


def build_search_files_tool(granted: Sequence[str]) -> Tool:
    """Build the tool. `granted` names the secret files that it may show."""

    @tool(
        safety="safe", timeout=60.0, aliases=SEARCH_NAMES, argument_aliases=SEARCH_ARGUMENTS, examples=_SEARCH_EXAMPLES
    )
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
        with Folder(context.workspace, granted) as folder, folder.open_for_program(path) as (descriptor, real, _):
            prefix = len(build_descriptor_path(descriptor)) + 1

            def take(line: bytes) -> bool:
                event = _decode_event(line)
                if event.type == "begin":
                    context.progress(f"searching, {len(places)} places so far", len(places))
                elif event.type == "match":
                    match = event.data
                    inside = match.path.decode().decode("utf-8", "surrogateescape")[prefix:]
                    name = inside if real == "." else f"{real}/{inside}" if inside else real
                    text = decode_text(match.lines.decode())
                    if not is_secret_path(name, granted):
                        found = text.text.rstrip("\r\n") if text is not None else ""
                        places.append(_Place(name, match.line_number or 0, found))
                return len(places) <= MAX_PLACES

            case = ["--ignore-case"] if ignore_case else []
            options = ["--json", "--sort=path", "--crlf", "--max-filesize=10M", *case, f"--regexp={pattern}"]
            result = await run_ripgrep([*options, *build_glob_flags(glob)], descriptor, take, _SEARCH_TIMEOUT)
            if result.code == 2 and not places and result.error:
                raise ToolError(f"ripgrep does not take this pattern:\n{result.error}")
            around = min(max(0, around), _MAX_AROUND)
            shown = await run_in_thread(_render_places, folder, places[:MAX_PLACES], around)
        if not shown and result.is_complete:
            return f"Nothing in {'the workspace' if real == '.' else real} fits {pattern}."
        if len(places) > MAX_PLACES:
            shown.append(f"[… there are more than {MAX_PLACES} places; narrow the pattern, the path or the glob]")
        elif not result.is_complete:
            shown.append(f"[Stopped after {_SEARCH_TIMEOUT:g} s: there may be more.]")
        return "\n".join(shown)

    search_files.traits = frozenset(("workspace", "private"))
    return search_files


def _render_places(folder: Folder, places: list[_Place], around: int) -> list[str]:
    """Write the places with lines around them. A place is left out when its line is not what ripgrep saw."""
    shown: list[str] = []
    for path, found in groupby(places, lambda place: place.path):
        try:
            text = decode_text(folder.read(path).data)
        except ToolError:  # gone, masked, or not really in the workspace
            continue
        lines = split_lines(text.text) if text is not None else []
        hits = {
            place.number
            for place in found
            if 1 <= place.number <= len(lines) and lines[place.number - 1].rstrip("\r") == place.line
        }
        wanted = {near for hit in hits for near in range(hit - around, hit + around + 1) if 1 <= near <= len(lines)}
        last = 0
        for number in sorted(wanted):
            if around and shown and number != last + 1:
                shown.append("--")
            mark, line = ":" if number in hits else "-", lines[number - 1].rstrip("\r")
            if len(line) > _MAX_LINE_CHARACTERS:
                line = f"{line[:_MAX_LINE_CHARACTERS]} […]"
            shown.append(f"{path}{mark}{number}{mark} {line}")
            last = number
    return shown
