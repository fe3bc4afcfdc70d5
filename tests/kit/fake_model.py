"""Fake models. A test adds `stream` to the first one."""

import asyncio
from collections.abc import Callable
from typing import Any

from treadle.events import TextDelta
from treadle.messages import Reply, Request


class FakeModel:
    """The rest of the model port: a name, no known window, nothing to close."""

    name, window = "fake", None

    async def close(self) -> None:
        pass


class FunctionModel(FakeModel):
    """Replies with what a function returns for the request and its number."""

    def __init__(self, reply: Callable[[Request, int], Reply]) -> None:
        self.reply, self.asked = reply, 0

    async def stream(self, request: Request) -> Any:
        self.asked += 1
        yield self.reply(request, self.asked)


class HangingModel(FakeModel):
    """Says a text in its first request and then hangs. It replies to later requests, if there is a reply."""

    def __init__(self, text: str = "Once upon", reply: str | None = None) -> None:
        self.text, self.reply = text, reply
        self.requests: list[Request] = []
        self.was_closed = False

    async def stream(self, request: Request) -> Any:
        self.requests.append(request)
        if self.reply is not None and len(self.requests) > 1:
            yield Reply(text=self.reply)
            return
        try:
            yield TextDelta(text=self.text)
            await asyncio.Event().wait()
        finally:
            self.was_closed = True
