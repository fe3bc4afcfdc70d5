"""Knowledge over HTTP: compacted contexts, descriptions of agents, drafts of skills, and memories."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.server import Odd
from tests.kit.server import OWNER, Client, create_token, read_until, serve_agents, serve_script
from tests.kit.sessions import PATIENCE
from tests.kit.terminal import Place, create_place
from tests.server.test_processes import ServerProcess
from treadle.app.workspace_knowledge import AgentOptions, WorkspaceKnowledge
from treadle.messages import Call, Reply
from treadle.testing import ScriptedModel

DRAFT = "# look-around\nLooks around in a folder. Use it when somebody wants to know what is there.\n1. List the files."
TOKEN = "a-token-for-the-tests"


async def test_a_context_is_compacted_and_shown_again() -> None:
    story = "There was a king who could not sleep. " * 20
    async with serve_script(story, story, "- two stories were told", "A third.") as client:
        session_id = await client.session()
        path = f"/v1/sessions/{session_id}/compact"
        assert (await client.json("POST", path)) == {"compacted": False, "tokens_before": 0, "tokens_after": 0}
        await client.problem("POST", path, {"undo": True}, 409)
        await client.send(session_id, "Tell me a story.")
        await client.send(session_id, "Another one.")
        assert not (await client.json("GET", f"/v1/sessions/{session_id}"))["context"]["estimated"]
        done = await client.json("POST", path, {})
        assert done["compacted"] and done["tokens_before"] > done["tokens_after"] > 0
        assert (await client.json("GET", f"/v1/sessions/{session_id}"))["context"]["estimated"]
        await client.json("POST", path, {"undo": True})
        await client.problem("POST", path, {"undo": True}, 409)
        await client.problem("POST", path, {"undone": True}, 422)
        await client.send(session_id, "One more.")
    assert "Tell me a story." in str(client.model.requests[-1].messages[0]) and "two stories" not in str(
        client.model.requests[-1]
    )


async def test_agents_say_what_they_are_for(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("## Poet\n---\ndescription: writes verse\nsteps: 0\n---\nYou rhyme.\n")
    agents = WorkspaceKnowledge(tmp_path, tmp_path / "own").build_all_agents(AgentOptions(ScriptedModel()))
    async with serve_agents(*agents, roots=(tmp_path,)) as client:
        found = {one["name"]: one for one in await client.json("GET", "/v1/agents")}
    assert (found["Poet"]["description"], found["Poet"]["max_iterations"]) == ("writes verse", 0)
    assert found["reader"]["description"].startswith("Finds out")


async def test_proposed_skills_are_listed_accepted_and_declined_over_rest(tmp_path: Path) -> None:
    knowledge = WorkspaceKnowledge(tmp_path, tmp_path / "own")
    for name in ("notes", "taste"):
        assert knowledge.proposals.add(
            name, f"---\nname: {name}\ndescription: About {name}.\n---\nDo it.\n", "asked often"
        )
    agents, path = knowledge.build_all_agents(AgentOptions(ScriptedModel())), "/v1/skills/proposals"
    sender = create_token("sender", "view", "send")
    async with serve_agents(*agents, roots=(tmp_path,), tokens=(OWNER, sender)) as client:
        listed = await client.json("GET", path)
        assert [(one["id"], one["name"], one["description"], one["why"]) for one in listed] == [
            ("notes", "notes", "About notes.", "asked often"),
            ("taste", "taste", "About taste.", "asked often"),
        ]
        async with Client(client.base, sender.value) as other:
            assert await other.json("GET", path) == listed
            await other.problem("POST", f"{path}/notes", {"accept": True}, 403)
        accepted = await client.json("POST", f"{path}/notes", {"accept": True})
        assert accepted == {"id": "notes", "status": "accepted", "path": listed[0]["path"]}
        assert (await client.json("POST", f"{path}/taste", {"accept": False}))["status"] == "declined"
        assert await client.json("GET", path) == []
        assert [skill["id"] for skill in await client.json("GET", "/v1/skills")] == ["notes"]
        for name, word in (("notes", "accepted"), ("taste", "declined")):
            for accept in (True, False):
                assert word in (await client.problem("POST", f"{path}/{name}", {"accept": accept}, 409))["message"]
        for name in ("nothing", "..", "%2e%2e"):
            await client.problem("POST", f"{path}/{name}x", {"accept": True}, 404)
        await client.problem("POST", f"{path}/notes", {"accept": "perhaps"}, 422)
        await client.problem("POST", f"{path}/notes", {}, 422)


async def test_a_server_without_drafts_has_no_proposals() -> None:
    async with serve_script() as client:
        assert await client.json("GET", "/v1/skills/proposals") == []
        await client.problem("POST", "/v1/skills/proposals/notes", {"accept": False}, 404)


class Provider(StrictChat):
    """A provider that lists files, answers, drafts a skill on request, and has embeddings for colours."""

    def is_authorised(self, headers: dict[str, str]) -> bool:
        return True

    def _answer(self, method: str, path: str, headers: dict[str, str], raw: bytes) -> Odd:
        if path != "/v1/embeddings":
            return super()._answer(method, path, headers, raw)
        body = json.loads(raw)
        assert set(body) == {"model", "input"} and body["model"] == "vectors", body
        given = [[1.0, 0.1] if "red" in text or "crimson" in text else [-1.0, 0.0] for text in body["input"]]
        data = [{"object": "embedding", "index": place, "embedding": one} for place, one in enumerate(given)]
        return Odd(raw=json.dumps({"object": "list", "data": data[::-1]}).encode(), content_type="application/json")


def reply_to(body: dict[str, Any]) -> Reply:
    first, last = body["messages"][0], body["messages"][-1]
    if str(first["content"]).startswith("You write down how"):
        return Reply(DRAFT)
    if last["role"] == "user":
        return Reply(calls=(Call("call_1", "list_files", "{}"),), finish="calls")
    return Reply("I looked around.")


@asynccontextmanager
async def serve_provider(folder: Path, settings: str) -> AsyncGenerator[tuple[Client, Place]]:
    """`treadle serve` as a process, with this in the user's config.toml, and the command line of the same user."""
    place = create_place(folder)
    config = folder / "config" / "treadle" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f"auto_name = false\n{settings}\n")
    place.env["XDG_CONFIG_HOME"] = str(folder / "config")
    async with Provider(reply_to) as fake:
        with ServerProcess(folder, str(fake.port), "fake") as real:
            async with Client(real.base, TOKEN) as client:
                yield client, place


