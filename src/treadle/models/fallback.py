"""Several models as one: the next takes over when one fails for good before its first word."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from treadle.errors import BadInput, ModelError
from treadle.messages import Request
from treadle.models.base import Model, ModelEvent

_REST = 60.0


def fallback(*models: Model | str) -> Model:
    """A model that asks the first of `models`, and the others in turn where it fails; names are looked up."""
    from treadle.models.catalog import resolve_model

    if not models:
        raise BadInput("fallback needs at least one model")
    known = tuple(resolve_model(model) if isinstance(model, str) else model for model in models)
    return known[0] if len(known) == 1 else Fallback(known)


class Fallback:
    """Asks the models in order, each a few times.

    What may pass is left to the caller's retries until it has happened `patience` times in a row. A model that
    failed for good rests for a minute, or as long as its provider says.
    """

    def __init__(
        self, models: tuple[Model, ...], *, patience: int = 2, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._models = models
        self._patience = patience
        self._clock = clock
        self._failures = [0] * len(models)
        self._rests_until = [0.0] * len(models)

    @property
    def name(self) -> str:
        return self._models[0].name

    @property
    def window(self) -> int | None:
        """The smallest: what is sent must fit whichever answers."""
        windows = [model.window for model in self._models]
        return min((window for window in windows if window is not None), default=None)

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]:
        last: ModelError | None = None
        for place in self._order():
            begun = False
            try:
                async with aclosing(self._models[place].stream(request)) as events:
                    async for event in events:
                        begun = True
                        yield event
                self._failures[place] = 0
                return
            except ModelError as error:
                if begun or not self._gives_up(place, error):
                    raise
                last = error
        assert last is not None
        raise last

    async def close(self) -> None:
        for model in self._models:
            await model.close()

    def _order(self) -> list[int]:
        """The models that do not rest, or all of them when none is fresh."""
        now = self._clock()
        fresh = [place for place in range(len(self._models)) if self._rests_until[place] <= now]
        return fresh or list(range(len(self._models)))

    def _gives_up(self, place: int, error: ModelError) -> bool:
        """Whether to go on to the next model, rather than let this one be tried again."""
        self._failures[place] += 1
        if error.retryable and self._failures[place] < self._patience:
            return False
        self._failures[place] = 0
        self._rests_until[place] = self._clock() + max(_REST, error.retry_after or 0.0)
        return True
