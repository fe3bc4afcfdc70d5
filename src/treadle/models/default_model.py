"""Chooses the model when none is named: the first that works, and the reason for it."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import NamedTuple

from treadle.errors import BadInput, NotFound
from treadle.messages import Request
from treadle.models.base import Model, ModelEvent, Summarizer
from treadle.models.catalog import open_embedded_model, resolve_model
from treadle.models.providers import PROVIDERS
from treadle.models.remote import RemoteModel
from treadle.secrets.keyring import Keyring

_SERVERS: Mapping[str, str] = {"ollama": "/api/tags", "llamacpp": "/v1/models", "lmstudio": "/v1/models"}
_PROBE_SECONDS = 0.5


class ChosenModel(NamedTuple):
    """The model that was chosen, and the reason."""

    model: Model
    reason: str


async def choose_model(*, keyring: Keyring | None = None) -> ChosenModel:
    """The first model that works. Raises `NotFound` with a list of attempts when there is none."""
    tried: list[str] = []
    if chosen := _choose_configured(tried, keyring):
        return chosen
    for provider, path in _SERVERS.items():
        try:
            server = resolve_model(f"{provider}:any", keyring=keyring)
            assert isinstance(server, RemoteModel)
            names = await server.fetch_model_names(path, from_root=True, timeout=_PROBE_SECONDS)
        except BadInput as error:  # a bad address in the environment: the next server may work
            tried.append(f"{provider}: {error}")
            continue
        if names:
            reason = f"{provider} is running on this machine and has {names[0]}"
            return ChosenModel(resolve_model(f"{provider}:{names[0]}", keyring=keyring), reason)
        state = "is not running here" if names is None else "is running here without a model"
        tried.append(f"{provider} {state}")
    try:
        return ChosenModel(open_embedded_model(), "using the embedded model: no API key and no local server were found")
    except NotFound as error:
        tried.append(str(error))
    raise NotFound(f"no model was found: {'; '.join(tried)}. Set a key, start a server, or name a model")


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

    async def close(self) -> None:
        if self._chosen is not None:
            await self._chosen.model.close()

    async def _choose_listed(self, base_url: str) -> ChosenModel:
        """The first model that the server at `base_url` lists."""
        server = resolve_model("any", base_url=base_url, api_key_env=self._api_key_env, keyring=self._keyring)
        assert isinstance(server, RemoteModel)
        names = await server.fetch_model_names()
        if not names:
            raise NotFound(f"{server.endpoint.address} lists no models — name one")
        model = resolve_model(names[0], base_url=base_url, api_key_env=self._api_key_env, keyring=self._keyring)
        return ChosenModel(model, f"{server.endpoint.address} lists it first")