async def test_a_server_drafts_a_skill_and_uses_it_after_a_person_accepts_it(tmp_path: Path) -> None:
    async with serve_provider(tmp_path, "skill_autogen = true") as (client, place):
        assert (await client.json("GET", "/v1/config"))["skill_autogen"]
        for folder in ("garden", "cellar", "attic"):
            session_id = await client.session()
            assert (await client.send(session_id, f"please look around in the {folder}"))["reply"] == "I looked around."
        async with client.stream(f"/v1/sessions/{session_id}/events") as events:
            proposed = (await read_until(events, type="custom", name="treadle.skill_proposed"))[-1]["data"]
        assert proposed["name"] == "look-around" and "+1. List the files." in proposed["diff"]
        assert await client.json("GET", "/v1/skills") == [], "nothing is active before a person says so"
        (proposal,) = await client.json("GET", "/v1/skills/proposals")
        assert (proposal["id"], proposal["diff"]) == ("look-around", proposed["diff"])
        assert proposal["why"].startswith("3 requests of this kind were answered: please look around in the attic")
        assert proposal["description"].startswith("Looks around") and "1. List the files." in proposal["content"]
        assert abs(proposal["created_at"] - time.time()) < 600
        assert (await place.quick("skills", "accept", "look-around")).code == 0
        assert await client.json("GET", "/v1/skills/proposals") == []
        (skill,) = await client.json("GET", "/v1/skills")
        assert skill["id"] == "look-around" and skill["enabled"] and skill["origin"] == "user"


async def test_a_server_with_an_embedding_model_finds_memories_by_meaning(tmp_path: Path) -> None:
    async with serve_provider(tmp_path, 'embed_model = "vectors"') as (client, _):
        await client.json("POST", "/v1/memory", {"content": "Bread needs salt."}, 201)
        red = await client.json("POST", "/v1/memory", {"content": "A crimson gate."}, 201)
        async with asyncio.timeout(PATIENCE):  # on a slow machine the first search may do without
            while not (found := await client.json("GET", "/v1/memory/search?q=anything+red")):  # noqa: ASYNC110
                await asyncio.sleep(0.05)  # requests without a pause would use up the rate
        assert found == [red]
