"""Names that other coding agents give to the file tools and their parameters. Models know them from there."""

from __future__ import annotations

_PATH = dict.fromkeys(("file_path", "filePath", "filepath", "filename", "file", "target_file"), "path")

READ_NAMES = ("read", "Read", "view_file", "open_file", "cat")
READ_ARGUMENTS = {
    **_PATH,
    **dict.fromkeys(("start_line", "startLine", "start", "line", "from_line"), "offset"),
    **dict.fromkeys(("num_lines", "max_lines", "line_count", "lines"), "limit"),
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
