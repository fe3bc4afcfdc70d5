"""What the tools of MCP servers were when a person last allowed them, in a file of the user."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from treadle.errors import StoreError


class KnownTools:
    """The versions of tools by server and name. Without a path they are known as long as this object."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._servers: dict[str, dict[str, str]] = {}

    def find_changed(self, server: str, versions: Mapping[str, str]) -> set[str]:
        """Find the tools that are new or described differently. All tools of an unknown server become known."""
        known = self._load().get(server)
        if known is None:
            self._save(server, versions)
            return set()
        return {name for name, version in versions.items() if known.get(name) != version}

    def accept(self, server: str, name: str, version: str) -> None:
        """Note that a tool was allowed as it is described now."""
        self._save(server, {**self._load().get(server, {}), name: version})

    def _load(self) -> dict[str, dict[str, str]]:
        """Load what is known. Other processes may have added to it."""
        if self._path is not None:
            with suppress(FileNotFoundError):
                try:
                    self._servers = msgspec.json.decode(self._path.read_bytes(), type=dict[str, dict[str, str]])
                except msgspec.DecodeError as error:
                    raise StoreError(
                        f"{self._path} cannot be read ({error}), so nobody can tell which tools of MCP servers have "
                        "changed. Delete it to start anew"
                    ) from None
        return self._servers

    def _save(self, server: str, versions: Mapping[str, str]) -> None:
        self._servers = {**self._servers, server: dict(versions)}
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(self._servers), indent=1))
        new.replace(self._path)
