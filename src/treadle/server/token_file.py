"""Keeps the tokens of a server up to date while it runs: with their file, and with those of the other nodes."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path

from treadle.errors import BadInput, StoreError
from treadle.server.logins import Tokens
from treadle.server.tokens import Token, load_tokens

REFRESH_SECONDS = 10.0
_logger = logging.getLogger("treadle.server")


class TokenFile:
    """The file of this server's tokens. It is read again when it has changed."""

    def __init__(self, file: Path) -> None:
        self._file, self._seen = file, _read_state(file)

    def read_changes(self) -> tuple[Token, ...] | None:
        """Return the tokens if the file has changed. A file that cannot be used changes nothing."""
        state = _read_state(self._file)
        if state == self._seen:
            return None
        self._seen = state
        try:
            if state is None:
                raise BadInput(f"{self._file} is missing")
            return load_tokens(self._file)
        except (BadInput, OSError) as error:
            _logger.warning("the tokens stay as they were: %s", error)
            return None


def _read_state(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class TokenKeeper:
    """Reads the file again when it has changed, and tells the other nodes which tokens hold here."""

    def __init__(self, tokens: Tokens, file: Path | None) -> None:
        self._tokens, self._file = tokens, TokenFile(file) if file is not None else None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, without waiting for the store."""
        if self._file is not None or self._tokens.shared is not None:
            self._task = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """Stop. The tokens hold on other nodes for a while, so that this one can be started again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _keep(self) -> None:
        while True:
            if self._file is not None and (changed := self._file.read_changes()) is not None:
                self._tokens.replace(changed)
            with suppress(StoreError):  # next time
                await self._tokens.publish()
            await asyncio.sleep(REFRESH_SECONDS)
