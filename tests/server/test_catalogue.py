"""Tools, agents, models, configuration and memory; health, readiness and metrics; the pages."""

import os
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.kit.server import OWNER, Client, listen, serve_agents, serve_script
from tests.kit.sessions import Tables, build_agent
from treadle import Agent, Runtime
from treadle.app.workspace_knowledge import WorkspaceKnowledge
from treadle.models.catalog import resolve_model
from treadle.server.app import create_app
from treadle.server.config import ServerConfig
from treadle.testing import ScriptedModel, call


async def test_tools_agents_and_configuration_are_shown_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTS_KEY", "sk-very-secret-key-of-the-tests")
    model = resolve_model("some-model", base_url="http://127.0.0.1:9/v1", api_key_env="TESTS_KEY")
    agent = Agent(model, tools=Tables().tools, name="default")
    async with serve_agents(agent) as client:
        tools = {tool["name"]: tool for tool in await client.json("GET", "/v1/tools")}
        assert tools["drop"]["class"] == "destructive" and tools["note"]["class"] == "caution"
        assert tools["drop"]["schema"]["properties"]["table"] and tools["drop"]["description"] == "Drop a table."
        (shown,) = await client.json("GET", "/v1/agents")
        assert (shown["name"], shown["tools"], shown["max_iterations"]) == ("default", ["drop", "note"], 50)
        config = await client.json("GET", "/v1/config")
        allowed = {"workspaces", "access", "web", "hosts"}
        assert set(config) == {"provider", "model", "max_iterations", "skill_autogen", *allowed}
        assert config["provider"] == "custom"
        for path in ("/v1/tools", "/v1/agents", "/v1/config", "/v1/models", "/metrics", "/openapi.json"):
            async with client.request("GET", path) as answer:
                assert answer.status == 200 and os.environ["TESTS_KEY"] not in await answer.text()


async def test_the_agent_of_sessions_that_name_none_comes_first() -> None:
    agents = [Agent(ScriptedModel("hello"), name=name) for name in ("architect", "coder", "default")]
    async with serve_agents(*agents) as client:
        names = [one["name"] for one in await client.json("GET", "/v1/agents")]
        assert names == ["default", "architect", "coder"]
        session_id = await client.session()
        assert (await client.json("GET", f"/v1/sessions/{session_id}"))["agent"] == names[0]


async def test_the_provider_is_the_one_in_the_models_name() -> None:
    for name, provider in (("local", "local"), ("local:/m.gguf", "local"), ("openai:gpt", "openai")):
        async with serve_agents(Agent(ScriptedModel(name=name))) as client:
            assert (await client.json("GET", "/v1/config"))["provider"] == provider


async def test_memories_are_added_found_and_deleted_by_path_by_query_or_by_body() -> None:
    async with serve_script() as client:
        assert await client.json("GET", "/v1/memory") == []
        made = await client.json("POST", "/v1/memory", {"content": "likes green tea", "kind": "preference"}, 201)
        sea = await client.json("POST", "/v1/memory", {"content": "lives by the sea"}, 201)
        assert [one["id"] for one in await client.json("GET", "/v1/memory/search?q=tea&k=1")] == [made["id"]]
        assert [one["content"] for one in await client.json("GET", "/v1/memory")] == [
            "likes green tea",
            "lives by the sea",
        ]
        (last,) = await client.json("GET", "/v1/memory?limit=5&offset=1")
        assert last["content"] == "lives by the sea"
        changed = await client.json("PATCH", f"/v1/memory/{made['id']}", {"content": "likes black tea"})
        assert changed == {**made, "content": "likes black tea"} and changed["session_id"] == ""
        assert await client.json("GET", "/v1/memory/search?q=green") == []
        await client.problem("PATCH", f"/v1/memory/{made['id']}", {"content": "password: hunter22-and-more"}, 400)
        await client.problem("PATCH", "/v1/memory/nothing", {"content": "x"}, 404)
        await client.json("DELETE", "/v1/memory", {"id": made["id"]}, 204)
        await client.problem("DELETE", f"/v1/memory/{made['id']}", status=404)
        await client.json("DELETE", f"/v1/memory/{sea['id']}", status=204)
        last = await client.json("POST", "/v1/memory", {"content": "reads at night"}, 201)
        await client.json("DELETE", f"/v1/memory?id={last['id']}", status=204)
        assert await client.json("GET", "/v1/memory") == []
        assert (await client.problem("DELETE", "/v1/memory", status=422))["param"] == "id"
        await client.problem("GET", "/v1/memory/search", status=422)
        await client.problem("POST", "/v1/memory", {"content": "password: hunter22-and-more"}, 400)


