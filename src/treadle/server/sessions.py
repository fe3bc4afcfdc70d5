"""`/v1/sessions`: create, list, change and delete sessions; messages, approvals, answers; cancel and continue."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Response
from msgspec import Struct
from msgspec.structs import asdict, replace
from pydantic import BaseModel, Field

from treadle import Answer, Session
from treadle.dialects.base import Dialect, encode_frame, parse_approval_id
from treadle.dialects.chat_rpc import ChatRpcDialect
from treadle.dialects.loop_events import RUN_CONTINUES_LATER, LoopDialect
from treadle.dialects.message_frames import MessageFramesDialect
from treadle.dialects.session_frames import ErrorFrame, SessionFramesDialect
from treadle.errors import Conflict, NotFound, TreadleError
from treadle.events import MessageReceived, ModelFailed, RunStarted, SessionConfigured, SignalDetected, TurnStarted
from treadle.export.transcript import Form, render_transcript
from treadle.log.base import SessionInfo, SessionQuery, Status
from treadle.messages import render_parts
from treadle.server.service import Approver, CurrentService, Sender, Service, Token, Viewer, filter_preapproved
from treadle.server.streams import (
    SHUTDOWN_COMMENT,
    SSE_RESPONSES,
    DialectWriter,
    EventStream,
    detach_at_shutdown,
    parse_position,
)
from treadle.server.views import (
    AnswersBody,
    ApprovalAnswer,
    CancelledView,
    ChangeSession,
    CompactBody,
    CompactView,
    ContextView,
    ForkBody,
    MessageAnswer,
    MessageView,
    NewMessage,
    NewSession,
    NextRunBody,
    PendingQuestion,
    ResolvedView,
    RunAccepted,
    RunOutcome,
    SessionDetail,
    SessionPageView,
    SessionView,
    SimpleAnswer,
)

router = APIRouter(prefix="/v1", tags=["sessions"])
MAX_PENDING = 1000
HELD_MESSAGE = "cancelled before it was begun; it is kept, and goes with the next message"
MEDIA_TYPES: dict[Form, str] = {"jsonl": "application/x-ndjson", "markdown": "text/markdown", "html": "text/html"}
EXPORT: dict[int | str, dict[str, Any]] = {
    200: {"content": {kind: {} for kind in MEDIA_TYPES.values()}, "description": "the whole session"}
}
DialectName = Literal["events", "loop", "frames", "wire", "rpc"]
Key = Annotated[str, Header(alias="Idempotency-Key", max_length=200)]
EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {}, "application/json": {}}, "description": "a stream, or an array"}
}


@router.get("/sessions")
async def list_sessions(
    service: CurrentService,
    token: Viewer,
    status: Status | None = None,
    q: Annotated[str, Query(max_length=500)] = "",
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str, Query(max_length=500)] = "",
) -> SessionPageView:
    """List the sessions, the last changed first. `cursor` fetches the next page."""
    page = await service.runtime.sessions(SessionQuery(status=status, text=q, limit=limit, cursor=cursor))
    return SessionPageView(sessions=[SessionView.from_info(info) for info in page.sessions], cursor=page.cursor)


@router.post("/sessions", status_code=201)
async def create_session(service: CurrentService, token: Sender, body: NewSession | None = None) -> SessionView:
    """Create a session. `approve` answers questions in advance; it never allows a call that is denied."""
    body = body or NewSession.model_validate({})
    agent = service.runtime.agents.get(body.agent) or service.default_agent
    limits = body.limits.apply_to(agent.limits) if body.limits is not None else None
    configured = SessionConfigured(
        model=body.model, limits=limits, approve=filter_preapproved(token, body.approve), by=token.name
    )
    session = await service.create_session(
        token,
        agent=body.agent,
        name=body.name,
        workspace=body.workspace,
        grant=body.build_grant(),
        configured=configured if configured != SessionConfigured(by=token.name) else None,
    )
    return SessionView.from_info(await service.runtime.log.get_info(session.id))


@router.get("/sessions/{session_id}")
async def get_session(service: CurrentService, token: Viewer, session_id: str) -> SessionDetail:
    """Show a session: its messages, its open questions, and what fills its model's window."""
    info = await service.runtime.log.get_info(session_id)
    session = await service.open_session(session_id)
    state = await session.state()
    return SessionDetail(
        **SessionView.from_info(info, state.agent).model_dump(),
        model=state.model or (state.created.model if state.created is not None else ""),
        messages=await _list_messages(session),
        pending=[PendingQuestion.from_fact(session_id, question) for question in state.pending],
        context=await _measure_context(session),
    )


async def _list_messages(session: Session) -> list[MessageView]:
    """The messages that are still part of the conversation. Replies without text are left out."""
    state = await session.state()
    messages: list[MessageView] = []
    for entry in (*state.entries, *state.queue):
        match entry:
            case MessageReceived():
                messages.append(MessageView(role="user", content=render_parts(entry.parts), at=entry.at, seq=entry.seq))
            case SignalDetected() | TurnStarted() | ModelFailed() | RunStarted():
                pass
            case turn:
                if turn.reply is not None and turn.reply.text:
                    reply = turn.reply
                    messages.append(MessageView(role="assistant", content=reply.text, at=reply.at, seq=reply.seq))
    return messages


