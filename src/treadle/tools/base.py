"""The tool port: what the engine needs to know of a tool, and what a tool gets when it runs.

It holds no policy: others have decided that a call may run.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from treadle import events
from treadle.engine.state import State
from treadle.errors import BadInput, NotFound, TreadleError
from treadle.history.base import Contents
from treadle.log.base import Claim, Log, Watch
from treadle.memory.base import Memories
from treadle.messages import NO_USAGE, Json, Part, ToolSpec, Usage
from treadle.permissions.data_flow import Trait
from treadle.permissions.policy import Assessment

DEFAULT_TIMEOUT = 120.0
DEFAULT_CAP = 16 * 1024

Recovery = Literal["tell", "retry", "stop"]
"""What happens after a failed call: the model reads the error, the call runs again, or the run ends as failed."""


class ToolError(TreadleError):
    """Raise this in a tool. The model reads its text and goes on."""


class ToolInputError(BadInput):
    """The arguments of a call cannot be used. The text says which and why."""


class ParsedArguments(Struct, frozen=True):
    """A call's arguments: as JSON for the log, in the order of the parameters, and as the tool takes them."""

    arguments: dict[str, Json]
    values: Mapping[str, object]


class Arguments(Struct, forbid_unknown_fields=True):
    """The arguments of a tool, for tools that are classes. Each field has a description for the model."""

    @classmethod
    def build_schema(cls) -> dict[str, Json]:
        """Build the JSON schema of the tool's parameters."""
        _, components = msgspec.json.schema_components((cls,))
        schema = components[cls.__name__]
        for parameter in schema["properties"].values():
            parameter.pop("default", None)
            parameter["description"] = parameter.pop("description")  # last, after its type
        return {"type": "object", "properties": schema["properties"], "required": schema["required"]}

    @classmethod
    def decode(cls, tool: str, arguments: str, *, strict: bool = True) -> ParsedArguments:
        """Decode the JSON text of a model; raises `ToolInputError`."""
        try:
            decoded = msgspec.json.decode(arguments or "{}", type=cls, strict=strict)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise ToolInputError(f"The arguments of {tool} do not fit: {error}.") from None
        values = msgspec.structs.asdict(decoded)
        return ParsedArguments(values, values)


class ToolResult(Struct, frozen=True):
    """What a tool returns when text or JSON is not enough: text with images or files, and what it used.

    `timed_out` is for a tool that keeps its own time limit, and so can still say how far it came. `sources` are what
    the text is made of, besides what the tool always brings in: names of tools or of `data_flow.SOURCES`.
    """

    text: str
    parts: tuple[Part, ...] = ()
    ok: bool = True
    usage: Usage = NO_USAGE
    timed_out: bool = False
    sources: tuple[str, ...] = ()


FOLDER_NOTE = "treadle.folder"
"""The note that names the folder of the workspace in which the last command ended."""

FILE_NOTE_PREFIX = "treadle.file:"
"""The note about a file has this name and the file's path. It is a `FileNote`."""

LEFT_NOTE = "treadle.left"
"""A command notes under this name the hash of each file that it changed, empty where it left no file."""


class FileNote(Struct, frozen=True):
    """The hash of a file's content (empty: no file), and whether a call left it so or only saw it.

    A later edit compares the hash, and a rewind reads it.
    """

    digest: str = ""
    left: bool = False


def read_file_note(data: Json) -> FileNote | None:
    """Read a note about a file. Return None when there is none."""
    try:
        return msgspec.convert(data, FileNote)
    except msgspec.ValidationError:
        return None


class HelperAgent(Protocol):
    """What a helper needs of its agent."""

    @property
    def name(self) -> str: ...

    @property
    def limits(self) -> events.Limits: ...

    def build_created_fact(
        self, session_id: str, workspace: Path, grants: Sequence[events.Grant], parent: events.Parent | None
    ) -> events.SessionCreated: ...


class HelperRun(Protocol):
    """One run of a helper."""

    @property
    def outcome(self) -> events.RunFinished | None: ...

    @property
    def pending(self) -> Sequence[events.ApprovalRequested | events.InputRequested | events.CallStarted]: ...

    def __aiter__(self) -> AsyncIterator[events.Event]: ...
    def detach(self) -> None: ...


class HelperSession(Protocol):
    """The session of a helper."""

    def run(self, content: str, *, key: str) -> AbstractAsyncContextManager[HelperRun]: ...
    def watch(self, after: int) -> Watch: ...
    async def state(self) -> State: ...


