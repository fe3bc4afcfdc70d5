"""OpenAI's Chat Completions, Completions and Embeddings."""

from __future__ import annotations

import base64
import time
from array import array
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from treadle.dialects import openai_requests
from treadle.dialects.openai_chat import ChatChunkDialect, ChoiceSet, TextChunkDialect
from treadle.dialects.request_content import read_unknown_fields
from treadle.errors import BadInput
from treadle.messages import Request as ModelRequest
from treadle.messages import estimate_text
from treadle.models.base import Detokenizer, Embedder, EmbeddingInput, Model
from treadle.server.choices import answer_with_choices
from treadle.server.guard import Refusal
from treadle.server.problems import build_field_error
from treadle.server.replies import answer_request, describe_route, make_id
from treadle.server.service import AGENT_PREFIX, CurrentService, Sender, Service, StrictBody

router = APIRouter(prefix="/v1", tags=["openai"])


MOST_INPUTS = 2048
TokenNumber = Annotated[int, Field(strict=True, ge=0, lt=2**31)]


class EmbeddingsBody(StrictBody):
    model: str = Field(max_length=500)
    input: str | list[str] | list[TokenNumber] | list[list[TokenNumber]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(default=None, ge=1)
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
    data = await request.body()
    body = msgspec.json.decode(data, type=openai_requests.ChatBody)
    asked = openai_requests.build_chat_request(body, read_unknown_fields(data, openai_requests.ChatBody))
    build_dialect = partial(
        ChatChunkDialect,
        make_id("chatcmpl-"),
        body.model,
        int(time.time()),
        usage=_wants_usage(body),
        old_calls=bool(body.functions),
    )
    if body.n in (None, 1):
        return await answer_request(service, token, body, asked, build_dialect(), request.headers)
    choices = ChoiceSet([build_dialect(index=index) for index in range(body.n)])
    model = _get_model_for_choices(service, body.model, "n")
    requests = openai_requests.repeat_request(asked, body.n)
    return await answer_with_choices(service, model, requests, choices, is_streamed=bool(body.stream))


@router.post("/completions", **describe_route(openai_requests.CompletionBody))
async def create_completion(service: CurrentService, token: Sender, request: Request) -> Any:
    """Answer bare prompts in the format of the old Completions, streamed or whole."""
    data = await request.body()
    body = msgspec.json.decode(data, type=openai_requests.CompletionBody)
    unknown = read_unknown_fields(data, openai_requests.CompletionBody)
    requests: list[ModelRequest] = []
    dialects: list[TextChunkDialect] = []
    completion_id, now = make_id("cmpl-"), int(time.time())
    for prompt in openai_requests.read_prompts(body):
        text = prompt if isinstance(prompt, str) else await _detokenize(service, body.model, prompt)
        asked = openai_requests.build_completion_request(body, text, unknown)
        for each in openai_requests.repeat_request(asked, body.n or 1):
            prefix = text if body.echo else ""
            dialects.append(
                TextChunkDialect(
                    completion_id, body.model, now, usage=_wants_usage(body), index=len(requests), prefix=prefix
                )
            )
            requests.append(each)
    if len(requests) == 1:
        return await answer_request(service, token, body, requests[0], dialects[0], request.headers)
    model = _get_model_for_choices(service, body.model, "prompt" if body.n in (None, 1) else "n")
    return await answer_with_choices(service, model, requests, ChoiceSet(dialects), is_streamed=bool(body.stream))


@router.post("/embeddings")
async def create_embeddings(service: CurrentService, token: Sender, body: EmbeddingsBody) -> EmbeddingsView:
    """Embeddings, where the model can."""
    model = service.get_model(body.model)
    if not isinstance(model, Embedder):
        raise Refusal(
            400, "cannot_embed", f"{model.name} gives no embeddings", "ask a model that does: local", field="model"
        )
    inputs: list[EmbeddingInput] = []
    for each in [body.input] if isinstance(body.input, str) else body.input:
        if isinstance(each, int):  # a list of numbers is one text
            inputs = [[each for each in body.input if isinstance(each, int)]]
            break
        inputs.append(each)
    if not inputs or not all(inputs):
        raise build_field_error("input", "there must be text to embed")
    if len(inputs) > MOST_INPUTS:
        raise build_field_error(
            "input", f"there may be at most {MOST_INPUTS} texts; send the others in another request"
        )
    found = await model.embed(inputs, body.dimensions)
    vectors: list[list[float] | str] = [*found.vectors]
    if body.encoding_format == "base64":
        vectors = [base64.b64encode(array("f", vector).tobytes()).decode() for vector in found.vectors]
    data = [EmbeddingView(embedding=vector, index=index) for index, vector in enumerate(vectors)]
    tokens = found.tokens
    if tokens is None:
        tokens = sum(estimate_text(each) if isinstance(each, str) else len(each) for each in inputs)
    return EmbeddingsView(data=data, model=body.model, usage={"prompt_tokens": tokens, "total_tokens": tokens})


def _get_model_for_choices(service: Service, name: str, field: str) -> Model:
    if service.resolve_alias(name).startswith(AGENT_PREFIX):
        raise BadInput(f"{field}: an agent gives one answer to one message; ask its model for more", param=field)
    return service.get_model(name)


async def _detokenize(service: Service, name: str, tokens: list[int]) -> str:
    model = _get_model_for_choices(service, name, "prompt")
    if not isinstance(model, Detokenizer):
        raise BadInput(f"prompt: {model.name} does not say what its tokens mean; send text", param="prompt")
    return await model.detokenize(tokens)


def _wants_usage(body: openai_requests.CompletionFields) -> bool:
    return bool(body.stream_options is not None and body.stream_options.include_usage)
