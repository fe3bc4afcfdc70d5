"""Names are resolved to models. Errors name the missing key or server, and no key is ever shown."""

import json
import sys
from typing import Any, ClassVar

import pytest

from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.clients import ask, collect_reply
from tests.kit.fakes.ollama import FakeOllama
from tests.kit.fakes.server import Odd
from treadle.app import diagnose as doctor
from treadle.errors import BadInput, NotFound
from treadle.messages import Reply
from treadle.models import catalog
from treadle.models import default_model as choose
from treadle.models.anthropic_messages import AnthropicMessages
from treadle.models.base import Model
from treadle.models.catalog import resolve_model
from treadle.models.chat_completions import ChatCompletions
from treadle.models.default_model import DefaultModel
from treadle.models.http import LOCAL_TIMEOUTS
from treadle.models.ollama_chat import OllamaChat
from treadle.models.openai_responses import OpenAIResponses
from treadle.models.providers import PROVIDERS, Provider
from treadle.models.remote import RemoteModel, read_tool_support


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in PROVIDERS.values():
        for name in (*row.key_variables, row.url_variable, "TREADLE_MODEL", "TREADLE_PRICES"):
            if name:
                monkeypatch.delenv(name, raising=False)


def resolve_remote(name: str, **options: Any) -> RemoteModel:
    model = resolve_model(name, **options)
    assert isinstance(model, RemoteModel)
    assert isinstance(model, Model)
    return model


@pytest.mark.parametrize(
    ("name", "wire", "host"),
    [
        ("openai:gpt-5.4", OpenAIResponses, "api.openai.com"),
        ("openai-chat:gpt-5.4", ChatCompletions, "api.openai.com"),
        ("anthropic:claude-sonnet-5-5", AnthropicMessages, "api.anthropic.com"),
        ("openrouter:meta/llama:free", ChatCompletions, "openrouter.ai"),
        ("mistral:mistral-large-latest", ChatCompletions, "api.mistral.ai"),
        ("ollama:llama3.2:3b", OllamaChat, "127.0.0.1:11434"),
        ("lmstudio:x", ChatCompletions, "127.0.0.1:1234"),
        ("llamacpp:x", ChatCompletions, "127.0.0.1:8080"),
    ],
)
def test_a_name_gives_provider_and_model(name: str, wire: type, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = name.partition(":")[0]
    for variable in PROVIDERS[provider].key_variables[:1]:
        monkeypatch.setenv(variable, "sk-hidden")
    model = resolve_remote(name)
    assert model.name == name
    assert isinstance(model._wire, wire)
    assert model.endpoint.address == host
    assert "sk-hidden" not in repr(model) + repr(model.endpoint) + repr(model._transport.endpoint)
    assert (model.endpoint.timeouts == LOCAL_TIMEOUTS) == host.startswith("127.")


def test_every_row_can_be_resolved_and_a_new_vendor_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROVIDERS, "acme", Provider(base_url="https://api.acme.test/v1", key_variables=("ACME_KEY",)))
    for provider, row in PROVIDERS.items():
        for variable in row.key_variables[-1:]:
            monkeypatch.setenv(variable, "k")
        assert resolve_remote(f"{provider}:some-model").name == f"{provider}:some-model"
    assert resolve_remote("acme:rocket-1").endpoint.address == "api.acme.test"


