"""What all routes share: the runtime, the configuration, the open streams, and whether the server shuts down."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypedDict, Union, Unpack, cast, get_args, get_origin

from fastapi import Depends
from pydantic import BaseModel, ConfigDict, model_validator
from starlette.requests import HTTPConnection

from treadle import Agent, Grant, Run, Runtime, Session, later
from treadle.app.absent_model import AbsentModel
from treadle.errors import NotFound, StoreError, TreadleError
from treadle.events import MessageMode, MessageReceived, SessionConfigured, SessionCreated
from treadle.log.base import RESPONSES_AGENT, SessionInfo, SessionQuery, Status
from treadle.messages import Part
from treadle.models.base import Model
from treadle.server.agent_responses import AgentResponses
from treadle.server.config import ServerConfig
from treadle.server.file_index import FileIndex
from treadle.server.first_words import FirstWords
from treadle.server.guard import Refusal, build_shutdown_refusal
from treadle.server.keyed_requests import KeyedRequest, build_key_reused
from treadle.server.list_changes import ListChanges
from treadle.server.logins import Tokens
from treadle.server.model_loader import ModelLoader
from treadle.server.observer import LogObserver
from treadle.server.open_questions import OpenQuestions
from treadle.server.problems import build_field_error, build_no_model_error
from treadle.server.readiness import Readiness
from treadle.server.registry import Registry
from treadle.server.response_runs import ResponseRuns
from treadle.server.static_files import StaticFiles
from treadle.server.streams import OpenStreams
from treadle.server.token_file import TokenKeeper
from treadle.server.tokens import Right, Token

AGENT_PREFIX = "agent:"
MAX_NAMES = 20
"""How many models an error message lists."""
COUNTS_AT_ONCE = 4
"""How many requests at once ask a provider to count tokens. Clients count many requests at the same time."""


STATUS_GAUGES: dict[str, Status] = {"treadle_sessions_active": "running", "treadle_sessions_waiting": "waiting"}


class LenientBody(BaseModel):
    """A null field counts as missing, because many clients send every field that they know.

    Otherwise JSON's types count: true is no number, 1 is not true, and "5" is not 5.
    """

    @model_validator(mode="before")
    @classmethod
    def _read_fields(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        fields = cast("dict[str, Any]", given)
        kinds = {field.alias or name: list_kinds(field.annotation) for name, field in cls.model_fields.items()}
        return {
            name: _NO_VALUE if _has_other_type(value, kinds.get(name, frozenset())) else value
            for name, value in fields.items()
            if value is not None
        }


_NO_VALUE = object()
"""Takes the place of a value that pydantic would convert, so that it refuses the field by its name."""


def _has_other_type(value: object, kinds: frozenset[object]) -> bool:
    if isinstance(value, bool):
        return bool(kinds & {int, float}) and bool not in kinds
    if isinstance(value, str):
        return bool(kinds & {int, float, bool}) and str not in kinds
    return isinstance(value, int | float) and bool in kinds and not kinds & {int, float}


@lru_cache(maxsize=1000)
def list_kinds(annotation: Any) -> frozenset[object]:
    """List the types of the values that an annotation accepts. Any accepts all of them."""
    if annotation is Any:
        return frozenset({bool, int, float, str})
    origin, parts = get_origin(annotation), cast("tuple[object, ...]", get_args(annotation))
    if origin is Literal:
        return frozenset(type(part) for part in parts)
    if origin in (Union, UnionType, Annotated):
        return frozenset(kind for part in parts for kind in list_kinds(part))
    return frozenset({annotation})


class StrictBody(LenientBody):
    """A request's body. Unknown fields are refused, so that typing mistakes are found."""

    model_config = ConfigDict(extra="forbid")


class CreateOptions(TypedDict, total=False):
    """What a new session gets. Without an agent it is the default one. A `request` with a key creates it only once."""

    agent: str
    name: str
    workspace: str
    grant: Grant | None
    configured: SessionConfigured | None
    request: KeyedRequest | None


