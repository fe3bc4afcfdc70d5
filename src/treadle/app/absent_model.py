"""The model of a server that started without one. Unfinished runs of the store wait for the model that is loaded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from treadle.errors import NotFound
from treadle.messages import Request
from treadle.models.base import Model, ModelEvent


class AbsentModel:
    """Stands for a model until one is loaded. `reason` says why there is none."""

    name = "none"
    window = None

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self._is_loaded = asyncio.Event()
        self._model: Model | None = None

    async def resolve(self) -> Model:
        """The model that was loaded. Raises `NotFound` when there is none yet."""
        if self._model is None:
            raise NotFound(self.reason)
        return self._model

    def use(self, model: Model) -> None:
        """Let the waiting requests go to this model."""
        self._model = model
        self._is_loaded.set()

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]:
        """Wait until a model is loaded, and let it answer."""
        await self._is_loaded.wait()
        async with aclosing((await self.resolve()).stream(request)) as events:
            async for event in events:
                yield event

    async def close(self) -> None:
        """Do nothing: whoever loaded the model closes it."""
