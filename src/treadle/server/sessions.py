"""`/v1/sessions`: create, list, show, change and delete sessions, and send them messages."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Header, Query, Response
from msgspec.structs import asdict, replace
from pydantic import Field, ValidationError

from treadle import Grant, Limits, Session
from treadle.dialects.loop_events import RUN_CONTINUES_LATER
from treadle.dialects.session_frames import ErrorFrame, SessionFramesDialect
from treadle.errors import Conflict, NotFound, TreadleError
from treadle.events import CLIENT_SANDBOX, CallStarted, MessageMode, MessageReceived, SessionConfigured, Tier
from treadle.messages import Part, TextPart
from treadle.permissions.policy import choose_narrowest, find_narrowest_tier
from treadle.server.attachments import Attachment
from treadle.server.guard import AsgiApp, AsgiMessage, AsgiScope, Receive, Refusal, Send, get_path
from treadle.server.keyed_requests import KeyedRequest, identify_request
from treadle.server.problems import build_error_response, build_field_error, build_refusal
from treadle.server.service import (
    CurrentService,
    Sender,
    Service,
    StrictBody,
    Token,
    Viewer,
    filter_preapproved,
    require_right,
)
from treadle.server.session_list import build_entry
from treadle.server.session_views import (
    ContextView,
    MessageAnswer,
    PendingQuestion,
    RunOutcome,
    SessionDetail,
    SessionView,
    list_messages,
)
from treadle.server.streams import SSE_RESPONSES, Cursor, DialectWriter, EventStream, encode_frames

router = APIRouter(prefix="/v1", tags=["sessions"])
HELD_MESSAGE = "cancelled before it was begun; it is kept, and goes with the next message"
HELD_FOLLOW_UP = "the run before it ended without an answer; it is kept, and goes after the next message"
WITHDRAWN_MESSAGE = "it was withdrawn before a run took it"
Name = Annotated[str, Field(max_length=200)]
MAX_KEY_LENGTH = 200
_MESSAGES_PATH = re.compile(r"/v1/sessions/([^/]+)/messages")
Key = Annotated[str, Header(alias="Idempotency-Key", max_length=MAX_KEY_LENGTH)]


class LimitsBody(StrictBody):
    """The limits of one run. Missing limits are the agent's."""

    turns: int | None = Field(None, ge=0)
    calls: int | None = Field(None, ge=0, le=100_000)
    tokens: int | None = Field(None, ge=1, le=2**53)
    seconds: float | None = Field(None, gt=0, le=10**9)
    cost: float | None = Field(None, gt=0, le=10**9)
    retry_seconds: float | None = Field(None, ge=0, le=86_400)

    def apply_to(self, defaults: Limits) -> Limits:
        """Combine these limits with the defaults. Tokens, seconds and cost never exceed the operator's."""
        check_turns(self.turns, defaults, "limits.turns")
        return replace(
            defaults,
            turns=defaults.turns if self.turns is None else self.turns,
            calls=defaults.calls if self.calls is None else self.calls,
            tokens=_take_smaller(self.tokens, defaults.tokens),
            seconds=_take_smaller(self.seconds, defaults.seconds),
            cost=_take_smaller(self.cost, defaults.cost),
            retry_seconds=defaults.retry_seconds if self.retry_seconds is None else self.retry_seconds,
        )


def check_turns(turns: int | None, defaults: Limits, field: str) -> None:
    """Refuse more turns than the operator's ceiling. `field` names them in the error."""
    if turns is not None and turns > defaults.ceiling:
        raise build_field_error(field, f"must be at most {defaults.ceiling}, the operator's ceiling")


def _take_smaller(requested: Any, default: Any) -> Any:
    return min((value for value in (requested, default) if value is not None), default=None)


class NewSession(StrictBody):
    """The settings of a new session."""

    agent: Name = ""
    model: Name = ""
    name: Name = ""
    workspace: str = Field("", max_length=4000)
    limits: LimitsBody | None = None
    approve: list[Name] = Field(default_factory=list, max_length=200)
    forbid: list[Name] = Field(default_factory=list, max_length=200)
    web: bool | None = None
    access: Tier | None = None


class ChangeSession(StrictBody):
    """What to change in a session: marks at once, its access from the next call on, and the rest from the next run."""

    name: Name | None = None
    agent: Name = ""
    model: Name = ""
    limits: LimitsBody | None = None
    web: bool | None = None
    pinned: bool | None = None
    archived: bool | None = None
    access: Tier | None = None


