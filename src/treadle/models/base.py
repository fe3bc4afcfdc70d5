"""The model port: one request in, live deltas and then one reply out. Not a client of any provider."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol, runtime_checkable

from treadle.events import CallDelta, ReasoningDelta, TextDelta
from treadle.messages import Reply, Request

ModelEvent = TextDelta | ReasoningDelta | CallDelta | Reply


@runtime_checkable
class Model(Protocol):
    """Anything that can answer a request.

    `stream` yields deltas as they come and one `Reply` last. It raises `ModelError` when there is no reply.
    Closing the iterator early, or cancelling the task that reads it, stops the generation.
    """

    @property
    def name(self) -> str: ...

    @property
    def window(self) -> int | None:
        """How many tokens a request and its reply may have together, if known."""
        ...

    def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]: ...

    async def close(self) -> None:
        """Give up connections and processes. The next request opens them again."""
        ...


@runtime_checkable
class Summarizer(Protocol):
    """A model that says whether its summaries are worth reading. Those of any other model are."""

    @property
    def can_summarize(self) -> bool: ...


@runtime_checkable
class Embedder(Protocol):
    """A model that can also embed texts. Few models can, and search works without."""

    async def embed(self, texts: Sequence[str]) -> list[list[float]]: ...
