"""A client of the chat over JSON-RPC 2.0: `/v1/rpc`."""

from typing import Any

import aiohttp

from tests.seeds.conftest import Caller, read_frames
from tests.seeds.shapes import check_kinds, check_shape

EVENTS: dict[str, Any] = {
    "token": {"session_id": str, "text": str},
    "tool_call": {"session_id": str, "params": dict},
    "tool_result": {"session_id": str, "content": str},
    "approval_pending": {"session_id": str, "approval_id": str},
    "done": {"session_id": str, "tools_called": [str], "turns": int, "status": str},
    "error": {"session_id": str, "message": str},
}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


async def ask(socket: aiohttp.ClientWebSocketResponse, number: int, method: str, **params: Any) -> dict[str, Any]:
    """Call a method. Returns its result."""
    await socket.send_json({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
    while True:
        (answer,) = [frame async for frame in _receive_one(socket)]
        if answer.get("id") == number:
            assert "result" in answer, answer
            return answer["result"]


async def _receive_one(socket: aiohttp.ClientWebSocketResponse) -> Any:
    yield await socket.receive_json()


async def follow(socket: aiohttp.ClientWebSocketResponse, *ends: str) -> list[dict[str, Any]]:
    """The events up to one of these kinds, each checked."""
    events: list[dict[str, Any]] = []
    while not events or events[-1]["kind"] not in ends:
        frame = await socket.receive_json()
        check_shape(frame, {"jsonrpc": "2.0", "method": "agents.chat.event", "params": dict})
        events.append(frame["params"])
    check_kinds(events, EVENTS, "kind")
    return events


async def test_a_chat_is_acknowledged_at_once_and_then_sends_its_events(caller: Caller) -> None:
    async with caller.open_socket("/v1/rpc") as socket:
        accepted = await ask(socket, 1, "agents.chat", prompt="use calculate and use read_file", stream=True)
        check_shape(accepted, {"accepted": True, "session_id": str})
        events = await follow(socket, "done", "error")
        assert events[-1]["kind"] == "done" and events[-1]["tools_called"] == ["calculate"]
        called = [event for event in events if event["kind"] == "tool_call"]
        assert called[0]["params"] == {"expression": "6*7"}
        results = [event["content"] for event in events if event["kind"] == "tool_result"]
        assert results[0] == "42"
        image = {"type": "image", "data": PIXEL, "media_type": "image/png"}
        session_id = accepted["session_id"]
        await ask(socket, 2, "agent.chat", prompt="say: seen", session_id=session_id, attachments=[image])
        assert (await follow(socket, "done"))[-1]["kind"] == "done"


async def test_an_approval_is_answered_and_a_run_is_cancelled_over_the_same_socket(caller: Caller) -> None:
    (caller.work / "old").mkdir()
    async with caller.open_socket("/v1/rpc") as socket:
        order = 'use shell {"command": "git push --force"}'
        session_id = (await ask(socket, 1, "agents.chat", prompt=order))["session_id"]
        pending = (await follow(socket, "approval_pending"))[-1]
        answer = {"session_id": session_id, "approval_id": pending["approval_id"], "decision": "deny"}
        await socket.send_json({"jsonrpc": "2.0", "id": 2, "method": "agents.chat.approve", "params": answer})
        frames = await read_frames(socket, 2, field="id")  # type: ignore[arg-type]
        assert frames[-1]["result"] == {"resolved": True}
        await socket.send_json({"jsonrpc": "2.0", "id": 3, "method": "nonsense", "params": {}})
        assert (await read_frames(socket, 3, field="id"))[-1]["error"]["code"] == -32601  # type: ignore[arg-type]
