"""Several replies of a model to one request, as the choices of one completion, streamed or whole.

Each choice is a request of its own, so that every provider can serve it. Agents give one answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from fastapi import Response

from treadle.dialects.openai_chat import ChoiceSet
from treadle.events import Event
from treadle.messages import Reply, SignedReasoning
from treadle.messages import Request as ModelRequest
from treadle.models.base import Model
from treadle.server.problems import build_refusal
from treadle.server.replies import ask_model, encode_error, send_json
from treadle.server.service import Service
from treadle.server.streams import PieceStream, encode_frames

MOST_AT_ONCE = 8
"""How many choices are asked for at the same time. Providers and the embedded model limit requests, too."""
MOST_WAITING = 100
"""How many events may wait for a slow client before the models wait, too."""


async def answer_with_choices(
    service: Service, model: Model, requests: Sequence[ModelRequest], choices: ChoiceSet, *, is_streamed: bool
) -> Response:
    """Have a model answer each request, and send the replies as the choices of one completion."""
    if is_streamed:
        return PieceStream(
            service.streams,
            _write_choices(model, requests, choices),
            lambda error: encode_error(build_refusal(error)) + _END,
        )
    replies: dict[int, Reply] = {}
    async with aclosing(_ask_for_choices(model, requests)) as events:
        async for number, event in events:
            if isinstance(event, Reply):
                replies[number] = event
    return send_json(choices.complete([replies[number] for number in range(len(requests))]))


_END = b"data: %b\n\n" % ChoiceSet.end_mark


async def _write_choices(model: Model, requests: Sequence[ModelRequest], choices: ChoiceSet) -> AsyncGenerator[bytes]:
    async with aclosing(_ask_for_choices(model, requests)) as events:
        async for number, event in events:
            if data := encode_frames(choices.feed(number, event), name_field="type"):
                yield data
    yield _END


async def _ask_for_choices(model: Model, requests: Sequence[ModelRequest]) -> AsyncGenerator[tuple[int, Event | Reply]]:
    """The events of all replies as they come, each with the number of its request. The first failure ends them all."""
    queue: asyncio.Queue[tuple[int, Event | Reply] | Exception] = asyncio.Queue(MOST_WAITING)
    room = asyncio.Semaphore(MOST_AT_ONCE)

    async def ask(number: int, request: ModelRequest) -> None:
        try:
            async with room, aclosing(ask_model(model, request)) as events:
                async for event in events:
                    if not isinstance(event, SignedReasoning):  # completions have no blocks
                        await queue.put((number, event))
        except Exception as error:
            await queue.put(error)

    tasks = [asyncio.create_task(ask(number, request)) for number, request in enumerate(requests)]
    try:
        open_choices = len(tasks)
        while open_choices:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            open_choices -= isinstance(item[1], Reply)
            yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
