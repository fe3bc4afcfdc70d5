"""Exchanges are recorded without secrets and played back to the byte; recordings of odd cases are tests."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.clients import ADD, ECHO, ask, build_model, chat_model, collect_failure, collect_reply
from tests.kit.fakes.server import Odd, status
from treadle import Agent
from treadle.errors import ModelError
from treadle.messages import Reply
from treadle.models.anthropic_messages import AnthropicMessages
from treadle.models.catalog import resolve_model
from treadle.models.chat_completions import ChatCompletions, Quirks
from treadle.models.ollama_chat import OllamaChat
from treadle.models.openai_responses import OpenAIResponses
from treadle.testing.recording import load, record, replay

RECORDINGS = sorted((Path(__file__).parent / "recordings").glob("*.json"))
WIRES: dict[str, Any] = {
    "chat": ChatCompletions("fake", "m"),
    "chat-replaying": ChatCompletions("fake", "m", Quirks(replays_reasoning=True)),
    "anthropic": AnthropicMessages("fake", "m"),
    "responses": OpenAIResponses("fake", "m"),
    "ollama": OllamaChat("fake", "m"),
}


async def test_exchanges_of_text_or_bytes_are_recorded_without_their_key_and_play_back(tmp_path: Path) -> None:
    file = tmp_path / "exchange.json"
    script = [Reply(text="größer ✓"), status(429, "key sk-test is slow", retry_after="7"), Odd(raw=b"\xff\xfe")]
    async with StrictChat(script) as fake, record(fake.base_url, file, about="a greeting") as base_url:
        model = chat_model(base_url)
        first = await collect_reply(model, ask("hi"))
        for _ in range(2):
            await collect_failure(model)
        await model.close()
    text = file.read_text("utf-8")
    assert "sk-test" not in text and "[secret]" in text
    recorded = load(file).exchanges
    assert [exchange.status for exchange in recorded] == [200, 429, 200] and recorded[2].raw == b"\xff\xfe"
    async with replay(file, exact=True) as base_url:
        model = chat_model(base_url)
        assert await collect_reply(model, ask("hi")) == first
        error = await collect_failure(model)
        assert (error.kind, error.retry_after) == ("overloaded", 7.0)
        await collect_failure(model)
        assert "the recording has ended" in str(await collect_failure(model))
        await model.close()


async def test_an_exchange_that_ends_with_an_error_is_recorded(tmp_path: Path) -> None:
    file = tmp_path / "refused.json"
    with pytest.raises(ModelError, match="slow down"):
        async with StrictChat([status(429, "slow down")]) as fake, record(fake.base_url, file) as base_url:
            await collect_reply(chat_model(base_url), ask("hi"))
    assert [exchange.status for exchange in load(file).exchanges] == [429]


async def test_a_missing_provider_is_an_error_and_keeps_the_old_recording(tmp_path: Path) -> None:
    file = tmp_path / "older.json"
    file.write_text("an older recording")
    async with StrictChat() as fake:
        gone = fake.base_url
    async with record(gone, file) as base_url:
        assert "127.0.0.1 gave no answer" in str(await collect_failure(chat_model(base_url)))
    assert file.read_text() == "an older recording"


@pytest.mark.parametrize("version", ["", "/v1"])
async def test_an_exchange_is_recorded_with_any_form_of_base_url(
    tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_KEY", "sk-test")
    file = tmp_path / "exchange.json"
    async with StrictChat([Reply(text="Hello.")]) as fake:
        assert fake.base_url.endswith("/v1")
        async with record(fake.base_url.removesuffix("/v1") + version, file) as base_url:
            model = resolve_model("some-model", base_url=base_url, api_key_env="FAKE_KEY")
            assert await Agent(model).ask("Hi") == "Hello."
    assert [exchange.path for exchange in load(file).exchanges] == ["/v1/models", "/v1/chat/completions"]
    async with replay(file) as base_url:
        assert await Agent(resolve_model("some-model", base_url=base_url)).ask("Hi") == "Hello."
    async with replay(file) as base_url:  # this model does not ask for its window first
        assert await Agent(chat_model(base_url)).ask("Hi") == "Hello."


async def test_an_exact_replay_refuses_another_request(tmp_path: Path) -> None:
    file = tmp_path / "exchange.json"
    async with StrictChat() as fake, record(fake.base_url, file) as base_url:
        await collect_reply(chat_model(base_url), ask("hi"))
    async with replay(file, exact=True) as base_url:
        error = await collect_failure(chat_model(base_url), ask("something else"))
        assert "not the request that was recorded" in str(error)
        assert error.kind == "bad_request", "it is not tried again"
    async with replay(file) as base_url:
        assert (await collect_reply(chat_model(base_url), ask("something else"))).text == "done"


@pytest.mark.parametrize("file", RECORDINGS, ids=[file.stem for file in RECORDINGS])
async def test_a_recorded_exchange_gives_the_expected_reply(file: Path) -> None:
    recording = load(file)
    assert recording.about
    expected = {name: msgspec.json.decode(value) for name, value in recording.expect.items()}
    async with replay(recording) as base_url:
        model = build_model(base_url, WIRES[recording.protocol])
        try:
            reply = await collect_reply(model, ask("hi", tools=(ADD, ECHO)))
        except ModelError as error:
            got: dict[str, Any] = {"error": error.kind, "retryable": error.retryable, "partial": error.partial}
            got |= {"retry_after": error.retry_after, "message": str(error)}
        else:
            got = msgspec.structs.asdict(reply)
            got["calls"] = [[call.tool, call.arguments] for call in reply.calls]
            got["usage"] = {name: getattr(reply.usage, name) for name in expected.get("usage", {})}
            got["opaque"] = json.loads(reply.opaque) if reply.opaque else None
        await model.close()
    for name, value in expected.items():
        if name == "message":
            assert value in got["message"]
        else:
            assert got.get(name) == value, name


def test_every_protocol_has_recordings() -> None:
    protocols = {load(file).protocol for file in RECORDINGS}
    assert protocols == WIRES.keys()
