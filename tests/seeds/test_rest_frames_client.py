"""A client of the REST interface with frames, written from its documentation, against a real `treadle serve`."""

import json
from pathlib import Path
from typing import Any

import aiohttp

from tests.kit.fakes.chat import StrictChat
from tests.kit.serve_process import start_server
from treadle.messages import Call, Reply

FRAMES: dict[str, dict[str, type]] = {
    "delta": {"text": str},
    "tool_start": {"name": str, "args": dict, "class": str},
    "tool_end": {"name": str, "ok": bool, "summary": str},
    "tool_rejected": {"name": str, "class": str},
    "iteration": {"n": int},
    "done": {"reply": str, "turns": int},
    "error": {"message": str},
    "approval_request": {"id": str, "name": str, "args": dict, "class": str},
}


def check_frame(frame: dict[str, Any]) -> str:
    for name, kind in FRAMES[frame["type"]].items():
        assert type(frame[name]) is kind, frame
    assert frame.get("class", "safe") in ("safe", "caution", "destructive")
    return frame["type"]


def check_row(row: dict[str, Any], **fields: type) -> None:
    assert {name: type(row[name]) for name in fields} == fields, row


def answer_request(body: dict[str, Any]) -> Reply:
    """Write a file on `go`, and say so; say that it is again on anything else."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return Reply("Written.")
    if last["content"] == "go":
        return Reply(calls=(Call("call_0", "write_file", '{"path": "a.txt", "content": "hi"}'),), finish="calls")
    return Reply("Again.")


def build_provider() -> StrictChat:
    return StrictChat(answer_request, key="sk-test")


async def test_a_client_of_the_rest_interface_works_unchanged(tmp_path: Path) -> None:
    async with build_provider() as provider, start_server(tmp_path, provider) as (base, token):
        headers = {"authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession(base, headers=headers) as http:

            async def ask(method: str, path: str, body: Any = None, status: int = 200) -> Any:
                async with http.request(method, path, json=body) as answer:
                    text = await answer.text()
                    assert answer.status == status, (method, path, answer.status, text)
                    return json.loads(text) if text else None

            await ask("GET", "/v1/health")
            for tool in await ask("GET", "/v1/tools"):
                check_row(tool, name=str, description=str, **{"class": str, "schema": dict})
            assert await ask("GET", "/v1/skills") == []
            check_row(await ask("GET", "/v1/config"), provider=str, model=str, max_iterations=int, skill_autogen=bool)
            session = (await ask("POST", "/v1/sessions", {}, 201))["id"]
            assert session in json.dumps(await ask("GET", "/v1/sessions"))
            async with http.post(f"/v1/sessions/{session}/messages/stream", json={"content": "go"}) as stream:
                lines = [line[6:] async for line in stream.content if line.startswith(b"data: ")]
            frames = [json.loads(line) for line in lines]
            kinds = [check_frame(frame) for frame in frames]
            assert kinds == ["iteration", "tool_start", "tool_end", "iteration", "delta", "done"], frames
            assert [frame["n"] for frame in frames if frame["type"] == "iteration"] == [1, 2]
            assert (frames[-1]["reply"], frames[-1]["turns"]) == ("Written.", 2)
            answered = await ask("POST", f"/v1/sessions/{session}/messages", {"content": "again", "attachments": []})
            assert answered["reply"] == "Again." and answered["session"]["id"] == session
            memory = await ask("POST", "/v1/memory", {"content": "Bread needs salt."}, 201)
            assert [one["id"] for one in await ask("GET", "/v1/memory/search?q=bread&k=1")] == [memory["id"]]
            assert [one["id"] for one in await ask("GET", "/v1/memory")] == [memory["id"]]
            await ask("DELETE", f"/v1/memory/{memory['id']}", status=204)
            assert await ask("GET", "/v1/skills/proposals") == []
            refused = await ask("POST", "/v1/approvals/nothing", {"approved": True}, 404)
            check_row(refused["error"], type=str, message=str)
            await ask("DELETE", f"/v1/sessions/{session}", status=204)
            await ask("GET", f"/v1/sessions/{session}", status=404)
