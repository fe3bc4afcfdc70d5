"""Chooses the model when none is named: the first that works and can call tools, and the reason for it."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple

from treadle.errors import BadInput, NotFound
from treadle.messages import Request
from treadle.models.base import Model, ModelEvent, Summarizer, TokenCounter
from treadle.models.catalog import open_embedded_model, resolve_model
from treadle.models.providers import PROVIDERS
from treadle.models.remote import (
    ListedModel,
    RemoteModel,
    ToolProbe,
    probe_llama_server_tools,
    probe_lm_studio_tools,
    probe_ollama_tools,
)
from treadle.secrets.keyring import Keyring

_SERVERS: Mapping[str, tuple[str, ToolProbe]] = {
    "ollama": ("/api/tags", probe_ollama_tools),
    "llamacpp": ("/v1/models", probe_llama_server_tools),
    "lmstudio": ("/v1/models", probe_lm_studio_tools),
}
"""The local servers, where each lists its models, and what asks it whether a model can call tools."""
_PROBE_SECONDS = 0.5
NO_MODEL_ADVICE = (
    "Set ANTHROPIC_API_KEY or OPENAI_API_KEY, start a local server such as Ollama, or name a model: "
    'Agent("ollama:NAME"), --model ollama:NAME or TREADLE_MODEL=ollama:NAME'
)


class ChosenModel(NamedTuple):
    """The model that was chosen, and the reason."""

    model: Model
    reason: str


async def choose_model(*, keyring: Keyring | None = None) -> ChosenModel:
    """The first model that works. Raises `NotFound` with a list of attempts when there is none.

    A model that cannot call tools is chosen only where nothing else works.
    """
    tried: list[str] = []
    without_tools: list[str] = []
    if chosen := _choose_configured(tried, keyring):
        return chosen
    for provider, (path, probe) in _SERVERS.items():
        try:
            server = resolve_model(f"{provider}:any", keyring=keyring)
            assert isinstance(server, RemoteModel)
            models = await server.fetch_listed_models(path, probe=probe, from_root=True, timeout=_PROBE_SECONDS)
        except BadInput as error:  # a bad address in the environment: the next server may work
            tried.append(f"{provider}: {error}")
            continue
        if models and models[0].can_call_tools is not False:
            reason = f"{provider} is running on this machine and has {_describe_choice(models)}"
            return ChosenModel(resolve_model(f"{provider}:{models[0].name}", keyring=keyring), reason)
        without_tools += [f"{provider}:{model.name}" for model in models or ()]
        if not models:
            state = "is not running here" if models is None else "is running here without a model"
            tried.append(f"{provider} {state}")
    others = f"{', '.join(without_tools)} cannot call tools" if without_tools else "no local server was found"
    try:
        return ChosenModel(open_embedded_model(), f"using the embedded model: no API key is set, and {others}")
    except NotFound as error:
        tried.append(str(error))
    if without_tools:
        reason = f"nothing else was found, but {others}"
        return ChosenModel(resolve_model(without_tools[0], keyring=keyring), reason)
    raise NotFound(f"no model was found: {'; '.join(tried)}. {NO_MODEL_ADVICE}")


def _describe_choice(models: Sequence[ListedModel]) -> str:
    """Name the first model, and say what the server says about tools."""
    first, *others = models
    if first.can_call_tools is None:
        return first.name
    unable = [model.name for model in others if model.can_call_tools is False]
    more = f" ({', '.join(unable[:5])} cannot)" if unable else ""
    return f"{first.name}, which {'can' if first.can_call_tools else 'cannot'} call tools{more}"


def _choose_configured(tried: list[str], keyring: Keyring | None) -> ChosenModel | None:
    """The model that the environment names. Nothing is sent."""
    if name := os.environ.get("TREADLE_MODEL", "").strip():
        return ChosenModel(resolve_model(name, keyring=keyring), "TREADLE_MODEL names it")
    for provider in ("anthropic", "openai"):
        row = PROVIDERS[provider]
        try:
            model = resolve_model(f"{provider}:{row.default_model}", keyring=keyring)
        except BadInput:
            tried.append(f"{row.key_variables[0]} is not set")
        else:
            return ChosenModel(model, f"{row.key_variables[0]} is set")
    return None


class DefaultModel:
    """A model that is chosen when it is first needed. `reason` says why it was this one."""

    def __init__(
        self, *, base_url: str | None = None, api_key_env: str | None = None, keyring: Keyring | None = None
    ) -> None:
        self._base_url = base_url
        self._api_key_env = api_key_env
        self._keyring = keyring
        self._chosen: ChosenModel | None = None if base_url else _choose_configured([], keyring)

    @property
    def name(self) -> str:
        return self._chosen.model.name if self._chosen is not None else "auto"

    @property
    def window(self) -> int | None:
        return self._chosen.model.window if self._chosen is not None else None

    @property
    def reason(self) -> str:
        return self._chosen.reason if self._chosen is not None else ""

    @property
    def can_summarize(self) -> bool:
        model = self._chosen.model if self._chosen is not None else None
        return model.can_summarize if isinstance(model, Summarizer) else True

    async def resolve(self) -> Model:
        """The chosen model."""
        if self._chosen is None:
            self._chosen = await (
                self._choose_listed(self._base_url) if self._base_url else choose_model(keyring=self._keyring)
            )
        return self._chosen.model

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]:
        model = await self.resolve()
        async with aclosing(model.stream(request)) as events:
            async for event in events:
                yield event

    async def count_tokens(self, request: Request) -> int | None:
        model = await self.resolve()
        return await model.count_tokens(request) if isinstance(model, TokenCounter) else None

    async def close(self) -> None:
        if self._chosen is not None:
            await self._chosen.model.close()

    async def _choose_listed(self, base_url: str) -> ChosenModel:
        """The first model that the server at `base_url` lists, or the first of those that can call tools."""
        server = resolve_model("any", base_url=base_url, api_key_env=self._api_key_env, keyring=self._keyring)
        assert isinstance(server, RemoteModel)
        models = await server.fetch_listed_models()
        if not models:
            raise NotFound(f"{server.endpoint.address} lists no models — name one")
        model = resolve_model(models[0].name, base_url=base_url, api_key_env=self._api_key_env, keyring=self._keyring)
        return ChosenModel(model, f"{server.endpoint.address} lists {_describe_choice(models)}")
