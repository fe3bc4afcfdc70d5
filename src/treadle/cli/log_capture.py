"""What the engine has to say, put where the command says its own; never past it onto the screen."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager


class _Words(logging.Handler):
    def __init__(self, put: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._put = put

    def emit(self, record: logging.LogRecord) -> None:
        self._put(record.getMessage())


@contextmanager
def capture_warnings(put: Callable[[str], None]) -> Generator[None]:
    """Warnings of treadle go to `put`, and to nobody else, for as long as the block."""
    logger, words = logging.getLogger("treadle"), _Words(put)
    before, logger.propagate = logger.propagate, False
    logger.addHandler(words)
    try:
        yield
    finally:
        logger.removeHandler(words)
        logger.propagate = before
