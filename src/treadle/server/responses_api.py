"""OpenAI's Responses."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from fastapi import APIRouter, Request

from treadle.dialects import responses_requests
from treadle.dialects.responses_events import ResponsesDialect
from treadle.server.replies import answer_request, describe_route, make_id
from treadle.server.service import CurrentService, Sender

router = APIRouter(prefix="/v1", tags=["openai"])


@router.post("/responses", **describe_route(responses_requests.ResponsesBody))
async def create_response(service: CurrentService, token: Sender, request: Request) -> Any:
    """Answer in the format of Responses, streamed or whole.

    Responses are not kept: send the whole input, or use a session.
    """
    body = msgspec.json.decode(await request.body(), type=responses_requests.ResponsesBody)
    dialect = ResponsesDialect(make_id("resp_"), body.model, time.time())
    return await answer_request(
        service, token, body, responses_requests.build_responses_request(body), dialect, request.headers
    )
