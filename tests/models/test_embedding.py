"""Vectors from a server that has `/embeddings`, and a clear error from one that has none."""

import json
from typing import Any

import pytest

from tests.kit.fakes.anthropic import StrictAnthropic
from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.clients import anthropic_model, chat_model
from tests.kit.fakes.server import Odd
from treadle.app.compose import build_embedding
from treadle.app.settings import Settings
from treadle.errors import BadInput, ModelError, NotFound
from treadle.models.base import Embeddings
from treadle.models.embeddings import Embedding, resolve_embedding
from treadle.testing import ScriptedModel


class Vectors(StrictChat):
    """Gives the length of each text as its vector, the last first; `odd` is what it gives instead."""

    odd: Any = None

    def _answer(self, method: str, path: str, headers: dict[str, str], raw: bytes) -> Odd:
        if path != "/v1/embeddings" or not self.is_authorised(headers):
            return super()._answer(method, path, headers, raw)
        texts = json.loads(raw)["input"]
        data = [{"index": place, "embedding": [float(len(text))]} for place, text in enumerate(texts)]
        return Odd(raw=json.dumps(self.odd or {"data": data[::-1]}).encode(), content_type="application/json")


async def test_each_text_gets_its_own_vector_in_any_order() -> None:
    async with Vectors() as fake:
        assert await Embedding(chat_model(fake, "small"))(["a", "bcd"]) == [[1.0], [3.0]]
        assert fake.seen[-1].body == {"model": "small", "input": ["a", "bcd"]}
        unversioned = chat_model(fake.base_url.removesuffix("/v1"), "small")  # as Ollama's address is written
        assert (await unversioned.embed(["ab"])).vectors == [[2.0]]


@pytest.mark.parametrize("odd", [{"data": []}, {"data": [{"index": 7, "embedding": [1.0]}]}, {"error": "no"}, ["?"]])
async def test_an_invalid_embeddings_response_is_an_error(odd: Any) -> None:
    vectors = Vectors()
    vectors.odd = odd
    async with vectors as fake:
        with pytest.raises(ModelError, match="gives no embeddings"):
            await chat_model(fake).embed(["a"])


async def test_a_server_without_embeddings_is_an_error() -> None:
    async with StrictAnthropic() as fake:
        with pytest.raises(ModelError, match="gives no embeddings"):
            await anthropic_model(fake).embed(["a"])


async def test_the_settings_choose_the_embedding_and_reuse_the_chosen_model(monkeypatch: pytest.MonkeyPatch) -> None:
    class Both(ScriptedModel):
        async def embed(self, inputs: Any, dimensions: int | None = None) -> Embeddings:
            return Embeddings([[1.0] for _ in inputs])

    assert build_embedding(Settings(), Both(name="both")) is None
    found = build_embedding(Settings(embed_model="both"), Both(name="both"))
    assert found is not None and await found(["a"]) == [[1.0]]
    monkeypatch.setenv("TEST_KEY", "sk-test")
    async with Vectors() as fake:
        named = Settings(model="m", embed_model="vectors", base_url=fake.base_url, api_key_env="TEST_KEY")
        found = build_embedding(named, Both(name="m"))
        assert found is not None and await found(["abc"]) == [[3.0]]


def test_an_impossible_embedding_is_refused_at_once() -> None:
    with pytest.raises(NotFound, match="nonsense"):
        resolve_embedding("nonsense")
    with pytest.raises(BadInput, match="gives no embeddings"):
        Embedding(ScriptedModel())
    assert resolve_embedding("ollama:nomic", base_url="http://127.0.0.1:9/v1").name == "ollama:nomic"
