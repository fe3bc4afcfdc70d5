"""Names that other coding agents give to the file tools and their parameters. Models know them from there."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.messages import Json
from treadle.tools.base import ArgumentAlias

_PATH = dict.fromkeys(("file_path", "filePath", "filepath", "filename", "file", "target_file"), "path")


def _read_lines(value: Json, given: Mapping[str, Json]) -> Mapping[str, Json]:
    """Read a list of the first and the last line to show. -1 is the last line of the file."""
    match value:
        case [int(first), -1]:
            return {"offset": first}
        case [int(first), int(last)] if last >= first:
            return {"offset": first, "limit": last - first + 1}
        case _:
            return {"view_range": value}


READ_NAMES = ("read", "Read", "view_file", "open_file", "cat")
READ_ARGUMENTS: dict[str, ArgumentAlias] = {
    **_PATH,
    **dict.fromkeys(("start_line", "startLine", "start", "line", "from_line"), "offset"),
    **dict.fromkeys(("num_lines", "max_lines", "line_count", "lines"), "limit"),
    **dict.fromkeys(
        ("end_line", "endLine", "end", "to_line"),
        lambda value, given: _read_lines([given.get("offset", 1), value], given),
    ),
    **dict.fromkeys(("view_range", "line_range"), _read_lines),
}

WRITE_NAMES = ("write", "Write", "create_file")
WRITE_ARGUMENTS = {**_PATH, **dict.fromkeys(("contents", "text", "file_text", "data"), "content")}

EDIT_NAMES = ("edit", "Edit", "str_replace", "replace_in_file", "search_replace")
EDIT_ARGUMENTS = {
    **_PATH,
    **dict.fromkeys(("old_string", "old_str", "oldString", "old_text", "oldText", "search"), "old"),
    **dict.fromkeys(("new_string", "new_str", "newString", "new_text", "newText", "replace", "replacement"), "new"),
    **dict.fromkeys(("replaceAll", "all"), "replace_all"),
}

LIST_NAMES = ("ls", "LS", "list_directory", "list_dir", "glob", "Glob")
FOLDER_ARGUMENTS = dict.fromkeys(("directory", "dir", "dir_path", "folder", "target_directory"), "path")
LIST_ARGUMENTS = {**FOLDER_ARGUMENTS, "glob": "pattern", "glob_pattern": "pattern", "max_depth": "depth"}

SEARCH_NAMES = ("grep", "Grep", "grep_search", "search_file_content")
SEARCH_ARGUMENTS = {
    **FOLDER_ARGUMENTS,
    **dict.fromkeys(("query", "regex", "search"), "pattern"),
    **dict.fromkeys(("include", "include_pattern", "file_pattern"), "glob"),
    **dict.fromkeys(("-i", "case_insensitive"), "ignore_case"),
    **dict.fromkeys(("-C", "context"), "around"),
}

PATCH_ARGUMENTS = {"input": "patch", "diff": "patch"}
