"""Which model to use when none is named: the first that works, and why this one."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import NamedTuple

from treadle.errors import BadInput, NotFound
from treadle.messages import Request
from treadle.models.base import Model, ModelEvent, SumsUp
from treadle.models.catalog import embedded, resolve
from treadle.models.http import Transport
from treadle.models.providers import PROVIDERS
from treadle.models.remote import RemoteModel, close
from treadle.models.window_sizes import listed_models

_SERVERS: Mapping[str, str] = {"ollama": "/api/tags", "llamacpp": "/v1/models", "lmstudio": "/v1/models"}
_PATIENCE = 0.5


class Choice(NamedTuple):
    """The model that was chosen, and why this one."""

    model: Model
    reason: str


async def choose(*, default: str | None = None) -> Choice:
    """The first model that works. Raises `NotFound`, with what was tried, when there is none."""
    tried: list[str] = []
    if choice := _configured(default, tried):
        return choice
    for provider, path in _SERVERS.items():
        try:
            names = await _reachable(provider, path)
        except BadInput as error:  # an address in the environment that is none: the next one may work
            tried.append(f"{provider}: {error}")
            continue
        if names:
            reason = f"{provider} is running on this machine and has {names[0]}"
            return Choice(resolve(f"{provider}:{names[0]}"), reason)
        what = "is not running here" if names is None else "is running here without a model"
        tried.append(f"{provider} {what}")
    try:
        return Choice(embedded(), "no key is set and no model server is running, so the embedded model it is")
    except NotFound as error:
        tried.append(str(error))
    raise NotFound(f"no model was found: {'; '.join(tried)}. Set a key, start a server, or name a model")


def _configured(default: str | None, tried: list[str]) -> Choice | None:
    """What can be told without asking anybody."""
    if name := default or os.environ.get("TREADLE_MODEL", "").strip():
        source = "the configuration names it" if default else "TREADLE_MODEL names it"
        return Choice(resolve(name), source)
    for provider in ("anthropic", "openai"):
        row = PROVIDERS[provider]
        try:
            model = resolve(f"{provider}:{row.default}")
        except BadInput:
            tried.append(f"{row.key[0]} is not set")
        else:
            return Choice(model, f"{row.key[0]} is set")
    return None


async def _reachable(provider: str, path: str) -> list[str] | None:
    """The models of a server on this machine, or None when there is no such server."""
    model = resolve(f"{provider}:any")
    assert isinstance(model, RemoteModel)
    transport = Transport(model.endpoint)
    try:
        listed = await transport.ask(path, timeout=_PATIENCE)
    finally:
        await transport.close()
    return None if listed is None else listed_models(listed)


class Routed:
    """A model that is chosen when it is first needed; `reason` says why it was this one."""

    def __init__(self, *, base_url: str | None = None, api_key_env: str | None = None) -> None:
        self._base_url = base_url
        self._api_key_env = api_key_env
        self._chosen: Choice | None = None if base_url else _configured(None, [])

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
    def sums_up(self) -> bool:
        model = self._chosen.model if self._chosen is not None else None
        return model.sums_up if isinstance(model, SumsUp) else True

    async def chosen(self) -> Model:
        """The model that stands behind this one."""
        if self._chosen is None:
            self._chosen = await (self._of_server(self._base_url) if self._base_url else choose())
        return self._chosen.model

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]:
        model = await self.chosen()
        async with aclosing(model.stream(request)) as events:
            async for event in events:
                yield event

    async def close(self) -> None:
        if self._chosen is not None:
            await close(self._chosen.model)

    async def _of_server(self, base_url: str) -> Choice:
        probe = resolve("any", base_url=base_url, api_key_env=self._api_key_env)
        assert isinstance(probe, RemoteModel)
        transport = Transport(probe.endpoint)
        try:
            names = listed_models(await transport.ask("/models", root=False))
        finally:
            await transport.close()
        if not names:
            raise NotFound(f"{probe.endpoint.where} lists no models — name one")
        model = resolve(names[0], base_url=base_url, api_key_env=self._api_key_env)
        return Choice(model, f"{probe.endpoint.where} lists it first")
