"""What else can be done with a session: follow its events, answer, cancel, continue, fork, compact and export."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from msgspec import Struct
from pydantic import BaseModel, Field

from treadle import RunFinished
from treadle.dialects.base import Dialect, encode_frame
from treadle.dialects.chat_rpc import ChatRpcDialect
from treadle.dialects.loop_events import LoopDialect
from treadle.dialects.message_frames import MessageFramesDialect
from treadle.dialects.session_frames import SessionFramesDialect
from treadle.errors import Conflict
from treadle.export.transcript import Form, render_transcript
from treadle.server.questions import ResolvedView
from treadle.server.service import CurrentService, Sender, Service, StrictBody, Token, Viewer
from treadle.server.session_list import build_entry
from treadle.server.session_views import RunOutcome, SessionView
from treadle.server.sessions import LimitsBody
from treadle.server.streams import (
    SSE_RESPONSES,
    Cursor,
    DialectWriter,
    EventStream,
    describe_content,
    encode_stored_fact,
)

router = APIRouter(prefix="/v1", tags=["sessions"])
DOWNLOAD_HEADERS = {"content-disposition": "attachment"}
MEDIA_TYPES: dict[Form, str] = {"jsonl": "application/x-ndjson", "markdown": "text/markdown", "html": "text/html"}
DialectName = Literal["events", "loop", "frames", "wire", "rpc"]
EVENTS = describe_content("a stream, or an array", "text/event-stream", "application/json")
EXPORT = describe_content("the whole session", *MEDIA_TYPES.values())
ARTIFACT = describe_content("the whole output", "application/octet-stream")


class ForkBody(StrictBody):
    after: int | None = Field(None, ge=1, le=2**53)


class NextRunBody(StrictBody):
    limits: LimitsBody | None = None


class RunAccepted(BaseModel):
    """A run was started. Watch the events after `after`."""

    session_id: str
    after: int


class CancelledView(BaseModel):
    cancelled: bool
    outcome: RunOutcome | None = None

    @classmethod
    def from_ending(cls, fact: RunFinished | None) -> CancelledView:
        """The end of the cancelled run; None says that nothing was running."""
        return cls(cancelled=fact is not None, outcome=RunOutcome.from_fact(fact) if fact is not None else None)


class CompactBody(StrictBody):
    """`undo` reverts the last compaction: the model sees the older turns again."""

    undo: bool = False


class CompactView(BaseModel):
    compacted: bool
    tokens_before: int = 0
    tokens_after: int = 0


@router.get("/sessions/{session_id}/events", response_class=Response, responses=EVENTS)
async def stream_events(
    service: CurrentService,
    token: Viewer,
    session_id: str,
    cursor: Cursor,
    follow: bool = True,
    dialect: DialectName = "events",
) -> Any:
    """Stream a session's events after `after` or Last-Event-ID, then live. `follow=false` returns a JSON array."""
    after = await service.limit_position(session_id, cursor or 0)
    session = await service.open_to_read(session_id)
    if dialect == "events":
        if follow:
            return EventStream(service.streams, session.watch(after), service.streams.encoder)
        return _build_array(await session.facts(after))
    chosen: Dialect
    match dialect:
        case "loop":
            chosen = LoopDialect()
        case "wire":
            chosen = MessageFramesDialect(session_id, await service.get_window(session))
        case "rpc":
            chosen = ChatRpcDialect(session_id)
        case _:
            chosen = SessionFramesDialect(session_id, service.list_tool_classes(session.agent))
    if follow:
        write = DialectWriter(chosen, after, "event" if dialect == "loop" else "")
        return EventStream(service.streams, session.watch(), write)
    translated = [(fact.seq, chosen.feed(fact)) for fact in await session.facts()]
    return _build_array([frame for seq, frames in translated if seq > after for frame in frames])


@router.get("/events", response_class=Response, responses=SSE_RESPONSES)
async def stream_all_events(service: CurrentService, token: Viewer, cursor: Cursor) -> Any:
    """Stream the facts of all sessions after the cursor `after` or Last-Event-ID, then live.

    Without a cursor the stream starts with the next fact; 0 starts with the first.
    """
    watch = service.runtime.watch(cursor)
    # A client that reconnects before the first fact needs a cursor too.
    return EventStream(service.streams, watch, encode_stored_fact, head=b"id: %d\n\n" % watch.start)