async def test_the_skills_of_the_operators_folder_are_listed(tmp_path: Path) -> None:
    folder = tmp_path / ".treadle" / "skills" / "review"
    folder.mkdir(parents=True)
    text = "---\nname: review\ndescription: Review code.\ntriggers:\n  keywords: [review]\n---\nLook at the diff.\n"
    (folder / "SKILL.md").write_text(text)
    agent, _ = build_agent()
    async with serve_agents(agent, roots=(tmp_path,)) as client:
        assert await client.json("GET", "/v1/skills") == []
    agent.knowledge = WorkspaceKnowledge(tmp_path, tmp_path / "own").build_agent().knowledge
    async with serve_agents(agent, roots=(tmp_path,)) as client:
        found = {skill["id"]: skill for skill in await client.json("GET", "/v1/skills")}
        assert found["review"]["description"] == "Review code." and found["review"]["triggers"] == ["review"]
        off = await client.json("PATCH", "/v1/skills/review", {"enabled": False})
        assert off == {**found["review"], "enabled": False} and await client.json("GET", "/v1/skills") == [off]
        assert (await client.json("PATCH", "/v1/skills/review", {"enabled": True}))["enabled"]
        await client.problem("PATCH", "/v1/skills/nothing", {"enabled": True}, 404)


async def test_a_model_is_loaded_and_unloaded() -> None:
    class Loading(ScriptedModel):
        loaded = 0

        async def load(self) -> None:
            self.loaded += 1

        async def close(self) -> None:
            self.loaded = 0

    model = Loading("hi", name="loading")
    async with serve_agents(Agent(model)) as client:
        session_id = await client.session()
        assert (await client.load_model("loading"))["loaded"] and model.loaded == 1
        assert not (await client.json("POST", "/v1/models/unload", {"model": "loading"}))["loaded"]
        assert model.loaded == 0
        problems = (await client.json("GET", "/ready", status=503))["problems"]
        assert problems == {"model loading": "is not loaded"}
        await client.problem("POST", f"/v1/sessions/{session_id}/messages", {"content": "x"}, 503)
        body = {"model": "loading", "messages": [{"role": "user", "content": "x"}]}
        await client.problem("POST", "/v1/chat/completions", body, 503)
        await client.load_model("loading")
        assert (await client.json("GET", "/ready"))["ready"]
        assert (await client.send(session_id, "x"))["reply"] == "hi"
        await client.problem("POST", "/v1/models/load", {"model": "local:/etc/passwd"}, 403)


async def test_a_model_that_is_not_available_is_listed_as_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    async with serve_script(models=("openai:gpt-4o",)) as client:
        listed = {one["id"]: one["loaded"] for one in (await client.json("GET", "/v1/models"))["data"]}
        assert listed == {"scripted": True, "openai:gpt-4o": False, "agent:agent": True}
        assert "openai:gpt-4o" in str(await client.json("GET", "/ready", status=503))


async def test_models_are_listed_for_the_clients_of_openai_and_of_anthropic() -> None:
    async with serve_script() as client:
        listed = await client.json("GET", "/v1/models?limit=1000", headers={"anthropic-version": "2023-06-01"})
        assert (listed["first_id"], listed["last_id"], listed["has_more"]) == ("scripted", "agent:agent", False)
        one = await client.json("GET", "/v1/models/scripted")
        assert one == listed["data"][0]
        assert (one["object"], one["created"], one["type"], one["display_name"]) == ("model", 0, "model", "scripted")
        assert one["created_at"].endswith("Z")
        lost = await client.json("GET", "/v1/models/nope", None, 404, headers={"anthropic-version": "2023-06-01"})
        assert lost["type"] == "error" and lost["error"]["type"] == "not_found_error"


