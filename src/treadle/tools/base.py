"""The tool port: what the engine needs to know of a tool, and what a tool is given when it runs.

No policy here: whether a call may run is decided before a tool is asked to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from treadle.errors import BadInput, NotFound, TreadleError
from treadle.events import KeptFile, Question, Safety, Tier
from treadle.log.base import Memories
from treadle.messages import NO_USAGE, Json, Part, ToolSpec, Usage
from treadle.permissions.data_flow import Trait
from treadle.permissions.policy import Assessment

DEFAULT_TIMEOUT = 120.0
DEFAULT_CAP = 16 * 1024

ArgumentStruct = TypeVar("ArgumentStruct", bound=Struct)

Recovery = Literal["tell", "retry", "stop"]
"""What follows a failed call: tell the model, run it again, or end the run as failed."""


class ToolError(TreadleError):
    """Raise this in a tool: the model is told its text, and goes on."""


class ToolInputError(BadInput):
    """The arguments of a call cannot be used; the text says which and why."""


def decode_arguments(
    tool: str, arguments: str, struct_type: type[ArgumentStruct], *, strict: bool = True
) -> ArgumentStruct:
    """The JSON text that a model wrote, as the struct that a tool takes; raises `ToolInputError`."""
    try:
        return msgspec.json.decode(arguments or "{}", type=struct_type, strict=strict)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ToolInputError(f"The arguments of {tool} do not fit: {error}.") from None


class ParsedArguments(Struct, frozen=True):
    """A call's arguments: as JSON for the log, in the order of the parameters, and as the tool takes them."""

    arguments: dict[str, Json]
    values: Mapping[str, object]


class ToolResult(Struct, frozen=True):
    """What a tool gives back when plain text or JSON is not enough: text with images or files, and what it used.

    `timed_out` is for a tool that keeps time itself, and so can still tell how far it came.
    """

    text: str
    parts: tuple[Part, ...] = ()
    ok: bool = True
    usage: Usage = NO_USAGE
    timed_out: bool = False


def _unheard(message: str, done: float | None = None, total: float | None = None) -> None:
    """Progress that nobody listens to."""


class HelperTask(Struct, frozen=True):
    """A piece of work for a session of its own: with an agent, in a folder of the workspace, perhaps only to read."""

    text: str
    agent: str = ""
    folder: str = ""
    read_only: bool = False


class HelperRunner(ABC):
    """Who can give a call's work to another session."""

    @abstractmethod
    async def run(self, task: HelperTask, context: ToolContext) -> ToolResult:
        """Have it done, or go on with it where the same call was broken off. Cancelling this cancels the work."""


class ToolServices:
    """What a running call may do to its session's log, and nothing else of it. This one, for tests, forgets it all.

    `memories` is what is remembered across sessions, `helpers` who can do a part of the work; a call may have neither.
    """

    memories: Memories | None = None
    helpers: HelperRunner | None = None

    async def save_note(self, name: str, data: Json) -> None:
        """Keep something for later calls of this session, also after a restart; the last of each name counts."""

    async def record_kept_files(
        self, files: Sequence[KeptFile], *, tree: str = "", left_out: Sequence[str] = ()
    ) -> None:
        """Record, before files are changed, where their old contents are kept."""

    async def read_artifact(self, artifact_id: str) -> bytes:
        """Output that was too large for the model, whole; raises `NotFound`."""
        raise NotFound(f"no artifact {artifact_id!r} in this session")


@dataclass(slots=True)
class ToolContext:
    """What a tool may know of the call it serves; ask for it with a parameter of this type.

    `key` is the same when the same call is tried again: hand it to services that take an idempotency key.
    A plain function runs in a thread, which nobody can stop: it should look at `cancelled` now and then.
    `tier` says whether commands run in the sandbox, `notes` what earlier calls left through `desk.note`.
    """

    session_id: str
    call_id: str
    workspace: Path
    attempt: int = 1
    progress: Callable[..., None] = _unheard
    output: Callable[[str], None] = _unheard
    cancelled: bool = False
    tier: Tier = "sandbox"
    notes: Mapping[str, Json] = field(default_factory=dict[str, Json])
    services: ToolServices = field(default_factory=ToolServices)

    @property
    def key(self) -> str:
        return f"{self.session_id}:{self.call_id}"


class Tool(ABC):
    """Something a model can call.

    `timeout` is in seconds, `cap` in bytes of output shown to the model. `polling` tools may be called
    with the same arguments again and again. `on_error` overrides the agent's strategy. `aliases` are names
    that models use for it all the same; they are not offered.
    """

    spec: ToolSpec
    timeout: float | None = DEFAULT_TIMEOUT
    cap: int = DEFAULT_CAP
    polling: bool = False
    on_error: Recovery | None = None
    aliases: tuple[str, ...] = ()
    ends_when_cancelled: bool = False
    """Whether `run` surely ends by itself when it is cancelled; one that may not is left behind after a second."""
    resumes: bool = False
    """Whether a call that a crash broke off, run again, goes on with what it had begun, however often that happens."""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def version(self) -> str:
        """What the tool is now, as a digest, where others may change that: a yes that lasts holds for no other."""
        return ""

    @abstractmethod
    def assess_safety(self, arguments: Mapping[str, Json]) -> Safety:
        """How dangerous the call would be with these arguments."""

    @abstractmethod
    def parse(self, arguments: str) -> ParsedArguments:
        """Check the JSON text that the model wrote; raises `ToolInputError`."""

    def resolve_call(self, parsed: ParsedArguments, notes: Mapping[str, Json]) -> tuple[Tool, ParsedArguments]:
        """The call that this one really is, after what earlier calls noted; that one is judged, shown and run.

        Raises `ToolInputError`.
        """
        return self, parsed

    def find_hidden_tool(self, name: str) -> Tool | None:
        """The tool of that name, where calls of this one can stand for it."""
        return None

    def questions(self, parsed: ParsedArguments) -> tuple[Question, ...]:
        """What a person must answer; a tool that asks is not run, the answers are its result."""
        return ()

    def describe_sandbox(self, tier: Tier) -> str:
        """How a call is walled in, as the log tells it."""
        return "none"

    def assess(self, parsed: ParsedArguments, workspace: Path, tier: Tier = "sandbox") -> Assessment:
        """What a call would do, for the policy; a tool that runs commands says which."""
        return Assessment(self.assess_safety(parsed.arguments))

    def list_traits(self, tier: Tier) -> frozenset[Trait]:
        """What a call lets in or out, whatever its arguments."""
        return frozenset()

    @abstractmethod
    def run(self, parsed: ParsedArguments, context: ToolContext) -> Coroutine[Any, Any, object]:
        """Do it. Text, JSON, a pydantic model or a `ToolResult`; an exception is an error told to the model."""
