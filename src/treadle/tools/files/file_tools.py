"""The file tools, ready-made, over one place where old contents are kept."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.history.kept_files import ContentStore
from treadle.tools.base import Tool
from treadle.tools.files.change import FileToolSettings
from treadle.tools.files.edit import build_edit_file_tool
from treadle.tools.files.list_files import build_list_files_tool
from treadle.tools.files.patch import build_apply_patch_tool
from treadle.tools.files.read import build_read_file_tool
from treadle.tools.files.search_files import build_search_files_tool
from treadle.tools.files.write import build_write_file_tool


def build_file_tools(kept: ContentStore | None = None, *, granted: Sequence[str] = ()) -> list[Tool]:
    """read_file, write_file, edit_file, apply_patch, list_files and search_files on the session's workspace.

    `granted` are paths or globs of files that would be masked as secrets, such as `.env.test`.
    """
    files = FileToolSettings(kept or ContentStore(), tuple(granted))
    return [
        build_read_file_tool(files),
        build_write_file_tool(files),
        build_edit_file_tool(files),
        build_apply_patch_tool(files),
        build_list_files_tool(files),
        build_search_files_tool(files),
    ]
