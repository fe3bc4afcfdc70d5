"""`/v1/sessions`: messages, approvals, answers, cancelling, continuing, forks and exports."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit.server import OWNER, Client, create_token, read_until, serve_agents, serve_script
from tests.kit.sessions import build_agent
from treadle import Agent, AskUser, Grant, Limits, tool
from treadle.messages import FilePart, ImagePart, TextPart, UserMessage
from treadle.testing import ScriptedModel, call


async def test_a_message_is_answered_when_the_answer_is_stored() -> None:
    async with serve_script(call("note", text="x"), "noted") as client:
        session_id = await client.session(name="Plans")
        answer = await client.send(session_id, "note x")
        assert answer["reply"] == "noted" and answer["outcome"]["status"] == "answered"
        assert answer["session"]["id"] == session_id and answer["session"]["name"] == "Plans"
        assert (await client.facts(session_id))[-1]["type"] == "run_finished"


async def test_sessions_are_created_listed_renamed_shown_and_deleted() -> None:
    async with serve_script("hello") as client:
        first, second = await client.session(name="First"), await client.session()
        listed = await client.json("GET", "/v1/sessions?limit=1")
        assert [line["id"] for line in listed["sessions"]] == [second] and listed["cursor"]
        rest = await client.json("GET", f"/v1/sessions?cursor={listed['cursor']}")
        assert [line["id"] for line in rest["sessions"]] == [first]
        changed = await client.json("PATCH", f"/v1/sessions/{second}", {"name": "Second"})
        assert changed["name"] == "Second"
        assert len((await client.json("GET", "/v1/sessions?q=Second"))["sessions"]) == 1
        await client.send(first, "hi")
        detail = await client.json("GET", f"/v1/sessions/{first}")
        assert [(m["role"], m["content"]) for m in detail["messages"]] == [("user", "hi"), ("assistant", "hello")]
        parts = {name: detail["context"][name] for name in ("system", "tools", "skills", "files", "history")}
        assert sum(parts.values()) == detail["context"]["used"] and parts["history"] > 0
        assert (await client.json("GET", "/v1/sessions?status=answered"))["sessions"][0]["id"] == first
        await client.json("DELETE", f"/v1/sessions/{first}", status=204)
        await client.problem("GET", f"/v1/sessions/{first}", status=404)


async def test_a_key_gives_one_message_and_one_answer_and_is_a_conflict_with_any_other_message() -> None:
    async with serve_script("once") as client:
        session_id = await client.session()
        headers = {"Idempotency-Key": "k1"}
        answers = await asyncio.gather(*(client.send(session_id, "hi", headers=headers) for _ in range(5)))
        path = f"/v1/sessions/{session_id}/messages"
        for other in (
            {"content": "something else"},
            {"content": "hi", "mode": "interrupt"},
            {"content": "hi", "attachments": [{"name": "a.txt", "data": "aGk="}]},
        ):
            for route in (path, f"{path}/stream"):
                problem = await client.problem("POST", route, other, 409, headers=headers)
                assert problem["type"] == "key_reused" and "another message" in problem["message"]
        async with client.open_socket(session_id=session_id) as socket:
            await socket.send(type="user", content="else", key="k1")
            assert "another message" in (await socket.receive())["message"]
        answers.append(await client.send(session_id, "hi", headers=headers))
        assert {answer["reply"] for answer in answers} == {"once"}
        assert len({answer["message_id"] for answer in answers}) == 1
        assert len([fact for fact in await client.facts(session_id) if fact["type"] == "message_received"]) == 1
        assert len(client.model.requests) == 1


async def test_null_fields_count_as_missing_and_a_session_needs_no_body() -> None:
    async with serve_script("hello") as client:
        bare = await client.json("POST", "/v1/sessions", status=201)
        nulls = dict.fromkeys(("agent", "model", "name", "workspace", "limits", "approve", "forbid"))
        full = await client.json("POST", "/v1/sessions", nulls, 201)
        assert bare["agent"] == full["agent"] == "agent"
        body = {"content": "hi", "attachments": None, "mode": None}
        assert (await client.json("POST", f"/v1/sessions/{full['id']}/messages", body))["reply"] == "hello"
        problem = await client.problem("POST", f"/v1/sessions/{full['id']}/approvals/c", {"decision": None}, 422)
        assert problem["message"].startswith("decision")


async def test_a_session_has_its_own_limits_within_the_operators_and_continues_after_one() -> None:
    async with serve_script(call("note", text="a"), "so far", "all done", limits=Limits(seconds=60)) as client:
        session_id = await client.session(limits={"turns": 1, "seconds": 1000})
        answer = await client.send(session_id, "go")
        assert answer["outcome"]["reason"] == "turn_limit" and answer["outcome"]["status"] == "stopped"
        started = next(fact for fact in await client.facts(session_id) if fact["type"] == "run_started")
        assert started["limits"]["turns"] == 1 and started["limits"]["seconds"] == 60
        begun = await client.json("POST", f"/v1/sessions/{session_id}/continue")
        seen = await client.wait_for(session_id, "run_finished", after=begun["after"])
        assert seen[-1]["answer"] == "all done" and seen[0]["trigger"] == "continue"


async def test_an_answer_can_be_regenerated_and_a_past_forked() -> None:
    async with serve_script("first", "second", "third") as client:
        session_id = await client.session()
        await client.send(session_id, "hi")
        begun = await client.json("POST", f"/v1/sessions/{session_id}/regenerate")
        assert (await client.wait_for(session_id, "run_finished", after=begun["after"]))[-1]["answer"] == "second"
        shown = await client.json("GET", f"/v1/sessions/{session_id}")
        assert [(one["role"], one["content"]) for one in shown["messages"]] == [("user", "hi"), ("assistant", "second")]
        session = await client.app.state.service.runtime.open(session_id)
        await session.rewind(2, "conversation")
        shown = await client.json("GET", f"/v1/sessions/{session_id}")
        assert "second" not in str(shown["messages"])
        forked = await client.json("POST", f"/v1/sessions/{session_id}/fork", {"after": 2}, 201)
        assert forked["parent"] == session_id and forked["seq"] == 2
        await client.problem("POST", f"/v1/sessions/{session_id}/fork", {"after": 999}, 409)
        await client.problem("POST", f"/v1/sessions/{await client.session()}/continue", status=409)


async def test_an_approval_is_waited_for_and_answered_from_elsewhere_with_its_own_digest() -> None:
    async with serve_script(call("drop", table="users"), "dropped") as client:
        session_id, sending, _ = await client.start_run("approval_requested")
        (asked,) = (await client.json("GET", f"/v1/sessions/{session_id}"))["pending"]
        assert asked["tool"] == "drop" and asked["arguments"] == {"table": "users"}
        assert [one["id"] for one in await client.json("GET", "/v1/approvals")] == [asked["id"]]
        path = f"/v1/sessions/{session_id}/approvals/{asked['call_id']}"
        body = {"decision": "allow", "digest": asked["digest"]}
        await client.problem("POST", path, {**body, "digest": "0" * 32}, 409)
        await client.problem("POST", f"/v1/sessions/{session_id}/approvals/nope", {"decision": "allow"}, 404)
        assert not client.tables.done
        assert await client.json("POST", path, body) == {"resolved": True}
        assert (await sending)["reply"] == "dropped" and client.tables.done == ["users"]
        assert (await client.problem("POST", path, body, 409))["type"] == "already_answered"
        assert await client.json("GET", "/v1/approvals") == []


async def test_a_denial_reaches_the_model_and_the_streamed_run_ends_in_done() -> None:
    script = [call("note", text="x"), call("drop", table="users"), "as you like"]
    async with serve_script(*script) as client:
        session_id = await client.session()
        async with client.stream(f"/v1/sessions/{session_id}/messages/stream", {"content": "drop"}) as events:
            (*_, asked) = frames = await read_until(events, type="approval_request")
            await client.json("POST", f"/v1/approvals/{asked['id']}", {"approved": False})
            frames += await read_until(events, type="done")
            assert [one async for one in events] == []
        kinds = ["iteration", "tool_start", "tool_end", "iteration", "approval_request", "tool_rejected"]
        assert [frame["type"] for frame in frames] == [*kinds, "iteration", "delta", "done"]
        assert frames[-1]["reply"] == "as you like" and client.tables.done == ["x"]


async def test_two_clients_answer_one_approval_and_one_of_them_wins() -> None:
    async with serve_script(call("drop", table="users"), "done with it") as client, Client(client.base) as other:
        session_id = await client.session()
        sent = await client.json("POST", f"/v1/sessions/{session_id}/messages?wait=0", {"content": "drop"})
        assert sent["outcome"]["status"] == "waiting"
        (*_, asked) = await client.wait_for(session_id, "approval_requested")
        path = f"/v1/sessions/{session_id}/approvals/{asked['call_id']}"

        async def answer_with(by: Client, decision: str) -> int:
            async with by.request("POST", path, json={"decision": decision}) as answer:
                await answer.read()
                return answer.status

        statuses = await asyncio.gather(answer_with(client, "allow"), answer_with(other, "deny"))
        assert sorted(statuses) == [200, 409]
        facts = await client.wait_for(session_id, "run_finished")
        answered = [fact for fact in facts if fact["type"] == "approval_answered"]
        assert len(answered) == 1
        assert client.tables.done == (["users"] if answered[0]["decision"] == "allow" else [])


async def test_a_running_session_cannot_be_deleted_and_cancel_answers_when_it_is_recorded() -> None:
    async with serve_script(call("wait"), "never") as client:
        session_id, sending, _ = await client.start_run("call_started")
        await client.problem("DELETE", f"/v1/sessions/{session_id}", status=409)
        cancelled = await client.json("POST", f"/v1/sessions/{session_id}/cancel")
        assert cancelled["cancelled"] and cancelled["outcome"]["status"] == "cancelled"
        assert (await client.facts(session_id))[-1]["type"] == "run_finished"
        assert (await sending)["outcome"]["status"] == "cancelled"
        assert not (await client.json("POST", f"/v1/sessions/{session_id}/cancel"))["cancelled"]


async def test_a_message_that_interrupts_stops_the_run_first() -> None:
    async with serve_script(call("wait"), "the second") as client:
        session_id, first, _ = await client.start_run("call_started")
        path = f"/v1/sessions/{session_id}/messages"
        second = await client.json("POST", path, {"content": "stop that", "mode": "interrupt"})
        assert second["reply"] == "the second" and (await first)["outcome"]["status"] == "cancelled"


async def test_cut_output_is_kept_whole_and_the_session_can_be_exported() -> None:
    @tool
    def shout() -> str:
        """Say much."""
        return "ß" * 40_000

    async with serve_script(call("shout"), "done", tools=[shout]) as client:
        session_id = await client.session()
        await client.send(session_id, "go")
        facts = await client.facts(session_id)
        cut = next(fact["truncation"] for fact in facts if fact["type"] == "call_finished")
        async with client.request("GET", f"/v1/sessions/{session_id}/artifacts/{cut['artifact']}") as answer:
            assert await answer.text("utf-8") == "ß" * 40_000
            assert answer.headers["content-disposition"] == "attachment"
        async with client.request("GET", f"/v1/sessions/{session_id}/export") as answer:
            lines = [json.loads(line) for line in (await answer.text()).splitlines()]
            assert [line for line in lines if line["type"] != "artifact"] == facts
        async with client.request("GET", f"/v1/sessions/{session_id}/export?format=markdown") as answer:
            assert answer.headers["content-type"].startswith("text/markdown") and "shout" in await answer.text()
        await client.problem("GET", f"/v1/sessions/{session_id}/artifacts/nope", status=404)


async def test_a_request_may_approve_in_advance_but_never_allow_a_denied_call() -> None:
    script = [call("drop", table="t"), "dropped", call("note", text="x"), "well then", call("drop", table="u"), "no"]
    async with serve_script(*script, grant=Grant(forbid=("drop(u)",))) as client:
        yes = await client.session(approve=["drop"])
        assert (await client.send(yes, "drop t"))["reply"] == "dropped" and client.tables.done == ["t"]
        narrow = await client.session(forbid=["note"], approve=["*"])
        assert (await client.send(narrow, "note x"))["reply"] == "well then" and client.tables.done == ["t"]
        denied = await client.session(approve=["*"])
        assert (await client.send(denied, "drop u"))["reply"] == "no" and client.tables.done == ["t"]


async def test_a_token_without_the_right_to_approve_cannot_approve_in_advance() -> None:
    sender = create_token("sender", "view", "send")
    async with (
        serve_script(call("drop", table="t"), "asked", tokens=(OWNER, sender)) as client,
        Client(client.base, sender.value) as caller,
    ):
        session_id = await caller.session(approve=["*"])
        waiting = asyncio.create_task(caller.send(session_id, "drop t"))
        (*_, asked) = await client.wait_for(session_id, "approval_requested")
        assert not client.tables.done
        approval = f"/v1/approvals/{session_id}.{asked['call_id']}"
        await caller.problem("POST", approval, {"approved": True}, 403)
        await client.answer_approval()
        assert (await waiting)["reply"] == "asked"


async def test_a_session_has_the_operators_agent_or_the_agent_and_the_model_that_are_chosen() -> None:
    agent, _ = build_agent()
    other = Agent(ScriptedModel("it is I", "from the other", "I again", name="other"), name="second")
    async with serve_agents(agent, other, agent="second") as client:

        async def check(session_id: str, reply: str, agent: str, model: str) -> None:
            assert (await client.send(session_id, "who?"))["reply"] == reply
            shown = await client.json("GET", f"/v1/sessions/{session_id}")
            assert (shown["agent"], shown["model"]) == (agent, model)

        await check(await client.session(), "it is I", "second", "other")
        chosen = await client.session(agent="agent", model="other")
        await check(chosen, "from the other", "agent", "other")
        changed = await client.json("PATCH", f"/v1/sessions/{chosen}", {"agent": "second"})
        listed = (await client.json("GET", "/v1/sessions"))["sessions"][0]
        assert changed["agent"] == listed["agent"] == "second"
        await check(chosen, "I again", "second", "other")
        await client.problem("POST", "/v1/sessions", {"model": "local:/etc/passwd"}, 404)
        await client.problem("POST", "/v1/sessions", {"agent": "nobody"}, 404)
        await client.problem("PATCH", f"/v1/sessions/{chosen}", {"model": "nope"}, 404)
        await client.problem("PATCH", f"/v1/sessions/{chosen}", {"agent": "nope"}, 404)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"content": ""}, "content: the message is empty"),
        ({"content": None}, "content: the message is empty"),
        ({"mode": "loud"}, "mode"),
        ({"contents": 1}, "contents"),
        ({"content": 1}, "content"),
        ({"attachments": [{"url": "file:///etc/passwd"}]}, "attachments.0.url"),
        ({"attachments": [{"media_type": "image/png"}]}, "`data` or a `url`"),
        ({"attachments": [{"media_type": "image/png", "data": "%%%"}]}, "attachments.0.data: must be base64"),
        ({"attachments": [{"name": "a.txt", "data": "aGk"}]}, "base64"),
        ({"attachments": [{"type": "image", "url": "https://a/b"}, {"type": "hologram"}]}, "attachments.1.type"),
        ({"attachments": [{"type": "image", "url": "data:image/png;base64,%"}]}, "attachments.0.data: must be base64"),
        ({"attachments": [{"type": "file", "url": "https://a/b"}]}, "attachments.0.url: only an image"),
        ({"attachments": [{"type": "file"}]}, "attachments.0.data: is missing"),
    ],
)
async def test_a_bad_message_is_refused_by_its_field(fields: dict[str, object], message: str) -> None:
    async with serve_script() as client:
        path = f"/v1/sessions/{await client.session()}/messages"
        problem = await client.problem("POST", path, {"content": "x", **fields}, 422)
        assert message in problem["message"] and problem["message"].startswith(problem["param"])


COMMON_ATTACHMENTS = [
    {"type": "image", "data": "aGk=", "media_type": "image/jpeg"},
    {"type": "image", "url": "https://example.org/cat.png"},
    {"type": "image_url", "image_url": {"url": "https://example.org/cat.png", "detail": "low"}},
    {"type": "image_url", "image_url": {"url": "data:image/webp;base64,aGk="}},
    {"type": "file", "data": "aGk=", "media_type": "application/pdf", "name": "a.pdf"},
    {"type": "text", "data": "aGk=", "media_type": "text/markdown"},
    {"type": "text", "text": "hello"},
]
COMMON_PARTS = (
    ImagePart(data="aGk=", media_type="image/jpeg"),
    ImagePart(url="https://example.org/cat.png"),
    ImagePart(url="https://example.org/cat.png"),
    ImagePart(data="aGk=", media_type="image/webp"),
    FilePart("a.pdf", "aGk=", "application/pdf"),
    FilePart("file", "aGk=", "text/markdown"),
    TextPart("hello", file="text"),
)


async def test_attachments_in_the_common_shape_are_accepted_over_rest_rpc_and_sockets() -> None:
    async with serve_script("one", "two", "three") as client:
        session_id = await client.session()
        body = {"content": "look", "attachments": COMMON_ATTACHMENTS}
        await client.json("POST", f"/v1/sessions/{session_id}/messages", body)
        async with client.open_socket(session_id=session_id) as socket:
            await socket.send(type="user", **body)
            await socket.receive_last(type="done")
        async with client.open_socket("/v1/rpc") as socket:
            params = {"prompt": "look", "attachments": COMMON_ATTACHMENTS, "session_id": session_id}
            await socket.send({"jsonrpc": "2.0", "id": 1, "method": "agents.chat", "params": params})
            while (await socket.receive()).get("params", {}).get("kind") != "done":
                pass
        sent = [message.parts for message in client.model.requests[-1].messages if isinstance(message, UserMessage)]
        assert sent == [(TextPart("look"), *COMMON_PARTS)] * 3


async def test_an_image_goes_with_the_message() -> None:
    async with serve_script("a cat") as client:
        image = {"media_type": "image/png", "data": "aGk="}
        body = {"content": "what is it?", "attachments": [image, {"name": "a.txt", "data": "aGk="}]}
        await client.json("POST", f"/v1/sessions/{await client.session()}/messages", body)
        (message,) = client.model.requests[0].messages
        assert [type(part).__name__ for part in message.parts] == ["TextPart", "ImagePart", "FilePart"]  # type: ignore[union-attr]


async def test_unknown_things_are_404_and_malformed_ones_400() -> None:
    async with serve_script() as client:
        for path in ("/v1/sessions/nope", "/v1/sessions/nope/events", "/nowhere", "/api/agent/sessions/nope"):
            await client.problem("GET", path, status=404)
        await client.problem("POST", "/v1/sessions/nope/messages", {"content": "x"}, 404)
        headers = {"content-type": "application/json"}
        problem = await client.problem("POST", "/v1/sessions", status=400, data=b"{", headers=headers)
        assert problem["type"] == "malformed"
        await client.problem("PUT", "/v1/sessions", {}, 405)


async def test_a_folder_outside_the_operators_roots_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "projects"
    (root / "mine").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (root / "link").symlink_to(tmp_path / "secret")
    async with serve_script(roots=(root,)) as client:
        made = await client.json("POST", "/v1/sessions", {"workspace": "mine"}, 201)
        assert made["workspace"] == str(root / "mine")
        assert (await client.json("POST", "/v1/sessions", {}, 201))["workspace"] == str(root)
        for folder in ("..", "../secret", str(tmp_path / "secret"), "link", "/", "mine/../../secret"):
            problem = await client.problem("POST", "/v1/sessions", {"workspace": folder}, 403)
            assert problem["type"] == "outside_roots"
            await client.problem("POST", "/api/agent/run", {"objective": "go", "workingDir": folder}, 403)
        for folder in ("missing", "a\0b"):
            assert (await client.problem("POST", "/v1/sessions", {"workspace": folder}, 422))["param"] == "workspace"
            run = {"objective": "go", "workingDir": folder}
            assert (await client.problem("POST", "/api/agent/run", run, 422))["param"] == "workingDir"


async def test_a_question_is_answered_once_by_whom_and_wherever(tmp_path: Path) -> None:
    """Two clients answer the first question. A process that shares the store answers the second one."""
    asks = call("ask_user", question="Which colour?")
    agent, _ = build_agent(asks, "the first", asks, "the second", tools=[AskUser()])
    store = tmp_path / "store.db"
    async with serve_agents(agent, store=store) as client, Client(client.base) as other:
        session_id = await client.session()

        async def ask(after: int) -> tuple[asyncio.Task[dict[str, object]], str]:
            sending = asyncio.create_task(client.send(session_id, "paint"))
            (*_, question) = await client.wait_for(session_id, "input_requested", after=after)
            return sending, question["call_id"]

        async def answer_with(by: Client, call_id: str, word: str) -> tuple[int, str]:
            path = f"/v1/sessions/{session_id}/answers/{call_id}"
            async with by.request("POST", path, json={"answers": [word]}) as answer:
                told = await answer.json()
                return answer.status, told.get("error", {}).get("type", "")

        sending, call_id = await ask(0)
        told = await asyncio.gather(answer_with(client, call_id, "red"), answer_with(other, call_id, "blue"))
        assert sorted(told) == [(200, ""), (409, "already_answered")]
        assert (await sending)["reply"] == "the first"
        await client.problem("POST", f"/v1/sessions/{session_id}/answers/{call_id}", {"answers": []}, 422)
        sending, call_id = await ask(len(await client.facts(session_id)))
        async with agent.session(store, id=session_id) as elsewhere:
            await elsewhere.answer(call_id, "green")
        assert await answer_with(client, call_id, "yellow") == (409, "already_answered")
        assert (await sending)["reply"] == "the second"
        answers = [fact["answers"] for fact in await client.facts(session_id) if fact["type"] == "input_answered"]
        assert len(answers) == 2 and answers[1] == ["green"]


async def test_a_message_to_a_session_in_use_reads_no_old_facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve_script("one", "two", "three", store=tmp_path / "store.db") as client:
        session_id = await client.session()
        await client.send(session_id, "go")
        seen = (await client.facts(session_id))[-1]["seq"]
        read_from: list[int] = []
        log = client.app.state.service.runtime.log
        read = log.read

        async def record_read(session_id: str, after: int = 0, **options: Any) -> Any:
            read_from.append(after)
            return await read(session_id, after, **options)

        monkeypatch.setattr(log, "read", record_read)
        await client.send(session_id, "again")
        assert read_from and min(read_from) >= seen


async def test_plain_messages_and_others_are_checked_and_answered_alike() -> None:
    async with serve_script("one", "two") as client:
        session_id = await client.session()
        path = f"/v1/sessions/{session_id}/messages"
        plain = await client.json("POST", path, {"content": "go"}, headers={"idempotency-key": "a"})
        other = await client.json("POST", f"{path}?wait=60", {"content": "go"}, headers={"idempotency-key": "a"})
        assert plain == other and plain["reply"] == "one"
        for body in (
            {"content": 5},
            {"content": "", "more": 1},
            [],
            {"content": "x", "mode": "other"},
            {"content": ""},
        ):
            refused = [await client.problem("POST", one, body, 422) for one in (path, f"{path}?wait=60")]
            assert refused[0] == refused[1]
        async with Client(client.base, "") as anyone:
            assert (await anyone.problem("POST", path, {"content": "go"}, 401))["type"] == "unauthorized"
