"""`list_files`: lists the workspace, without what its ignore files name."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Sequence

from treadle.tools.base import Tool, ToolContext
from treadle.tools.files.ripgrep import build_descriptor_path, build_glob_flags, run_ripgrep
from treadle.tools.function import tool
from treadle.workspace.folder import Folder
from treadle.workspace.worker_threads import run_in_thread

MAX_SHOWN = 200
_MAX_FOUND = 200_000
_PROGRESS_INTERVAL = 10_000
_TIMEOUT = 20.0


def build_list_files_tool(granted: Sequence[str]) -> Tool:
    """Build the tool. `granted` names the secret files that it may show."""

    @tool(
        safety="safe",
        timeout=60.0,
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

            result = await run_ripgrep(["--files", *build_glob_flags(pattern)], descriptor, take, _TIMEOUT)
            shown = await run_in_thread(_render_names, folder, real, names, 99 if pattern else max(1, depth))
        if shown:
            cut = "" if result.is_complete else "\n[It took too long or there is too much: not all was seen.]"
            return "\n".join(shown) + cut
        where = "the workspace" if real == "." else real
        if pattern:
            return f"No file in {where} fits {pattern}."
        return f"No files in {where}, or only ones that ignore files leave out."

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
        if len(shown) == MAX_SHOWN:
            shown.append(f"[… {len(ordered) - index} more; name a folder or a pattern to see them]")
            break
        path = name if real == "." else f"{real}/{name}"
        if folder.look_up(path) is None:  # gone meanwhile, or not really in the workspace
            continue
        count = below[name]
        shown.append(f"{path}/ ({count} {'file' if count == 1 else 'files'})" if name in below else path)
    return shown