async def _measure_context(session: Session) -> ContextView | None:
    try:
        return ContextView(**asdict(await session.context()))
    except TreadleError:  # the model may have no key here; the session can be read all the same
        return None


@router.patch("/sessions/{session_id}")
async def change_session(service: CurrentService, token: Sender, session_id: str, body: ChangeSession) -> SessionView:
    """Rename a session, or give it another agent, model or limits for its next run."""
    session = await service.open_for_use(session_id, token)
    if body.model:
        service.get_model(body.model)
    if body.agent and body.agent not in service.runtime.agents:
        raise NotFound(f"agent: there is no agent {body.agent!r}; GET /v1/agents lists them")
    if body.name is not None:
        await session.rename(body.name)
    if body.agent or body.model or body.limits is not None:
        limits = body.limits.apply_to(session.agent.limits) if body.limits is not None else None
        await session.configure(agent=body.agent, model=body.model, limits=limits, by=token.name)
    return SessionView.from_info(await service.runtime.log.get_info(session_id), (await session.state()).agent)


@router.delete("/sessions/{session_id}", status_code=204)
async def delete_session(service: CurrentService, token: Sender, session_id: str) -> None:
    """Delete a session and everything in it. Refused while it runs."""
    await (await service.open_for_use(session_id, token)).delete()


async def _post(
    service: Service, token: Token, session_id: str, body: NewMessage, key: str
) -> tuple[Session, MessageReceived]:
    session = await service.open_for_run(session_id, token)
    return session, await service.post_message(session, body.build_parts(), body.mode, key)


@router.post("/sessions/{session_id}/messages")
async def post_message(
    service: CurrentService,
    token: Sender,
    session_id: str,
    body: NewMessage,
    key: Key = "",
    wait: Annotated[float | None, Query(ge=0, le=86400)] = None,
) -> MessageAnswer:
    """Send a message and wait for the answer, also through approvals. `wait` limits the seconds.

    The same `Idempotency-Key` returns the same message and answer. Another message with this key is a conflict.
    Closing the connection does not stop the run.
    """
    session, message = await _post(service, token, session_id, body, key)
    run = session.follow(message)
    with suppress(TimeoutError), detach_at_shutdown(service.streams, run):
        async with asyncio.timeout(wait):
            await run.wait()
    if run.outcome is not None:
        outcome = RunOutcome.from_fact(run.outcome)
    elif run.is_held:
        outcome = RunOutcome(status="cancelled", reason="cancelled", error=HELD_MESSAGE, can_continue=True)
    else:
        pending = [PendingQuestion.from_fact(session_id, question) for question in (await session.state()).pending]
        reason = "shutting_down" if service.streams.is_closed else "waiting" if pending else "running"
        outcome = RunOutcome(status="waiting", reason=reason, pending=pending)
    return MessageAnswer(
        reply=run.outcome.answer if run.outcome is not None else "",
        session=SessionView.from_info(await service.runtime.log.get_info(session_id)),
        outcome=outcome,
        message_id=message.id,
    )


@router.post("/sessions/{session_id}/messages/stream", response_class=Response, responses=SSE_RESPONSES)
async def stream_message(
    service: CurrentService, token: Sender, session_id: str, body: NewMessage, key: Key = ""
) -> Any:
    """Send a message and stream the run as server-sent events, up to `done`."""
    session, message = await _post(service, token, session_id, body, key)
    dialect = SessionFramesDialect(session_id, service.list_tool_classes(session.agent))
    write = DialectWriter(dialect)
    stream = EventStream(service.streams, session.follow(message), write)
    stream.on_shutdown = lambda: write.encode_frames([ErrorFrame(RUN_CONTINUES_LATER)]) + SHUTDOWN_COMMENT
    return stream


class EventQuery(BaseModel):
    """Which events to return, and in which dialect."""

    after: int = Field(0, ge=0, le=2**53)
    follow: bool = True
    dialect: DialectName = "events"


@router.get("/sessions/{session_id}/events", response_class=Response, responses=EVENTS)
async def stream_events(
    service: CurrentService,
    token: Viewer,
    session_id: str,
    query: Annotated[EventQuery, Query()],
    last_event_id: Annotated[str, Header(max_length=40)] = "",
) -> Any:
    """Stream a session's events after `after` or Last-Event-ID, then live. `follow=false` returns a JSON array."""
    after = await service.limit_position(session_id, parse_position(last_event_id, query.after))
    session = await service.open_session(session_id)
    if query.dialect == "events":
        if query.follow:
            return EventStream(service.streams, session.watch(after), service.streams.encoder)
        return _build_array(await session.facts(after))
    dialect = _build_dialect(session_id, query.dialect, await service.get_window(session))
    if query.follow:
        return EventStream(
            service.streams, session.watch(), DialectWriter(dialect, after, named=query.dialect == "loop")
        )
    translated = [(fact.seq, dialect.feed(fact)) for fact in await session.facts()]
    return _build_array([frame for seq, frames in translated if seq > after for frame in frames])