def _build_array(items: Sequence[Struct]) -> Response:
    return Response(b"[" + b",".join(map(encode_frame, items)) + b"]", media_type="application/json")


# ── steering ─────────────────────────────────────────────────────────────────────────────────────────


@router.post("/sessions/{session_id}/cancel")
async def cancel_session(service: CurrentService, token: Sender, session_id: str) -> CancelledView:
    """Stop the run, its model call and its tools. The response comes when the end is recorded."""
    ending = await (await service.open_for_use(session_id, token)).cancel(by=token.name)
    return CancelledView.from_ending(ending)


@router.post("/sessions/{session_id}/retry")
async def retry_now(service: CurrentService, token: Sender, session_id: str) -> ResolvedView:
    """Ask the model again now, instead of waiting for its provider. 409 if no run waits for it."""
    await (await service.open_for_use(session_id, token)).retry_now(by=token.name)
    return ResolvedView()


@router.post("/sessions/{session_id}/continue")
async def continue_session(
    service: CurrentService, token: Sender, session_id: str, body: NextRunBody | None = None
) -> RunAccepted:
    """Continue after a limit, a cancel or a failure, with a fresh budget."""
    return await _start_run(service, token, session_id, "continue", body)


@router.post("/sessions/{session_id}/regenerate")
async def regenerate_answer(
    service: CurrentService, token: Sender, session_id: str, body: NextRunBody | None = None
) -> RunAccepted:
    """Answer the last message again."""
    return await _start_run(service, token, session_id, "regenerate", body)


async def _start_run(
    service: Service,
    token: Token,
    session_id: str,
    trigger: Literal["continue", "regenerate"],
    body: NextRunBody | None,
) -> RunAccepted:
    session = await service.open_for_run(session_id, token)
    wanted = body.limits.apply_to(session.agent.limits) if body is not None and body.limits is not None else None
    position = await session.go_on(trigger, wanted)
    return RunAccepted(session_id=session_id, after=position)


@router.post("/sessions/{session_id}/fork", status_code=201)
async def fork_session(
    service: CurrentService, token: Sender, session_id: str, body: ForkBody | None = None
) -> SessionView:
    """Create a session that shares this one's past up to a position."""
    session = await service.open_for_use(session_id, token)
    after = body.after if body is not None else None
    if after is not None and after > (last := (await service.runtime.log.get_info(session_id)).seq):
        raise Conflict(f"after: session {session_id} has positions 1 to {last}, not {after}; nothing was forked")
    made = await session.fork(after)
    return await build_entry(service, await service.runtime.log.get_info(made.id))


@router.post("/sessions/{session_id}/compact")
async def compact_session(
    service: CurrentService, token: Sender, session_id: str, body: CompactBody | None = None
) -> CompactView:
    """Summarize older turns for the model to make room, or undo that. The log keeps everything."""
    service.check_open()
    session = await service.open_for_use(session_id, token)
    if body is not None and body.undo:
        await session.undo_compaction()
        return CompactView(compacted=False)
    await service.check_session_model(session)
    fact = await session.compact()
    if fact is None:
        return CompactView(compacted=False)
    return CompactView(compacted=True, tokens_before=fact.tokens_before, tokens_after=fact.tokens_after)


# ── downloads ─────────────────────────────────────────────────────────────────────────────────────────


@router.get("/sessions/{session_id}/artifacts/{artifact_id}", response_class=Response, responses=ARTIFACT)
async def download_artifact(service: CurrentService, token: Viewer, session_id: str, artifact_id: str) -> Response:
    """Download the whole output of a call that was too large for the model."""
    kept = await (await service.open_to_read(session_id)).artifact(artifact_id)
    return Response(kept.data, media_type="application/octet-stream", headers=DOWNLOAD_HEADERS)


@router.get("/sessions/{session_id}/export", response_class=Response, responses=EXPORT)
async def export_session(
    service: CurrentService, token: Viewer, session_id: str, format: Annotated[Form, Query()] = "jsonl"
) -> Response:
    """Export a session: every fact and artifact as a line of JSON, or a page to read."""
    await service.get_info(session_id)
    data = await render_transcript(service.runtime.log, session_id, format)
    return Response(data, media_type=MEDIA_TYPES[format], headers=DOWNLOAD_HEADERS)