class NewMessage(StrictBody):
    """A message for a session. It steers a current run, or stops it first with `interrupt`.

    A `follow_up` waits until the current run has answered, and then gets a run of its own.
    """

    content: str = ""
    attachments: list[Attachment] = Field(default_factory=list[Attachment], max_length=100)
    mode: MessageMode = "queue"

    def build_parts(self, field: str = "content") -> tuple[Part, ...]:
        """The parts of the message. `field` is the name of the text in errors."""
        if not self.content.strip() and not self.attachments:
            raise build_field_error(field, "the message is empty")
        text: tuple[Part, ...] = (TextPart(self.content),) if self.content else ()
        attached = enumerate(self.attachments)
        return (*text, *(attachment.build_part(f"attachments.{place}") for place, attachment in attached))


@router.post("/sessions", status_code=201)
async def create_session(
    service: CurrentService, token: Sender, body: NewSession | None = None, key: Key = ""
) -> SessionView:
    """Create a session. `approve` answers questions in advance; it never allows a call that is denied.

    The same `Idempotency-Key` returns the same session. Another body with this key is a conflict.
    """
    body, log = body or NewSession.model_validate({}), service.runtime.log
    if not key:
        return await _create(service, token, body)
    request = await identify_request(log, token, key, body.model_dump_json(exclude_defaults=True).encode())
    if not await request.was_done(log):
        with suppress(Conflict):  # the same request, at the same time
            return await _create(service, token, body, request)
        await request.was_done(log)
    return SessionView.from_info(await log.get_info(request.session_id))


async def _create(service: Service, token: Token, body: NewSession, request: KeyedRequest | None = None) -> SessionView:
    agent = service.runtime.agents.get(body.agent) or service.default_agent
    limits = body.limits.apply_to(agent.limits) if body.limits is not None else None
    configured = SessionConfigured(
        model=body.model,
        limits=limits,
        approve=filter_preapproved(token, body.approve),
        web=body.web,
        access=body.access,
        by=token.name,
    )
    if body.access is not None:
        check_access(body.access, (agent.grant, *([token.grant] if token.grant is not None else [])))
    grant = Grant(tier="full", approve=tuple(body.approve), forbid=tuple(body.forbid))
    session = await service.create_session(
        token,
        agent=body.agent,
        name=body.name,
        workspace=body.workspace,
        grant=grant if body.approve or body.forbid else None,
        configured=configured if configured != SessionConfigured(by=token.name) else None,
        request=request,
    )
    return SessionView.from_info(await service.runtime.log.get_info(session.id))


@router.get("/sessions/{session_id}")
async def get_session(service: CurrentService, token: Viewer, session_id: str) -> SessionDetail:
    """Show a session: its messages, its open questions, and what fills its model's window."""
    info = await service.runtime.log.get_info(session_id)
    session = await service.open_to_read(session_id)
    state = await session.state()
    context, web = None, None
    with suppress(TreadleError):  # the model may have no key here; the session can be read all the same
        context, web = ContextView(**asdict(await session.context())), await session.has_web()
    words = await service.first_words.find(service.runtime.log, info)
    view = SessionView.from_info(info, state.agent, first_words=words)
    model = state.model or (state.created.model if state.created is not None else "")
    failed = state.turn.failed if state.turn is not None and state.retry_at is not None else None
    return SessionDetail(
        **view.model_copy(update={"retry_at": state.retry_at, "asks": len(state.pending), "model": model}).model_dump(),
        retry_reason=failed.message if failed is not None else "",
        messages=list_messages(state),
        pending=PendingQuestion.list_open(session_id, state),
        last_run=RunOutcome.from_fact(state.last) if state.last is not None else None,
        context=context,
        web=web,
    )


@router.patch("/sessions/{session_id}")
async def change_session(service: CurrentService, token: Sender, session_id: str, body: ChangeSession) -> SessionView:
    """Rename a session, pin or archive it, or give it another agent, model, limits or access: all of it or nothing."""
    needs_agent = body.access is not None or body.limits is not None
    session = await service.open_for_use(session_id, token, needs_agent=needs_agent)
    if body.model:
        service.get_model(body.model)
    if body.agent and body.agent not in service.runtime.agents:
        raise NotFound(f"agent: there is no agent {body.agent!r}; GET /v1/agents lists them")
    limits = body.limits.apply_to(session.agent.limits) if body.limits is not None else None
    if body.access is not None:
        await check_new_access(session, token, body.access)
    if body.name is not None:
        await session.rename(body.name)
    if body.agent or body.model or limits is not None or body.web is not None:
        await session.configure(agent=body.agent, model=body.model, limits=limits, web=body.web, by=token.name)
    if body.pinned is not None or body.archived is not None:
        await session.mark(pinned=body.pinned, archived=body.archived, by=token.name)
    if body.access is not None:
        await session.choose_access(body.access, by=token.name)
    return await build_entry(service, await service.runtime.log.get_info(session_id))


