"""`/v1/rpc`: JSON-RPC 2.0 over POST, and over a WebSocket that also sends the events of its chats."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeAlias

from fastapi import APIRouter, Request, Response, WebSocket
from pydantic import Field, ValidationError

from treadle import Answer, Session
from treadle.dialects import jsonrpc
from treadle.dialects.base import parse_approval_id
from treadle.dialects.chat_rpc import ChatNotification, ChatRpcDialect, ChatToken
from treadle.dialects.jsonrpc import RpcError, RpcFailure, RpcRequest, RpcResponse, RpcResult
from treadle.errors import Conflict, NotFound
from treadle.events import AnyFact, Delta, Event, MessageReceived, SessionConfigured
from treadle.messages import Json
from treadle.run import RunTracker
from treadle.server.attachments import Attachment
from treadle.server.guard import Refusal
from treadle.server.problems import build_refusal, describe_validation_error
from treadle.server.service import CurrentService, CurrentToken, Service, StrictBody, Token, require_right
from treadle.server.sessions import Name, NewMessage
from treadle.server.sockets import SocketConnection

router = APIRouter(tags=["rpc"])
MAX_BATCH_SIZE = 100
_CODES = {400: jsonrpc.INVALID_PARAMS, 422: jsonrpc.INVALID_PARAMS, 500: jsonrpc.INTERNAL_ERROR}

StartWatching: TypeAlias = Callable[[Session, MessageReceived, bool], None]
"""Starts to send a chat: takes the session, the message, and whether to send each token."""
MAX_RECENT_FACTS = 256


class ChatParams(StrictBody):
    prompt: str
    session_id: str = Field("", max_length=100)
    agent: Name = ""
    model: Name = ""
    attachments: list[Attachment] = Field(default_factory=list[Attachment], max_length=100)
    stream: bool = True


class SessionParams(StrictBody):
    session_id: str = Field(max_length=100)


class ApproveParams(StrictBody):
    session_id: str = Field("", max_length=100)
    approval_id: str = Field(max_length=600)
    decision: Literal["allow", "approve", "deny", "allow_always", "approve_always"]
    comment: str = Field("", max_length=10_000)


class RpcMethods:
    """The methods that one caller can call."""

    def __init__(self, service: Service, token: Token, watch: StartWatching | None = None) -> None:
        self._service, self._token, self._watch = service, token, watch

    async def answer(self, data: bytes | str) -> bytes | None:
        """Answer a message. Returns None when it holds only notifications."""
        incoming = jsonrpc.parse_message(data)
        if len(incoming.items) > MAX_BATCH_SIZE:
            error = RpcError(jsonrpc.INVALID_REQUEST, f"a batch may have {MAX_BATCH_SIZE} requests")
            return jsonrpc.encode_responses([RpcFailure(error)], is_batch=False)
        responses: list[RpcResponse] = []
        for item in incoming.items:
            response = item if isinstance(item, RpcFailure) else await self._respond(item)
            if response is not None:
                responses.append(response)
        return jsonrpc.encode_responses(responses, is_batch=incoming.is_batch)

    async def _respond(self, request: RpcRequest) -> RpcResponse | None:
        result: Json = None
        error: RpcError | None = None
        try:
            result = await self._call(request)
        except ValidationError as invalid:
            message = f"Invalid params: {describe_validation_error(invalid, 'params')}"
            error = RpcError(jsonrpc.INVALID_PARAMS, message)
        except Exception as raised:
            refusal = build_refusal(raised)
            code = _CODES.get(refusal.status, jsonrpc.SERVER_ERROR)
            code = jsonrpc.METHOD_NOT_FOUND if refusal.kind == "method_not_found" else code
            data = {"type": refusal.kind, "hint": refusal.hint, "status": refusal.status}
            error = RpcError(code, refusal.message, data)
        if request.is_notification:
            return None
        called: Any = request.id
        return RpcFailure(error, called) if error is not None else RpcResult(result, called)

    async def _call(self, request: RpcRequest) -> Json:
        methods: dict[str, tuple[type[StrictBody], Callable[[Any], Awaitable[Json]]]] = {
            "agent.chat": (ChatParams, self._chat),
            "agent.chat.cancel": (SessionParams, self._cancel),
            "agent.chat.approve": (ApproveParams, self._approve),
        }
        name = re.sub("^agents[.]", "agent.", request.method)
        if name not in methods:
            raise Refusal(404, "method_not_found", "Method not found")
        if not isinstance(request.params, dict):
            raise Refusal(422, "invalid_params", "Invalid params: they must be an object")
        kind, method = methods[name]
        return await method(kind.model_validate(request.params))

    async def _chat(self, given: ChatParams) -> Json:
        token, service = require_right(self._token, "send"), self._service
        service.check_open()
        parts = NewMessage(content=given.prompt, attachments=given.attachments).build_parts("prompt")
        if given.session_id:
            session = await service.open_for_use(given.session_id, token)
            if given.model:
                service.get_model(given.model)
                await session.configure(model=given.model, by=token.name)
        else:
            configured = SessionConfigured(model=given.model, by=token.name) if given.model else None
            session = await service.create_session(token, agent=given.agent, configured=configured)
        await service.check_session_model(session)
        message = await session.post(parts)
        if self._watch is not None:
            self._watch(session, message, given.stream)
        return {"accepted": True, "session_id": session.id, "message_id": message.id}

    async def _cancel(self, given: SessionParams) -> Json:
        token = require_right(self._token, "send")
        session = await self._service.open_for_use(given.session_id, token)
        return {"cancelled": await session.cancel(by=token.name) is not None}

    async def _approve(self, given: ApproveParams) -> Json:
        token = require_right(self._token, "approve")
        named, call_id = parse_approval_id(given.approval_id)
        if not call_id:
            named, call_id = given.session_id, given.approval_id
        decision = "deny" if given.decision == "deny" else "allow"
        answer = Answer(decision, "tool" if "always" in given.decision else "call", given.comment, by=token.name)
        try:
            session = await self._service.open_for_use(given.session_id or named, token)
            await session.approve(call_id, answer)
        except (NotFound, Conflict) as error:
            return {"resolved": False, "message": str(error)}
        return {"resolved": True}


@router.post("/v1/rpc", responses={204: {"description": "only notifications were sent"}})
async def call_rpc(service: CurrentService, token: CurrentToken, request: Request) -> Response:
    """Call `agents.chat`, `agents.chat.cancel` or `agents.chat.approve` by JSON-RPC 2.0, one by one or in batches."""
    answer = await RpcMethods(service, token).answer(await request.body())
    if answer is None:
        return Response(status_code=204)
    return Response(answer, media_type="application/json")


@router.websocket("/v1/rpc")
async def serve_rpc_socket(socket: WebSocket, service: CurrentService, token: CurrentToken) -> None:
    """JSON-RPC 2.0 with `agents.chat.event` notifications."""
    watches: dict[str, ChatWatch] = {}
    new_watches: list[tuple[Session, int]] = []
    async with SocketConnection(socket, service.streams) as connection:

        def watch(session: Session, message: MessageReceived, tokens: bool) -> None:
            if session.id not in watches:
                watches[session.id] = ChatWatch()
                new_watches.append((session, message.seq))
            watches[session.id].expect(message, tokens=tokens)

        methods = RpcMethods(service, token, watch)
        async for text in connection.receive_messages():
            answer = await methods.answer(text)
            if answer is not None:
                await connection.send(answer)
            while new_watches:  # after the acknowledgement
                connection.start_task(_send_chat(connection, *new_watches.pop(0), watches))


class ChatWatch:
    """A session that one connection watches until the last of its messages is answered."""

    def __init__(self) -> None:
        self.sends_tokens = False
        self._waiting: list[RunTracker] = []
        self._recent: deque[AnyFact] = deque(maxlen=MAX_RECENT_FACTS)

    def expect(self, message: MessageReceived, *, tokens: bool) -> None:
        """Wait for one more message. Facts that were sent since it was stored count for it."""
        tracker = RunTracker(message.id)
        self.sends_tokens = self.sends_tokens or tokens
        if not any(tracker.feed(fact) for fact in self._recent if fact.seq > message.seq):
            self._waiting.append(tracker)

    def feed(self, event: Event) -> bool:
        """Return whether all messages are answered with this event."""
        if isinstance(event, Delta):
            return False
        self._recent.append(event)
        self._waiting = [tracker for tracker in self._waiting if not tracker.feed(event)]
        return not self._waiting


async def _send_chat(connection: SocketConnection, session: Session, after: int, watches: dict[str, ChatWatch]) -> None:
    dialect, chat_watch = ChatRpcDialect(session.id), watches[session.id]

    def translate(event: Event) -> Sequence[ChatNotification]:
        notifications = dialect.feed(event)
        if chat_watch.sends_tokens:
            return notifications
        return [one for one in notifications if not isinstance(one.params, ChatToken)]

    def until(event: Event) -> bool:
        is_over = chat_watch.feed(event)
        if is_over:
            del watches[session.id]
        return is_over

    await connection.follow(session.watch(after), translate, until=until)