class Service:
    """The shared state of one server."""

    def __init__(self, runtime: Runtime, config: ServerConfig) -> None:
        self.runtime, self.config = runtime, config
        self.tokens = Tokens(config.tokens, config.max_wrong_tokens)
        self.observer = LogObserver()
        self.streams = OpenStreams(config.keep_alive)
        self.registry = Registry()
        self.page = StaticFiles(config.page_folder)
        self.files = FileIndex()
        agents = AgentResponses(runtime, self.open_for_use, self.detach_at_shutdown)
        self.responses = ResponseRuns(runtime, self.get_model, agents)
        self.open_questions, self.first_words = OpenQuestions(), FirstWords()
        self.list_streams = set[ListChanges]()
        self.inherited_usage: dict[str, tuple[int, float]] = {}
        self.counting = asyncio.Semaphore(COUNTS_AT_ONCE)
        self.is_draining = False
        self.loader = ModelLoader(runtime, config.model_roots)
        self._keeper = TokenKeeper(self.tokens, config.token_file)
        self._waiting: set[Run] = set()
        self._attached = False
        self.readiness = Readiness(runtime, self.loader, self.list_model_names)

    def prepare(self) -> None:
        """Let questions wait in the log for an answer over HTTP, unless the runtime has its own gate."""
        self.is_draining = self.streams.is_closed = self._attached = False
        if self.runtime.gate is None:
            self.runtime.gate = later

    def attach(self) -> None:
        """Start to observe the runtime's log. The runtime must be open."""
        if not self._attached:
            self.prepare()
            self._attached = True
            self.runtime.log.observer, self.runtime.log.on_removed = self.observer, self.note_removed
            where = self.config.token_file or self.runtime.coordinator.owner
            self.tokens.use_store(self.runtime.log, f"{socket.gethostname()} {where}")
            self._keeper.start()
            self.responses.recover_later()

    @asynccontextmanager
    async def run_lifespan(self, app: object) -> AsyncGenerator[None]:
        """Open the runtime with the application, and close it with the application."""
        self.prepare()
        async with self.runtime:
            self.attach()
            yield
            self.drain()
            await self._keeper.close()
            await self.loader.close()
            await self.responses.close()

    def drain(self) -> None:
        """Start nothing new, and tell all watchers that the server shuts down."""
        self.is_draining = True
        self.streams.close()
        for run in self._waiting:
            run.detach()
        if self._attached and self.runtime.log.is_shared:  # another node goes on while this one waits for its clients
            self.runtime.begin_draining()

    def note_removed(self, session_id: str) -> None:
        """Tell all who watch the list that a session was deleted, here or by another node."""
        for changes in self.list_streams:
            changes.note_removed(session_id)

    def check_open(self) -> None:
        """Raise when the server shuts down and no run may start."""
        if self.is_draining:
            raise build_shutdown_refusal("the server is shutting down; nothing was started")

    @contextmanager
    def detach_at_shutdown(self, run: Run) -> Generator[None]:
        """Follow a run in this block until the server stops. Leaving the block never stops the run."""
        self._waiting.add(run)
        if self.is_draining:  # the request came in before the server began to shut down
            run.detach()
        try:
            yield
        finally:
            self._waiting.discard(run)
            run.detach()

    # ── sessions ───────────────────────────────────────────────────────────────────────────────────────

    async def limit_position(self, session_id: str, after: int) -> int:
        """Limit a position to the end of the log. A client beyond the end would miss the next facts."""
        return min(after, (await self.runtime.log.get_info(session_id)).seq) if after else 0

    async def get_info(self, session_id: str) -> SessionInfo:
        """What the log knows about a session of an agent. Sessions of stored responses have routes of their own."""
        info = await self.runtime.log.get_info(session_id)
        if info.agent == RESPONSES_AGENT:
            raise NotFound(f"session {session_id} stores responses; GET /v1/responses/{{id}} shows them")
        return info

    async def open_to_read(self, session_id: str) -> Session:
        """Open a session to read it, or to put it in order. It may be one of an agent that this server does not have.

        Such a session is here with the default agent, and can start no run until it gets an agent of this server.
        """
        if (info := await self.get_info(session_id)).agent in self.runtime.agents:
            return await self.runtime.open(session_id)
        return Session(self.runtime.coordinator, self.default_agent, info.id)

    async def open_for_use(self, session_id: str, token: Token, *, needs_agent: bool = True) -> Session:
        """Open a session to change it. A token with a grant may only use sessions that have this grant."""
        session = await (self.runtime.open(session_id) if needs_agent else self.open_to_read(session_id))
        if token.grant is not None:
            first = (await self.runtime.log.read(session_id, limit=1))[0]
            if not isinstance(first, SessionCreated) or token.grant not in first.grants:
                raise Refusal(403, "wider_session", "this session may do more than this token allows")
        return session

    async def open_for_run(self, session_id: str, token: Token) -> Session:
        """Open a session to start a run in it. Raises when the server shuts down or the session's model is missing."""
        self.check_open()
        session = await self.open_for_use(session_id, token)
        await self.check_session_model(session)
        return session

    async def create_session(self, token: Token, **options: Unpack[CreateOptions]) -> Session:
        """Create a session with the grants of the token and of the request."""
        self.check_open()
        configured, request, grant = options.get("configured"), options.get("request"), options.get("grant")
        if configured is not None and configured.model:
            self.get_model(configured.model)
        return await self.runtime.create(
            options.get("agent") or self.default_agent.name,
            id=request.session_id if request is not None else "",
            name=options.get("name", ""),
            workspace=self.resolve_workspace(options.get("workspace", "")),
            grants=[one for one in (token.grant, grant) if one is not None],
            facts=[fact for fact in (configured, request and request.build_note()) if fact is not None],
        )

    async def post_message(
        self, session: Session, parts: tuple[Part, ...], mode: MessageMode = "queue", key: str = ""
    ) -> MessageReceived:
        """Post a message. A repeat with the same key returns the first one; another message needs another key."""
        message = await session.post(parts, mode=mode, key=key)
        # Middleware may change a message differently each time, so with middleware a repeat cannot be recognised.
        if key and not session.agent.middleware and (message.parts, message.mode) != (parts, mode):
            raise build_key_reused("message")
        return message

    def list_roots(self) -> list[Path]:
        """List the operator's folders, in which every workspace is."""
        return [root.resolve() for root in self.config.roots] or [Path.cwd()]

    def resolve_workspace(self, path: str, field: str = "workspace") -> Path:
        """Resolve a session's folder, which must be inside the operator's roots. `field` names it in errors."""
        roots = self.list_roots()
        if not path:
            return roots[0]
        if "\0" in path:
            raise build_field_error(field, "a path cannot have null characters")
        try:
            folder = (roots[0] / path).resolve()
            if not any(folder.is_relative_to(root) for root in roots):
                message = f"{field}: that folder is outside the folders of this server"
                raise Refusal(403, "outside_roots", message, field=field)
            if folder.is_dir():
                return folder
        except (OSError, RuntimeError):  # a name that is too long, a folder that may not be read, or a circle of links
            raise build_field_error(field, "that folder cannot be read") from None
        raise build_field_error(field, "there is no such folder")

    # ── agents and models ──────────────────────────────────────────────────────────────────────────────

    @property
    def default_agent(self) -> Agent:
        agents = self.runtime.agents
        if not agents:
            raise build_no_model_error()
        return agents.get(self.config.agent) or next(iter(agents.values()))

    def list_model_names(self) -> list[str]:
        """The names of the models that requests may use."""
        models = [agent.resolve_model() for agent in self.runtime.agents.values()]
        own = [model.name for model in models if not isinstance(model, AbsentModel)]
        return list(dict.fromkeys((*own, *self.config.models, *self.loader.states)))

    def resolve_alias(self, name: str) -> str:
        """The name that the operator's aliases give for a name. The name of a model or an agent stays as it is."""
        if name in self.list_model_names() or name.removeprefix(AGENT_PREFIX) in self.runtime.agents:
            return name
        aliases = self.config.model_aliases
        return next((target for pattern, target in aliases.items() if fnmatchcase(name, pattern)), name)

    def get_model(self, name: str) -> Model:
        """Get a model that requests may use, by its name or an alias. `default` is the default agent's model."""
        name = self.resolve_alias(name)
        if name in ("", "default"):
            model = self.default_agent.resolve_model()
            if isinstance(model, AbsentModel):
                raise build_no_model_error()
            name = model.name
        self.check_model_name(name)
        if name in self.loader.blocked:
            raise build_no_model_error()
        return self.runtime.model(name)

    def check_model_name(self, name: str) -> None:
        """Raise when requests may not use a model of this name."""
        names = self.list_model_names()
        if name not in names:
            offered = ", ".join([*names[:MAX_NAMES], *(["…"] if len(names) > MAX_NAMES else [])]) or "none"
            advice = "the operator can map names in [model_aliases] of the settings"
            raise NotFound(f"there is no model {name[:200]!r} here; the models are: {offered}; {advice}")

    def find_model(self, name: str) -> Model | None:
        """Find a model by its name. Returns None when its key or its package is missing."""
        try:
            return self.runtime.model(name)
        except TreadleError:
            return None

    async def check_model(self, agent: Agent) -> None:
        """Raise when the agent has no model that can answer."""
        model = agent.resolve_model()
        if model.name in self.loader.blocked:
            raise build_no_model_error()
        choose: Any = getattr(model, "resolve", None)
        if choose is not None:
            try:
                await choose()
            except TreadleError:
                raise build_no_model_error() from None

    async def check_session_model(self, session: Session) -> None:
        """Raise when the session's model is not available. Otherwise its messages would wait without a reason."""
        name = (await session.state()).model
        if not name:
            await self.check_model(session.agent)
        elif name in self.loader.blocked or self.find_model(name) is None:
            raise build_no_model_error()

    async def get_window(self, session: Session) -> int | None:
        """The size of the session's model window in tokens, if it is known."""
        model = self.find_model((await session.state()).model or session.agent.resolve_model().name)
        return model.window if model is not None else None

    def list_tool_classes(self, agent: Agent) -> Mapping[str, str]:
        """The safety class of each tool, as far as it is known without arguments."""
        return {name: tool.assess_safety({}) for name, tool in agent.toolbox.items()}

    # ── readiness and metrics ────────────────────────────────────────────────────────────────────────────

    async def read_gauges(self) -> dict[str, float]:
        """The current values for the metrics. Those of the store are missing while it is away."""
        gauges: dict[str, float] = {
            "treadle_models_loading": sum(one.state == "loading" for one in self.loader.states.values()),
            "treadle_watchers": len(self.streams) + len(self._waiting),
        }
        with suppress(StoreError):
            for name, status in STATUS_GAUGES.items():
                gauges[name] = len((await self.runtime.sessions(SessionQuery(status=status, limit=1000))).sessions)
        return gauges


