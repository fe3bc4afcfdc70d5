"""Finding what is remembered by its meaning: vectors that are made when they are first needed, and kept in the store.

An embedding can make a search better and never hold it up: where it fails or is slow, the words decide alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from treadle.log.base import Embed, Memory
from treadle.memory.ranking import rank_by_similarity

SECONDS = 3.0
"""How long a search waits for the vector of what is looked for."""
MORE_SECONDS = 1.0
"""How long a search makes vectors of what has none yet; the next one goes on with it."""
AT_ONCE = 8
MAX_VECTORS = 5000
"""So many of the newest memories are found by meaning; older ones by their words."""

_logger = logging.getLogger("treadle")


class VectorStore(Protocol):
    """Where vectors are kept: one for each memory, with the name of the embedding that made it."""

    def list_missing(self, name: str, scopes: Sequence[str] | None, limit: int) -> list[Memory]:
        """The newest memories that this embedding has no vector for, of the newest `MAX_SKILLS`."""
        ...

    def save_vectors(self, name: str, made: Sequence[tuple[Memory, Sequence[float]]]) -> None:
        """Keep vectors, but for memories whose text has changed meanwhile."""
        ...

    def load_vectors(self, name: str, scopes: Sequence[str] | None) -> Mapping[str, Sequence[float]]:
        """The vectors of this embedding by the memories' ids."""
        ...


async def find_similar(vectors: VectorStore, embed: Embed, text: str, scopes: Sequence[str] | None) -> list[str]:
    """The ids of the memories that mean the like of `text`, the nearest first; none where that cannot be told."""
    name = str(getattr(embed, "name", "") or getattr(embed, "__qualname__", ""))
    try:
        async with asyncio.timeout(SECONDS):
            (wanted,) = await embed([text])
    except Exception as error:
        _logger.warning("memories are looked for by their words alone: %s", str(error) or type(error).__name__)
        return []
    await _make_more(vectors, embed, name, scopes)
    # A sum over some million numbers: in a thread, so that no other session waits for it.
    return await asyncio.to_thread(rank_by_similarity, wanted, vectors.load_vectors(name, scopes))


async def _make_more(vectors: VectorStore, embed: Embed, name: str, scopes: Sequence[str] | None) -> None:
    begun = time.monotonic()
    while time.monotonic() - begun < MORE_SECONDS and (some := vectors.list_missing(name, scopes, AT_ONCE)):
        try:
            async with asyncio.timeout(SECONDS):
                made = await embed([memory.text for memory in some])
        except Exception as error:
            _logger.warning("%s memories have no vector yet: %s", len(some), str(error) or type(error).__name__)
            return
        vectors.save_vectors(name, list(zip(some, made, strict=True)))
