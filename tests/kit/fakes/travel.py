"""A model's replies sent through a strict provider and our own adapter, over a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.kit.fakes.clients import PROTOCOLS
from tests.kit.fakes.server import Strict
from treadle.messages import Reply, Request
from treadle.models.remote import RemoteModel

WIRES = ("chat", "anthropic", "responses")


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
async def open_wire_model(wire: str, inner: Any) -> AsyncIterator[tuple[OverTheWire, Strict]]:
    protocol = PROTOCOLS[wire]
    async with protocol.fake(lambda body: model.reply) as fake:
        remote = protocol.model(fake)
        model = OverTheWire(inner, remote)
        try:
            yield model, fake
        finally:
            await remote.close()
