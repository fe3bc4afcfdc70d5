"""Opening a session for a command: settings, store, model, agent, runtime; closed again in the right order."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from treadle import Agent, Answer, ApprovalRequested, InputRequested, Runtime, Session
from treadle.agent import SessionOptions
from treadle.app.compose import build_embedding, choose_model, has_unknown_price, open_mcp_tools, open_store
from treadle.app.settings import LoadedSettings, Settings
from treadle.app.workspace_agents import BuiltAgents, build_agents
from treadle.cli.find_session import find_session
from treadle.cli.options import load_command_settings
from treadle.errors import BadInput, NotFound
from treadle.events import SessionConfigured, SessionCreated
from treadle.knowledge.library import WorkspaceKnowledge
from treadle.log.base import Log, SessionInfo
from treadle.models.base import Model
from treadle.secrets.keyring import hide_keys

DEFAULT_AGENT = "default"


@dataclass(slots=True)
class OpenSession:
    """A session that is open, and what it runs with. `notes` are what the person should be told about that."""

    session: Session
    runtime: Runtime
    agent: Agent
    settings: Settings
    library: WorkspaceKnowledge
    notes: tuple[str, ...]
    is_new: bool

    @property
    def model(self) -> Model:
        return self.agent.resolved_model()


Gate = Callable[[ApprovalRequested | InputRequested], Awaitable[Answer | None]]
GateFactory = Callable[[Agent, Settings], Gate | None]


@asynccontextmanager
async def open_session(args: argparse.Namespace, gate_for: GateFactory, name: str = "") -> AsyncGenerator[OpenSession]:
    """Open the session that `--session` names, or a new one, with a name if one is given."""
    loaded = load_command_settings(args)
    log = open_store(loaded.settings)
    try:
        info = await find_session(log, args.session) if args.session else None
        if info is not None:
            facts = await log.read(info.id)
            models = [fact.model for fact in facts if isinstance(fact, SessionCreated | SessionConfigured)]
            loaded = _there(args, info, next(filter(None, reversed(models)), ""))
        async with _running(log, loaded, info, gate_for, name) as session:
            session.notes += (*_unlimited(session), *_nameless(args, session))
            yield session
    finally:
        await log.close()


@asynccontextmanager
async def _running(
    log: Log, loaded: LoadedSettings, info: SessionInfo | None, gate_for: GateFactory, name: str
) -> AsyncGenerator[OpenSession]:
    settings = loaded.settings
    hide_keys(*filter(None, [settings.api_key_env]))
    model, reason = await choose_model(settings)
    try:
        log.memories.embed = build_embedding(settings, model)
        async with open_mcp_tools(settings) as (more, down):
            built = build_agents(settings, model, more)
            agent = _chosen(built, loaded, model, info)
            which: SessionOptions = {"workspace": settings.folder, "gate": gate_for(agent, settings)}
            if info is not None:
                which["id"] = info.id
            else:
                which["new"], which["name"] = True, name
            notes = [*loaded.ignored, *down, *built.problems, *([f"model: {model.name} ({reason})"] if reason else [])]
            async with (
                Runtime(log, [*{**built.agents, agent.name: agent}.values()], recover=False) as runtime,
                runtime.session(agent.name, **which) as session,
            ):
                state = await session.state()
                if state.agent not in runtime.agents:  # a run under way keeps the agent it began with
                    runtime.agents[state.agent] = _named(
                        built.agents.get(settings.agent or DEFAULT_AGENT, agent), state.agent
                    )
                if info is not None and settings.agent and settings.agent != info.agent:
                    await session.configure(agent=settings.agent)
                if state.model not in ("", settings.model, model.name):
                    await session.configure(model=model.name)
                yield OpenSession(session, runtime, agent, settings, built.library, tuple(notes), info is None)
    finally:
        close = getattr(model, "close", None)
        if close is not None:
            await close()


def _chosen(built: BuiltAgents, loaded: LoadedSettings, model: Model, info: SessionInfo | None) -> Agent:
    """The agent that was asked for, or whose session it is; a flag has the last word on model and instructions."""
    wanted, flagged = loaded.settings.agent or DEFAULT_AGENT, loaded.sources.get("model") == "command line"
    agents = {**built.without_model, **built.agents} if flagged else built.agents
    if wanted not in agents:
        why = "".join(f"\n  {problem}" for problem in built.problems if wanted in problem)
        raise NotFound(f"there is no agent {wanted!r}; there are: {', '.join(sorted(agents))}{why}")
    if info is not None:
        agent = agents.get(info.agent) or _named(agents[wanted], info.agent)
    else:
        agent = agents[wanted]
    if flagged and agent.model is not model:
        agent = replace(agent, model=model)
    if loaded.sources.get("system_prompt") == "command line":
        agent.instructions = built.agents[DEFAULT_AGENT].instructions
    return agent


def _unlimited(opened: OpenSession) -> Iterator[str]:
    """Say that a limit does nothing."""
    if opened.settings.max_cost is not None and has_unknown_price(opened.model):
        yield f"the price of {opened.model.name} is not known here, so max_cost may not stop it; max_tokens does"


def _nameless(args: argparse.Namespace, opened: OpenSession) -> Iterator[str]:
    """Say which patterns of the command line name no tool: a slip there leaves a tool allowed, or asked for."""
    tools = [tool for agent in opened.runtime.agents.values() for tool in agent.toolbox.values()]
    names = {name for tool in tools for name in (tool.name, *tool.aliases)}
    for flag in ("approve", "forbid"):
        patterns: list[str] = getattr(args, flag) or []
        for pattern in patterns:
            name = pattern.partition("(")[0]
            # A server's tools may be found only later; a glob may mean those of another place.
            if name in names or any(sign in name for sign in ("__", "*", "?", "[")):
                continue
            near = difflib.get_close_matches(name, names, 1)
            yield f"--{flag} {pattern}: no tool here has that name{f'; did you mean {near[0]}?' if near else ''}"


def _named(agent: Agent, name: str) -> Agent:
    """A session of an agent that is not known here is gone on with by one that is."""
    return replace(agent, name=name)


@asynccontextmanager
async def open_stored_session(args: argparse.Namespace, reference: str) -> AsyncGenerator[tuple[Session, SessionInfo]]:
    """A session to look at or to post to. Nothing is run here: whoever runs it, or the next one who does, reads it."""
    log = open_store(load_command_settings(args).settings)
    try:
        info = await find_session(log, reference)
        async with Runtime(log, [], recover=False) as runtime:
            yield Session(runtime.coordinator, Agent(name=info.agent), info.id), info
    finally:
        await log.close()


def _there(args: argparse.Namespace, info: SessionInfo, last: str) -> LoadedSettings:
    """The settings where the session lives: its own folder's file narrows it, and it keeps the model it had last."""
    home = Path(info.workspace or ".")
    if args.workspace is not None and Path(args.workspace).expanduser().absolute() != home:
        raise BadInput(f"session {info.id[:12]} works in {home}; leave --workspace out, or start a new session")
    if not home.is_dir():
        raise BadInput(f"session {info.id[:12]} works in {home}, which is not there any more; nothing was started")
    loaded = load_command_settings(args, workspace=str(home))
    if args.model is None and (":" in last or last == "local" or (last and loaded.settings.base_url)):
        return load_command_settings(args, workspace=str(home), model=last)
    return loaded
