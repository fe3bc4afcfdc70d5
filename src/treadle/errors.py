"""Every error that treadle raises, classed by what the caller should do next.

TreadleError
├── BadInput             fix what was passed in, then call again
│   ├── ToolDefinitionError  a function that cannot be made into a tool
│   └── NotFound             no such session, call, artifact or model
├── Conflict             somebody else was first: look, then decide
│   ├── AlreadyAnswered      an approval or question that has its answer
│   ├── Expired              an approval whose time has passed
│   ├── PositionMoved        the log went on meanwhile: read, decide again
│   └── ClaimLost            another process runs this session now: stop
├── ModelError           the model did not answer (`retryable` says if trying again can help)
├── NotAnswered          the run ended without an answer (`outcome` says why, nothing is lost)
├── SandboxUnavailable   no wall could be put up, so the command was not run (in sandbox/base.py)
└── StoreError           the log cannot be used as it is: look at the file, give up until then
    ├── StoreTooNew          written by a newer treadle
    ├── StoreReadOnly        the file or its folder cannot be written
    ├── StoreFull            no room left on the disk
    ├── StoreBusy            other processes held the file for too long
    └── StoreDamaged         not a treadle store, or a broken one
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from treadle.events import Fact, RunFinished

__all__ = [
    "AlreadyAnswered",
    "BadInput",
    "ClaimLost",
    "Conflict",
    "Expired",
    "ModelError",
    "ModelErrorKind",
    "NotAnswered",
    "NotFound",
    "PositionMoved",
    "StoreBusy",
    "StoreDamaged",
    "StoreError",
    "StoreFull",
    "StoreReadOnly",
    "StoreTooNew",
    "ToolDefinitionError",
    "TreadleError",
    "describe_error",
]

ModelErrorKind = Literal[
    "auth",
    "quota",
    "overloaded",
    "too_long",
    "bad_request",
    "content_filter",
    "network",
    "stalled",
    "cancelled",
    "internal",
]


def describe_error(error: BaseException) -> str:
    """An error in one line: its kind and what it says, and what is in it where it is a group; never raises."""
    kind = type(error)
    try:
        text = f"{kind.__name__}: {error}"
    except Exception:  # anybody's code
        text = f"{kind.__name__}: (it cannot be put into words)"
    if issubclass(kind, BaseExceptionGroup):
        inner: Sequence[BaseException] = getattr(error, "exceptions", ())
        text += ": " + "; ".join(map(describe_error, inner[:5]))
    return text


class TreadleError(Exception):
    """The root of everything treadle raises on purpose."""


class BadInput(TreadleError):
    """Something passed in is wrong; the message says what and what to pass instead."""


class ToolDefinitionError(BadInput):
    """A function cannot be made into a tool, because a schema cannot be made from its signature."""


class NotFound(BadInput):
    """There is no session, call, artifact or model of that name."""


class Conflict(TreadleError):
    """Somebody else was first; nothing was written."""


class AlreadyAnswered(Conflict):
    """The approval or question has its answer already; `answer` is that fact."""

    def __init__(self, message: str, answer: Fact | None = None) -> None:
        super().__init__(message)
        self.answer = answer


class Expired(Conflict):
    """The approval or question was closed because nobody answered in time."""


class PositionMoved(Conflict):
    """The log has facts that the writer has not seen; read them and decide again."""


class ClaimLost(Conflict):
    """Another process runs this session now; this one must not write or act for it any more."""


class ModelError(TreadleError):
    """The model gave no usable reply.

    `kind` says what went wrong, `retryable` whether the same request may work later, `retry_after` how
    long the provider asked to wait, `partial` the text that had arrived before it broke off.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: ModelErrorKind = "internal",
        retryable: bool = False,
        retry_after: float | None = None,
        partial: str = "",
    ) -> None:
        super().__init__(message)
        self.kind: ModelErrorKind = kind
        self.retryable = retryable
        self.retry_after = retry_after
        self.partial = partial


class NotAnswered(TreadleError):
    """`ask` got no answer. `outcome` is the recorded ending, or None when the run waits for somebody.

    The session keeps everything: answer what is pending, or continue it with a fresh budget.
    """

    def __init__(self, message: str, session_id: str, outcome: RunFinished | None = None) -> None:
        super().__init__(message)
        self.session_id = session_id
        self.outcome = outcome


class StoreError(TreadleError):
    """The store cannot be used as it is; what was recorded before is untouched."""


class StoreTooNew(StoreError):
    """The store was written by a newer treadle than this one."""


class StoreReadOnly(StoreError):
    """The store, or the folder it lies in, cannot be written."""


class StoreFull(StoreError):
    """The disk has no room for the next fact."""


class StoreBusy(StoreError):
    """Other processes held the store for longer than the busy time-out."""


class StoreDamaged(StoreError):
    """The file is not a treadle store, or it is damaged."""
