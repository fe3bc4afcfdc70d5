"""WebSockets: one session as frames, one session as messages, and the channel that says which session needs you."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Annotated, Any, Literal

from fastapi import APIRouter, WebSocket
from pydantic import Field, TypeAdapter, ValidationError
from starlette.websockets import WebSocketDisconnect, WebSocketState

from treadle import Answer, Session
from treadle.dialects.base import encode, parse_approval_id
from treadle.dialects.message_frames import ChatState, ChatStatus, StatusDialect, WireDialect
from treadle.dialects.session_frames import Error, FramesDialect
from treadle.errors import TreadleError
from treadle.events import Delta, Event
from treadle.log.base import SessionInfo, SessionQuery, Watch
from treadle.server.guard import Refusal, refuse
from treadle.server.problems import told
from treadle.server.service import Service, Token, needs, service_of, token_of
from treadle.server.streams import Streams
from treadle.server.views import Attachment, Body, NewMessage

router = APIRouter(tags=["sockets"])
GOING_AWAY = 1012
BROKEN = 1011
LISTED = 200
ELSEWHERE_SECONDS = 2.0
_STATES: dict[str, ChatState] = {"running": "streaming", "waiting": "needs_you"}


class UserFrame(Body):
    type: Literal["user"]
    content: str = ""
    attachments: list[Attachment] = Field(default_factory=list[Attachment], max_length=100)
    mode: Literal["queue", "interrupt"] = "queue"
    key: str = Field("", max_length=200)


class CancelFrame(Body):
    type: Literal["cancel"]


class ApprovalFrame(Body):
    type: Literal["approval"]
    id: str = Field(max_length=600)
    approved: bool
    digest: str = Field("", max_length=200)


class AnswerFrame(Body):
    type: Literal["answer"]
    id: str = Field(max_length=600)
    answers: list[str] = Field(min_length=1, max_length=100)


ClientFrame = UserFrame | CancelFrame | ApprovalFrame | AnswerFrame
_frames: TypeAdapter[ClientFrame] = TypeAdapter(Annotated[ClientFrame, Field(discriminator="type")])


class Line:
    """An accepted WebSocket: one writer at a time, tasks that end with it, closed when the server leaves."""

    def __init__(self, socket: WebSocket, streams: Streams) -> None:
        self._socket, self._streams = socket, streams
        self._tasks: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()
        self.last = 0.0
        self.pinging = True  # WebSockets have pings of their own

    async def __aenter__(self) -> Line:
        await self._socket.accept()
        self._streams.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._streams.remove(self)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._socket.client_state is WebSocketState.CONNECTED and not isinstance(error, WebSocketDisconnect):
            with suppress(RuntimeError, WebSocketDisconnect):
                await self._socket.close(GOING_AWAY if self._streams.closed else 1000)
        return isinstance(error, WebSocketDisconnect)

    def start(self, work: Coroutine[Any, Any, None], *, main: bool = False) -> None:
        """Run something for as long as the line is open. It closes when that fails, or when what it is for is over."""
        task = asyncio.create_task(self._run(work, main=main))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, work: Coroutine[Any, Any, None], *, main: bool) -> None:
        code = 1000
        try:
            await work
        except Exception as error:
            told(error)  # logged there, where it is a mistake of the server's own
            code = BROKEN
        if main or code == BROKEN:
            await self._close(GOING_AWAY if self._streams.closed else code)

    async def send(self, data: bytes) -> None:
        async with self._writing:
            with suppress(WebSocketDisconnect, RuntimeError):  # who has left is noticed by the one who reads
                await self._socket.send_text(data.decode())

    async def messages(self) -> AsyncIterator[str]:
        """What the client says, until it leaves or the server does."""
        while not self._streams.closed:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            yield text if text is not None else message["bytes"].decode("utf-8", "replace")

    async def follow(
        self, watch: Watch, write: Callable[[Event], list[bytes]], until: Callable[[Event], bool] | None = None
    ) -> None:
        """Send what comes of a watch."""
        try:
            async for event in watch:
                for data in write(event):
                    await self.send(data)
                if until is not None and until(event):
                    return
        finally:
            watch.close()

    def stop(self) -> None:
        """The server leaves: close, and say that it is worth coming back."""
        self.start(self._close(GOING_AWAY))

    async def ping(self) -> None:
        """Nothing to do: the protocol's own pings keep it alive."""

    async def _close(self, code: int) -> None:
        with suppress(RuntimeError, WebSocketDisconnect):
            await self._socket.close(code)


