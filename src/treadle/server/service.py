"""What all routes share: the runtime, the configuration, the open streams, and whether the server shuts down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Depends
from starlette.requests import HTTPConnection

from treadle import Agent, Grant, Runtime, Session, later
from treadle.errors import NotFound, TreadleError
from treadle.events import MessageReceived, SessionConfigured, SessionCreated
from treadle.log.base import SessionQuery
from treadle.messages import Part
from treadle.models.base import Model
from treadle.server.config import ServerConfig
from treadle.server.guard import Refusal, Tokens
from treadle.server.observer import LogObserver
from treadle.server.problems import build_field_error, build_no_model_error
from treadle.server.registry import Registry
from treadle.server.streams import OpenStreams
from treadle.server.tokens import Right, Token

READY_SECONDS = 5.0
PROBE_SECONDS = 2.0


class Service:
    """The shared state of one server."""

    def __init__(self, runtime: Runtime, config: ServerConfig) -> None:
        self.runtime, self.config = runtime, config
        self.tokens = Tokens(config.tokens, config.max_wrong_tokens)
        self.observer = LogObserver()
        self.streams = OpenStreams(config.keep_alive)
        self.registry = Registry()
        self.is_draining = False
        self.unloaded_models: set[str] = set()
        self._attached = False
        self._ready: tuple[float, dict[str, str]] = (0.0, {})

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
            self.runtime.log.observer = self.observer

    @asynccontextmanager
    async def run_lifespan(self, app: object) -> AsyncGenerator[None]:
        """Open the runtime with the application, and close it with the application."""
        self.prepare()
        async with self.runtime:
            self.attach()
            yield
            self.drain()

    def drain(self) -> None:
        """Start nothing new, and tell all watchers that the server shuts down."""
        self.is_draining = True
        self.observer.close()
        self.streams.close()

    def check_open(self) -> None:
        """Raise when the server shuts down and no run may start."""
        if self.is_draining:
            raise Refusal(503, "shutting_down", "the server is shutting down; nothing was started", retry_after=2)

    # ── sessions ───────────────────────────────────────────────────────────────────────────────────────

    async def open_session(self, session_id: str) -> Session:
        """Open a session to read it."""
        return await self.runtime.open(session_id)

    async def limit_position(self, session_id: str, after: int) -> int:
        """Limit a position to the end of the log. A client beyond the end would miss the next facts."""
        return min(after, (await self.runtime.log.get_info(session_id)).seq) if after else 0

    async def open_for_use(self, session_id: str, token: Token) -> Session:
        """Open a session to change it. A token with a grant may only use sessions that have this grant."""
        session = await self.runtime.open(session_id)
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

    async def create_session(
        self,
        token: Token,
        *,
        agent: str = "",
        name: str = "",
        workspace: str = "",
        grant: Grant | None = None,
        configured: SessionConfigured | None = None,
    ) -> Session:
        """Create a session with the grants of the token and of the request."""
        self.check_open()
        if configured is not None and configured.model:
            self.get_model(configured.model)
        grants = tuple(one for one in (token.grant, grant) if one is not None)
        return await self.runtime.create(
            agent or self.default_agent.name,
            name=name,
            workspace=self.resolve_workspace(workspace),
            grants=grants,
            configured=configured,
        )

    async def post_message(
        self, session: Session, parts: tuple[Part, ...], mode: Literal["queue", "interrupt"] = "queue", key: str = ""
    ) -> MessageReceived:
        """Post a message. A repeat with the same key returns the first one; another message needs another key."""
        message = await session.post(parts, mode=mode, key=key)
        # Middleware may change a message differently each time, so with middleware a repeat cannot be recognised.
        if key and not session.agent.middleware and (message.parts, message.mode) != (parts, mode):
            raise Refusal(
                409,
                "key_reused",
                "Idempotency-Key: another message has this key already; it is kept, and nothing was added",
                "send a new message with a new key",
                field="Idempotency-Key",
            )
        return message

    def resolve_workspace(self, path: str, field: str = "workspace") -> Path:
        """Resolve a session's folder, which must be inside the operator's roots. `field` names it in errors."""
        roots = [root.resolve() for root in self.config.roots] or [Path.cwd()]
        if not path:
            return roots[0]
        if "\0" in path:
            raise build_field_error(field, "a path cannot have null characters")
        folder = (roots[0] / path).resolve()
        if not any(folder.is_relative_to(root) for root in roots):
            message = f"{field}: that folder is outside the folders of this server"
            raise Refusal(403, "outside_roots", message, field=field)
        if not folder.is_dir():
            raise build_field_error(field, "there is no such folder")
        return folder

    # ── agents and models ──────────────────────────────────────────────────────────────────────────────

    @property
    def default_agent(self) -> Agent:
        agents = self.runtime.agents
        if not agents:
            raise build_no_model_error()
        return agents.get(self.config.agent) or next(iter(agents.values()))

    def list_model_names(self) -> list[str]:
        """The names of the models that requests may use."""
        own = [agent.resolve_model().name for agent in self.runtime.agents.values()]
        return list(dict.fromkeys((*own, *self.config.models)))

    def get_model(self, name: str) -> Model:
        """Get a model that requests may use. `default` is the default agent's model."""
        if name in ("", "default"):
            name = self.default_agent.resolve_model().name
        if name not in self.list_model_names():
            raise NotFound(f"there is no model {name[:200]!r} here; GET /v1/models lists them")
        if name in self.unloaded_models:
            raise build_no_model_error()
        return self.runtime.model(name)

    async def check_model(self, agent: Agent) -> None:
        """Raise when the agent has no model that can answer."""
        model = agent.resolve_model()
        if model.name in self.unloaded_models:
            raise build_no_model_error()
        choose: Any = getattr(model, "chosen", None)
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
        elif name in self.unloaded_models or self._is_missing(name):
            raise build_no_model_error()

    def _is_missing(self, name: str) -> bool:
        try:
            self.runtime.model(name)
        except TreadleError:
            return True
        return False

    async def get_window(self, session: Session) -> int | None:
        """The size of the session's model window in tokens, if it is known."""
        name = (await session.state()).model or session.agent.resolve_model().name
        return None if self._is_missing(name) else self.runtime.model(name).window

    def list_tool_classes(self, agent: Agent) -> Mapping[str, str]:
        """The safety class of each tool, as far as it is known without arguments."""
        return {name: tool.assess_safety({}) for name, tool in agent.toolbox.items()}

    # ── readiness and metrics ────────────────────────────────────────────────────────────────────────────

    async def find_problems(self) -> dict[str, str]:
        """Find what is not ready, and why. The result is kept for a few seconds."""
        at, found = self._ready
        if time.monotonic() - at >= READY_SECONDS:
            found = await self._probe()
            self._ready = (time.monotonic(), found)
        return {**found, **{f"model {name}": "is not loaded" for name in self.unloaded_models}}

    async def _probe(self) -> dict[str, str]:
        found: dict[str, str] = {}
        try:
            await self.runtime.log.claim("probe", 1.0, agents=())
        except TreadleError as error:
            found["store"] = str(error)
        for name in self.list_model_names():
            try:
                problem = await _try_connection(self.runtime.model(name))
            except TreadleError as error:
                problem = str(error)
            if problem:
                found[f"model {name}"] = problem
        return found

    async def read_gauges(self) -> dict[str, float]:
        """The current values for the metrics."""
        active = await self.runtime.sessions(SessionQuery(status="running", limit=1000))
        waiting = await self.runtime.sessions(SessionQuery(status="waiting", limit=1000))
        return {
            "treadle_sessions_active": len(active.sessions),
            "treadle_sessions_waiting": len(waiting.sessions),
            "treadle_watchers": len(self.streams),
        }


