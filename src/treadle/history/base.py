"""The port of old file contents: what a rewind needs of a store of contents, and nothing about how they are stored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from msgspec import Struct

MAX_STORE_BYTES = 4 * 1024**3
"""Size of a store of contents. When it is larger, the next start deletes the half that was not used for longest."""


class SeenFile(Struct, frozen=True):
    """A file as a snapshot found it. `stamp` changes when the file does; `id` is the hash of its content."""

    stamp: str
    id: str


class Contents(ABC):
    """Contents by their hash. Threads and processes can share them. Methods raise `StoreError` for a bad store."""

    @abstractmethod
    def put(self, *contents: bytes) -> list[str]:
        """Store contents, all or none, and return their hashes in order. The same content is stored once."""

    @abstractmethod
    def get(self, name: str) -> bytes:
        """Return the content with that hash; raises `NotFound`."""

    @abstractmethod
    def drop(self, name: str) -> None:
        """Delete a content that nothing refers to any more."""

    @abstractmethod
    def load_seen(self, workspace: str) -> dict[str, SeenFile]:
        """Load the files that the last snapshot of a workspace found, so that unchanged ones are not read again."""

    @abstractmethod
    def save_seen(self, workspace: str, found: Mapping[str, SeenFile], gone: Iterable[str]) -> None:
        """Save the files that a snapshot found, and forget those that are gone."""

    @abstractmethod
    def close(self) -> None:
        """Close the store. The next use opens it again."""
