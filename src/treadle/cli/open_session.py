"""Open a session for a command: settings, store, model, agent and runtime. Close them in the right order."""

from __future__ import annotations

import argparse
import difflib
import shlex
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import to_builtins

from treadle import Agent, Runtime, Session
from treadle.agent import Gate, SessionOptions
from treadle.app.compose import OpenRuntime, find_model, has_unknown_price, open_runtime, open_store
from treadle.app.root_user import check_root
from treadle.app.session_access import find_access, restore_access
from treadle.app.session_worktree import WORKTREE_NOTE, Worktree, read_worktree, start_session_worktree
from treadle.app.settings import LoadedSettings, Settings
from treadle.cli import console
from treadle.cli.find_session import find_session, open_command_store
from treadle.cli.hooks import offer_trust
from treadle.errors import BadInput, NotFound
from treadle.events import SessionConfigured, SessionCreated, Tier
from treadle.log.base import Log, SessionInfo
from treadle.models.base import Model
from treadle.secrets.keyring import Keyring

DEFAULT_AGENT = "default"


@dataclass(slots=True)
class OpenSession:
    """An open session and the objects it runs with. `notes` are messages for the user about this setup.

    `model_reason` says why this model was chosen. `worktree` is the session's own branch and folder, if it has one.
    `access` is what it may do at its next call.
    """

    session: Session
    runtime: Runtime
    agent: Agent
    settings: Settings
    model: Model
    notes: tuple[str, ...]
    is_new: bool
    model_reason: str = ""
    worktree: Worktree | None = None
    access: Tier = "sandbox"


async def open_session(
    stack: AsyncExitStack,
    args: argparse.Namespace,
    loaded: LoadedSettings,
    gate: Gate,
    keyring: Keyring,
    *,
    follow_up: bool = False,
) -> OpenSession:
    """Open the session that `--session` names, or create one named by `--name`. `stack` closes it."""
    advice = check_root(is_allowed=loaded.settings.allow_root)  # before root owns files of the store
    log = await stack.enter_async_context(open_store(loaded.settings))
    info = await _find_or_create(log, args) if args.session else None
    async with AsyncExitStack() as creating:  # it removes a new worktree again if the session cannot be opened
        worktree, notes = None, list(filter(None, [advice]))
        if info is not None:
            facts = await log.read(info.id)
            models = [fact.model for fact in facts if isinstance(fact, SessionCreated | SessionConfigured)]
            worktree = read_worktree(facts)
            loaded = _apply_session(args, loaded, info, next(filter(None, reversed(models)), ""), worktree)
        elif args.worktree_name is not None:
            started = await creating.enter_async_context(start_session_worktree(loaded.settings, args.worktree_name))
            worktree, notes = started.worktree, [*notes, started.note]
            loaded = loaded.apply_flags(workspace=worktree.repository, worktree=worktree.folder)
        settings = loaded.settings
        await offer_trust(settings)
        opened = await open_runtime(stack, settings, log, keyring, recover=False, follow_up=follow_up)
        agent = _choose_agent(opened, loaded, info)
        opened.runtime.agents[agent.name] = agent
        opened.runtime.resolve_model = lambda name: find_model(name, settings, keyring)
        options: SessionOptions = {"workspace": settings.folder, "gate": gate}
        if info is not None:
            options["id"] = info.id
        else:
            options["new"], options["name"] = True, args.name
        runtime = await stack.enter_async_context(opened.runtime)
        session = await stack.enter_async_context(runtime.session(agent.name, **options))
        if worktree is not None and info is None:
            await session.note(WORKTREE_NOTE, to_builtins(worktree))
    await _configure_session(session, opened, settings, info)
    if info is not None:
        flag = settings.access if loaded.sources.get("access") == "command line" else None
        notes += filter(None, [await restore_access(runtime, session.id, flag)])
    notes = [*loaded.ignored, *notes, *opened.notes]
    model = agent.resolve_model()
    if settings.max_cost is not None and has_unknown_price(model):
        notes.append(f"the price of {model.name} is unknown, so max_cost may not stop it; use max_tokens")
    notes += _find_unknown_tools(args, runtime)
    reason, access = opened.model_reason, await find_access(runtime, session.id)
    return OpenSession(session, runtime, agent, settings, model, tuple(notes), info is None, reason, worktree, access)