def check_access(access: Tier, grants: Sequence[Grant]) -> None:
    """Refuse more access than the operator, the token and the session allow."""
    most = find_narrowest_tier(grants)
    if choose_narrowest(access, most) != access:
        raise Refusal(403, "wider_access", f"access: {access} is more than this server allows, which is {most}")


async def check_new_access(session: Session, token: Token, access: Tier) -> None:
    """Refuse what the server does not allow. More than the session has now needs somebody who may approve that."""
    state = await session.state()
    narrower = state.created.grants[1:] if state.created is not None else ()
    check_access(access, (session.agent.grant, *narrower))
    before = state.access or session.agent.grant.tier
    if choose_narrowest(access, before) == before and access != before:
        require_right(token, "approve")


@router.delete("/sessions/{session_id}", status_code=204)
async def delete_session(service: CurrentService, token: Sender, session_id: str) -> None:
    """Delete a session and everything in it. Refused while it runs."""
    await (await service.open_for_use(session_id, token, needs_agent=False)).delete()
    service.note_removed(session_id)


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

    It does not wait for results of client tools, because the sender may be this client: `pending` names the calls.
    The same `Idempotency-Key` returns the same message and answer. Another message with this key is a conflict.
    Closing the connection does not stop the run.
    """
    session, message = await _post(service, token, session_id, body, key)
    run = session.follow(message)
    with suppress(TimeoutError), service.detach_at_shutdown(run):
        async with asyncio.timeout(wait):
            if not any(call.seq <= message.seq for call in (await session.state()).client_calls):
                async for event in run:
                    is_at_client = isinstance(event, CallStarted) and event.sandbox == CLIENT_SANDBOX
                    if is_at_client and (await session.state()).client_calls:
                        break
    if run.outcome is not None:
        outcome = RunOutcome.from_fact(run.outcome)
    elif run.is_withdrawn:
        outcome = RunOutcome(status="cancelled", reason="cancelled", error=WITHDRAWN_MESSAGE)
    elif run.is_held:
        error = HELD_FOLLOW_UP if run.is_follow_up else HELD_MESSAGE
        outcome = RunOutcome(status="cancelled", reason="cancelled", error=error, can_continue=True)
    else:
        pending = PendingQuestion.list_open(session_id, await session.state())
        reason = "shutting_down" if service.is_draining else "waiting" if pending else "running"
        outcome = RunOutcome(status="waiting", reason=reason, pending=pending)
    return MessageAnswer(
        reply=run.outcome.answer if run.outcome is not None else "",
        session=SessionView.from_info(await service.runtime.log.get_info(session_id)),
        outcome=outcome,
        message_id=message.id,
    )


_MESSAGE_ROUTE = router.routes[-1]


class PlainMessages:
    """Answers a plain message itself, because FastAPI's way to `post_message` costs as much as the run.

    FastAPI takes all other requests: those with a query, and those that it refuses.
    """

    def __init__(self, app: AsgiApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST" and not scope["query_string"]
        found = _MESSAGES_PATH.fullmatch(get_path(scope)) if is_post else None
        if found is None:
            await self._app(scope, receive, send)
            return
        messages = [await receive()]  # the guard gives the whole body at once
        key = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"idempotency-key"), "")
        try:
            body = NewMessage.model_validate(msgspec.json.decode(messages[0]["body"]))
        except (msgspec.DecodeError, ValidationError):
            body = None
        if body is None or len(key) > MAX_KEY_LENGTH:

            async def receive_again() -> AsgiMessage:
                return messages.pop() if messages else await receive()

            await self._app(scope, receive_again, send)
            return
        scope["route"] = _MESSAGE_ROUTE
        try:
            token = require_right(scope["treadle.token"], "send")
            self._service.attach()
            answer = await post_message(self._service, token, found[1], body, key)
            response = Response(answer.model_dump_json(), media_type="application/json")
        except Exception as error:
            response = build_error_response(build_refusal(error), scope)
        await response(scope, receive, send)


@router.post("/sessions/{session_id}/messages/stream", response_class=Response, responses=SSE_RESPONSES)
async def stream_message(
    service: CurrentService, token: Sender, session_id: str, body: NewMessage, after: Cursor, key: Key = ""
) -> Any:
    """Send a message and stream the run as server-sent events, up to `done` or `error`.

    A client that was cut off sends the same `Idempotency-Key` again, with `after` or Last-Event-ID.
    """
    session, message = await _post(service, token, session_id, body, key)
    dialect = SessionFramesDialect(session_id, service.list_tool_classes(session.agent))
    for fact in await session.facts():  # the frames count the turns of the whole session
        if fact.seq < message.seq:
            dialect.feed(fact)
    return EventStream(
        service.streams,
        session.follow(message),
        DialectWriter(dialect, after or 0),
        at_shutdown=lambda: encode_frames([ErrorFrame(RUN_CONTINUES_LATER)]),
    )
