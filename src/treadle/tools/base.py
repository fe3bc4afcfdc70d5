"""The tool port: what the engine needs to know of a tool, and what a tool is given when it runs.

No policy here: whether a call may run is decided before a tool is asked to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from treadle.errors import BadInput, TreadleError
from treadle.events import Question, Safety
from treadle.messages import Json, Part, ToolSpec

DEFAULT_TIMEOUT = 120.0
DEFAULT_CAP = 16 * 1024

Recovery = Literal["tell", "retry", "stop"]
"""What follows a failed call: tell the model, run it again, or end the run as failed."""


class ToolError(TreadleError):
    """Raise this in a tool: the model is told its text, and goes on."""


class ToolInputError(BadInput):
    """The arguments of a call cannot be used; the text says which and why."""


class Parsed(Struct, frozen=True):
    """A call's arguments: as JSON for the log, in the order of the parameters, and as the tool takes them."""

    arguments: dict[str, Json]
    values: Mapping[str, object]


class ToolResult(Struct, frozen=True):
    """What a tool gives back when plain text or JSON is not enough: text with images or files."""

    text: str
    parts: tuple[Part, ...] = ()
    ok: bool = True


def _unheard(message: str, done: float | None = None, total: float | None = None) -> None:
    """Progress that nobody listens to."""


@dataclass(slots=True)
class ToolContext:
    """What a tool may know of the call it serves; ask for it with a parameter of this type.

    `key` is the same when the same call is tried again: hand it to services that take an idempotency key.
    A plain function runs in a thread, which nobody can stop: it should look at `cancelled` now and then.
    """

    session_id: str
    call_id: str
    workspace: Path
    attempt: int = 1
    progress: Callable[..., None] = _unheard
    output: Callable[[str], None] = _unheard
    cancelled: bool = False

    @property
    def key(self) -> str:
        return f"{self.session_id}:{self.call_id}"


class Tool(ABC):
    """Something a model can call.

    `timeout` is in seconds, `cap` in bytes of output shown to the model. `polling` tools may be called
    with the same arguments again and again. `on_error` overrides the agent's strategy.
    """

    spec: ToolSpec
    timeout: float | None = DEFAULT_TIMEOUT
    cap: int = DEFAULT_CAP
    polling: bool = False
    on_error: Recovery | None = None
    sandbox: str = "none"
    lets_go: bool = False
    """Whether `run` ends at once when it is cancelled, whatever the tool's own code does."""

    @property
    def name(self) -> str:
        return self.spec.name

    @abstractmethod
    def safety_of(self, arguments: Mapping[str, Json]) -> Safety:
        """How dangerous the call would be with these arguments."""

    @abstractmethod
    def parse(self, arguments: str) -> Parsed:
        """Check the JSON text that the model wrote; raises `ToolInputError`."""

    def questions(self, parsed: Parsed) -> tuple[Question, ...]:
        """What a person must answer; a tool that asks is not run, the answers are its result."""
        return ()

    @abstractmethod
    def run(self, parsed: Parsed, context: ToolContext) -> Coroutine[Any, Any, object]:
        """Do it. Text, JSON, a pydantic model or a `ToolResult`; an exception is an error told to the model."""
