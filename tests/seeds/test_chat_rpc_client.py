"""A client of the JSON-RPC chat, written from its documentation, against a real `treadle serve`."""

from pathlib import Path
from typing import Any

import aiohttp

from tests.kit.serve_process import start_server
from tests.seeds.test_rest_frames_client import build_provider, check_row

FIELDS: dict[str, dict[str, type]] = {
    "token": {"text": str},
    "tool_call": {"name": str, "params": dict},
    "tool_result": {"name": str, "content": str},
    "approval_pending": {"approval_id": str},
    "done": {"status": str, "summary": str, "turns": int, "tools_called": list},
    "error": {"message": str},
}


async def test_a_client_of_the_chat_works_unchanged(tmp_path: Path) -> None:
    async with build_provider() as provider, start_server(tmp_path, provider) as (base, token):
        headers = {"authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession(base, headers=headers) as http, http.ws_connect("/v1/rpc") as socket:

            async def call(method: str, **params: Any) -> Any:
                await socket.send_json({"jsonrpc": "2.0", "id": method, "method": method, "params": params})
                while (message := await socket.receive_json(timeout=60)).get("id") != method:
                    pass
                return message["result"]

            accepted = await call("agents.chat", prompt="go", stream=True)
            assert accepted["accepted"] is True
            events: list[dict[str, Any]] = []
            while not events or events[-1]["kind"] not in ("done", "error"):
                message = await socket.receive_json(timeout=60)
                assert message["method"] == "agents.chat.event"
                events.append(message["params"])
                check_row(events[-1], session_id=str, **FIELDS[events[-1]["kind"]])
            assert [event["kind"] for event in events] == ["tool_call", "tool_result", "token", "done"]
            assert events[0]["params"] == {"path": "a.txt", "content": "hi"}
            assert (events[-1]["status"], events[-1]["tools_called"]) == ("success", ["write_file"])
            named = {"session_id": accepted["session_id"], "approval_id": "nothing", "decision": "allow"}
            assert (await call("agent.chat.approve", **named))["resolved"] is False
            await call("agents.chat.cancel", session_id=accepted["session_id"])
