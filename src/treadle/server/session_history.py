"""The past of a session: its state then, its checkpoints, going on from one, what calls changed, and rewinding."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from treadle import Session
from treadle.dialects.state_view import build_state_view
from treadle.errors import BadInput, Conflict
from treadle.permissions.policy import choose_narrowest, find_narrowest_tier
from treadle.server.problems import build_field_error
from treadle.server.service import CurrentService, Sender, Service, StrictBody, Token, Viewer, require_right
from treadle.server.session_control import RunAccepted
from treadle.server.sessions import LimitsBody
from treadle.server.streams import describe_content

router = APIRouter(prefix="/v1/sessions/{session_id}", tags=["sessions"])
Position = Annotated[int, Field(ge=1, le=2**53)]
After = Annotated[int, Query(ge=0, le=2**53)]
STATE = describe_content("the state of the session", "application/json")


class CheckpointView(BaseModel):
    """A position to go on from. `kind` says which of the fields after `turns` are set."""

    seq: int
    kind: Literal["after_user_input", "before_llm", "before_tool_calls", "after_tool_calls"]
    turns: int
    user_input: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    calls: list[dict[str, Any]]
    results: list[dict[str, Any]]


class CheckpointPage(BaseModel):
    """Checkpoints in their order. With `more`, the last `seq` is the `after` of the next page."""

    checkpoints: list[CheckpointView]
    more: bool = False


class ResumeBody(StrictBody):
    """Go on from the checkpoint `after`, in this session or in a fork. `files` also rewinds the files to it."""

    after: Position
    fork: bool = False
    files: bool = False
    limits: LimitsBody | None = None


class RewindBody(StrictBody):
    """Go back to a position. `force` also overwrites files and moves branches that somebody else changed since."""

    seq: Position
    what: Literal["files", "conversation", "both"] = "both"
    dry_run: bool = False
    force: bool = False


class UndoBody(StrictBody):
    dry_run: bool = False
    force: bool = False


class ChangedFile(BaseModel):
    """How a file differs, and the calls that changed it. `others` means that somebody else changed it since.

    The kinds `committed`, `moved` and `staged` are about git: `path` is then such as `.git/refs/heads/main`, and `diff`
    names where it was and is, and lists commits as `ID SUBJECT`.
    """

    path: str
    kind: Literal["added", "modified", "deleted", "committed", "moved", "staged"]
    diff: str
    calls: list[str]
    others: bool


class UnchangedFile(BaseModel):
    """A file or git ref that the rewind did not change, and why."""

    path: str
    why: str


class RewindView(BaseModel):
    """What a rewind did, or would do: each diff leads from now to then. `done` is false for a dry run."""

    to: int
    what: Literal["files", "conversation", "both"]
    changes: list[ChangedFile]
    skipped: list[UnchangedFile]
    done: bool
    seq: int


@router.get("/state", response_class=Response, responses=STATE)
async def get_state(
    service: CurrentService, token: Viewer, session_id: str, at: Annotated[int | None, Query(ge=1, le=2**53)] = None
) -> Any:
    """Show the state of a session at a position: its conversation, calls, questions and usage. Default is now."""
    session = await service.open_to_read(session_id)
    try:
        state = await session.state() if at is None else await session.at(at)
    except BadInput as error:
        raise build_field_error("at", str(error)) from None
    return Response(msgspec.json.encode(build_state_view(state)), media_type="application/json")


@router.get("/checkpoints")
async def list_checkpoints(
    service: CurrentService,
    token: Viewer,
    session_id: str,
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> CheckpointPage:
    """List the positions from which a run can go on, with the input, messages, tools and calls that it had there."""
    found = await (await service.open_to_read(session_id)).checkpoints(after, limit + 1)
    views = [CheckpointView(**msgspec.to_builtins(point)) for point in found[:limit]]
    return CheckpointPage(checkpoints=views, more=len(found) > limit)


@router.post("/resume")
async def resume_session(service: CurrentService, token: Sender, session_id: str, body: ResumeBody) -> RunAccepted:
    """Go on from a checkpoint. Effects of later calls are not undone; files are rewound only with `files`."""
    session = await service.open_for_run(session_id, token)
    if body.files:
        await check_file_rights(session, token)
    try:
        if body.fork:
            return await _resume_in_fork(service, session, body)
        limits = body.limits.apply_to(session.agent.limits) if body.limits is not None else None
        position = await session.go_on_from(body.after, limits, files=body.files)
    except BadInput as error:
        raise build_field_error("after", str(error)) from None
    return RunAccepted(session_id=session_id, after=position)


async def _resume_in_fork(service: Service, session: Session, body: ResumeBody) -> RunAccepted:
    if body.files or body.limits is not None:
        raise build_field_error("fork", "a fork goes on with the limits of its run and leaves files as they are")
    points = await session.checkpoints(body.after - 1, 1)
    if not points or points[0].seq != body.after:
        raise BadInput(f"position {body.after} is no checkpoint of session {session.id}")
    fork = await session.fork(body.after)
    await service.runtime.coordinator.wake(fork.id)
    return RunAccepted(session_id=fork.id, after=body.after)


@router.post("/rewind")
async def rewind_session(service: CurrentService, token: Sender, session_id: str, body: RewindBody) -> RewindView:
    """Rewind files with git, the conversation or both to a position. `dry_run` only returns the diffs."""
    session = await service.open_for_use(session_id, token)
    if body.what != "conversation" and not body.dry_run:
        await check_file_rights(session, token)
    try:
        done = await session.rewind(body.seq, body.what, dry_run=body.dry_run, force=body.force)
    except BadInput as error:
        raise build_field_error("seq", str(error)) from None
    return show_rewind(done)


@router.post("/rewind/undo")
async def undo_rewind(
    service: CurrentService, token: Sender, session_id: str, body: UndoBody | None = None
) -> RewindView:
    """Undo the last rewind. Undoing twice restores the rewind."""
    session, body = await service.open_for_use(session_id, token), body or UndoBody()
    if not body.dry_run:
        await check_file_rights(session, token)
    try:
        done = await session.undo_rewind(dry_run=body.dry_run, force=body.force)
    except BadInput as error:
        raise Conflict(str(error)) from None
    return show_rewind(done)


@router.get("/changes")
async def list_changes(service: CurrentService, token: Viewer, session_id: str, after: After = 0) -> list[ChangedFile]:
    """List how the files and git branches that this session's calls changed differ from a position."""
    changes = await (await service.open_to_read(session_id)).changes(after)
    return [ChangedFile(**msgspec.to_builtins(change)) for change in changes]


def show_rewind(done: msgspec.Struct) -> RewindView:
    """Show what a rewind did."""
    return RewindView(**msgspec.to_builtins(done))


async def check_file_rights(session: Session, token: Token) -> None:
    """Writing files of a session in plan mode or with read-only access needs somebody who may approve that."""
    state = await session.state()
    tier = find_narrowest_tier(state.created.grants) if state.created is not None else "sandbox"
    if choose_narrowest(tier, state.access or tier) in ("plan", "read-only"):
        require_right(token, "approve")
