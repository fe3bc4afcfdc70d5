"""What a command of the shell tool asks for besides its workspace: hosts while it runs, and folders before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from treadle.errors import BadInput
from treadle.messages import Json
from treadle.permissions.policy import make_printable
from treadle.permissions.requests import NETWORK, READ_FOLDER, USUAL_PORTS, WRITE_FOLDER
from treadle.sandbox.extra_folders import resolve_extra_folder
from treadle.tools.base import ToolContext, ToolError


class CommandRequests:
    """The requests of one command. Rules or a person decide about each, and the model reads why not."""

    def __init__(self, context: ToolContext, command: str) -> None:
        self._context, self._command = context, command
        self._shown = make_printable(" ".join(command.split()))

    async def ask_host(self, host: str, port: int) -> str:
        """Ask whether the command may reach a host. Return why not, or nothing."""
        name = host if port in USUAL_PORTS else f"{host}:{port}"
        arguments: dict[str, Json] = {"host": host, "port": port, "command": self._command}
        answer = await self._context.services.request_permission(NETWORK, arguments, f"`{self._shown}` wants {name}")
        return "" if answer.is_allowed else answer.why

    async def find_folders(self, named: Sequence[str], granted: Iterable[Path], *, is_writable: bool) -> list[Path]:
        """Find the folders that the command needs besides those that are granted. Raises `ToolError` for a no."""
        tool, verb = (WRITE_FOLDER, "change") if is_writable else (READ_FOLDER, "read")
        allowed, found = set(granted), list[Path]()
        for name in named:
            try:
                folder = resolve_extra_folder(name, self._context.workspace, is_writable=is_writable)
            except BadInput as error:
                raise ToolError(f"Not run: {error}") from None
            if any(folder.is_relative_to(one) for one in allowed):
                continue
            arguments: dict[str, Json] = {"path": str(folder), "command": self._command}
            why = f"`{self._shown}` wants to {verb} {make_printable(str(folder))}"
            answer = await self._context.services.request_permission(tool, arguments, why)
            if not answer.is_allowed:
                raise ToolError(f"Not run: it may not {verb} {folder}: {answer.why}")
            found.append(folder)
            allowed.add(folder)
        return found
