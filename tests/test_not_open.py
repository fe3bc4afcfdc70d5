"""What is used before its block, or without a model, says so."""

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

from treadle import Agent, Runtime
from treadle.errors import BadInput, NotFound
from treadle.events import MessageReceived, SessionCreated
from treadle.log.in_memory import InMemoryLog
from treadle.testing import ScriptedModel


@pytest.mark.parametrize("use", ["create", "sessions", "search", "open", "watch"])
async def test_a_runtime_outside_its_block_says_how_to_open_it(use: str) -> None:
    runtime = Runtime(":memory:", [Agent(ScriptedModel())])
    arguments = ["x"] if use in ("search", "open") else []

    async def use_runtime() -> None:
        await getattr(runtime, use)(*arguments)

    with pytest.raises(BadInput, match=r"not open yet: write `async with Runtime\(\.\.\.\) as runtime:`"):
        await use_runtime()
    with pytest.raises(BadInput, match="async with Runtime"):
        async with runtime.session():
            pass


@pytest.mark.parametrize("use", [lambda one: one.ask("?"), lambda one: one.run("?"), lambda one: one.id])
@pytest.mark.parametrize(
    "open_session", [lambda agent: agent.session(), lambda agent: Runtime(":memory:", [agent]).session()]
)
def test_a_session_outside_its_block_says_how_to_open_it(
    use: Callable[[Any], Any], open_session: Callable[[Agent], Any]
) -> None:
    with pytest.raises(BadInput, match=r"not open yet.*`async with agent\.session\(\.\.\.\) as session:`"):
        use(open_session(Agent(ScriptedModel())))


async def test_a_session_that_is_awaited_says_how_to_open_it() -> None:
    opener: Any = Agent(ScriptedModel()).session()
    with pytest.raises(BadInput, match=r"`async with agent\.session\(\.\.\.\) as session:`"):
        await opener
    assert not hasattr(opener, "_repr_html_")  # notebooks and debuggers look for such names


@pytest.fixture
def without_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key, no server on this machine, and no embedded model."""
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "TREADLE_MODEL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("OLLAMA_HOST", "LLAMACPP_BASE_URL", "LMSTUDIO_BASE_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "xllamacpp" else find_spec(name))


@pytest.mark.usefixtures("without_models")
def test_an_agent_without_a_model_says_how_to_name_one() -> None:
    with pytest.raises(NotFound, match=r'no model was found: .*name a model: Agent\("ollama:NAME"\), --model'):
        Agent().ask_sync("hello")


@pytest.mark.usefixtures("without_models")
async def test_a_message_to_an_agent_without_a_model_is_not_stored() -> None:
    log = InMemoryLog()
    async with Agent().session(log) as session:
        with pytest.raises(NotFound, match="no model was found"):
            await session.ask("hello")
        assert [type(fact) for fact in await session.facts()] == [SessionCreated]
        await session.send("stored for later")
        assert isinstance((await session.facts())[1], MessageReceived)
