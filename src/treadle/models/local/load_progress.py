"""Names the phases of a model's first use, and never reports less than before."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float, float], None]
"""Called with a message, how much is done, and how much there is."""

PHASES = ("fetch", "check", "load")


class PhaseProgress:
    """Passes on the progress of `PHASES`: "fetch 1 of 3" and so on, or only "loading NAME" when nothing is fetched.

    Reports of an earlier phase, or of less than before, are dropped. Other messages pass unchanged.
    """

    def __init__(self, report: Progress, name: str) -> None:
        self._report = report
        self._name = name
        self._furthest = (-1, 0.0)
        self._is_numbered = False

    def __call__(self, phase: str, done: float, total: float) -> None:
        if phase not in PHASES:
            self._report(phase, done, total)
            return
        number = PHASES.index(phase)
        reached = (number, done / total if total else 0.0)
        if reached >= self._furthest:
            self._furthest = reached
            self._is_numbered |= phase != "load"
            message = f"{phase} {number + 1} of {len(PHASES)}" if self._is_numbered else f"loading {self._name}"
            self._report(message, done, total)
