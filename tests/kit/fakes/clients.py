"""Builds models that speak to the fakes, and sends them requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import pytest

from tests.kit.fakes.anthropic import StrictAnthropic
from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.ollama import FakeOllama
from tests.kit.fakes.responses import StrictResponses
from tests.kit.fakes.server import Odd, Strict
from treadle import messages as values
from treadle.errors import ModelError
from treadle.messages import Call, Message, ModelMessage, Reply, Request, ResultMessage, TextPart, ToolSpec, UserMessage
from treadle.models.anthropic_messages import AnthropicMessages
from treadle.models.base import Model, ModelEvent
from treadle.models.chat_completions import ChatCompletions, Quirks
from treadle.models.http import Endpoint, Secret, Timeouts
from treadle.models.ollama_chat import OllamaChat
from treadle.models.openai_responses import OpenAIResponses
from treadle.models.remote import RemoteModel, WindowProbe, probe_ollama
from treadle.models.wire_format import WireFormat

PLENTY = Timeouts(connect=30.0, first_byte=30.0, idle=30.0, total=120.0)
"""A busy machine is never taken for a server that hangs. A test of a limit sets that limit."""

ADD = ToolSpec(
    "add",
    "Add two integers.",
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]},
)
ECHO = ToolSpec("echo", "Say it again.", {"type": "object", "properties": {"text": {"type": "string"}}})


TOOLS = (ADD, ECHO)


def build_model(fake: Strict | str, wire: WireFormat, probe: WindowProbe | None = None, **changes: Any) -> RemoteModel:
    """A model on a fake (or a base URL) that speaks `wire`."""
    base_url = fake if isinstance(fake, str) else fake.base_url
    options: dict[str, Any] = {"provider": "fake", "key": Secret("sk-test"), "timeouts": PLENTY} | changes
    if isinstance(wire, AnthropicMessages):
        options |= {"key_header": "x-api-key", "headers": (("anthropic-version", "2023-06-01"),)}
    return RemoteModel(wire, Endpoint(base_url=base_url, **options), probe=probe)


def chat_model(fake: Strict | str, model: str = "m", quirks: Quirks = Quirks(), **changes: Any) -> RemoteModel:  # noqa: B008
    return build_model(fake, ChatCompletions("fake", model, quirks), **changes)


def anthropic_model(fake: Strict | str, model: str = "m", **changes: Any) -> RemoteModel:
    return build_model(fake, AnthropicMessages("fake", model), **changes)


def responses_model(fake: Strict | str, model: str = "m", **changes: Any) -> RemoteModel:
    return build_model(fake, OpenAIResponses("fake", model), **changes)


def ollama_model(fake: Strict | str, model: str = "m", **changes: Any) -> RemoteModel:
    return build_model(fake, OllamaChat("ollama", model), probe_ollama, **({"provider": "ollama"} | changes))


class Protocol(NamedTuple):
    """A strict fake, and a model that speaks to it."""

    fake: type[Strict]
    model: Callable[..., RemoteModel]


PROTOCOLS = {
    "chat": Protocol(StrictChat, chat_model),
    "anthropic": Protocol(StrictAnthropic, anthropic_model),
    "responses": Protocol(StrictResponses, responses_model),
    "ollama": Protocol(FakeOllama, ollama_model),
}


def user(*parts: str | values.Part) -> UserMessage:
    """A user's message; a string stands for text."""
    return UserMessage(tuple(TextPart(part) if isinstance(part, str) else part for part in parts))


def ask(*messages: Message | str, **fields: Any) -> Request:
    """A request; a string stands for a user's message."""
    listed = [user(message) if isinstance(message, str) else message for message in messages]
    return Request(fields.pop("system", "You help."), listed, **fields)


async def collect_events(model: Model, request: Request) -> list[ModelEvent]:
    async with aclosing(model.stream(request)) as events:
        return [event async for event in events]


async def collect_reply(model: Model, request: Request) -> Reply:
    last = (await collect_events(model, request))[-1]
    assert isinstance(last, Reply)
    return last


async def collect_failure(model: Model, request: Request | None = None) -> ModelError:
    """The error that a request ends with."""
    with pytest.raises(ModelError) as caught:
        await collect_events(model, request or ask("hi"))
    return caught.value


async def read_reply(protocol: str, *script: Reply | Odd, options: Any = None, **fields: Any) -> Reply:
    """The reply to one request, from a fake that answers with the first of `script`."""
    async with PROTOCOLS[protocol].fake(script) as fake:
        return await collect_reply(PROTOCOLS[protocol].model(fake, **options or {}), ask("hi", **fields))


async def read_failure(protocol: str, *script: Reply | Odd, **fields: Any) -> ModelError:
    """The error of one request, from a fake that answers with the first of `script`."""
    async with PROTOCOLS[protocol].fake(script) as fake:
        return await collect_failure(PROTOCOLS[protocol].model(fake), ask("hi", **fields))


async def capture_body(protocol: str, *messages: Message | str, options: Any = None, **fields: Any) -> dict[str, Any]:
    """The body of a request as a strict fake received and accepted it."""
    async with PROTOCOLS[protocol].fake() as fake:
        await collect_reply(PROTOCOLS[protocol].model(fake, **options or {}), ask(*messages, **fields))
        assert fake.rejected == []
        return fake.seen[-1].body


def as_message(reply: Reply) -> ModelMessage:
    """A reply as the message it becomes in the next request."""
    return ModelMessage(reply.text, reply.calls, reply.reasoning, reply.opaque, reply.model)


def results(calls: Sequence[Call], text: str = "3") -> list[Message]:
    return [ResultMessage(call.id, call.tool, text) for call in calls]
