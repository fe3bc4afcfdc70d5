"""The model port: one request in, live deltas and then one reply out. Not a client of any provider."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from treadle.events import CallDelta, ReasoningDelta, TextDelta
from treadle.messages import Reply, Request, SignedReasoning

ModelEvent = TextDelta | ReasoningDelta | CallDelta | SignedReasoning | Reply
EmbeddingInput: TypeAlias = str | Sequence[int]
"""What can be embedded: text, or the tokens of a text."""


class Embeddings(Struct, frozen=True):
    """Vectors in the order of their inputs. `tokens` is the provider's count of what it read, if it gave one."""

    vectors: list[list[float]]
    tokens: int | None = None


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
class DeferredModel(Protocol):
    """A model that stands for another one, which is chosen when it is first needed."""

    async def resolve(self) -> Model:
        """The chosen model. Raises `NotFound` when there is none."""
        ...


@runtime_checkable
class TokenCounter(Protocol):
    """A model that can count the tokens of a request without answering it."""

    async def count_tokens(self, request: Request) -> int | None:
        """The tokens of a request, or None when the provider does not count them now."""
        ...


@runtime_checkable
class Embedder(Protocol):
    """A model that can also embed texts. Few models can, and search works without."""

    async def embed(self, inputs: Sequence[EmbeddingInput], dimensions: int | None = None) -> Embeddings:
        """One vector for each input, of `dimensions` numbers if it is set. Raises `ModelError` where it cannot."""
        ...


@runtime_checkable
class Detokenizer(Protocol):
    """A model that can say which text its tokens stand for."""

    async def detokenize(self, tokens: Sequence[int]) -> str: ...
