"""Anthropic's Messages: a model or an agent answers, and tokens are counted."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel

from treadle.dialects.messages_events import MessagesDialect
from treadle.dialects.messages_requests import MessagesBody, build_messages_request, list_ignored_tools
from treadle.errors import ModelError
from treadle.messages import estimate_request
from treadle.models.base import TokenCounter
from treadle.server.guard import MESSAGES_PATH
from treadle.server.replies import answer_request, describe_body, describe_route, make_id
from treadle.server.service import CurrentService, Sender

router = APIRouter(prefix=MESSAGES_PATH, tags=["anthropic"])


class TokenCount(BaseModel):
    input_tokens: int


@router.post("", **describe_route(MessagesBody))
async def create_message(service: CurrentService, token: Sender, request: Request) -> Any:
    """Answer in the format of Anthropic's Messages, streamed or whole."""
    body = msgspec.json.decode(await request.body(), type=MessagesBody)
    asked = build_messages_request(body)
    dialect = MessagesDialect(make_id("msg_"), body.model, body.thinking_mode, estimate_request(asked))
    dialect.ignored_tools = list_ignored_tools(body)
    return await answer_request(service, token, body, asked, dialect, request.headers)


@router.post("/count_tokens", **describe_body(MessagesBody))
async def count_message_tokens(service: CurrentService, token: Sender, request: Request) -> TokenCount:
    """Count the tokens of a request: by the provider if it counts, and by an estimate otherwise."""
    body = msgspec.json.decode(await request.body(), type=MessagesBody)
    asked, model, count = build_messages_request(body), service.get_model(body.model), None
    if isinstance(model, TokenCounter):
        async with service.counting:
            with suppress(ModelError):
                count = await model.count_tokens(asked)
    return TokenCount(input_tokens=count or estimate_request(asked))
