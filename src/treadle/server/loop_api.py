"""`/api/agent`: run an objective as a stream of loop events, and the registry of sessions."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from treadle import Answer, Grant, Limits, Run, RunFinished, events
from treadle.dialects.base import encode_frame
from treadle.dialects.loop_events import LoopDialect, build_continuation_token
from treadle.dialects.registry_events import RegistryDialect, RunStatus, build_agent_events
from treadle.engine.steps import Rest, next_step
from treadle.errors import BadInput, Conflict, NotFound
from treadle.log.base import SessionQuery
from treadle.server import streams
from treadle.server.questions import ResolvedView
from treadle.server.registry import LISTED_STATUSES, STATUSES, AgentSession, AllSessionsStream
from treadle.server.service import Approver, CurrentService, LenientBody, Sender, Service, Viewer, filter_preapproved
from treadle.server.session_control import CancelledView
from treadle.server.sessions import check_turns

router = APIRouter(prefix="/api/agent", tags=["agent"])
EMPTY_OBJECTIVE = "Objective must not be empty"
MAX_RECENT_EVENTS = 50
_SCOPES: dict[str, events.Scope] = {"this_call": "call", "this_tool": "tool", "this_session": "session"}
Glob = Annotated[str, Field(max_length=200)]


class CamelBody(LenientBody):
    """A body in camelCase; snake_case is understood too."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")


class RunBody(CamelBody):
    """The objective of the agent, and its limits."""

    objective: str
    system_prompt: str | None = None
    session_name: str | None = Field(None, max_length=200)
    working_dir: str | None = Field(None, max_length=4000)
    max_iterations: int = Field(10, ge=0)
    max_tool_calls: int = Field(50, ge=0, le=100_000)
    max_tokens: int = Field(16384, ge=1, le=2**53)
    auto_approve: list[Glob] = Field(default_factory=list, max_length=200)
    forbidden: list[Glob] = Field(default_factory=list, max_length=200)
    detect_implicit_signals: bool = True


class ApproveBody(CamelBody):
    call_id: str = Field(max_length=500)
    decision: Literal["approve", "deny", "approve_always"]
    scope: Literal["this_call", "this_tool", "this_session"] = "this_call"
    comment: str = Field("", max_length=10_000)
    digest: str = Field("", max_length=200)


class ContinueBody(CamelBody):
    continuation_token: str = Field("", max_length=200)


class CancelBody(CamelBody):
    by: Literal["client", "operator"] = "client"


class AgentSessionDetail(AgentSession):
    """A session with its last agent events, in the form that the streams send them."""

    recent_events: list[dict[str, Any]]


class AgentSessionPage(BaseModel):
    sessions: list[AgentSession]
    cursor: str = ""


@router.post("/run", response_class=Response, responses=streams.SSE_RESPONSES)
async def run_objective(service: CurrentService, token: Sender, body: RunBody) -> Any:
    """Run an objective and stream the loop's thirteen events. The run goes on when the client leaves."""
    if not body.objective.strip():
        raise BadInput(EMPTY_OBJECTIVE)
    service.check_open()
    agent = service.default_agent
    await service.check_model(agent)
    approve = tuple(body.auto_approve)
    check_turns(body.max_iterations, agent.limits, "maxIterations")
    limits = Limits(
        turns=body.max_iterations,
        calls=body.max_tool_calls,
        tokens=body.max_tokens,
        implicit_signals=agent.limits.implicit_signals and body.detect_implicit_signals,
        ceiling=agent.limits.ceiling,
        retry_seconds=agent.limits.retry_seconds,
    )
    session = await service.create_session(
        token,
        name=body.session_name or "",
        workspace=str(service.resolve_workspace(body.working_dir or "", "workingDir")),
        grant=Grant(tier="full", approve=approve, forbid=tuple(body.forbidden), ask_all=True),
        configured=events.SessionConfigured(
            instructions=body.system_prompt or "",
            limits=limits,
            approval_ttl=service.config.approval_seconds,
            approve=filter_preapproved(token, approve),
            by=token.name,
        ),
    )
    message = await session.post(body.objective)
    return await _stream(service, session.follow(message))


async def _stream(service: Service, run: Run) -> streams.EventStream:
    dialect = LoopDialect()
    with suppress(NotFound):  # the session was deleted
        first = (await service.runtime.log.read(run.session_id, limit=1))[0]
        dialect = LoopDialect(first if isinstance(first, events.SessionCreated) else None)
    return streams.EventStream(
        service.streams,
        run,
        streams.DialectWriter(dialect, name_field="event"),
        at_shutdown=lambda: streams.encode_frames(dialect.end_for_shutdown(), name_field="event"),
    )


