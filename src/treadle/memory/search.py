"""Searching memories by words and by meaning. Vectors are made when they are first needed, and then stored.

An embedding can improve a search, but never block it: if it fails or is slow, only words count.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from treadle.errors import StoreBusy
from treadle.memory.base import Embed, Memories, Memory
from treadle.memory.ranking import fuse_rankings, rank_by_similarity

EMBED_TIMEOUT = 3.0
"""Seconds that a search waits for one answer of the embedding."""
BACKFILL_SECONDS = 1.0
"""Seconds that a search spends on vectors for memories without one. The next search goes on with it."""
BACKFILL_BATCH = 8
MAX_VECTORS = 5000
"""So many of the newest memories are found by meaning. Older ones are found only by their words."""

_logger = logging.getLogger("treadle")


class SearchableMemories(Memories):
    """Memories that are found by their words and, with an embedding, by their meaning. Ranks are fused.

    A vector is stored for each memory with the name of the embedding that made it.
    """

    async def search(
        self, text: str, scopes: Sequence[str] | None = None, limit: int = 20, embed: Embed | None = None
    ) -> list[Memory]:
        found = await self._find_by_words(text, scopes, limit)
        embed = embed or self.embed
        similar = await self._find_similar(embed, text, scopes) if embed is not None and text.strip() else []
        if not similar:
            return found
        best = fuse_rankings([memory.id for memory in found], similar)[:limit]
        known = {memory.id: memory for memory in (*found, *await self._load_existing(best))}
        return [known[memory_id] for memory_id in best if memory_id in known]

    async def _find_similar(self, embed: Embed, text: str, scopes: Sequence[str] | None) -> list[str]:
        """Rank the ids of memories with a similar meaning. Returns none when the embedding fails."""
        name = str(getattr(embed, "name", "") or getattr(embed, "__qualname__", ""))
        try:
            async with asyncio.timeout(EMBED_TIMEOUT):
                (wanted,) = await embed([text])
        except Exception as error:
            _logger.warning("memories are searched by words only: %s", str(error) or type(error).__name__)
            return []
        await self._add_missing_vectors(embed, name, scopes)
        # In a thread: a sum over some million numbers must not block other sessions.
        return await asyncio.to_thread(rank_by_similarity, wanted, await self._load_vectors(name, scopes))

    async def _add_missing_vectors(self, embed: Embed, name: str, scopes: Sequence[str] | None) -> None:
        begun = time.monotonic()
        while time.monotonic() - begun < BACKFILL_SECONDS and (
            missing := await self._list_missing(name, scopes, BACKFILL_BATCH)
        ):
            try:
                async with asyncio.timeout(EMBED_TIMEOUT):
                    vectors = await embed([memory.text for memory in missing])
            except Exception as error:
                _logger.warning("%s memories have no vector yet: %s", len(missing), str(error) or type(error).__name__)
                return
            try:
                await self._save_vectors(name, list(zip(missing, vectors, strict=True)))
            except StoreBusy:  # a search does not wait for writers; the next one makes the vectors again
                return

    @abstractmethod
    async def _find_by_words(self, text: str, scopes: Sequence[str] | None, limit: int) -> list[Memory]:
        """Find memories with any of the words, the best first."""

    @abstractmethod
    async def _load_existing(self, ids: Iterable[str]) -> list[Memory]:
        """Load the memories of these ids that still exist."""

    @abstractmethod
    async def _list_missing(self, name: str, scopes: Sequence[str] | None, limit: int) -> list[Memory]:
        """List the newest memories without a vector of this embedding, among the newest `MAX_VECTORS`."""

    @abstractmethod
    async def _save_vectors(self, name: str, vectors: Sequence[tuple[Memory, Sequence[float]]]) -> None:
        """Store vectors, but not for memories whose text has changed in the meantime."""

    @abstractmethod
    async def _load_vectors(self, name: str, scopes: Sequence[str] | None) -> Mapping[str, Sequence[float]]:
        """Load the vectors of this embedding by the ids of the memories."""