class HelperHost(Protocol):
    """What a call needs of the runtime to have a part of its work done by another session.

    `created` and `grants` are those of the call's session. `slots` limits how many of its helpers run at once.
    """

    log: Log
    created: events.SessionCreated
    grants: tuple[events.Grant, ...]
    slots: asyncio.Semaphore

    @property
    def agents(self) -> Mapping[str, HelperAgent]: ...

    def now(self) -> float: ...

    def open_session(
        self, agent_name: str, session_id: str, claim: Claim | None
    ) -> AbstractAsyncContextManager[HelperSession]:
        """Open a helper's session for the time of the call. Cancelling the call cancels the helper.

        It goes on if the `claim` of the call was lost: then it belongs to the process that took over.
        """
        ...


class PermissionAnswer(Struct, frozen=True):
    """Whether a running call may do more, and why or why not, in a sentence for the model."""

    is_allowed: bool
    why: str


class ToolServices:
    """What a running call may do with its session's log. This base class is for tests and stores nothing.

    `memories` is what is remembered across sessions. `contents` are those of the store, if it keeps old contents of
    files itself. `helpers` gives parts of the work to other sessions. A call may have none of these. `claim` is the
    right to run its session: when another process takes the session over, every method that writes raises `ClaimLost`.
    """

    memories: Memories | None = None
    contents: Contents | None = None
    helpers: HelperHost | None = None
    claim: Claim | None = None

    async def check_claim(self) -> None:
        """Raise `ClaimLost` when another process has taken the session over. Call it before a change elsewhere."""

    async def request_permission(self, tool: str, arguments: dict[str, Json], why: str) -> PermissionAnswer:
        """Decide by the policy whether a running call may do something more, such as reach a host. It may ask a person.

        The policy sees a call of `tool` with these arguments: rules such as `network(example.org)` match it.
        """
        return PermissionAnswer(False, "Nobody can be asked here.")

    async def save_note(self, name: str, data: Json) -> None:
        """Save something for later calls of this session, also after a restart. The last note of a name counts."""

    async def record_kept_files(
        self,
        files: Sequence[events.KeptFile],
        *,
        tree: str = "",
        left_out: Sequence[str] = (),
        refs: Sequence[events.KeptRef] = (),
    ) -> None:
        """Record where the old contents of files are kept, before the files are changed, and what changed in git."""

    async def read_artifact(self, artifact_id: str) -> bytes:
        """Return the whole of an output that was too large for the model; raises `NotFound`."""
        raise NotFound(f"no artifact {artifact_id!r} in this session")


class ReportProgress(Protocol):
    """Shows how far a call has come."""

    def __call__(self, message: str, done: float | None = None, total: float | None = None) -> None: ...


def _ignore(message: str, done: float | None = None, total: float | None = None) -> None:
    """Show nothing."""


@dataclass(slots=True)
class ToolContext:
    """What a tool may know of its call. A function gets it in a parameter of this type.

    `key` is the same when the same call is tried again: pass it to services that take an idempotency key.
    Nobody can stop a plain function in its thread, so one that takes long should check `cancelled` now and then.
    `tier` says whether commands run in the sandbox. `notes` are those that earlier calls saved with
    `services.save_note`. `flow_risk` is set if text that others wrote may have asked for a call that sends data out or
    makes a lasting change.
    """

    session_id: str
    call_id: str
    workspace: Path
    attempt: int = 1
    progress: ReportProgress = _ignore
    output: Callable[[str], None] = _ignore
    cancelled: bool = False
    tier: events.Tier = "sandbox"
    notes: Mapping[str, Json] = field(default_factory=dict[str, Json])
    services: ToolServices = field(default_factory=ToolServices)
    flow_risk: str = ""

    @property
    def key(self) -> str:
        return f"{self.session_id}:{self.call_id}"


ArgumentAlias: TypeAlias = str | Callable[[Json, Mapping[str, Json]], Mapping[str, Json]]
"""The own name of a parameter that models know by another name.

Or a function of the value and all arguments: it returns the tool's own arguments for this value. It returns the
argument as it is if it cannot read the value.
"""


