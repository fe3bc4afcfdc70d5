"""Every error that treadle raises, grouped by what the caller should do next.

TreadleError
├── BadInput             fix what was passed in, then call again
│   ├── ToolDefinitionError  a function that cannot be made into a tool
│   └── NotFound             no such session, call, artifact or model
├── Conflict             somebody else was first: look, then decide
│   ├── AlreadyAnswered      somebody has answered the approval or question
│   ├── Expired              nobody answered the approval in time
│   ├── PositionMoved        the log has new facts: read them, decide again
│   └── ClaimLost            another process runs this session now: stop
├── ModelError           the model did not answer (`retryable` says if trying again can help)
├── NotAnswered          the run ended without an answer (`outcome` says why; nothing is lost)
├── SandboxUnavailable   there is no sandbox here, so the command was not run (in sandbox/base.py)
└── StoreError           the store cannot be used: look at the file first, then try again
    ├── StoreTooNew          written by a newer treadle
    ├── StoreReadOnly        the file or its folder cannot be written
    ├── StoreFull            no room left on the disk
    ├── StoreBusy            other processes held the file for too long
    ├── StoreAway            the database cannot be reached now: try again soon
    ├── StoreLostFacts       the database lost facts that it had acknowledged
    └── StoreDamaged         not a treadle store, or a broken one
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from treadle.events import Fact, RunFinished

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


LONGEST_WAIT = 86_400.0
"""A provider that asks for a longer wait than this is out of quota. Nobody expects a run to go on days later."""


def describe_wait(seconds: float) -> str:
    """Describe a length of time in one or two units: `45 s`, `12 min`, `3 h 20 min`, `16 days`."""
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 100:
        return f"{max(seconds, 0):.3g} s"
    if minutes < 100:
        return f"{minutes} min"
    if hours < 48:
        return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"
    return f"{round(hours / 24)} days"


def describe_error(error: BaseException) -> str:
    """Describe an error in one line: its class, its message, and the errors in a group. Never raises."""
    kind = type(error)
    try:
        text = f"{kind.__name__}: {error}"
    except Exception:  # the error class can be anybody's code
        text = f"{kind.__name__}: (it has no readable message)"
    if issubclass(kind, BaseExceptionGroup):
        inner: Sequence[BaseException] = getattr(error, "exceptions", ())
        text += ": " + "; ".join(map(describe_error, inner[:5]))
    return text


class TreadleError(Exception):
    """The base class of all errors of treadle."""


class BadInput(TreadleError):
    """An argument is wrong. The message says which one, and what to pass instead.

    `param` is the field of a request that is wrong, if it is one.
    """

    def __init__(self, message: str = "", *, param: str = "") -> None:
        super().__init__(message)
        self.param = param


class ToolDefinitionError(BadInput):
    """A function cannot become a tool, because its signature gives no schema."""


class NotFound(BadInput):
    """There is no session, call, artifact or model with that name."""


class Conflict(TreadleError):
    """Somebody else was first. Nothing was written."""


class AlreadyAnswered(Conflict):
    """Somebody has answered the approval or question already. `answer` is that fact."""

    def __init__(self, message: str, answer: Fact | None = None) -> None:
        super().__init__(message)
        self.answer = answer


class Expired(Conflict):
    """Nobody answered the approval or question in time, so it was closed."""


class PositionMoved(Conflict):
    """The log has facts that the writer has not read. Read them and decide again."""


class ClaimLost(Conflict):
    """Another process runs this session now. This process must not write or act for it any more."""


class ModelError(TreadleError):
    """The model gave no usable reply.

    `kind` says what went wrong, and `retryable` whether the same request may work later. `retry_after` is the wait
    that the provider asked for, and `partial` the text that arrived before the stream broke off. `param` is the option
    of the request that the model cannot take, if it is one. `status` is the HTTP status, or 0 if there was none.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: ModelErrorKind = "internal",
        retryable: bool = False,
        retry_after: float | None = None,
        partial: str = "",
        param: str = "",
    ) -> None:
        super().__init__(message)
        self.kind: ModelErrorKind = kind
        self.retryable = retryable
        self.retry_after = retry_after
        self.partial = partial
        self.param = param
        self.status = 0


class NotAnswered(TreadleError):
    """`ask` got no answer. `outcome` is the recorded end of the run, or None when the run waits for a person.

    The session keeps everything: answer the pending questions, or continue it with a fresh budget.
    """

    def __init__(self, message: str, session_id: str, outcome: RunFinished | None = None) -> None:
        super().__init__(message)
        self.session_id = session_id
        self.outcome = outcome


class StoreError(TreadleError):
    """The store cannot be used. Everything that was recorded before is unchanged."""


class StoreTooNew(StoreError):
    """A newer version of treadle wrote the store."""


class StoreReadOnly(StoreError):
    """The store or its folder cannot be written."""


class StoreFull(StoreError):
    """The disk has no room for the next fact."""


class StoreBusy(StoreError):
    """Other processes held the store for longer than the busy time-out."""


class StoreAway(StoreError):
    """The database of the store cannot be reached now. Nothing that was recorded is lost."""


class StoreLostFacts(StoreError):
    """The database has fewer facts than it had acknowledged, as after a failover to a standby that lagged behind."""


class StoreDamaged(StoreError):
    """The file is not a treadle store, or it is damaged."""


class MessageRefused(BadInput):
    """Raise it in `Middleware.on_user_message`: the message is not stored, and the log says that it was refused."""


class MessageStopped(Conflict):
    """The session was cancelled while middleware read a message. The message is not stored."""
