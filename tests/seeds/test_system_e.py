"""A client of the chat server's frames: `/v1/ws`."""

from typing import Any

from tests.seeds.conftest import Caller, read_frames
from tests.seeds.shapes import check_kinds, check_shape, is_iso_time

COUNTS = {"tokens_used": (int, None), "completion_tokens": (int, None), "ctx_used": (int, None)}
COUNTS |= {"ctx_max": (int, None)}
PLACE = {"session_id": str, "chat_id": str, "message_id": str}
METADATA = (None, {"kind": ("cap_hit", "doom_loop", "error")})
FRAMES: dict[str, Any] = {
    "message_started": {
        **PLACE,
        "role": ("assistant", "tool", "user", "system"),
        "model": (str, None),
        "started_at": is_iso_time,
    },
    "delta": {**PLACE, "content": str},
    "tool_call": {**PLACE, "tool_call": {"id": str, "name": str, "arguments": dict}},
    "tool_result": {
        **PLACE,
        "tool_message_id": str,
        "tool_call_id": str,
        "output": str,
        "truncated": bool,
        "error?": (str, bool),
    },
    "message_complete": {
        **PLACE,
        **COUNTS,
        "content": str,
        "metadata": METADATA,
        "started_at": is_iso_time,
        "finished_at": is_iso_time,
        "model": (str, None),
    },
    "usage": COUNTS,
    "messages_deleted": {"message_ids": [str]},
    "session_renamed": {"name": str},
    "chat_renamed": {"name": str},
    "error": {"error": str, "reason": str},
}


async def read_messages(caller: Caller, session_id: str, count: int, after: int = 0) -> list[dict[str, Any]]:
    """The frames of a session up to its `count`-th complete message, each checked."""
    frames: list[dict[str, Any]] = []
    async with caller.open_socket(f"/v1/ws?session={session_id}&after={after}") as socket:
        while len([frame for frame in frames if frame["type"] == "message_complete"]) < count:
            frames += await read_frames(socket, "message_complete")
    check_kinds(frames, FRAMES)
    return frames


async def test_messages_are_sent_as_frames_with_their_documented_fields(caller: Caller) -> None:
    session = await caller.call("POST", "/v1/sessions", {}, 201)
    path = f"/v1/sessions/{session['id']}"
    await caller.call("POST", f"{path}/messages", {"content": "use calculate and use read_file"})
    frames = await read_messages(caller, session["id"], 5)
    assert {frame["session_id"] for frame in frames} == {session["id"]} == {frame["chat_id"] for frame in frames}
    results = {frame["output"]: frame for frame in frames if frame["type"] == "tool_result"}
    assert results["42"]["truncated"] is False and "error" not in results["42"]
    assert any(frame.get("error") for frame in results.values())
    answer = frames[-1]
    assert answer["content"].startswith("The tool said: 42")
    for place in range(len(frames) - 1):  # leave after each frame and come back
        if frames[place]["type"] != "delta":
            rest = await read_messages(caller, session["id"], 1, frames[-2]["seq"])
            assert rest[-1]["message_id"] == answer["message_id"]
            break


async def test_a_limit_is_announced_as_a_system_message_with_its_kind(caller: Caller) -> None:
    session = await caller.call("POST", "/v1/sessions", {"limits": {"turns": 2}}, 201)
    order = 'again and again use calculate {"expression": "1+1"}'
    await caller.call("POST", f"/v1/sessions/{session['id']}/messages", {"content": order})
    frames: list[dict[str, Any]] = []
    async with caller.open_socket(f"/v1/ws?session={session['id']}") as socket:
        while not any(frame.get("metadata") for frame in frames):
            frames += await read_frames(socket, "message_complete")
    check_kinds(frames, FRAMES)
    sentinel = frames[-1]["message_id"]
    own = [frame for frame in frames if frame.get("message_id") == sentinel]
    assert [frame["type"] for frame in own] == ["message_started", "delta", "message_complete"]
    assert own[0]["role"] == "system" and own[2]["metadata"]["kind"] == "cap_hit"


async def test_the_status_of_all_chats_reaches_every_device(caller: Caller) -> None:
    async with caller.open_socket("/v1/ws") as socket:
        session = await caller.call("POST", "/v1/sessions", {}, 201)
        order = 'use shell {"command": "git push --force"}'
        await caller.call("POST", f"/v1/sessions/{session['id']}/messages?wait=0", {"content": order})
        seen: list[dict[str, Any]] = []
        while "needs_you" not in [frame["status"] for frame in seen]:
            seen += await read_frames(socket, "chat_status")
        check_shape(seen, [{"type": "chat_status", "chat_id": str, "status": str, "at": is_iso_time}])
        assert "streaming" in [frame["status"] for frame in seen]


async def test_a_session_is_named_after_its_first_answer_and_says_whether_it_is_active(caller: Caller) -> None:
    session = await caller.call("POST", "/v1/sessions", {}, 201)
    path = f"/v1/sessions/{session['id']}"
    async with caller.open_socket(f"/v1/ws?session={session['id']}") as socket:
        await caller.call("POST", f"{path}/messages", {"content": "say: tea is ready"})
        renamed = (await read_frames(socket, "session_renamed"))[-1]
    shown = await caller.call("GET", path)
    assert shown["name"] == renamed["name"] != "" and shown["status"] == "answered"
    order = 'use shell {"command": "git push --force"}'
    await caller.call("POST", f"{path}/messages?wait=0.5", {"content": order})
    assert (await caller.call("GET", path))["status"] in ("running", "waiting")
    stopped = await caller.call("POST", f"{path}/cancel")
    assert stopped["cancelled"] and (await caller.call("GET", path))["status"] not in ("running", "waiting")


async def test_a_run_ends_with_a_wrap_up_when_its_fifty_calls_are_used(caller: Caller) -> None:
    session = await caller.call("POST", "/v1/sessions", {}, 201)
    orders = "\n".join(f'use calculate {{"expression": "{number}+1"}}' for number in range(60))
    said = await caller.call("POST", f"/v1/sessions/{session['id']}/messages", {"content": orders})
    outcome = said["outcome"]
    assert (outcome["status"], outcome["reason"], outcome["calls"]) == ("stopped", "call_limit", 50)
    assert outcome["can_continue"] and said["reply"]
