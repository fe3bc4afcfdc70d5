"""An agent: which model, which tools, which rules. Configuration only; sessions do the work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypedDict, Unpack, cast, get_args

import msgspec
from msgspec.structs import replace

from treadle.engine.setup import Clock, Gate, Middleware, RecoveryStrategy, Setup
from treadle.errors import BadInput
from treadle.events import AgentConfig, Grant, Limits, Parent, SessionConfigured, SessionCreated
from treadle.knowledge.base import Knowledge
from treadle.log.base import Log
from treadle.messages import Sampling
from treadle.models.base import DeferredModel, Model
from treadle.secrets.keyring import Keyring
from treadle.tools.base import Recovery, Tool
from treadle.tools.function import tool
from treadle.typed_output import T, build_output_schema, check_output, parse_output

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from treadle.session import Content, Session, SessionOpener


class SessionOptions(TypedDict, total=False):
    """Which session to open, and how. Without `id`, `name` or `new` the latest session is opened, or a new one.

    The session with this `id` is opened, or created if there is none. `new` always creates one.
    """

    id: str
    name: str
    new: bool
    workspace: str | Path
    gate: Gate | None
    grant: Grant | None


@dataclass(slots=True)
class Agent(Generic[T]):
    """A model, its tools and its rules.

    `model` is a name such as "local" or "openai:gpt-4o", or any object with the model port. Without it, the agent uses
    the first model that works: a key in the environment, a server on this machine, or the embedded model. `grant` says
    which calls may run and which need a question. `gate` brings a question to a person. Without a gate the call is
    denied, and the model reads that as its result. `on_error` says what follows a failed call. `output` is the type of
    the answer. `knowledge` is added to the instructions: see `treadle.app.workspace_knowledge`. `secrets` are values
    that no result of a tool may contain, besides the environment's variables such as `…_KEY` and `…_TOKEN`. A
    `Keyring` also has the keys of models.
    """

    model: str | Model | None = None
    tools: Sequence[Tool | Callable[..., Any]] = ()  # a function of the user may take anything
    instructions: str = ""
    name: str = "agent"
    limits: Limits = Limits()
    grant: Grant = Grant()
    sampling: Sampling = Sampling()
    output: type[T] | None = None
    middleware: Sequence[Middleware] = ()
    on_error: Recovery | RecoveryStrategy = "tell"
    gate: Gate | None = None
    approval_ttl: float | None = None
    clock: Clock = field(default_factory=Clock)
    knowledge: Knowledge | None = None
    secrets: Sequence[str] | Keyring = ()
    _tools: dict[str, Tool] = field(init=False, repr=False, default_factory=dict[str, Tool])
    _model: Model | None = field(init=False, repr=False, default=None)
    _keyring: Keyring | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        if self.output is str:  # the same as no type: the answer is its text
            self.output = None
        _check_types(self)
        for given in self.tools:
            one = given if isinstance(given, Tool) else tool(given)
            if one.name in self._tools:
                raise BadInput(f"two tools are named {one.name!r}; rename one with @tool(name=...)")
            self._tools[one.name] = one
        if self.approval_ttl is not None and not self.approval_ttl > 0:
            raise BadInput("approval_ttl must be more than 0 seconds; leave it out for questions that never expire")

    def session(self, store: str | Path | Log = ":memory:", **options: Unpack[SessionOptions]) -> SessionOpener[T]:
        """Open a session: `async with agent.session("words.db") as session`. A path stores it, and resumes it later.

        `agent.session("words.db", id="case-7")` opens the session with that id, or creates it.
        """
        from treadle.runtime import Runtime
        from treadle.session import SessionOpener

        @asynccontextmanager
        async def open_session() -> AsyncGenerator[Session[T]]:
            runtime = Runtime(store, [self], recover=False)
            async with runtime, runtime.session(self.name, **options) as session:
                yield session

        return SessionOpener(open_session())

    async def ask(self, content: Content, store: str | Path | Log = ":memory:", **options: Unpack[SessionOptions]) -> T:
        """Get an answer in one call: open a session, run it, close it. Raises `NotAnswered` when there is no answer."""
        async with self.session(store, **options) as session:
            return await session.ask(content)

    def ask_sync(self, content: Content, store: str | Path | Log = ":memory:", **options: Unpack[SessionOptions]) -> T:
        """`ask` for programs without an event loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.ask(content, store, **options))
        raise BadInput("an event loop runs here already: write `await agent.ask(...)`")

    def config(self) -> AgentConfig:
        """Return the agent's configuration as values, for the log."""
        return AgentConfig(
            name=self.name,
            instructions=self.instructions,
            tools=tuple(sorted(self._tools)),
            sampling=self.sampling,
            output_schema=build_output_schema(self.output) if self.output is not None else None,
        )

    def build_created_fact(
        self, session_id: str, workspace: Path, grants: Sequence[Grant] = (), parent: Parent | None = None
    ) -> SessionCreated:
        """Build the first fact of a session of this agent. Each of `grants` can only narrow what the agent may do."""
        return SessionCreated(
            session_id=session_id,
            agent=self.config(),
            model=self.resolve_model().name,
            workspace=str(workspace.absolute()),
            limits=self.limits,
            grants=(self.grant, *grants),
            parent=parent,
        )

    async def setup(self, created: SessionCreated, gate: Gate | None) -> Setup:
        """Build the setup of a session of this agent. The narrower grants from its creation stay in force."""
        return Setup(
            model=self.resolve_model(),
            tools=self._tools,
            config=self.config(),
            limits=self.limits,
            grants=(self.grant, *created.grants[1:]),
            workspace=Path(created.workspace or "."),
            gate=gate or self.gate,
            middleware=tuple(self.middleware),
            on_error=self.on_error,
            approval_ttl=self.approval_ttl,
            check_output=(lambda text: check_output(self.output, text)) if self.output is not None else None,
            clock=self.clock,
            specs=tuple(self._tools[name].spec for name in sorted(self._tools)),
            polling=frozenset(name for name, tool in self._tools.items() if tool.polling),
            aliases={
                alias: name for name, tool in self._tools.items() for alias in tool.aliases if alias not in self._tools
            },
            redactor=self._find_keyring().redactor,
        )

    @property
    def toolbox(self) -> Mapping[str, Tool]:
        """The tools by name, as sessions run with them."""
        return self._tools

    def _find_keyring(self) -> Keyring:
        """Return the keyring of the user, or build one from the environment and `secrets` at the first run."""
        if isinstance(self.secrets, Keyring):
            return self.secrets
        if self._keyring is None or self._keyring.secrets != tuple(self.secrets):
            self._keyring = Keyring(self.secrets)
        return self._keyring

    def resolve_model(self) -> Model:
        """Return the model object. A name is looked up once, at its first use."""
        if self._model is None:
            if self.model is None or isinstance(self.model, str):
                from treadle.models.catalog import resolve_model

                keyring = self.secrets if isinstance(self.secrets, Keyring) else None
                self._model = resolve_model(self.model, keyring=keyring)
            else:
                self._model = self.model
        return self._model

    async def choose_model(self) -> Model:
        """Return the model. Without a name, choose the first that works; raises `NotFound` when there is none."""
        model = self.resolve_model()
        return await model.resolve() if self.model is None and isinstance(model, DeferredModel) else model

    def use_model(self, model: Model) -> None:
        """Use another model from the next run on. The caller closes it."""
        self.model, self._model = model, None

    async def close(self) -> None:
        """Close a model that was looked up by name."""
        if self._model is not None and self._model is not self.model:
            await self._model.close()
            self._model = None

    def parse_output(self, text: str) -> T:
        """Parse an answer as the agent's `output` type."""
        return cast("T", text) if self.output is None else parse_output(self.output, text)


