"""WebSockets: one session as frames, one session as messages, and the status of all sessions."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, WebSocket
from msgspec import Struct
from pydantic import Field, TypeAdapter, ValidationError
from starlette.websockets import WebSocketDisconnect, WebSocketState

from treadle import Answer, Session
from treadle.dialects.base import encode_frame, parse_approval_id
from treadle.dialects.message_frames import ChatState, ChatStatusDialect, MessageFramesDialect
from treadle.dialects.session_frames import ErrorFrame, SessionFramesDialect
from treadle.errors import TreadleError
from treadle.events import Delta, Event
from treadle.log.base import SessionQuery, Watch
from treadle.server.guard import Refusal
from treadle.server.problems import build_refusal, describe_validation_error
from treadle.server.service import CurrentService, Service, StrictBody, Token, Viewer, require_right
from treadle.server.sessions import NewMessage
from treadle.server.streams import OpenStreams, is_response_fact

router = APIRouter(tags=["sockets"])
FrameNumber = Annotated[float, Query(ge=0, le=2**53)]
GOING_AWAY = 1012
INTERNAL_FAILURE = 1011
MAX_LISTED = 200
_STATES: dict[str, ChatState] = {"running": "streaming", "waiting": "needs_you"}


class UserFrame(NewMessage):
    type: Literal["user"]
    key: str = Field("", max_length=200)


class CancelFrame(StrictBody):
    type: Literal["cancel"]


class RetryNowFrame(StrictBody):
    type: Literal["retry"]


class ApprovalFrame(StrictBody):
    type: Literal["approval"]
    id: str = Field(max_length=600)
    approved: bool
    digest: str = Field("", max_length=200)


class AnswerFrame(StrictBody):
    type: Literal["answer"]
    id: str = Field(max_length=600)
    answers: list[str] = Field(min_length=1, max_length=100)


ClientFrame = UserFrame | CancelFrame | RetryNowFrame | ApprovalFrame | AnswerFrame
_frames: TypeAdapter[ClientFrame] = TypeAdapter(Annotated[ClientFrame, Field(discriminator="type")])


class SocketConnection:
    """An accepted WebSocket. One writer at a time; its tasks end with it; it closes when the server shuts down."""

    def __init__(self, socket: WebSocket, streams: OpenStreams) -> None:
        self._socket, self._streams = socket, streams
        self._tasks: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()

    async def __aenter__(self) -> SocketConnection:
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
                await self._socket.close(GOING_AWAY if self._streams.is_closed else 1000)
        return isinstance(error, WebSocketDisconnect)

    def start_task(self, work: Coroutine[Any, Any, None], *, closes_at_end: bool = False) -> None:
        """Run a task while the connection is open. A failed task closes it, and so does the end of its main task."""
        task = asyncio.create_task(self._run(work, main=closes_at_end))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, work: Coroutine[Any, Any, None], *, main: bool) -> None:
        code = 1000
        try:
            await work
        except Exception as error:
            build_refusal(error)  # this logs internal errors
            code = INTERNAL_FAILURE
        if main or code == INTERNAL_FAILURE:
            await self._close(GOING_AWAY if self._streams.is_closed else code)

    async def send(self, data: bytes) -> None:
        async with self._writing:
            with suppress(WebSocketDisconnect, RuntimeError):  # the reader notices that the client has left
                await self._socket.send_text(data.decode())

    async def send_frame(self, frame: Struct) -> None:
        await self.send(encode_frame(frame))

    async def receive_messages(self) -> AsyncIterator[str]:
        """The client's messages, until the client leaves or the server shuts down."""
        while not self._streams.is_closed:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            yield text if text is not None else message["bytes"].decode("utf-8", "replace")

    async def follow(
        self, watch: Watch, translate: Callable[[Event], Sequence[Struct]], until: Callable[[Event], bool] | None = None
    ) -> None:
        """Send what `translate` returns for the events of a watch."""
        try:
            async for event in watch:
                for frame in translate(event):
                    await self.send_frame(frame)
                if until is not None and until(event):
                    return
        finally:
            watch.close()

    def stop(self) -> None:
        """Close because the server shuts down. The code tells the client to connect again."""
        self.start_task(self._close(GOING_AWAY))

    async def _close(self, code: int) -> None:
        with suppress(RuntimeError, WebSocketDisconnect):
            await self._socket.close(code)


