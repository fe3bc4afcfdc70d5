"""Reads requests in OpenAI's formats Chat Completions and Completions.

Null fields are ignored. Fields that are not known here are options for the provider. A field that cannot be honoured
raises `BadInput`, which names the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from treadle.dialects.request_content import (
    FunctionSpec,
    ReplyBody,
    check_request,
    get_object,
    read_output_schema,
    read_parts,
    read_result,
    read_text,
    read_tools,
    split_system,
)
from treadle.errors import BadInput
from treadle.messages import Call, Json, Message, ModelMessage, Request, Sampling, TextPart, UserMessage


class FunctionCall(Struct, frozen=True):  # the function that a call names, with its arguments as JSON text
    name: str | None = None
    arguments: str | None = None


class ToolCallIn(Struct, frozen=True):
    id: str | None = None
    function: FunctionCall | None = None


class ChatMessage(Struct, frozen=True):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Json]] | None = None
    tool_calls: list[ToolCallIn] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None
    name: str | None = None


MOST_CHOICES = 128
MOST_LIKELIEST = 20
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
OPTION_NAMES = (
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "top_k",
    "min_p",
    "repetition_penalty",
    "parallel_tool_calls",
    "reasoning_effort",
    "verbosity",
    "service_tier",
    "metadata",
    "store",
    "user",
)
"""The fields of a body that are options for the provider."""


class ChatTool(Struct, frozen=True):
    function: FunctionSpec
    type: str | None = None


class StreamOptions(Struct, frozen=True):
    include_usage: bool | None = None


class CompletionFields(ReplyBody, frozen=True, kw_only=True):
    """What the bodies of both kinds of completions may have."""

    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: dict[str, float] | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    user: str | None = None


class ChatBody(CompletionFields, frozen=True, kw_only=True):
    """The body of `POST /v1/chat/completions`."""

    messages: list[ChatMessage]
    tools: list[ChatTool] | None = None
    tool_choice: str | dict[str, Json] | None = None
    response_format: dict[str, Json] | None = None
    max_completion_tokens: int | None = None
    functions: list[FunctionSpec] | None = None
    function_call: str | dict[str, Json] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MOST_LIKELIEST)] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    metadata: dict[str, Json] | None = None
    store: bool | None = None


class CompletionBody(CompletionFields, frozen=True, kw_only=True):
    """The body of `POST /v1/completions`."""

    prompt: str | list[str | TokenId | list[TokenId]]
    best_of: int | None = None
    echo: bool | None = False
    suffix: str | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MOST_LIKELIEST)] | None = None


def build_chat_request(body: ChatBody, unknown: Mapping[str, Json]) -> Request:
    """Build the model call of a Chat Completions request. `unknown` has the fields that the body's type does not."""
    if body.top_logprobs and not body.logprobs:
        raise BadInput("top_logprobs: needs logprobs: true", param="top_logprobs")
    if body.functions and body.tools:
        raise BadInput("functions: this is the old form of tools; send one of the two", param="functions")
    functions = body.functions or [tool.function for tool in body.tools or ()]
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    form = body.response_format or {}
    names: dict[str, str] = {}
    system, messages = split_system([_read_message(message, names) for message in body.messages])
    return check_request(
        Request(
            system,
            messages,
            *read_tools(functions, body.function_call if body.functions else body.tool_choice),
            max_tokens=limit,
            sampling=_read_sampling(body, unknown),
            output_schema=read_output_schema(body.response_format),
            output_strict=get_object(form.get("json_schema")).get("strict"),
        )
    )


def read_prompts(body: CompletionBody) -> list[str | list[int]]:
    """The prompts of a request: texts or lists of tokens."""
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise BadInput("best_of: choices are not compared here; leave it out, or ask for n choices", param="best_of")
    if body.suffix:
        raise BadInput("suffix: text cannot be inserted before it; leave it out", param="suffix")
    if body.echo and body.logprobs is not None:
        raise BadInput("echo: the prompt's tokens have no log-probabilities here; send one of the two", param="echo")
    given = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    tokens = [each for each in given if isinstance(each, int)]
    prompts: list[str | list[int]] = [each for each in given if not isinstance(each, int)]
    if tokens:
        prompts.append(tokens)
    if not given or not all(prompts) or len(given) not in (len(tokens), len(prompts)):
        raise BadInput("prompt: must be a text, a list of texts, or tokens, and not empty", param="prompt")
    if len(prompts) * (body.n or 1) > MOST_CHOICES:
        raise BadInput(f"n: a request may have at most {MOST_CHOICES} choices for all its prompts", param="n")
    return prompts


def build_completion_request(body: CompletionBody, prompt: str, unknown: Mapping[str, Json]) -> Request:
    """Build the model call of a bare prompt."""
    message = UserMessage((TextPart(prompt),))
    sampling = _read_sampling(body, unknown)
    if body.logprobs is not None:
        likeliest = {"top_logprobs": body.logprobs} if body.logprobs else {}
        sampling = replace(sampling, extra=sampling.extra | {"logprobs": True} | likeliest)
    return check_request(Request("", [message], max_tokens=body.max_tokens, sampling=sampling))


def repeat_request(request: Request, count: int) -> list[Request]:
    """The requests for `count` choices. With a seed, each has another one: the choices would all be the same."""
    seed = request.sampling.seed
    return [
        request if seed is None else replace(request, sampling=replace(request.sampling, seed=seed + number))
        for number in range(count)
    ]


def _read_message(message: ChatMessage, names: dict[str, str]) -> Message:
    match message.role:
        case "assistant":
            functions = [(call.id or "", call.function or FunctionCall()) for call in message.tool_calls or ()]
            if message.function_call is not None:
                functions.append((f"function_{len(names)}", message.function_call))
            calls = tuple(Call(call_id, one.name or "", one.arguments or "{}") for call_id, one in functions)
            names.update((call.id, call.tool) for call in calls)
            return ModelMessage(read_text(message.content), calls)
        case "tool" | "function":
            call_id = message.tool_call_id or ""
            if message.role == "function":  # the old form has no ids: the last call of that function is answered
                call_id = next((known for known, tool in reversed(names.items()) if tool == message.name), "")
            tool = names.get(call_id)
            if tool is None:
                field = "name" if message.role == "function" else "tool_call_id"
                given = message.name if message.role == "function" else call_id
                raise BadInput(f"messages: {field} {given!r} answers no call that was made before", param="messages")
            return read_result(call_id, tool, message.content)
        case _:
            return UserMessage(read_parts(message.content), message.role != "user")


def _read_sampling(body: CompletionFields, unknown: Mapping[str, Json]) -> Sampling:
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if not all(token.isdecimal() for token in body.logit_bias or ()):
        raise BadInput("logit_bias: must have the ids of tokens as its keys", param="logit_bias")
    is_chat = isinstance(body, ChatBody)
    options = {name: getattr(body, name, None) for name in OPTION_NAMES if is_chat or name != "logprobs"}
    extra = {name: value for name, value in options.items() if value is not None} | dict(unknown)
    return Sampling(body.temperature, body.top_p, body.seed, stops, extra)
