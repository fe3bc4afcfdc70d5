"""The memory port: notes that outlive the session that made them, and nothing about how they are stored.

A memory is shown to the model as a note. It is never an instruction, and it grants no right.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from treadle.errors import BadInput
from treadle.messages import replace_surrogates

MemoryKind = Literal["fact", "preference", "procedure"]
MAX_MEMORY_LENGTH = 2000

Embed = Callable[[Sequence[str]], Awaitable[Sequence[Sequence[float]]]]
"""Computes a vector for each text, so that memories are found by meaning and not only by their words.

Vectors of different models cannot be compared. An embedding with another `name` makes all vectors again."""


class Memory(Struct, frozen=True, omit_defaults=True):
    """One remembered text. `scope` is the workspace it belongs to, or empty when it holds everywhere.

    `untrusted` means that the session which remembered it had read text that others wrote.
    """

    text: str
    kind: MemoryKind = "fact"
    scope: str = ""
    session_id: str = ""
    id: str = ""
    at: float = 0.0
    untrusted: bool = False


class MemoryQuery(Struct, frozen=True):
    """Which memories to list: those of these scopes and of this kind (None: of all), oldest first unless `newest`."""

    scopes: Sequence[str] | None = None
    kind: MemoryKind | None = None
    limit: int = 1000
    offset: int = 0
    newest: bool = False


ALL_MEMORIES = MemoryQuery()


class Memories(ABC):
    """The memories of one store. With `embed`, search also finds them by meaning."""

    embed: Embed | None = None

    async def add(self, memory: Memory) -> Memory:
        """Store a memory and return it with its id and time. The same text in the same scope is stored once.

        Raises `BadInput` for a text that is empty, too long, or looks like a secret.
        """
        return await self._insert(replace(memory, text=_validate_text(memory.text), id=""))

    async def restore(self, memory: Memory) -> Memory:
        """Store a memory of another store with its id and time. Return the one that has its text already, if any."""
        return await self._insert(memory)

    async def edit(self, memory_id: str, text: str) -> Memory:
        """Change the text of a memory. Raises `NotFound`, and `BadInput` as `add` does."""
        return await self._update(memory_id, _validate_text(text))

    @abstractmethod
    async def search(
        self, text: str, scopes: Sequence[str] | None = None, limit: int = 20, embed: Embed | None = None
    ) -> list[Memory]:
        """Find memories that have any word of `text`, or with an embedding a similar meaning; the best come first.

        The embedding has a few seconds. If it fails or takes longer, only words count.
        """

    @abstractmethod
    async def get(self, memory_id: str) -> Memory:
        """Return one memory; raises `NotFound`."""

    @abstractmethod
    async def list(self, query: MemoryQuery = ALL_MEMORIES) -> list[Memory]:
        """List memories."""

    @abstractmethod
    async def delete(self, memory_id: str) -> None:
        """Delete a memory; raises `NotFound`."""

    @abstractmethod
    async def _insert(self, memory: Memory) -> Memory: ...

    @abstractmethod
    async def _update(self, memory_id: str, text: str) -> Memory: ...


def _validate_text(text: str) -> str:
    from treadle.secrets.detect import find_secret

    text = replace_surrogates(text).strip()
    if not text:
        raise BadInput("there is nothing to remember: the text is empty")
    if len(text) > MAX_MEMORY_LENGTH:
        raise BadInput(f"the text has {len(text)} characters; {MAX_MEMORY_LENGTH} can be remembered. Make it shorter")
    if secret := find_secret(text):
        raise BadInput(f"this seems to hold {secret}. Secrets are not remembered: nothing was stored. Leave it out")
    return text
