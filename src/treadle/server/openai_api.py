"""OpenAI's endpoints. A model's name asks that model, and the client's tools are the client's to run.

`agent:NAME` asks an agent: a session is made or gone on with (`session_id`), and its tools run here.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Struct
from pydantic import BaseModel, Field

from treadle import RunFinished, Session
from treadle.dialects import responses_events as responses_out
from treadle.dialects.base import encode_frame
from treadle.dialects.loop_events import RUN_CONTINUES_LATER
from treadle.dialects.openai_chat import (
    ChatChunkDialect,
    TextChunkDialect,
    build_agent_completion,
    build_chat_completion,
    build_text_completion,
    describe_failed_run,
)
from treadle.dialects.openai_requests import (
    ChatBody,
    CompletionBody,
    ResponsesBody,
    build_agent_message,
    build_chat_request,
    build_completion_request,
    build_responses_request,
)
from treadle.dialects.responses_events import ResponsesDialect
from treadle.errors import ModelError, NotFound
from treadle.events import (
    AnyFact,
    ApprovalRequested,
    CallFinished,
    CallStarted,
    Event,
    InputRequested,
    MessageReceived,
    SessionConfigured,
)
from treadle.messages import Reply
from treadle.messages import Request as ModelRequest
from treadle.models.base import Embedder, Model
from treadle.server.follow import MessageFollower, follow_message
from treadle.server.guard import Refusal
from treadle.server.problems import build_error_body, build_field_error, build_refusal
from treadle.server.service import CurrentService, Sender, Service, Token
from treadle.server.streams import SHUTDOWN_COMMENT, EventStream, RelayedStream
from treadle.server.views import StrictBody

router = APIRouter(prefix="/v1", tags=["openai"])
AGENT_PREFIX = "agent:"
Read = TypeVar("Read", ChatBody, CompletionBody, ResponsesBody)
Feed = Callable[[Event | Reply], Sequence[Struct]]


class EmbeddingsBody(StrictBody):
    model: str = Field(max_length=500)
    input: str | list[str]
    encoding_format: str | None = None
    dimensions: int | None = None
    user: str | None = None


class EmbeddingView(BaseModel):
    embedding: list[float] | str
    index: int
    object: str = "embedding"


class EmbeddingsView(BaseModel):
    data: list[EmbeddingView]
    model: str
    usage: dict[str, int]
    object: str = "list"


def _described(kind: type[Struct]) -> dict[str, Any]:
    """A body that msgspec reads, as OpenAPI has it."""
    (schema,), components = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
    inlined = _inlined(schema, components)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": inlined}}}}


def _inlined(schema: Any, components: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inlined(piece, components) for piece in schema]  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(schema, dict):
        return schema
    reference = schema.get("$ref")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if isinstance(reference, str):
        return _inlined(components[reference.rpartition("/")[2]], components)
    return {key: _inlined(value, components) for key, value in schema.items()}  # pyright: ignore[reportUnknownVariableType]


EITHER: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": {}, "text/event-stream": {}}, "description": "whole, or a stream"}
}


@router.post("/chat/completions", response_class=Response, openapi_extra=_described(ChatBody), responses=EITHER)
async def create_chat_completion(service: CurrentService, token: Sender, request: Request) -> Any:
    """Chat Completions, streamed or whole."""
    body = msgspec.json.decode(await request.body(), type=ChatBody)
    asked = build_chat_request(body)
    name, created = f"chatcmpl-{os.urandom(12).hex()}", int(time.time())
    usage = _usage_wanted(body)
    chunks = ChatChunkDialect(name, body.model, created, usage=usage)
    if body.model.startswith(AGENT_PREFIX):
        session, message = await _ask_agent(service, token, body.model, asked, body.session_id)
        if body.stream:
            return _agent_stream(service, session, message, chunks.feed, b"data: [DONE]\n\n")
        ending, activity = await _answered(service, session, message)
        return _json(build_agent_completion(name, body.model, created, ending, activity))
    model = service.get_model(body.model)
    if body.stream:
        return _model_stream(service, model, asked, chunks.feed, b"data: [DONE]\n\n")
    return _json(build_chat_completion(name, body.model, created, await _whole(model, asked)))


@router.post("/completions", response_class=Response, openapi_extra=_described(CompletionBody), responses=EITHER)
async def create_completion(service: CurrentService, token: Sender, request: Request) -> Any:
    """The old Completions: a bare prompt."""
    body = msgspec.json.decode(await request.body(), type=CompletionBody)
    asked = build_completion_request(body)
    name, created = f"cmpl-{os.urandom(12).hex()}", int(time.time())
    usage = _usage_wanted(body)
    chunks = TextChunkDialect(name, body.model, created, usage=usage)
    if body.model.startswith(AGENT_PREFIX):
        session, message = await _ask_agent(service, token, body.model, asked, body.session_id)
        if body.stream:
            return _agent_stream(service, session, message, chunks.feed, b"data: [DONE]\n\n")
        ending, _ = await _answered(service, session, message)
        return _json(build_text_completion(name, body.model, created, ending))
    model = service.get_model(body.model)
    if body.stream:
        return _model_stream(service, model, asked, chunks.feed, b"data: [DONE]\n\n")
    return _json(build_text_completion(name, body.model, created, await _whole(model, asked)))


@router.post("/responses", response_class=Response, openapi_extra=_described(ResponsesBody), responses=EITHER)
async def create_response(service: CurrentService, token: Sender, request: Request) -> Any:
    """Responses, streamed or whole. They are not kept: send the input whole, or use a session."""
    body = msgspec.json.decode(await request.body(), type=ResponsesBody)
    asked = build_responses_request(body)
    name, created = f"resp_{os.urandom(12).hex()}", time.time()
    events = ResponsesDialect(name, body.model, created)
    begin = b"".join(_line(frame) for frame in events.begin()) if body.stream else b""
    empty = responses_out.start_response(name, body.model, created)
    if body.model.startswith(AGENT_PREFIX):
        session, message = await _ask_agent(service, token, body.model, asked, body.session_id)
        if body.stream:
            return _agent_stream(service, session, message, events.feed, b"", begin)
        ending, activity = await _run(service, session, message)
        return _json(responses_out.complete_with_run(empty, ending, activity=activity))
    model = service.get_model(body.model)
    if body.stream:
        return _model_stream(service, model, asked, events.feed, b"", begin)
    return _json(responses_out.complete_with_reply(empty, await _whole(model, asked)))


@router.post("/embeddings")
async def create_embeddings(service: CurrentService, token: Sender, body: EmbeddingsBody) -> EmbeddingsView:
    """Embeddings, where the model can."""
    model = service.get_model(body.model)
    if not isinstance(model, Embedder):
        raise Refusal(400, "cannot_embed", f"{model.name} gives no embeddings", "ask a model that does: local")
    texts = [body.input] if isinstance(body.input, str) else body.input
    if not texts or not all(texts):
        raise build_field_error("input", "there must be text to embed")
    vectors = await model.embed(texts)
    tokens = sum(max(1, len(text) // 4) for text in texts)
    data = [
        EmbeddingView(embedding=_packed(vector) if body.encoding_format == "base64" else vector, index=place)
        for place, vector in enumerate(vectors)
    ]
    return EmbeddingsView(data=data, model=body.model, usage={"prompt_tokens": tokens, "total_tokens": tokens})


def _usage_wanted(body: ChatBody | CompletionBody) -> bool:
    return bool(body.stream_options is not None and body.stream_options.include_usage)


def _packed(vector: list[float]) -> str:
    import base64
    from array import array

    return base64.b64encode(array("f", vector).tobytes()).decode()


# ── a model ──────────────────────────────────────────────────────────────────────────────────────────


async def _whole(model: Model, asked: ModelRequest) -> Reply:
    async with aclosing(model.stream(asked)) as events:
        async for event in events:
            if isinstance(event, Reply):
                return event
    raise ModelError(f"{model.name} ended its stream without a reply", kind="network", retryable=True)


def _model_stream(
    service: Service, model: Model, asked: ModelRequest, feed: Feed, end: bytes, begin: bytes = b""
) -> RelayedStream:
    """The reply as it comes; a failure before its first fragment still has its own status."""
    return RelayedStream(
        service.streams, _pieces(model, asked, feed, end, begin), lambda error: _problem(build_refusal(error)) + end
    )


async def _pieces(model: Model, asked: ModelRequest, feed: Feed, end: bytes, begin: bytes) -> AsyncGenerator[bytes]:
    replied = False
    async with aclosing(model.stream(asked)) as events:
        async for event in events:
            replied = replied or isinstance(event, Reply)
            data = begin + b"".join(_line(frame) for frame in feed(event))
            if data:
                yield data
            begin = b""
    if not replied:
        raise ModelError(f"{model.name} ended its stream without a reply", kind="network", retryable=True)
    yield end


# ── an agent ─────────────────────────────────────────────────────────────────────────────────────────


async def _ask_agent(
    service: Service, token: Token, model: str, asked: ModelRequest, session_id: str | None
) -> tuple[Session, MessageReceived]:
    name = model.removeprefix(AGENT_PREFIX)
    agent = service.runtime.agents.get(name)
    if agent is None:
        raise NotFound(f"there is no agent {name[:200]!r}; GET /v1/models lists them")
    service.check_open()
    await service.check_model(agent)
    if asked.tools:
        raise build_field_error("tools", "an agent has its own; ask its model for yours")
    if asked.output_schema is not None:
        raise build_field_error("response_format", "an agent answers in its own words; ask its model for JSON")
    if session_id:
        session = await service.open_for_use(session_id, token)
        only_last = msgspec.structs.replace(asked, messages=asked.messages[-1:])
        return session, await session.post(build_agent_message(only_last))
    words = build_agent_message(asked)  # before anything is made for it
    instructions = f"{agent.instructions}\n\n{asked.system}".strip() if asked.system else ""
    configured = SessionConfigured(instructions=instructions, by=token.name) if instructions else None
    session = await service.create_session(token, agent=name, configured=configured)
    return session, await session.post(words)


async def _run(service: Service, session: Session, message: MessageReceived) -> tuple[RunFinished, list[AnyFact]]:
    """The run that takes up a message, to its end, and what its tools did."""
    following, activity = MessageFollower(message.id), list[AnyFact]()
    async with aclosing(follow_message(service.streams, session, message, following)) as events:
        async for event in events:
            if isinstance(event, CallStarted | CallFinished | ApprovalRequested | InputRequested):
                activity.append(event)
    if following.ending is None and not following.is_held:
        raise _leaving(session)
    if following.ending is None:
        raise Refusal(409, "cancelled", "the run was cancelled before it answered")
    return following.ending, activity


async def _answered(service: Service, session: Session, message: MessageReceived) -> tuple[RunFinished, list[AnyFact]]:
    """`_run`, for formats that can tell an answer and nothing else: a run without one is an error."""
    ending, activity = await _run(service, session, message)
    if trouble := describe_failed_run(ending):
        status = 502 if ending.reason == "failed" else 409
        raise Refusal(status, trouble.type, f"session {session.id}: {trouble.message}")
    return ending, activity


def _agent_stream(
    service: Service, session: Session, message: MessageReceived, feed: Feed, end: bytes, begin: bytes = b""
) -> EventStream:
    waiting = [begin]

    def write(event: Event) -> bytes:
        before = waiting.pop() if waiting else b""
        return before + b"".join(_line(frame) for frame in feed(event))

    following = MessageFollower(message.id)
    stream = EventStream(service.streams, session.watch(message.seq), write, following.feed, lambda: end)
    stream.on_shutdown = lambda: _problem(_leaving(session)) + SHUTDOWN_COMMENT
    return stream


def _leaving(session: Session) -> Refusal:
    return Refusal(503, "shutting_down", f"session {session.id}: {RUN_CONTINUES_LATER}", retry_after=2)


def _problem(refusal: Refusal) -> bytes:
    return b"data: " + msgspec.json.encode(build_error_body(refusal)) + b"\n\n"


def _line(frame: Struct) -> bytes:
    kind = getattr(frame, "type", "")
    name = b"event: %b\n" % str(kind).encode() if kind else b""
    return b"%bdata: %b\n\n" % (name, encode_frame(frame))


def _json(document: Struct) -> Response:
    return Response(encode_frame(document), media_type="application/json")
