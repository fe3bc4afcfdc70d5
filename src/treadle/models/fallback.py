"""Several models as one. The next takes over when one fails for good before its first word."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from treadle.errors import BadInput, ModelError
from treadle.messages import Request
from treadle.models.base import Model, ModelEvent, TokenCounter

_PAUSE_SECONDS = 60.0
_LONGEST_RETRY_AFTER = 10.0
"""The next model takes over at once when a provider asks for a longer wait than this."""


def fallback(*models: Model | str) -> Model:
    """A model that asks the first of `models`, and the others in turn when it fails. Names are resolved."""
    from treadle.models.catalog import resolve_model

    if not models:
        raise BadInput("fallback needs at least one model")
    known = tuple(resolve_model(model) if isinstance(model, str) else model for model in models)
    return known[0] if len(known) == 1 else Fallback(known)


class Fallback:
    """Asks the models in order.

    The caller retries a failure that may pass, until it has happened `patience` times in a row or its provider asks
    for a long wait. A model that failed for good is not asked for a minute, or as long as its provider says. When all
    models fail, the failure that passes first is raised, so that the caller can wait for it.
    """

    def __init__(
        self, models: tuple[Model, ...], *, patience: int = 2, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._models = models
        self._patience = patience
        self._clock = clock
        self._failures = [0] * len(models)
        self._paused_until = [0.0] * len(models)

    @property
    def name(self) -> str:
        return self._models[0].name

    @property
    def window(self) -> int | None:
        """The smallest window: a request must fit whichever model answers."""
        windows = [model.window for model in self._models]
        return min((window for window in windows if window is not None), default=None)

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]:
        failures: list[ModelError] = []
        now = self._clock()
        ready = [place for place, paused_until in enumerate(self._paused_until) if paused_until <= now]
        for place in ready or range(len(self._models)):  # all of them, where all are paused
            has_begun = False
            try:
                async with aclosing(self._models[place].stream(request)) as events:
                    async for event in events:
                        has_begun = True
                        yield event
                self._failures[place] = 0
                return
            except ModelError as error:
                if has_begun or not self._note_failure(place, error):
                    raise
                failures.append(error)
        raise min(reversed(failures), key=lambda error: (not error.retryable, error.retry_after or 0.0))

    async def count_tokens(self, request: Request) -> int | None:
        first = self._models[0]
        return await first.count_tokens(request) if isinstance(first, TokenCounter) else None

    async def close(self) -> None:
        for model in self._models:
            await model.close()

    def _note_failure(self, place: int, error: ModelError) -> bool:
        """Count a failure of a model. Returns whether the next model takes over, instead of a retry."""
        self._failures[place] += 1
        is_short = (error.retry_after or 0.0) <= _LONGEST_RETRY_AFTER
        if error.retryable and is_short and self._failures[place] < self._patience:
            return False
        self._failures[place] = 0
        self._paused_until[place] = self._clock() + max(_PAUSE_SECONDS, error.retry_after or 0.0)
        return True
