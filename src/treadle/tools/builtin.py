"""The ready-made set of tools, with their sandbox and file history. Each is imported when it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.history.base import Contents
    from treadle.tools.base import Tool


def build_default_tools(
    *,
    shell: bool = True,
    web: bool | str = False,
    ask: bool = True,
    network: Sequence[str] = (),
    kept: Path | str | None = None,
    granted: Sequence[str] = (),
) -> list[Tool]:
    """Build the tools for work in a folder: files, commands, arithmetic, time, a plan, long output, questions.

    `web` adds `fetch_url`. It is off by default because it lets in text of strangers and can send data out. It may be
    the address of a proxy. `network` names the hosts that sandboxed commands may reach (`example.org`,
    `*.example.org`, `registries` for the well-known package registries, `*` for all public hosts). `kept` is the
    folder for old contents of changed files; the default is in the user's data folder. A store that machines share
    keeps them itself. `granted` names secret files that the tools may read and change.
    """
    from treadle.history.content_store import ContentStore
    from treadle.tools.ask_user import AskUser
    from treadle.tools.calculate import calculate
    from treadle.tools.current_time import current_time
    from treadle.tools.read_output import read_output
    from treadle.tools.todo import todo

    kept_files = ContentStore(kept)
    tools = [*build_file_tools(kept_files, granted=granted), calculate, current_time, read_output, todo]
    if shell:
        from treadle.sandbox import backend
        from treadle.sandbox.registries import expand_hosts
        from treadle.tools.git_remote import GitRemote
        from treadle.tools.shell import Shell

        hosts = () if "*" in network else expand_hosts(network)
        commands = Shell(backend, kept_files, network=bool(network), allow_hosts=hosts)
        commands.remote = GitRemote(backend)
        tools += [commands, commands.remote]
    if web:
        from treadle.sandbox.proxy import is_public_address
        from treadle.tools.web import FetchUrl

        tools.append(FetchUrl(is_public_address, proxy=web if isinstance(web, str) else ""))
    if ask:
        tools.append(AskUser())
    return tools


def build_file_tools(kept: Contents, *, granted: Sequence[str] = ()) -> list[Tool]:
    """Build read_file, write_file, edit_file, apply_patch, list_files and search_files.

    `granted` are paths or globs of secret files that the tools may read and change, such as `.env.test`.
    """
    from treadle.tools.files.change import FileToolSettings
    from treadle.tools.files.edit import build_edit_file_tool, build_write_file_tool
    from treadle.tools.files.find import build_list_files_tool, build_search_files_tool
    from treadle.tools.files.patch import build_apply_patch_tool
    from treadle.tools.files.read import build_read_file_tool

    settings = FileToolSettings(kept, tuple(granted))
    return [
        build_read_file_tool(settings.granted),
        build_write_file_tool(settings),
        build_edit_file_tool(settings),
        build_apply_patch_tool(settings),
        build_list_files_tool(settings.granted),
        build_search_files_tool(settings.granted),
    ]
