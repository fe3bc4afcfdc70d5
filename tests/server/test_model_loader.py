"""Models that are loaded and unloaded while the server runs, and a server that starts without one."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from tests.kit.serve_process import start_server
from tests.kit.server import Client, read_until, serve_agents, serve_script
from treadle import Agent
from treadle.app.absent_model import AbsentModel
from treadle.models.local import weights
from treadle.server.problems import NO_MODEL
from treadle.testing import ScriptedModel

RUN = {"objective": "go"}


def list_engines(parent: int) -> list[int]:
    """The processes of embedded models that descend from a process."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found += [int(folder.name)] if b"llama_child" in (folder / "cmdline").read_bytes() else []
                found += list_engines(int(folder.name))
        except OSError:  # it has ended meanwhile
            continue
    return found


async def test_serve_starts_without_a_usable_model_says_so_and_works_after_one_is_loaded(tmp_path: Path) -> None:
    file = weights.find_weights(None)
    if file is None:
        pytest.skip("the weights of the embedded model are not here")
    root, outside = tmp_path / "models", tmp_path / "outside.gguf"
    root.mkdir()
    outside.touch()
    (root / "link.gguf").symlink_to(outside)
    options = ("--model", "openai:gpt-4o", "--model-root", str(root), str(file.parent))
    async with start_server(tmp_path / "home", None, *options) as (base, token), Client(base, token) as client:
        assert "without a model: openai needs a key" in (tmp_path / "home" / "server.log").read_text("utf-8")
        assert (await client.json("GET", "/health"))["status"] == "ok"
        ready = await client.json("GET", "/ready", status=503)
        assert ready["ready"] is False and NO_MODEL in ready["problems"]["model"]
        session_id = await client.session(name="Early")
        requests = {"/api/agent/run": RUN, f"/v1/sessions/{session_id}/messages": {"content": "hi"}}
        for path, body in requests.items():
            assert (await client.problem("POST", path, body, 503))["message"] == NO_MODEL
        chat = {"model": "default", "messages": [{"role": "user", "content": "hi"}]}
        assert (await client.problem("POST", "/v1/chat/completions", chat, 503))["message"] == NO_MODEL
        assert [one["id"] for one in (await client.json("GET", "/v1/models"))["data"]][-1].startswith("agent:")
        for name in (f"local:{outside}", "local:../outside.gguf", "local:link.gguf", "local:/etc/passwd"):
            await client.problem("POST", "/v1/models/load", {"model": name}, 403)
        await client.problem("POST", "/v1/models/load", {"model": "local:nothing.gguf"}, 404)
        await client.problem("POST", "/v1/models/load", {"model": "nonsense"}, 404)
        await client.problem("POST", "/v1/models/load", {"model": "openai:gpt-4o"}, 400)
        loaded = await client.load_model(f"local:{file.name}")
        assert loaded["loaded"] and loaded["window"] and loaded["id"] == f"local:{file.resolve()}"
        assert (await client.json("GET", "/ready"))["ready"]
        body = {"objective": "Say hello", "maxIterations": 1, "maxTokens": 20}
        async with client.stream("/api/agent/run", body) as events:
            assert (await read_until(events, event="loop_completed"))[0]["event"] == "loop_started"
        name = loaded["id"]
        engines = list_engines(os.getpid())
        assert len(engines) == 1
        assert (await client.json("POST", "/v1/models/unload", {"model": name}))["state"] == "unloaded"
        assert not any(Path(f"/proc/{pid}").exists() for pid in engines)
        assert (await client.problem("POST", "/api/agent/run", RUN, 503))["message"] == NO_MODEL


class SlowModel(ScriptedModel):
    """A model that loads when the test says so."""

    def __init__(self, *script: Any, **options: Any) -> None:
        super().__init__(*script, **options)
        self.may_load, self.loads = asyncio.Event(), 0

    async def load(self) -> None:
        self.loads += 1
        await self.may_load.wait()


async def test_a_load_runs_in_the_background_and_a_second_one_changes_nothing() -> None:
    model = SlowModel("hi", name="slow")
    async with serve_agents(Agent(model)) as client:
        for _ in range(2):
            answer = await client.json("POST", "/v1/models/load", {"model": "slow"}, 202)
            assert (answer["state"], answer["progress"]) == ("loading", {"fraction": None, "message": ""})
        async with client.stream("/v1/models/stream") as events:
            (seen,) = await read_until(events, event="model_updated")
            assert seen["data"]["state"] == "loading"
            model.may_load.set()
            (seen,) = await read_until(events, event="model_updated")
            assert (seen["data"]["state"], seen["data"]["loaded"]) == ("loaded", True)
        assert model.loads == 1
        assert (await client.load_model("slow"))["loaded"] and model.loads == 1


async def test_unloading_stops_a_load() -> None:
    model = SlowModel("hi", name="slow")
    async with serve_agents(Agent(model)) as client:
        await client.json("POST", "/v1/models/load", {"model": "slow"}, 202)
        assert (await client.json("POST", "/v1/models/unload", {"model": "slow"}))["state"] == "unloaded"
        assert (await client.json("GET", "/v1/models/slow"))["loaded"] is False
        model.may_load.set()
        assert (await client.load_model("slow"))["loaded"]


async def test_a_failed_load_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "http://127.0.0.1:9")
    async with serve_script("hi") as client:
        failed = await client.load_model("ollama:none")
        assert failed["state"] == "failed" and not failed["loaded"] and "127.0.0.1:9" in failed["error"]
        chat = {"model": "ollama:none", "messages": [{"role": "user", "content": "hi"}]}
        await client.problem("POST", "/v1/chat/completions", chat, 503)
        assert "model ollama:none" in (await client.json("GET", "/ready", status=503))["problems"]


async def test_an_agent_that_started_without_a_model_uses_the_one_that_is_loaded() -> None:
    models = {name: ScriptedModel(f"from {name}", name=name) for name in ("one", "two")}
    agent = Agent(AbsentModel("there is no key"), name="default")
    async with serve_agents(agent) as client:
        client.app.state.service.runtime._models.update(models)
        session_id = await client.session()
        await client.problem("POST", f"/v1/sessions/{session_id}/messages", {"content": "hi"}, 503)
        assert (await client.json("GET", "/v1/config"))["provider"] == "none"
        assert "there is no key" in (await client.json("GET", "/ready", status=503))["problems"]["model"]
        await client.load_model("one")
        assert (await client.json("GET", "/ready"))["ready"]
        assert (await client.send(session_id, "hi"))["reply"] == "from one"
        await client.json("POST", "/v1/models/unload", {"model": "one"})
        await client.problem("POST", f"/v1/sessions/{session_id}/messages", {"content": "hi"}, 503)
        await client.load_model("two")
        assert (await client.send(session_id, "hi"))["reply"] == "from two"


async def test_a_run_that_was_left_unfinished_waits_for_a_model() -> None:
    agent = Agent(AbsentModel("there is no key"), name="default")
    async with serve_agents(agent) as client:
        service = client.app.state.service
        service.runtime._models["one"] = ScriptedModel("at last", name="one")
        session = await service.runtime.create("default")
        await session.post("hi")
        await client.wait_for(session.id, "turn_started")
        await client.load_model("one")
        facts = await client.wait_for(session.id, "run_finished")
        assert facts[-1]["answer"] == "at last"