@router.websocket("/v1/sessions/{session_id}/stream")
async def session_socket(socket: WebSocket, session_id: str, after: int = -1) -> None:
    """Frames of a session, from now on or from `after`; takes `user`, `cancel`, `approval` and `answer`."""
    service, token = service_of(socket), token_of(socket)
    session = await _opened(socket, service, token, session_id)
    if session is None:
        return
    dialect = FramesDialect(session_id, service.classes(session.agent))
    start = await service.within(session_id, after if after >= 0 else sys.maxsize)

    def write(event: Event) -> list[bytes]:
        return [encode(frame) for frame in dialect.feed(event)]

    async with Line(socket, service.streams) as line:
        line.start(line.follow(session.watch(start), write), main=True)
        async for text in line.messages():
            try:
                await _take(service, token, session, _frames.validate_json(text))
            except ValidationError as error:
                first = error.errors(include_url=False, include_context=False, include_input=False)[0]
                where = ".".join(map(str, first["loc"])) or "frame"
                await line.send(encode(Error(f"{where}: {first['msg']}")))
            except (TreadleError, Refusal) as error:
                await line.send(encode(Error(told(error).message)))


async def _take(service: Service, token: Token, session: Session, frame: ClientFrame) -> None:
    await service.usable(session.id, token)
    match frame:
        case UserFrame():
            service.check_open()
            needs(token, "send")
            await service.check_session(session)
            message = NewMessage(content=frame.content, attachments=frame.attachments)
            await service.post(session, message.parts(), frame.mode, frame.key)
        case CancelFrame():
            await session.cancel(by=needs(token, "send").name)
        case ApprovalFrame():
            by = needs(token, "approve").name
            call_id = _call_of(session, frame.id)
            answer = Answer("allow" if frame.approved else "deny", by=by)
            await session.approve(call_id, answer, digest=frame.digest)
        case AnswerFrame():
            by = needs(token, "approve").name
            await session.answer(_call_of(session, frame.id), *frame.answers, by=by)


def _call_of(session: Session, name: str) -> str:
    session_id, call_id = parse_approval_id(name)
    return call_id if session_id == session.id and call_id else name


@router.websocket("/v1/ws")
async def user_socket(socket: WebSocket, session: str = "", after: int = 0) -> None:
    """Without `session`: the status of all sessions. With it: its message frames, from `after` on."""
    service, token = service_of(socket), token_of(socket)
    if session:
        opened = await _opened(socket, service, token, session)
        if opened is None:
            return
        async with Line(socket, service.streams) as line:
            write = _wire(session, await service.within(session, after), await service.window(opened))
            line.start(line.follow(opened.watch(), write), main=True)
            async for _ in line.messages():
                pass
        return
    if not await _may_view(socket, token):
        return
    async with Line(socket, service.streams) as line:
        line.start(_tell_statuses(service, line), main=True)
        async for _ in line.messages():
            pass


def _wire(session_id: str, after: int, window: int | None) -> Callable[[Event], list[bytes]]:
    dialect = WireDialect(session_id, window)

    def write(event: Event) -> list[bytes]:
        frames = dialect.feed(event)
        if not isinstance(event, Delta) and event.seq <= after:
            return []
        return [encode(frame) for frame in frames]

    return write


async def _tell_statuses(service: Service, line: Line) -> None:
    """All sessions as they are now, and then each change: at once where this process writes, else soon."""
    dialects: dict[str, StatusDialect] = {}
    seen: dict[str, tuple[ChatState, str]] = {}
    with service.bus.subscribe() as subscription:
        line.start(_look_elsewhere(service, line, seen))
        async for session_id, fact in subscription:
            if session_id not in dialects:
                before = seen[session_id][0] if session_id in seen else "idle"
                dialects[session_id] = StatusDialect(session_id, before)
            for frame in dialects[session_id].feed(fact):
                seen[session_id] = (frame.status, frame.name or seen.get(session_id, ("", ""))[1])
                await line.send(encode(frame))


async def _look_elsewhere(service: Service, line: Line, seen: dict[str, tuple[ChatState, str]]) -> None:
    """What other processes do with the sessions of this store is found by looking."""
    while True:
        page, before = await service.runtime.sessions(SessionQuery(limit=LISTED)), dict(seen)
        for info in reversed(page.sessions):
            now = (_STATES.get(info.status, "idle"), info.name)
            if before.get(info.id) == seen.get(info.id) != now:  # else it was told something newer meanwhile
                seen[info.id] = now
                await line.send(encode(_status(info)))
        await asyncio.sleep(ELSEWHERE_SECONDS)


def _status(info: SessionInfo) -> ChatStatus:
    return ChatStatus(info.id, info.id, _STATES.get(info.status, "idle"), info.name)


async def _opened(socket: WebSocket, service: Service, token: Token, session_id: str) -> Session | None:
    """The session, or None after a refusal that the client can tell from a broken line."""
    if not await _may_view(socket, token):
        return None
    try:
        return await service.session(session_id)
    except TreadleError as error:
        await refuse(socket.scope, socket.send, told(error))
        return None


async def _may_view(socket: WebSocket, token: Token) -> bool:
    try:
        needs(token, "view")
    except Refusal as refusal:
        await refuse(socket.scope, socket.send, refusal)
        return False
    return True
