"""OpenAI's Chat Completions, Completions and Embeddings."""

from __future__ import annotations

import base64
import time
from array import array
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from treadle.dialects import openai_requests
from treadle.dialects.openai_chat import ChatChunkDialect, TextChunkDialect
from treadle.models.base import Embedder
from treadle.server.guard import Refusal
from treadle.server.problems import build_field_error
from treadle.server.replies import answer_request, describe_route, make_id
from treadle.server.service import CurrentService, Sender, StrictBody

router = APIRouter(prefix="/v1", tags=["openai"])


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


@router.post("/chat/completions", **describe_route(openai_requests.ChatBody))
async def create_chat_completion(service: CurrentService, token: Sender, request: Request) -> Any:
    """Answer a chat in the format of Chat Completions, streamed or whole."""
    body = msgspec.json.decode(await request.body(), type=openai_requests.ChatBody)
    dialect = ChatChunkDialect(make_id("chatcmpl-"), body.model, int(time.time()), usage=_wants_usage(body))
    return await answer_request(
        service, token, body, openai_requests.build_chat_request(body), dialect, request.headers
    )


@router.post("/completions", **describe_route(openai_requests.CompletionBody))
async def create_completion(service: CurrentService, token: Sender, request: Request) -> Any:
    """Answer a bare prompt in the format of the old Completions, streamed or whole."""
    body = msgspec.json.decode(await request.body(), type=openai_requests.CompletionBody)
    dialect = TextChunkDialect(make_id("cmpl-"), body.model, int(time.time()), usage=_wants_usage(body))
    return await answer_request(
        service, token, body, openai_requests.build_completion_request(body), dialect, request.headers
    )


@router.post("/embeddings")
async def create_embeddings(service: CurrentService, token: Sender, body: EmbeddingsBody) -> EmbeddingsView:
    """Embeddings, where the model can."""
    model = service.get_model(body.model)
    if not isinstance(model, Embedder):
        raise Refusal(400, "cannot_embed", f"{model.name} gives no embeddings", "ask a model that does: local")
    texts = [body.input] if isinstance(body.input, str) else body.input
    if not texts or not all(texts):
        raise build_field_error("input", "there must be text to embed")
    vectors: list[list[float] | str] = [*await model.embed(texts)]
    if body.encoding_format == "base64":
        vectors = [base64.b64encode(array("f", vector).tobytes()).decode() for vector in vectors]
    data = [EmbeddingView(embedding=vector, index=index) for index, vector in enumerate(vectors)]
    tokens = sum(max(1, len(text) // 4) for text in texts)
    return EmbeddingsView(data=data, model=body.model, usage={"prompt_tokens": tokens, "total_tokens": tokens})


def _wants_usage(body: openai_requests.CompletionFields) -> bool:
    return bool(body.stream_options is not None and body.stream_options.include_usage)