def _check_types(agent: Agent[Any]) -> None:
    """Refuse wrong types when the agent is made, not at their first use."""
    kinds: dict[str, type] = {"limits": Limits, "grant": Grant, "sampling": Sampling}
    for name, kind in kinds.items():
        given = getattr(agent, name)
        if not isinstance(given, kind):
            raise BadInput(f"{name} is a {kind.__name__}(...), but this is a {type(given).__name__}")
        try:
            msgspec.convert(msgspec.to_builtins(given), kind)
        except (msgspec.ValidationError, TypeError) as error:
            raise BadInput(f"{name}: {error}") from None
    for name in ("tools", "middleware", "secrets"):
        given = getattr(agent, name)
        is_keyring = name == "secrets" and isinstance(given, Keyring)
        if isinstance(given, str) or not (is_keyring or isinstance(given, Sequence)):
            raise BadInput(f"{name} is a list, but this is a {type(given).__name__}")
    for one in cast("Sequence[object]", agent.middleware):
        if not isinstance(one, Middleware):
            what = f"the class {one.__name__}" if isinstance(one, type) else f"a {type(one).__name__}"
            raise BadInput(f"middleware is a list of objects of a Middleware class, but this has {what}")
    model = cast("object", agent.model)
    if model is not None and not isinstance(model, str | Model):
        kind = type(model).__name__
        raise BadInput(f"model is a name, or an object with name, window, stream and close, but this is a {kind}")
    if not callable(agent.on_error) and agent.on_error not in get_args(Recovery):
        raise BadInput(f"on_error={agent.on_error!r} is not one of {get_args(Recovery)}, nor a function")
    if agent.output is not None:
        build_output_schema(agent.output)


def apply_configuration(setup: Setup, configured: SessionConfigured) -> Setup:
    """Replace settings of the agent by those of the session. Where a tool has the name of the client's, it wins."""
    config = replace(setup.config, sampling=configured.sampling or setup.config.sampling)
    check = setup.check_output
    if configured.output_schema is not None and check is None:
        config = replace(config, output_schema=configured.output_schema or None)
        kind = dict[str, Any] if configured.output_schema.get("type") == "object" else Any
        check = partial(check_output, kind) if configured.output_schema else None
    own = {*setup.tools, *setup.aliases}
    specs = tuple(spec for spec in configured.client_tools or () if spec.name not in own)
    return replace(
        setup,
        config=config,
        check_output=check,
        limits=configured.limits or setup.limits,
        approval_ttl=configured.approval_ttl or setup.approval_ttl,
        specs=(*setup.specs, *specs),
        client_tools=frozenset(spec.name for spec in specs),
    )