def _build_array(items: Sequence[Struct]) -> Response:
    return Response(b"[" + b",".join(map(encode_frame, items)) + b"]", media_type="application/json")


def _build_dialect(session_id: str, name: DialectName, window: int | None) -> Dialect:
    match name:
        case "loop":
            return LoopDialect()
        case "wire":
            return MessageFramesDialect(session_id, window)
        case "rpc":
            return ChatRpcDialect(session_id)
        case _:
            return SessionFramesDialect(session_id)


# ── answering ────────────────────────────────────────────────────────────────────────────────────────


@router.post("/sessions/{session_id}/approvals/{call_id:path}")
async def answer_approval(
    service: CurrentService, token: Approver, session_id: str, call_id: str, body: ApprovalAnswer
) -> ResolvedView:
    """Allow or deny a call: once, or for a tool, a pattern or the session. The first answer counts."""
    session = await service.open_for_use(session_id, token)
    answer = Answer(body.decision, body.scope, body.comment, by=token.name)
    await session.approve(call_id, answer, digest=body.digest)
    return ResolvedView()


@router.post("/sessions/{session_id}/answers/{call_id:path}")
async def answer_question(
    service: CurrentService, token: Approver, session_id: str, call_id: str, body: AnswersBody
) -> ResolvedView:
    """Answer the questions that the model asked the user."""
    session = await service.open_for_use(session_id, token)
    await session.answer(call_id, *body.answers, by=token.name)
    return ResolvedView()


@router.get("/approvals", tags=["approvals"])
async def list_approvals(service: CurrentService, token: Viewer) -> list[PendingQuestion]:
    """List the open questions of all sessions."""
    found: dict[str, PendingQuestion] = {}
    # Running sessions may have open questions too. They come first, because they may start to wait meanwhile.
    for status in ("running", "waiting"):
        query: SessionQuery | None = SessionQuery(status=status, limit=200)
        while query is not None and len(found) < MAX_PENDING:
            page = await service.runtime.sessions(query)
            for info in page.sessions:
                found.update((one.id, one) for one in await _list_questions(service, info))
            query = replace(query, cursor=page.cursor) if page.cursor else None
    return sorted(found.values(), key=lambda one: one.asked_at)


async def _list_questions(service: Service, info: SessionInfo) -> list[PendingQuestion]:
    if info.agent not in service.runtime.agents:
        return []
    try:
        state = await (await service.open_session(info.id)).state()
    except NotFound:  # it was deleted meanwhile
        return []
    return [PendingQuestion.from_fact(info.id, question) for question in state.pending]


@router.post("/approvals/{approval:path}", tags=["approvals"])
async def answer_by_id(service: CurrentService, token: Approver, approval: str, body: SimpleAnswer) -> ResolvedView:
    """Allow or deny a call by the id of its request."""
    session_id, call_id = parse_approval_id(approval)
    session = await service.open_for_use(session_id, token)
    answer = Answer("allow" if body.approved else "deny", by=token.name)
    await session.approve(call_id, answer, digest=body.digest)
    return ResolvedView()


# ── steering ─────────────────────────────────────────────────────────────────────────────────────────


@router.post("/sessions/{session_id}/cancel")
async def cancel_session(service: CurrentService, token: Sender, session_id: str) -> CancelledView:
    """Stop the run, its model call and its tools. The response comes when the end is recorded."""
    ending = await (await service.open_for_use(session_id, token)).cancel(by=token.name)
    return CancelledView.from_ending(ending)


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
    return SessionView.from_info(await service.runtime.log.get_info(made.id))


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


@router.get(
    "/sessions/{session_id}/artifacts/{artifact_id}",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {}}, "description": "the whole output"}},
)
async def download_artifact(service: CurrentService, token: Viewer, session_id: str, artifact_id: str) -> Response:
    """Download the whole output of a call that was too large for the model."""
    kept = await (await service.open_session(session_id)).artifact(artifact_id)
    headers = {"content-disposition": "attachment"}
    return Response(kept.data, media_type="application/octet-stream", headers=headers)


@router.get("/sessions/{session_id}/export", response_class=Response, responses=EXPORT)
async def export_session(
    service: CurrentService, token: Viewer, session_id: str, format: Annotated[Form, Query()] = "jsonl"
) -> Response:
    """Export a session: every fact and artifact as a line of JSON, or a page to read."""
    data = await render_transcript(service.runtime.log, session_id, format)
    headers = {"content-disposition": "attachment"}
    return Response(data, media_type=MEDIA_TYPES[format], headers=headers)
