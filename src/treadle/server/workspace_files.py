"""The workspace of a session over HTTP: find files by some letters, revert one file, and custom commands."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query
from pydantic import BaseModel, Field

from treadle.app.custom_commands import CustomCommand, list_custom_commands
from treadle.app.file_search import MAX_MATCHES, search_paths
from treadle.app.settings import config_folder
from treadle.errors import BadInput, NotFound
from treadle.server.problems import build_field_error
from treadle.server.service import CurrentService, Sender, StrictBody, Viewer
from treadle.server.session_history import Position, RewindView, check_file_rights, show_rewind

router = APIRouter(prefix="/v1/sessions/{session_id}", tags=["sessions"])
_MAX_KEY_LENGTH = 200


class FoundFiles(BaseModel):
    """Paths in the workspace, the best first. That of a folder ends in a slash."""

    files: list[str]


class CommandView(BaseModel):
    """A custom command: a text of the user or of the workspace that becomes a message."""

    name: str
    description: str
    arguments_hint: str
    origin: Literal["user", "workspace"]


class CommandBody(StrictBody):
    arguments: str = Field("", max_length=100_000)
    mode: Literal["queue", "interrupt", "follow_up"] = "queue"


class CommandSent(BaseModel):
    message_id: str


class RevertBody(StrictBody):
    """Revert the file to what it was at `to`, or before the session. `force` also discards changes of others."""

    path: str = Field(min_length=1, max_length=4000)
    to: Position = 1
    dry_run: bool = False
    force: bool = False


@router.get("/files")
async def find_files(
    service: CurrentService,
    token: Viewer,
    session_id: str,
    q: Annotated[str, Query(max_length=500)] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_MATCHES)] = 20,
) -> FoundFiles:
    """Find files and folders of the workspace by some letters of their path, as the terminal does after `@`."""
    folder = await _find_workspace(service, session_id)
    paths = await service.files.list_paths(folder)
    found = await asyncio.to_thread(search_paths, q, paths)
    return FoundFiles(files=[match.path for match in found[:limit]])


@router.post("/revert")
async def revert_file(service: CurrentService, token: Sender, session_id: str, body: RevertBody) -> RewindView:
    """Revert one file that the session's calls changed. `rewind/undo` undoes it. `dry_run` only returns the diff."""
    session = await service.open_for_use(session_id, token)
    if not body.dry_run:
        await check_file_rights(session, token)
    try:
        done = await session.revert_file(body.path, body.to, dry_run=body.dry_run, force=body.force)
    except NotFound:
        raise
    except BadInput as error:
        raise build_field_error("to", str(error)) from None
    return show_rewind(done)


@router.get("/commands")
async def list_commands(service: CurrentService, token: Viewer, session_id: str) -> list[CommandView]:
    """List the custom commands of the workspace and of the server's user."""
    commands = await _read_commands(await _find_workspace(service, session_id))
    return [
        CommandView(name=one.name, description=one.description, arguments_hint=one.hint, origin=_name_origin(one))
        for one in commands.values()
    ]


@router.post("/commands/{name}")
async def send_command(
    service: CurrentService,
    token: Sender,
    session_id: str,
    name: str,
    body: CommandBody,
    key: Annotated[str, Header(alias="Idempotency-Key", max_length=_MAX_KEY_LENGTH)] = "",
) -> CommandSent:
    """Send the text of a custom command as a message."""
    command = (await _read_commands(await _find_workspace(service, session_id))).get(name)
    if command is None:
        raise NotFound(f"there is no command {name[:200]!r} here; GET /v1/sessions/{session_id}/commands lists them")
    session = await service.open_for_run(session_id, token)
    parts = tuple(command.build_parts(body.arguments.strip()))
    return CommandSent(message_id=(await service.post_message(session, parts, body.mode, key)).id)


def _name_origin(command: CustomCommand) -> Literal["user", "workspace"]:
    return "user" if command.origin == "user" else "workspace"


async def _read_commands(folder: Path) -> dict[str, CustomCommand]:
    return (await asyncio.to_thread(list_custom_commands, folder, config_folder())).commands


async def _find_workspace(service: CurrentService, session_id: str) -> Path:
    folder = Path((await service.get_info(session_id)).workspace)
    if not folder.is_absolute() or not await asyncio.to_thread(folder.is_dir):
        raise NotFound(f"the workspace of session {session_id} is not on this machine")
    return folder
