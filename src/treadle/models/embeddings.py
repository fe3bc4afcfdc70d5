"""Resolves an embedding model by its name, for memory: the embedded one, or one of a server with `/embeddings`.

Few chat models have vectors, so this is no part of the model port.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.errors import BadInput
from treadle.models.base import Embedder, Model
from treadle.models.catalog import resolve_model
from treadle.models.providers import PROVIDERS
from treadle.secrets.keyring import Keyring


class Embedding:
    """Vectors from one model. Nothing is loaded or sent before the first text."""

    def __init__(self, model: Model) -> None:
        if not isinstance(model, Embedder):
            raise BadInput(f"{model.name} gives no embeddings — name a model that does, such as local")
        self.name = model.name
        self._model = model

    async def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        return (await self._model.embed(texts)).vectors


def resolve_embedding(
    name: str, *, base_url: str | None = None, api_key_env: str | None = None, keyring: Keyring | None = None
) -> Embedding:
    """The embedding of that name. The base URL is for a name without a provider."""
    if name.partition(":")[0] in (*PROVIDERS, "local"):
        base_url = api_key_env = None
    return Embedding(resolve_model(name, base_url=base_url, api_key_env=api_key_env, keyring=keyring))