def filter_preapproved(token: Token, patterns: Sequence[str]) -> tuple[str, ...]:
    """The patterns that a request may approve in advance. This needs the right to approve."""
    return tuple(patterns) if "approve" in token.rights else ()


# Dependencies are coroutines, because FastAPI would run a plain function in a thread.


async def get_service(connection: HTTPConnection) -> Service:
    """The service of the application that got the request."""
    service = connection.app.state.service
    assert isinstance(service, Service)
    service.attach()
    return service


async def get_token(connection: HTTPConnection) -> Token:
    """The token of the request, as the guard found it."""
    token = connection.scope["treadle.token"]
    assert isinstance(token, Token)
    return token


def require_right(token: Token, right: Right) -> Token:
    """Return the token if it has the right, and raise otherwise."""
    if right not in token.rights:
        raise Refusal(403, "no_right", f"this token may not {right}", f"use a token with the right to {right}")
    return token


def _check_right(right: Right) -> Callable[[Token], Awaitable[Token]]:
    async def check(token: CurrentToken) -> Token:
        return require_right(token, right)

    return check


CurrentService = Annotated[Service, Depends(get_service)]
CurrentToken = Annotated[Token, Depends(get_token)]
Viewer = Annotated[Token, Depends(_check_right("view"))]
Sender = Annotated[Token, Depends(_check_right("send"))]
Approver = Annotated[Token, Depends(_check_right("approve"))]