def test_a_missing_key_is_named() -> None:
    with pytest.raises(BadInput, match="OPENAI_API_KEY is not set"):
        resolve_model("openai:gpt-5")
    with pytest.raises(BadInput, match="GEMINI_API_KEY or GOOGLE_API_KEY"):
        resolve_model("gemini:gemini-2.5-pro")
    with pytest.raises(BadInput, match="MY_KEY is not set"):
        resolve_model("x", base_url="http://127.0.0.1:9", api_key_env="MY_KEY")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gpt-5", "Did you mean openai:gpt-5?"),
        ("claude-sonnet-5-5", "Did you mean anthropic:claude-sonnet-5-5?"),
        ("opanai:gpt-5", "Did you mean openai:gpt-5?"),
        ("ollma:llama3.2:3b", "Did you mean ollama:llama3.2:3b?"),
        ("llama3.2:3b", "Did you mean ollama:llama3.2:3b?"),
        ("openai:", "Which model of openai?"),
        ("nonsense", "Known: local, local:PATH, anthropic:NAME"),
    ],
)
@pytest.mark.parametrize("base_url", [None, ""])
def test_an_unknown_name_gets_a_suggestion(name: str, hint: str, base_url: str | None) -> None:
    with pytest.raises(NotFound) as caught:
        resolve_model(name, base_url=base_url)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("name", "base_url", "expected", "wire"),
    [
        ("any-model", "http://127.0.0.1:9000", "http://127.0.0.1:9000/v1", ChatCompletions),
        ("qwen3:8b", "gpu-box:8000/v1", "http://gpu-box:8000/v1", ChatCompletions),
        ("openai:gpt-5", "https://proxy.test/openai/", "https://proxy.test/openai", ChatCompletions),
        ("anthropic:claude", "https://proxy.test", "https://proxy.test/v1", AnthropicMessages),
        ("ollama:qwen3", "gpu-box", "http://gpu-box:11434", OllamaChat),
        ("anthropic:claude", "https://proxy.test/anthropic/", "https://proxy.test/anthropic/v1", AnthropicMessages),
        ("anthropic:claude", "https://proxy.test/a/v1/", "https://proxy.test/a/v1", AnthropicMessages),
        ("ollama:qwen3", "http://0.0.0.0:11434/v1", "http://127.0.0.1:11434", OllamaChat),
        ("ollama:qwen3", ":11500", "http://127.0.0.1:11500", OllamaChat),
        ("ollama:qwen3", "[::]:11500", "http://[::1]:11500", OllamaChat),
    ],
)
def test_a_base_url_may_be_written_in_many_ways(name: str, base_url: str, expected: str, wire: type) -> None:
    model = resolve_remote(name, base_url=base_url)
    assert model.endpoint.base_url == expected
    assert isinstance(model._wire, wire)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host",
        "http://",
        "http://host:99999",
        "http://user:hidden@host:port",
        "http://[::1",
        "http://a b/v1",
        "http://host/v1?key=1",
        "   ",
    ],
)
def test_an_invalid_base_url_is_refused(url: str) -> None:
    with pytest.raises(BadInput, match="is no base URL") as caught:
        resolve_model("x", base_url=url)
    assert "hidden" not in str(caught.value)


def test_a_key_and_a_password_cannot_both_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-hidden")
    with pytest.raises(BadInput, match="MY_KEY and the base URL both hold credentials"):
        resolve_model("x", base_url="http://user:pass@127.0.0.1:9", api_key_env="MY_KEY")
    assert resolve_remote("x", base_url="http://user:pass@127.0.0.1:9").endpoint.address == "127.0.0.1:9"


def test_base_urls_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "0.0.0.0:11500")
    assert resolve_remote("ollama:x").endpoint.base_url == "http://127.0.0.1:11500"
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:4000/v1")
    assert isinstance(resolve_remote("openai:x")._wire, ChatCompletions)


def test_a_key_is_sent_only_to_its_own_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-hidden")
    monkeypatch.setenv("MY_KEY", "mine")
    assert resolve_remote("x", base_url="http://elsewhere.test").endpoint.key is None
    assert resolve_remote("x", base_url="http://elsewhere.test", api_key_env="MY_KEY").endpoint.key is not None


def test_known_models_have_their_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    assert resolve_model("anthropic:claude-haiku-4-5").window == 200_000
    assert resolve_model("anthropic:claude-never-heard-of").window is None


def test_the_embedded_model_is_a_late_import_with_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog.importlib.util, "find_spec", lambda name: None)
    for name in ("local", "local:/some/model.gguf"):
        with pytest.raises(NotFound, match=r"pip install \"treadle\[local\]\""):
            resolve_model(name)
    monkeypatch.setattr(catalog.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "treadle.models.local.local_model", type(sys)("treadle.models.local.local_model"))
    sys.modules["treadle.models.local.local_model"].LocalModel = lambda path=None: ("embedded", path)  # type: ignore[attr-defined]
    assert resolve_model("local") == ("embedded", None)
    with pytest.raises(NotFound, match=r"There is no model file /no/such\.gguf"):
        resolve_model("local:/no/such.gguf")


# --- no name


