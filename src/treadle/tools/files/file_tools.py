"""The file tools, ready-made, over one place where old contents are kept."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.history.kept_files import KeptFiles
from treadle.tools.base import Tool
from treadle.tools.files.change import Files
from treadle.tools.files.edit import edit_file_tool
from treadle.tools.files.list_files import list_files_tool
from treadle.tools.files.patch import apply_patch_tool
from treadle.tools.files.read import read_file_tool
from treadle.tools.files.search_files import search_files_tool
from treadle.tools.files.write import write_file_tool


def file_tools(kept: KeptFiles | None = None, *, granted: Sequence[str] = ()) -> list[Tool]:
    """read_file, write_file, edit_file, apply_patch, list_files and search_files on the session's workspace.

    `granted` are paths or globs of files that would be masked as secrets, such as `.env.test`.
    """
    files = Files(kept or KeptFiles(), tuple(granted))
    return [
        read_file_tool(files),
        write_file_tool(files),
        edit_file_tool(files),
        apply_patch_tool(files),
        list_files_tool(files),
        search_files_tool(files),
    ]