def rename_arguments(arguments: str, aliases: Mapping[str, ArgumentAlias], schema: Mapping[str, Json]) -> str:
    """Rename the arguments that a model knows by other names. An alias of "" is dropped.

    A name that the schema has is not renamed, but a function may convert its value. An argument that is there twice
    with different values is kept, so that the schema refuses it.
    """
    try:
        given = msgspec.json.decode(arguments or "{}", type=dict[str, Json])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return arguments
    own = schema.get("properties", {})
    to_rename = [name for name in given if name in aliases and (name not in own or callable(aliases[name]))]
    for alias in sorted(to_rename, key=lambda name: callable(aliases[name])):  # functions see the renamed arguments
        known, value = aliases[alias], given[alias]
        meant = known(value, given) if callable(known) else {known: value} if known else {}
        others = {name: other for name, other in given.items() if name != alias}
        if all(others.get(name, value) == value for name, value in meant.items()):
            given = {**others, **meant}
    return msgspec.json.encode(given).decode()


class Tool(ABC):
    """Something that a model can call.

    `timeout` is in seconds. `cap` is how many bytes of output the model sees. A `polling` tool may be called with the
    same arguments again and again. `on_error` overrides the agent's strategy. `aliases` are other names that models use
    for the tool, and `argument_aliases` other names for its parameters. They are accepted and not offered.
    """

    spec: ToolSpec
    timeout: float | None = DEFAULT_TIMEOUT
    cap: int = DEFAULT_CAP
    polling: bool = False
    on_error: Recovery | None = None
    aliases: tuple[str, ...] = ()
    argument_aliases: Mapping[str, ArgumentAlias] = MappingProxyType({})
    ends_when_cancelled: bool = False
    """Whether `run` surely ends when it is cancelled. The engine waits one second for a tool that may not."""
    decided_after: tuple[str, ...] = ()
    """Other tools that may change what a call means. It is decided after their earlier calls of a reply have ended."""
    resumes: bool = False
    """Whether a call that a crash interrupted continues its work when it runs again, however often that happens."""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def party(self) -> str:
        """Who else takes part in every call of the tool, such as a server. Its tools share the name."""
        return ""

    @property
    def version(self) -> str:
        """A digest of the tool, where others can change it. A lasting approval holds for one version only."""
        return ""

    @abstractmethod
    def assess_safety(self, arguments: Mapping[str, Json]) -> events.Safety:
        """Say how dangerous a call with these arguments is."""

    @abstractmethod
    def parse(self, arguments: str) -> ParsedArguments:
        """Check the JSON text of the model; raises `ToolInputError`."""

    def parse_call(self, arguments: str) -> ParsedArguments:
        """Check the JSON text of the model after its `argument_aliases` are renamed; raises `ToolInputError`."""
        aliases = self.argument_aliases
        return self.parse(rename_arguments(arguments, aliases, self.spec.parameters) if aliases else arguments)

    def resolve_call(self, parsed: ParsedArguments, notes: Mapping[str, Json]) -> tuple[Tool, ParsedArguments]:
        """Return the call to authorize, show and run instead of this one, given the notes of earlier calls.

        Raises `ToolInputError`.
        """
        return self, parsed

    async def bind_call(
        self, parsed: ParsedArguments, workspace: Path, tier: events.Tier
    ) -> tuple[Tool, ParsedArguments]:
        """Return the call to authorize, show and run instead of this one, given the workspace and the tier.

        What it adds to the arguments, such as the address of a remote, is shown, and an approval holds for it: it is
        called again before the call runs. Raises `ToolInputError`.
        """
        return self, parsed

    def find_hidden_tool(self, name: str) -> Tool | None:
        """Find a tool by name that is not offered, but that calls of this tool can resolve to."""
        return None

    def questions(self, parsed: ParsedArguments) -> tuple[events.Question, ...]:
        """Return the questions for the user. A tool that asks does not run: the answers are its result."""
        return ()

    def describe_sandbox(self, tier: events.Tier) -> str:
        """Name the sandbox of a call, for the log."""
        return "none"

    def assess(self, parsed: ParsedArguments, workspace: Path, tier: events.Tier = "sandbox") -> Assessment:
        """Describe for the policy what a call would do. A tool that runs commands names them."""
        return Assessment(self.assess_safety(parsed.arguments))

    def list_traits(self, tier: events.Tier) -> frozenset[Trait]:
        """List what a call brings in and what it can do, whatever its arguments. `assess` adds traits of one call."""
        return frozenset()

    @abstractmethod
    def run(self, parsed: ParsedArguments, context: ToolContext) -> Coroutine[Any, Any, object]:
        """Run the call. Return text, JSON, a pydantic model or a `ToolResult`. The model reads an exception's text."""