async def test_an_alias_maps_foreign_model_names_and_an_unknown_name_says_how() -> None:
    aliases = {"claude-haiku-*": "agent:agent", "claude-*": "default", "scripted": "nope"}
    body = {"messages": [{"role": "user", "content": "hi"}]}
    async with serve_script("one", "two", "three", model_aliases=aliases) as client:

        async def chat(model: str, status: int = 200) -> Any:
            return await client.json("POST", "/v1/chat/completions", {**body, "model": model}, status)

        assert (await chat("claude-opus-5-5"))["choices"][0]["message"]["content"] == "one"
        assert (await chat("claude-haiku-4"))["treadle"]["events"][-1]["type"] == "run_finished"
        assert (await chat("scripted"))["choices"][0]["message"]["content"] == "three"  # its own name comes first
        message = (await chat("gpt-9", 404))["error"]["message"]
        assert "scripted" in message and "[model_aliases]" in message


async def test_health_is_always_there_and_readiness_says_what_is_missing() -> None:
    async with serve_script() as client:
        assert await client.json("GET", "/health") == {"status": "ok"}
        checks = {"store": "ok", "disk": "ok", "model scripted": "ok"}
        assert await client.json("GET", "/ready") == {"ready": True, "problems": {}, "checks": checks}
    lost = Agent(resolve_model("m", base_url="http://127.0.0.1:9/v1"), name="lost")
    async with serve_agents(lost) as client:
        problems = (await client.json("GET", "/ready", status=503))["problems"]
        assert problems == {"model m": "cannot be reached"}


async def test_metrics_count_what_happened() -> None:
    async with serve_script([call("note", text="a"), call("fly")], "done") as client:
        await client.send(await client.session(), "go")
        async with client.request("GET", "/metrics") as answer:
            text = await answer.text()
            assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        families = list(text_string_to_metric_families(text))
        values = {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}
        labels = {one.name: set(one.labels) for family in families for one in family.samples}
        assert values["treadle_runs_total", "answered"] == 1 and values["treadle_turns_total",] == 2
        assert labels["treadle_runs_total"] == {"outcome"} and labels["treadle_tokens_total"] == {"kind"}
        assert labels["treadle_tool_calls_total"] == {"tool", "status"}
        calls = {frozenset(key[1:]): value for key, value in values.items() if key[0] == "treadle_tool_calls_total"}
        assert calls == {frozenset(("note", "ok")): 1, frozenset(("fly", "error")): 1}
        assert values["treadle_tokens_total", "output"] > 0
        assert values["treadle_first_token_seconds_count",] == 1 and values["treadle_append_seconds_count",] >= 4
        assert values["treadle_sessions_active",] == values["treadle_watchers",] == 0
        assert all(family.name.startswith("treadle_") for family in families)  # no collector of the library's own


async def test_the_page_of_the_api_has_no_script() -> None:
    async with serve_script() as client:
        async with client.request("GET", "/docs") as answer:
            text = await answer.text()
            assert answer.headers["content-type"].startswith("text/html") and "<script" not in text
            assert "/v1/sessions" in text
        schema = await client.json("GET", "/openapi.json")
        assert {"/v1/sessions", "/api/agent/run", "/v1/rpc", "/v1/chat/completions"} <= set(schema["paths"])


async def test_the_application_can_be_mounted_in_another_one(tmp_path: Path) -> None:
    from fastapi import FastAPI

    agent, _ = build_agent("hello")
    async with Runtime(tmp_path / "store.db", [agent]) as runtime:
        outer = FastAPI()
        inner = create_app(runtime, ServerConfig(tokens=(OWNER,)))
        outer.mount("/agents", inner)
        outer.state.service = inner.state.service
        async with listen(outer) as base, Client(f"{base}/") as client:  # type: ignore[arg-type]
            made = await client.json("POST", "agents/v1/sessions", {}, 201)
            path = f"agents/v1/sessions/{made['id']}/messages"
            assert (await client.json("POST", path, {"content": "hi"}))["reply"] == "hello"
            assert await client.json("GET", "agents/health") == {"status": "ok"}
            async with Client(f"{base}/", "") as stranger:
                await stranger.json("GET", "agents/v1/sessions", status=401)
