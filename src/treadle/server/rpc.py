"""`/v1/rpc`: JSON-RPC 2.0 over POST and over a WebSocket, where chats are also told as notifications."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeAlias

from fastapi import APIRouter, Request, Response, WebSocket
from pydantic import Field, ValidationError

from treadle import Answer, Session
from treadle.dialects import jsonrpc
from treadle.dialects.base import encode, parse_approval_id
from treadle.dialects.chat_rpc import ChatRpcDialect
from treadle.dialects.chat_rpc import Token as ChatToken
from treadle.dialects.jsonrpc import RpcError, RpcFailure, RpcRequest, RpcResponse, RpcResult
from treadle.errors import Conflict, NotFound
from treadle.events import AnyFact, Delta, Event, MessageReceived, SessionConfigured
from treadle.messages import Json
from treadle.server.follow import Following
from treadle.server.guard import Refusal
from treadle.server.problems import told
from treadle.server.service import Service, TheService, Token, needs, service_of, token_of
from treadle.server.sockets import Line
from treadle.server.views import Attachment, Body, Name, NewMessage

router = APIRouter(tags=["rpc"])
MOST_IN_BATCH = 100
_CODES = {400: jsonrpc.INVALID_PARAMS, 422: jsonrpc.INVALID_PARAMS, 500: jsonrpc.INTERNAL_ERROR}

Watch: TypeAlias = Callable[[Session, MessageReceived, bool], None]
"""Begins to tell a chat to whoever is connected: the session, the message, and whether each token."""
RECENT = 256


class ChatParams(Body):
    prompt: str
    session_id: str = Field("", max_length=100)
    agent: Name = ""
    model: Name = ""
    attachments: list[Attachment] = Field(default_factory=list[Attachment], max_length=100)
    stream: bool = True


class SessionParams(Body):
    session_id: str = Field(max_length=100)


class ApproveParams(Body):
    session_id: str = Field("", max_length=100)
    approval_id: str = Field(max_length=600)
    decision: Literal["allow", "approve", "deny", "allow_always", "approve_always"]
    comment: str = Field("", max_length=10_000)


class Methods:
    """What can be called, for one caller."""

    def __init__(self, service: Service, token: Token, watch: Watch | None = None) -> None:
        self._service, self._token, self._watch = service, token, watch
        self._known: dict[str, Callable[[dict[str, Json]], Awaitable[Json]]] = {
            "agents.chat": self._chat,
            "agents.chat.cancel": self._cancel,
            "agents.chat.approve": self._approve,
        }

    async def answer(self, data: bytes | str) -> bytes | None:
        """The response to a message, if it gets one."""
        incoming = jsonrpc.read(data)
        if len(incoming.items) > MOST_IN_BATCH:
            error = RpcError(jsonrpc.INVALID_REQUEST, f"a batch may have {MOST_IN_BATCH} requests")
            return jsonrpc.write([RpcFailure(error)], batch=False)
        responses: list[RpcResponse] = []
        for item in incoming.items:
            response = item if isinstance(item, RpcFailure) else await self._respond(item)
            if response is not None:
                responses.append(response)
        return jsonrpc.write(responses, batch=incoming.batch)

    async def _respond(self, request: RpcRequest) -> RpcResponse | None:
        result: Json = None
        error: RpcError | None = None
        try:
            result = await self._call(request)
        except ValidationError as invalid:
            first = invalid.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "params"
            error = RpcError(jsonrpc.INVALID_PARAMS, f"Invalid params: {where}: {first['msg']}")
        except Exception as raised:
            refusal = told(raised)
            code = _CODES.get(refusal.status, jsonrpc.SERVER_ERROR)
            code = jsonrpc.METHOD_NOT_FOUND if refusal.kind == "method_not_found" else code
            data = {"type": refusal.kind, "hint": refusal.hint, "status": refusal.status}
            error = RpcError(code, refusal.message, data)
        if request.is_notification:
            return None
        called: Any = request.id
        return RpcFailure(error, called) if error is not None else RpcResult(result, called)

    async def _call(self, request: RpcRequest) -> Json:
        name = request.method
        method = self._known.get(f"agents.{name.removeprefix('agent.')}" if name.startswith("agent.") else name)
        if method is None:
            raise Refusal(404, "method_not_found", "Method not found")
        if not isinstance(request.params, dict):
            raise Refusal(422, "invalid_params", "Invalid params: they must be named")
        return await method(request.params)

    async def _chat(self, params: dict[str, Json]) -> Json:
        given = ChatParams.model_validate(params)
        token, service = needs(self._token, "send"), self._service
        service.check_open()
        parts = NewMessage(content=given.prompt, attachments=given.attachments).parts("prompt")
        if given.session_id:
            session = await service.usable(given.session_id, token)
            if given.model:
                service.model(given.model)
                await session.configure(model=given.model, by=token.name)
        else:
            configured = SessionConfigured(model=given.model, by=token.name) if given.model else None
            session = await service.create(token, agent=given.agent, configured=configured)
        await service.check_session(session)
        message = await session.post(parts)
        if self._watch is not None:
            self._watch(session, message, given.stream)
        return {"accepted": True, "session_id": session.id, "message_id": message.id}

    async def _cancel(self, params: dict[str, Json]) -> Json:
        given = SessionParams.model_validate(params)
        token = needs(self._token, "send")
        session = await self._service.usable(given.session_id, token)
        return {"cancelled": await session.cancel(by=token.name) is not None}

    async def _approve(self, params: dict[str, Json]) -> Json:
        given = ApproveParams.model_validate(params)
        token = needs(self._token, "approve")
        named, call_id = parse_approval_id(given.approval_id)
        if not call_id:
            named, call_id = given.session_id, given.approval_id
        decision = "deny" if given.decision == "deny" else "allow"
        answer = Answer(decision, "tool" if "always" in given.decision else "call", given.comment, by=token.name)
        try:
            session = await self._service.usable(given.session_id or named, token)
            await session.approve(call_id, answer)
        except (NotFound, Conflict) as error:
            return {"resolved": False, "message": str(error)}
        return {"resolved": True}


@router.post("/v1/rpc", responses={204: {"description": "only notifications were sent"}})
async def rpc(service: TheService, request: Request) -> Response:
    """JSON-RPC 2.0: `agents.chat`, `agents.chat.cancel`, `agents.chat.approve`; batches too."""
    answer = await Methods(service, token_of(request)).answer(await request.body())
    if answer is None:
        return Response(status_code=204)
    return Response(answer, media_type="application/json")


@router.websocket("/v1/rpc")
async def rpc_socket(socket: WebSocket) -> None:
    """JSON-RPC 2.0 with `agents.chat.event` notifications."""
    service, token = service_of(socket), token_of(socket)
    telling: dict[str, Told] = {}
    begun: list[tuple[Session, int]] = []
    async with Line(socket, service.streams) as line:

        def watch(session: Session, message: MessageReceived, tokens: bool) -> None:
            if session.id not in telling:
                telling[session.id] = Told()
                begun.append((session, message.seq))
            telling[session.id].expect(message, tokens=tokens)

        methods = Methods(service, token, watch)
        async for text in line.messages():
            answer = await methods.answer(text)
            if answer is not None:
                await line.send(answer)
            while begun:  # only now: the acknowledgement goes first
                line.start(_tell(line, *begun.pop(0), telling))


class Told:
    """A session that one connection is told: once, however many of its messages are waited for, until all are over."""

    def __init__(self) -> None:
        self.tokens = False
        self._waiting: list[Following] = []
        self._recent: deque[AnyFact] = deque(maxlen=RECENT)

    def expect(self, message: MessageReceived, *, tokens: bool) -> None:
        """Wait for one more message; what was told since it was stored counts for it."""
        following = Following(message.id)
        self.tokens = self.tokens or tokens
        if not any(following.feed(fact) for fact in self._recent if fact.seq > message.seq):
            self._waiting.append(following)

    def feed(self, event: Event) -> bool:
        """Whether all is over with this event."""
        if isinstance(event, Delta):
            return False
        self._recent.append(event)
        self._waiting = [following for following in self._waiting if not following.feed(event)]
        return not self._waiting


async def _tell(line: Line, session: Session, after: int, telling: dict[str, Told]) -> None:
    dialect, told_to = ChatRpcDialect(session.id), telling[session.id]

    def write(event: Event) -> list[bytes]:
        notes = dialect.feed(event)
        return [encode(note) for note in notes if told_to.tokens or not isinstance(note.params, ChatToken)]

    def until(event: Event) -> bool:
        over = told_to.feed(event)
        if over:
            del telling[session.id]
        return over

    await line.follow(session.watch(after), write, until)