@router.websocket("/v1/sessions/{session_id}/stream")
async def serve_session_socket(
    socket: WebSocket, service: CurrentService, token: Viewer, session_id: str, after: int = -1
) -> None:
    """Frames of a session, from now on or from `after`; takes `user`, `cancel`, `retry`, `approval` and `answer`."""
    session = await service.runtime.open(session_id)
    dialect = SessionFramesDialect(session_id, service.list_tool_classes(session.agent))
    after = await service.limit_position(session_id, after if after >= 0 else sys.maxsize)

    def translate(event: Event) -> Sequence[Struct]:
        frames = dialect.feed(event)  # also what the client has: the rest follows from it
        return frames if isinstance(event, Delta) or event.seq > after else ()

    async with SocketConnection(socket, service.streams) as connection:
        connection.start_task(connection.follow(session.watch(), translate), closes_at_end=True)
        async for text in connection.receive_messages():
            try:
                await _handle_frame(service, token, session, _frames.validate_json(text))
            except ValidationError as error:
                await connection.send_frame(ErrorFrame(describe_validation_error(error, "frame")))
            except (TreadleError, Refusal) as error:
                await connection.send_frame(ErrorFrame(build_refusal(error).message))


async def _handle_frame(service: Service, token: Token, session: Session, frame: ClientFrame) -> None:
    await service.open_for_use(session.id, token)
    match frame:
        case UserFrame():
            service.check_open()
            require_right(token, "send")
            await service.check_session_model(session)
            await service.post_message(session, frame.build_parts(), frame.mode, frame.key)
        case CancelFrame():
            await session.cancel(by=require_right(token, "send").name)
        case RetryNowFrame():
            await session.retry_now(by=require_right(token, "send").name)
        case ApprovalFrame():
            by = require_right(token, "approve").name
            call_id = _find_call_id(session, frame.id)
            answer = Answer("allow" if frame.approved else "deny", by=by)
            await session.approve(call_id, answer, digest=frame.digest)
        case AnswerFrame():
            by = require_right(token, "approve").name
            await session.answer(_find_call_id(session, frame.id), *frame.answers, by=by)


def _find_call_id(session: Session, approval_id: str) -> str:
    session_id, call_id = parse_approval_id(approval_id)
    return call_id if session_id == session.id and call_id else approval_id


@router.websocket("/v1/ws")
async def serve_user_socket(
    socket: WebSocket, service: CurrentService, token: Viewer, session: str = "", after: FrameNumber = 0
) -> None:
    """Without `session`: the status of all sessions. With it: its message frames behind the one with `seq` `after`."""
    opened = await service.runtime.open(session) if session else None
    async with SocketConnection(socket, service.streams) as connection:
        if opened is None:
            work = _send_statuses(service, connection)
        else:
            last = await service.limit_position(session, int(after))
            after = after if int(after) == last else last
            dialect = MessageFramesDialect(session, await service.get_window(opened), after)
            work = connection.follow(opened.watch(), dialect.feed)
        connection.start_task(work, closes_at_end=True)
        async for _ in connection.receive_messages():
            pass


async def _send_statuses(service: Service, connection: SocketConnection) -> None:
    """Send the status of every session and then each change, whichever process makes it."""
    watch = service.runtime.watch()
    try:
        listed = (await service.runtime.sessions(SessionQuery(limit=MAX_LISTED))).sessions
        heads = {info.id: info.seq for info in listed}
        dialects: dict[str, ChatStatusDialect] = {}
        for info in reversed(listed):
            dialect = dialects[info.id] = ChatStatusDialect(info.id, _STATES.get(info.status, "idle"), info.name)
            await connection.send_frame(dialect.build_frame(info.updated_at))
        async for stored in watch:
            session_id, fact = stored.session_id, stored.fact
            if is_response_fact(fact) or fact.seq <= heads.get(session_id, 0):  # the list has it already
                continue
            if session_id not in dialects:
                dialects[session_id] = ChatStatusDialect(session_id)
            for frame in dialects[session_id].feed(fact):
                await connection.send_frame(frame)
    finally:
        watch.close()