def filter_preapproved(token: Token, patterns: Sequence[str]) -> tuple[str, ...]:
    """The patterns that a request may approve in advance. This needs the right to approve."""
    return tuple(patterns) if "approve" in token.rights else ()


async def _try_connection(model: Model) -> str:
    """Say why a model cannot be reached, or return an empty text. It sends the model no request."""
    endpoint = getattr(model, "endpoint", None)
    if endpoint is None:
        return ""
    from urllib.parse import urlsplit

    parts = urlsplit(str(endpoint.base_url))
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, port)
            writer.close()
            await writer.wait_closed()
    except (OSError, TimeoutError):
        return "cannot be reached"
    return ""


def get_service(connection: HTTPConnection) -> Service:
    """The service of the application that got the request."""
    service = connection.app.state.service
    assert isinstance(service, Service)
    service.attach()
    return service


def get_token(connection: HTTPConnection) -> Token:
    """The token of the request, as the guard found it."""
    token = connection.scope["treadle.token"]
    assert isinstance(token, Token)
    return token


def require_right(token: Token, right: Right) -> Token:
    """Return the token if it has the right, and raise otherwise."""
    if right not in token.rights:
        raise Refusal(403, "no_right", f"this token may not {right}", f"use a token with the right to {right}")
    return token


# Dependencies are coroutines, because FastAPI would run a plain function in a thread.


async def _service(connection: HTTPConnection) -> Service:
    return get_service(connection)


async def _viewer(connection: HTTPConnection) -> Token:
    return require_right(get_token(connection), "view")


async def _sender(connection: HTTPConnection) -> Token:
    return require_right(get_token(connection), "send")


async def _approver(connection: HTTPConnection) -> Token:
    return require_right(get_token(connection), "approve")


CurrentService = Annotated[Service, Depends(_service)]
Viewer = Annotated[Token, Depends(_viewer)]
Sender = Annotated[Token, Depends(_sender)]
Approver = Annotated[Token, Depends(_approver)]
