"""Compose a runtime from the adapters that the settings name. No other module does this."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from treadle.app.settings import Settings, data_folder
from treadle.errors import BadInput, TreadleError
from treadle.events import Progress
from treadle.secrets.keyring import Keyring, forbid_memory_inspection

if TYPE_CHECKING:
    from treadle.app.workspace_knowledge import BuiltAgents
    from treadle.log.base import Log, SessionInfo
    from treadle.memory.base import Embed
    from treadle.models.base import Model
    from treadle.models.local.local_model import LocalModel
    from treadle.permissions.saved_rules import RuleBook
    from treadle.runtime import Runtime
    from treadle.tools.base import Tool
    from treadle.tools.mcp.connection import McpHealth
    from treadle.tools.mcp.servers import McpServers

_KEY_VARIABLE = "TREADLE_API_KEY"


class RuntimeOptions(TypedDict, total=False):
    """How a runtime starts and ends: see `Runtime`.

    With `follow_up`, which is the default, it names sessions and drafts skills after an answer, if the settings enable
    it. Without `needs_model` it also starts when no model can be used: its agents then wait for one. `roots` count
    where several machines share the store. The folder of worktrees is one of them.
    """

    recover: bool
    grace: float
    roots: Sequence[Path]
    follow_up: bool
    needs_model: bool


@dataclass(frozen=True, slots=True)
class OpenRuntime:
    """A runtime that is not started yet, and its components. `notes` tell the user what is missing."""

    runtime: Runtime
    model: Model
    model_reason: str
    built: BuiltAgents
    rules: RuleBook
    list_mcp: Callable[[], Sequence[McpStatus]]
    notes: tuple[str, ...]


async def open_runtime(
    stack: AsyncExitStack, settings: Settings, log: Log, keyring: Keyring, **options: Unpack[RuntimeOptions]
) -> OpenRuntime:
    """Compose a runtime from the log and from the model, tools and agents that the settings name.

    Entering its `runtime` starts it. `stack` closes the model and the MCP servers.
    """
    from treadle.app.workspace_knowledge import build_agents
    from treadle.permissions.saved_rules import RuleBook
    from treadle.runtime import Runtime, name_session

    keyring.take(filter(None, [settings.api_key_env]))
    try:
        model, reason = await choose_model(settings, keyring)
    except TreadleError as error:
        if options.get("needs_model", True):
            raise
        from treadle.app.absent_model import AbsentModel

        model, reason = AbsentModel(str(error)), str(error)
    stack.push_async_callback(model.close)
    log.memories.embed = build_embedding(settings, model, keyring)
    mcp_tools: list[Tool] = []
    down: list[McpHealth] = []
    list_mcp: Callable[[], Sequence[McpStatus]] = list
    if settings.mcp:
        servers = await stack.enter_async_context(_create_mcp_servers(settings))
        mcp_tools = await servers.list_tools()
        list_mcp = partial(list_mcp_status, servers)
        down = [one for one in servers.get_health() if one.state == "down"]
    rules = RuleBook(data_folder(), [settings.folder, *([Path(settings.workspace)] if settings.worktree else [])])
    rules.list_rules()  # a file that cannot be read is said now, and not in the middle of a run
    built = build_agents(settings, model, mcp_tools, keyring)
    recover, grace = options.get("recover", True), options.get("grace", 0.0)
    roots = [*options.get("roots", [settings.folder]), settings.worktree_parent] if log.is_shared else None
    agents = list(built.agents.values())
    runtime = Runtime(log, agents, recover=recover, lease=settings.lease, grace=grace, roots=roots)
    runtime.apply_rules = rules.apply
    follow_up = options.get("follow_up", True)
    if follow_up and settings.auto_name:
        runtime.after_answer.append(name_session)
    if follow_up and settings.skill_autogen:
        from treadle.app.skill_drafter import SkillDrafter

        runtime.after_answer.append(SkillDrafter(built.knowledge))
    notes = [f"the MCP server {one.server} does not run, so its tools are missing: {one.error}" for one in down]
    return OpenRuntime(runtime, model, reason, built, rules, list_mcp, (*notes, *built.problems))


@dataclass(frozen=True, slots=True)
class McpStatus:
    """The state of an MCP server, its last error, and the names of its tools."""

    name: str
    status: str
    error: str
    tools: tuple[str, ...]


def list_mcp_status(servers: McpServers) -> list[McpStatus]:
    """List the states of MCP servers."""
    names = servers.list_tool_names()
    return [McpStatus(one.server, one.state, one.error, tuple(names[one.server])) for one in servers.get_health()]


async def check_mcp_servers(settings: Settings) -> list[McpHealth]:
    """Start the MCP servers that the settings name, check their health, and stop them again."""
    async with _create_mcp_servers(settings) as servers:
        await servers.list_tools()
        return servers.get_health()


def _create_mcp_servers(settings: Settings) -> McpServers:
    from treadle.tools.mcp.server_config import read_mcp_servers
    from treadle.tools.mcp.servers import McpServers

    return McpServers(read_mcp_servers(settings.mcp), known=data_folder() / "mcp_tools.json")


def find_default_tools() -> dict[str, Tool]:
    """Build the ready-made tools by name, to describe a call of one."""
    from treadle.tools.builtin import build_default_tools

    return {tool.name: tool for tool in build_default_tools()}


def open_store(settings: Settings, *, read_only: bool = False) -> Log:
    """Open the log that the settings name. Close it, or use it with `async with`. For `read_only` see `open_log`."""
    from treadle.log.open_log import open_log

    return open_log(settings.store_location, read_only=read_only)


def is_abandoned(info: SessionInfo) -> bool:
    """Whether a session is marked as running, but its owner is gone, or has no owner and is not parked."""
    from treadle.log.owner import is_gone

    return info.status == "running" and not info.is_parked(time.time()) and (not info.owner or is_gone(info.owner))


async def choose_model(settings: Settings, keyring: Keyring | None = None) -> tuple[Model, str]:
    """Choose the model that the settings name, or the first that works. Return it and the reason."""
    from treadle.models.default_model import DefaultModel

    model, reason = find_model(settings.model, settings, keyring or Keyring()), ""
    if isinstance(model, DefaultModel):
        model, reason = await model.resolve(), model.reason
    if (local := _find_embedded_model(model)) is not None:
        local.keep_loaded = settings.keep_loaded
    return model, reason


def find_model(name: str, settings: Settings, keyring: Keyring) -> Model:
    """Find the model of a name, at the address of the settings. Their key is for that address or provider only."""
    from treadle.models.catalog import resolve_model

    provider = settings.model.partition(":")[0]
    is_own = bool(settings.base_url) or name.partition(":")[0] == provider
    variable = _find_key_variable(settings, keyring) if is_own else ""
    return resolve_model(
        name or None, base_url=settings.base_url or None, api_key_env=variable or None, keyring=keyring
    )


def has_unknown_price(model: Model) -> bool:
    """Whether a model may cost money and its price is unknown."""
    from urllib.parse import urlsplit

    from treadle.models.model_info import find_model_info
    from treadle.models.remote import RemoteModel

    if not isinstance(model, RemoteModel) or find_model_info(model.name) is not None:
        return False
    return urlsplit(model.endpoint.base_url).hostname not in ("localhost", "127.0.0.1", "::1")


def build_embedding(settings: Settings, model: Model | None = None, keyring: Keyring | None = None) -> Embed | None:
    """Build the embedding that finds memories by meaning, if the settings name one. Reuse `model` if it is the same."""
    if not settings.embed_model:
        return None
    from treadle.models.embeddings import Embedding, resolve_embedding

    if model is not None and model.name == settings.embed_model:
        return Embedding(model)
    keyring = keyring or Keyring()
    return resolve_embedding(
        settings.embed_model,
        base_url=settings.base_url or None,
        api_key_env=_find_key_variable(settings, keyring) or None,
        keyring=keyring,
    )


def set_progress_listener(model: Model, listener: Callable[[Progress], None]) -> None:
    """Report the progress of loading a model to `listener`, in this event loop. Only the embedded model reports any."""
    if (local := _find_embedded_model(model)) is not None:
        loop = asyncio.get_running_loop()

        def report_progress(message: str, done: float, total: float) -> None:  # called in another thread
            loop.call_soon_threadsafe(listener, Progress(message, done=done, total=total))

        local.progress = report_progress


def _find_embedded_model(model: Model) -> LocalModel | None:
    """Return `model` if it is an embedded one. Its module is imported only then."""
    if model.name.partition(":")[0] != "local":
        return None
    from treadle.models.local.local_model import LocalModel

    return model if isinstance(model, LocalModel) else None


def open_keyring(settings: Settings) -> Keyring:
    """Take the keys out of the environment, so that no child process and no other process sees them.

    A program does this once, at its start, and passes the keyring on: it cannot be undone.
    """
    from treadle.models.providers import list_key_variables

    keyring = Keyring()
    keyring.take([*list_key_variables(), *filter(None, [settings.api_key_env])])
    forbid_memory_inspection()
    return keyring


def _find_key_variable(settings: Settings, keyring: Keyring) -> str:
    """Find the variable that holds the key. A key from a file gets a variable that only the keyring knows."""
    if not settings.api_key_file:
        return settings.api_key_env
    file = Path(settings.api_key_file).expanduser()
    try:
        keyring.add(_KEY_VARIABLE, file.read_text("utf-8").strip())
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"api_key_file: {file} cannot be read: {error}") from None
    return _KEY_VARIABLE
