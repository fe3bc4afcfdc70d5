"""A model's replies sent through a strict provider and our own adapter, over a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.kit.fakes.anthropic import StrictAnthropic
from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.clients import anthropic_model, chat_model, responses_model
from tests.kit.fakes.responses import StrictResponses
from tests.kit.fakes.server import Strict
from treadle.messages import Reply, Request
from treadle.models.remote import RemoteModel

WIRES: dict[str, tuple[type[Strict], Any]] = {
    "chat": (StrictChat, chat_model),
    "anthropic": (StrictAnthropic, anthropic_model),
    "responses": (StrictResponses, responses_model),
}


class OverTheWire:
    """Decides as the model inside does, but has each reply travel through a strict provider and our adapter."""

    window = None

    def __init__(self, inner: Any, remote: RemoteModel) -> None:
        self.name, self._inner, self._remote = remote.name, inner, remote
        self.reply = Reply()

    async def close(self) -> None:
        await self._remote.close()

    async def stream(self, request: Request) -> AsyncIterator[Any]:
        self.reply = [event async for event in self._inner.stream(request)][-1]
        async for event in self._remote.stream(request):
            yield event


@asynccontextmanager
async def travelling(wire: str, inner: Any) -> AsyncIterator[tuple[OverTheWire, Strict]]:
    kind, make = WIRES[wire]
    fake = kind(lambda body: model.reply)
    async with fake:
        remote = make(fake, "m")
        model = OverTheWire(inner, remote)
        try:
            yield model, fake
        finally:
            await remote.close()