@pytest.fixture
def no_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No local server runs where it is looked for."""
    for name in ("OLLAMA_HOST", "LLAMACPP_BASE_URL", "LMSTUDIO_BASE_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")


@pytest.mark.usefixtures("no_servers")
async def test_without_a_name_the_first_model_that_works_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    async def choose_now() -> tuple[str, str]:
        chosen = await choose.choose_model()
        return getattr(chosen.model, "name", "the embedded one"), chosen.reason

    monkeypatch.setattr(choose, "open_embedded_model", object)
    reason = "using the embedded model: no API key is set, and no local server was found"
    assert await choose_now() == ("the embedded one", reason)
    async with StrictChat() as studio, FakeOllama() as ollama:
        monkeypatch.setenv("LMSTUDIO_BASE_URL", studio.base_url)
        assert await choose_now() == ("lmstudio:fake", "lmstudio is running on this machine and has fake")
        monkeypatch.setenv("OLLAMA_HOST", ollama.base_url)
        assert (await choose_now())[0] == "ollama:fake:1b"
        for provider, variable in (("openai", "OPENAI_API_KEY"), ("anthropic", "ANTHROPIC_API_KEY")):
            monkeypatch.setenv(variable, "k")
            name = f"{provider}:{PROVIDERS[provider].default_model}"
            assert await choose_now() == (name, f"{variable} is set")
        monkeypatch.setenv("TREADLE_MODEL", "ollama:mine")
        assert await choose_now() == ("ollama:mine", "TREADLE_MODEL names it")


class TwoModels(FakeOllama):
    """An Ollama with a model that cannot call tools, and after it one that can."""

    shown: ClassVar = {"small": ["completion"], "able": ["completion", "tools"]}

    def _answer(self, method: str, path: str, headers: dict[str, str], raw: bytes) -> Odd:
        if path == "/api/show":
            shown = {"capabilities": self.shown[json.loads(raw)["model"]], "model_info": {"x.context_length": 8192}}
            return Odd(raw=json.dumps(shown).encode(), content_type="application/json")
        return super()._answer(method, path, headers, raw)

    def document(self, method: str, path: str) -> Any:
        return {"models": [{"name": name} for name in self.shown]} if path == "/api/tags" else None


class OnlySmall(TwoModels):
    shown: ClassVar = {"small": ["completion"]}


@pytest.mark.usefixtures("no_servers")
async def test_the_router_prefers_a_model_that_can_call_tools_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "open_embedded_model", lambda: "the embedded one")
    async with TwoModels() as able, OnlySmall() as small, StrictChat() as studio:
        monkeypatch.setenv("OLLAMA_HOST", able.base_url)
        chosen = await choose.choose_model()
        assert chosen.model.name == "ollama:able"
        assert chosen.reason.endswith("has able, which can call tools (small cannot)")
        monkeypatch.setenv("OLLAMA_HOST", small.base_url)
        chosen = await choose.choose_model()
        reason = "using the embedded model: no API key is set, and ollama:small cannot call tools"
        assert chosen == ("the embedded one", reason)
        monkeypatch.setenv("LMSTUDIO_BASE_URL", studio.base_url)
        assert (await choose.choose_model()).model.name == "lmstudio:fake", "nothing says that it cannot"


@pytest.mark.usefixtures("no_servers")
async def test_a_model_without_tools_is_chosen_where_nothing_else_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog.importlib.util, "find_spec", lambda name: None)
    async with OnlySmall() as small:
        monkeypatch.setenv("OLLAMA_HOST", small.base_url)
        chosen = await choose.choose_model()
        assert chosen.model.name == "ollama:small" and "ollama:small cannot call tools" in chosen.reason


@pytest.mark.parametrize(
    ("document", "support"),
    [
        ({"capabilities": ["completion", "tools"]}, True),
        ({"capabilities": ["completion"]}, False),
        ({"type": "llm", "capabilities": ["tool_use"]}, True),
        ({"type": "embeddings"}, False),
        ({"capabilities": {"completion_chat": True, "function_calling": False}}, False),
        ({"supported_parameters": ["temperature", "tools"]}, True),
        ({"chat_template_caps": {"supports_tools": True, "supports_system_role": True}}, True),
        ({"capabilities": {"vision": True}}, None),
        ({}, None),
        (None, None),
        (["tools"], None),
    ],
)
def test_what_servers_say_about_tools_is_read(document: Any, support: bool | None) -> None:
    assert read_tool_support(document) is support


async def test_the_model_of_a_listed_server_is_one_that_can_call_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"id": "plain", "supported_parameters": []}, {"id": "able", "supported_parameters": ["tools"]}]
    monkeypatch.setattr(StrictChat, "document", lambda self, method, path: {"data": rows})
    async with StrictChat() as server:
        model = resolve_model(None, base_url=server.base_url)
        assert isinstance(model, DefaultModel)
        assert (await model.resolve()).name == "able"
        assert "lists able, which can call tools (plain cannot)" in model.reason


@pytest.mark.usefixtures("no_servers")
async def test_without_any_model_the_error_lists_the_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NotFound) as caught:
        await choose.choose_model()
    for word in ("ANTHROPIC_API_KEY is not set", "ollama is not running here", "treadle[local]"):
        assert word in str(caught.value)


@pytest.mark.usefixtures("no_servers")
async def test_a_bad_address_hides_no_other_server_and_no_password_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:99999")
    monkeypatch.setenv("LMSTUDIO_BASE_URL", "http://user:hidden@127.0.0.1:9")
    monkeypatch.setattr(choose, "open_embedded_model", lambda: "the embedded one")
    assert (await choose.choose_model()).model == "the embedded one"
    monkeypatch.setattr(doctor, "has_local_runtime", lambda: False)
    listed = {way.name: way.reason async for way in doctor.find_model_sources()}
    assert "127.0.0.1:99999' is no base URL" in listed["ollama:NAME"]
    assert "ANTHROPIC_API_KEY is not set" in listed["anthropic:NAME"]
    assert listed["lmstudio:NAME"] and "hidden" not in str(listed)


@pytest.mark.usefixtures("no_servers")
async def test_a_model_without_a_name_is_chosen_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with StrictChat([Reply(text="here")], key="") as server:
        monkeypatch.setattr(StrictChat, "is_authorised", lambda self, headers: True)
        monkeypatch.setenv("LLAMACPP_BASE_URL", server.base_url)
        model = resolve_model(None)
        assert isinstance(model, DefaultModel)
        assert isinstance(model, Model)
        assert (model.name, model.window, model.reason) == ("auto", None, "")
        assert (await collect_reply(model, ask("hi"))).text == "here"
        assert model.name == "llamacpp:fake"
        assert "llamacpp is running" in model.reason
        await model.close()
        listed = resolve_model(None, base_url=server.base_url)
        assert (await collect_reply(listed, ask("hi"))).text == "here"
        assert listed.name == "fake"


async def test_a_server_without_models_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StrictChat, "document", lambda self, method, path: {"data": []})
    async with StrictChat() as server:
        with pytest.raises(NotFound, match="lists no models"):
            await collect_reply(resolve_model(None, base_url=server.base_url), ask("hi"))


# --- windows


@pytest.mark.parametrize(
    ("provider", "documents", "window"),
    [
        ("llamacpp", {"/props": {"default_generation_settings": {"n_ctx": 4096}}}, 4096),
        ("llamacpp", {"/v1/models": {"data": [{"id": "x", "meta": {"n_ctx_train": 2048}}]}}, 2048),
        ("lmstudio", {"/api/v0/models": {"data": [{"id": "m", "loaded_context_length": 8000}]}}, 8000),
        ("vllm", {"/v1/models": {"data": [{"id": "a"}, {"id": "m", "max_model_len": 16000}]}}, 16000),
        ("vllm", {"/v1/models": {"data": [{"id": "a", "max_model_len": 1}, {"id": "b"}]}}, None),
        ("vllm", {}, None),
        ("vllm", {"/v1/models": {"data": [{"id": "m", "meta": {"n_ctx_train": 999}}]}, "/props": {"n_ctx": 512}}, 512),
        ("vllm", {"/v1/models": {"data": [{"id": "m", "meta": "odd", "max_model_len": True}]}}, None),
        ("ollama", {"/api/show": {"model_info": [1]}}, None),
        ("ollama", {"/api/show": {"model_info": {"x.context_length": -5}}}, None),
    ],
)
async def test_the_window_is_asked_from_the_server(
    provider: str, documents: dict[str, Any], window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StrictChat, "document", lambda self, method, path: documents.get(path))
    async with StrictChat() as server:
        model = resolve_remote(f"{provider}:m", base_url=server.base_url)
        assert await model.fetch_window() == window
        assert model.window == window
        for _ in range(2):
            await model.fetch_window()
        asked = len(server.seen)
        assert await model.fetch_window() == window
        assert len(server.seen) == asked, "the server is not asked again"