async def _configure_session(
    session: Session, opened: OpenRuntime, settings: Settings, info: SessionInfo | None
) -> None:
    """Apply the requested agent and model to the session. A runtime that lacks the session's agent gets one."""
    state, agents = await session.state(), opened.runtime.agents
    if state.agent not in agents:  # an active run keeps the agent it started with
        default = opened.built.agents.get(settings.agent or DEFAULT_AGENT, session.agent)
        agents[state.agent] = replace(default, name=state.agent)
    if info is not None and settings.agent and settings.agent != info.agent:
        await session.configure(agent=settings.agent)
    if state.model not in ("", settings.model, opened.model.name):
        await session.configure(model=opened.model.name)


async def _find_or_create(log: Log, args: argparse.Namespace) -> SessionInfo | None:
    """Find the session of `--session`. `treadle run` offers to create one of that name: None, with `name` set."""
    try:
        return await find_session(log, args.session)
    except NotFound as error:
        if getattr(args, "objective", None) is None:
            raise
        if console.is_terminal(sys.stdin) and console.is_terminal(sys.stderr):
            if await console.confirm(f"there is no session {args.session!r}; create it?"):
                args.name = args.session
                return None
        raise NotFound(f"{error}; --name {shlex.quote(args.session)} creates one of that name") from None


def _choose_agent(opened: OpenRuntime, loaded: LoadedSettings, info: SessionInfo | None) -> Agent:
    """Choose the requested agent, or the agent of the session. Flags override its model and instructions."""
    built, model = opened.built, opened.model
    name, has_model_flag = loaded.settings.agent or DEFAULT_AGENT, loaded.sources.get("model") == "command line"
    agents = {**built.without_model, **built.agents} if has_model_flag else built.agents
    if name not in agents:
        why = "".join(f"\n  {problem}" for problem in built.problems if name in problem)
        raise NotFound(f"there is no agent {name!r}; there are: {', '.join(sorted(agents))}{why}")
    agent = agents[name]
    if info is not None:  # the requested agent replaces an unknown one
        agent = agents.get(info.agent) or replace(agent, name=info.agent)
    if has_model_flag and agent.model is not model:
        agent = replace(agent, model=model)
    if loaded.sources.get("system_prompt") == "command line":
        agent.instructions = built.agents[DEFAULT_AGENT].instructions
    return agent


def _find_unknown_tools(args: argparse.Namespace, runtime: Runtime) -> Iterator[str]:
    """Name the command-line patterns that match no tool. A pattern with a typing error has no effect."""
    tools = [tool for agent in runtime.agents.values() for tool in agent.toolbox.values()]
    names = {name for tool in tools for name in (tool.name, *tool.aliases)}
    for flag in ("approve", "forbid"):
        patterns: list[str] = getattr(args, flag) or []
        for pattern in patterns:
            name = pattern.partition("(")[0]
            # An MCP server may report its tools later, and a glob may be for another workspace.
            if name in names or any(mark in name for mark in ("__", "*", "?", "[")):
                continue
            near = difflib.get_close_matches(name, names, 1)
            yield f"--{flag} {pattern}: no tool has this name{f'; did you mean {near[0]}?' if near else ''}"


@asynccontextmanager
async def open_stored_session(args: argparse.Namespace, reference: str) -> AsyncGenerator[tuple[Session, SessionInfo]]:
    """Open a session to read it or post to it. It does not run here: the process that runs it reads the posts."""
    async with open_command_store(args) as log:
        info = await find_session(log, reference)
        async with Runtime(log, [], recover=False) as runtime:
            yield Session(runtime.coordinator, Agent(name=info.agent), info.id), info


def _apply_session(
    args: argparse.Namespace, loaded: LoadedSettings, info: SessionInfo, last_model: str, worktree: Worktree | None
) -> LoadedSettings:
    """Apply the settings of the session: the file of its own workspace, and the model it used last."""
    folder = Path(info.workspace or ".")
    workspace = Path(worktree.repository) if worktree is not None else folder
    if args.workspace is not None and Path(args.workspace).expanduser().absolute() not in (folder, workspace):
        raise BadInput(f"session {info.id[:12]} works in {folder}; remove --workspace, or start a new session")
    if not folder.is_dir():
        raise BadInput(f"session {info.id[:12]} works in {folder}, which does not exist any more; nothing was started")
    if worktree is not None:
        loaded = loaded.apply_flags(workspace=str(workspace), worktree=str(folder))
    elif args.workspace is None:
        loaded = loaded.apply_flags(workspace=str(folder))
    has_provider = ":" in last_model or last_model == "local" or (last_model and loaded.settings.base_url)
    if args.model is None and has_provider:
        return loaded.apply_flags(model=last_model)
    return loaded