@router.post("/{session_id}/approve")
async def approve_call(service: CurrentService, token: Approver, session_id: str, body: ApproveBody) -> ResolvedView:
    """Answer a `tool_approval_required`."""
    session = await service.open_for_use(session_id, token)
    scope = _SCOPES[body.scope]
    if body.decision == "approve_always" and scope == "call":
        scope = "tool"
    decision = "deny" if body.decision == "deny" else "allow"
    await session.approve(body.call_id, Answer(decision, scope, body.comment, by=token.name), digest=body.digest)
    return ResolvedView()


@router.post("/{session_id}/continue", response_class=Response, responses=streams.SSE_RESPONSES)
async def continue_run(
    service: CurrentService, token: Sender, session_id: str, body: ContinueBody | None = None
) -> Any:
    """Continue with a fresh budget from the ending that `continuation_token` names. Streams like `run`."""
    session = await service.open_for_run(session_id, token)
    last = (await session.state()).last
    if last is None or not last.can_continue:
        raise Conflict(f"session {session_id} has nothing to continue")
    if body is not None and body.continuation_token not in ("", build_continuation_token(session_id, last)):
        raise Conflict("continuation_token: the session has gone on since then; load it again")
    position = await session.go_on("continue", key=build_continuation_token(session_id, last))
    return await _stream(service, session.follow(position))


@router.post("/{session_id}/cancel")
async def cancel_run(
    service: CurrentService, token: Sender, session_id: str, body: CancelBody | None = None
) -> CancelledView:
    """Stop the run. The response comes when the end is recorded."""
    by = "operator" if body is not None and body.by == "operator" else token.name
    ending = await (await service.open_for_use(session_id, token)).cancel(by=by)
    return CancelledView.from_ending(ending)


# ── the registry ─────────────────────────────────────────────────────────────────────────────────────


@router.get("/sessions")
async def list_agent_sessions(
    service: CurrentService,
    token: Viewer,
    status: RunStatus | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    cursor: Annotated[str, Query(max_length=500)] = "",
) -> AgentSessionPage:
    """List running, waiting and ended sessions, the last changed first."""
    found: list[AgentSession] = []
    listed = LISTED_STATUSES.get(status) if status is not None else None
    while True:
        page = await service.runtime.sessions(SessionQuery(listed, limit=limit - len(found), cursor=cursor))
        for info in page.sessions:
            if status is None or info.status == "stopped" or STATUSES[info.status] == status:
                with suppress(NotFound):  # it was deleted meanwhile
                    line = await service.registry.summarize_session(service.runtime, info)
                    found += [line] if status in (None, line.status) else []
        cursor = page.cursor
        if len(found) == limit or not cursor:
            return AgentSessionPage(sessions=found, cursor=cursor)


@router.get("/sessions/stream", response_class=Response, responses=streams.SSE_RESPONSES)
async def stream_all_sessions(service: CurrentService, token: Viewer, cursor: streams.Cursor) -> Any:
    """Stream all sessions: session_started, session_updated, agent_event and session_ended.

    They come after the cursor `after` or Last-Event-ID, then live. Without a cursor the stream starts with the next
    event; 0 starts with the first.
    """
    return AllSessionsStream(service, service.runtime.watch(cursor))


@router.get("/sessions/{session_id}")
async def get_agent_session(service: CurrentService, token: Viewer, session_id: str) -> AgentSessionDetail:
    """Show one session with its recent events."""
    info = await service.get_info(session_id)
    facts = await service.runtime.log.read(session_id)
    did = [event for fact in facts for event in build_agent_events(session_id, fact)][-MAX_RECENT_EVENTS:]
    recent = [msgspec.json.decode(encode_frame(event)) for event in did]
    line = await service.registry.summarize_session(service.runtime, info)
    return AgentSessionDetail(**line.model_dump(), recent_events=recent)


@router.get("/sessions/{session_id}/stream", response_class=Response, responses=streams.SSE_RESPONSES)
async def stream_agent_session(service: CurrentService, token: Viewer, session_id: str, cursor: streams.Cursor) -> Any:
    """Stream one session's registry events after `after` or Last-Event-ID, then live.

    The stream closes after `session_ended`. A session that has ended sends it again to a client that has all events.
    """
    start = await service.limit_position(session_id, cursor or 0)
    session = await service.runtime.open(session_id)
    state = await session.state()
    watch, dialect, head = session.watch(), RegistryDialect(session_id), state.seq
    if state.last is not None and state.run is None and isinstance(next_step(state, 0.0), Rest):
        start = min(start, state.last.seq - 1)
        watch.stop_at(state.last.seq)
    write = streams.DialectWriter(dialect, start, "event")

    def write_until_end(event: events.Event) -> bytes:
        data = write(event)
        if isinstance(event, RunFinished) and event.seq > head and not dialect.will_go_on:
            watch.stop_at(event.seq)
        return data

    return streams.EventStream(service.streams, watch, write_until_end)
