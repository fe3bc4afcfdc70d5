"""A client of the sessions over REST, SSE and WebSocket: `/v1/sessions` and what is around it."""

import json
from typing import Any

from tests.seeds.conftest import Caller, read_frames
from tests.seeds.shapes import check_kinds, check_shape, has_one_line

CLASS = ("safe", "caution", "destructive")
FRAMES: dict[str, Any] = {
    "delta": {"text": str},
    "tool_start": {"name": str, "args": dict, "class": CLASS},
    "tool_end": {"name": str, "ok": bool, "summary": has_one_line},
    "tool_rejected": {"name": str, "class": CLASS},
    "iteration": {"n": int},
    "done": {"reply": str, "turns": int},
    "error": {"message": str},
    "approval_request": {"id": str, "name": str, "args": dict, "class": CLASS},
}


async def test_a_conversation_over_rest_sse_and_websocket(caller: Caller) -> None:
    session = await caller.call("POST", "/v1/sessions", {}, 201)
    path = f"/v1/sessions/{session['id']}"
    sent = await caller.call("POST", f"{path}/messages", {"content": "say: Hello.", "attachments": []})
    check_shape(sent, {"reply": "Hello.", "session": dict})
    (caller.work / "two.txt").write_text("one\ntwo\n")
    events = await caller.read_stream(
        "POST", f"{path}/messages/stream", {"content": 'use read_file {"path":"two.txt"}'}
    )
    frames = [json.loads(event["data"]) for event in events]
    check_kinds(frames, FRAMES)
    assert [frame["n"] for frame in frames if frame["type"] == "iteration"] == [1, 2]
    assert frames[-1]["type"] == "done" and frames[-1]["turns"] == 3, "turns counts those of the session"
    async with caller.open_socket(f"{path}/stream") as socket:
        await socket.send_json({"type": "user", "content": "use calculate"})
        frames = await read_frames(socket, "done")
        check_kinds(frames, FRAMES)
        assert frames[-1]["reply"] == "The tool said: 42"
        assert all(isinstance(frame["seq"], int) for frame in frames), "a frame carries its position"
        start = next(frame for frame in frames if frame["type"] == "tool_start")
    async with caller.open_socket(f"{path}/stream?after={start['seq']}") as socket:
        rest = await read_frames(socket, "done")
        assert "tool_start" not in [frame["type"] for frame in rest], "rejoining repeats nothing"
        assert rest[0]["type"] == "tool_end"
    check_shape(await caller.call("GET", "/v1/sessions"), (list, {"sessions": list}))
    await caller.call("GET", path)
    await caller.call("DELETE", path, status=204)
    check_shape(await caller.call("GET", path, status=404), {"error": {"type": str, "message": str}})


async def test_an_approval_a_cancel_and_the_catalogue(caller: Caller) -> None:
    session = await caller.call("POST", "/v1/sessions", {}, 201)
    async with caller.open_socket(f"/v1/sessions/{session['id']}/stream") as socket:
        await socket.send_json({"type": "user", "content": 'use shell {"command": "git push --force"}'})
        frames = await read_frames(socket, "approval_request")
        await caller.call("POST", f"/v1/approvals/{frames[-1]['id']}", {"approved": False})
        frames += await read_frames(socket, "done")
        check_kinds(frames, FRAMES)
        assert "tool_rejected" in [frame["type"] for frame in frames]
        await socket.send_json({"type": "user", "content": 'use shell {"command": "sleep 600"}'})
        await read_frames(socket, "tool_start")
        await socket.send_json({"type": "cancel"})
        assert (await read_frames(socket, "done", "error"))[-1]["type"] in ("done", "error")
    tool = {"name": str, "description": str, "class": CLASS, "schema": dict}
    check_shape(await caller.call("GET", "/v1/tools"), [tool])
    check_shape(await caller.call("GET", "/v1/skills"), [{"id": str, "description": str, "triggers": [str]}])
    config = {"provider": str, "model": str, "max_iterations": int, "skill_autogen": bool}
    check_shape(await caller.call("GET", "/v1/config"), config)
    check_shape(await caller.call("GET", "/v1/skills/proposals"), [dict])
    added = await caller.call("POST", "/v1/memory", {"content": "Tea is out."}, 201)
    assert await caller.call("GET", "/v1/memory/search?q=tea&k=3")
    assert await caller.call("GET", "/v1/memory")
    await caller.call("DELETE", f"/v1/memory/{added['id']}", status=204)
    await caller.call("GET", "/v1/health")
