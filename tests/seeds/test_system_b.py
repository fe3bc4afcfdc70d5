"""A client of the runtime kernel as a library, and of its checkpoints over HTTP."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from tests.seeds.conftest import Caller
from tests.seeds.shapes import check_shape

KINDS = ("after_user_input", "before_llm", "before_tool_calls", "after_tool_calls")
CHECKPOINT = {"seq": int, "kind": KINDS, "turns": int}
ROOT = Path(__file__).parents[2]


async def run_kernel(store: Path) -> dict[str, Any]:
    """Run the program on a store. Returns what it printed."""
    command = (sys.executable, "-m", "tests.seeds.kernel_client", str(store))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    printed, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(printed)


async def test_a_kernel_runs_watches_checkpoints_and_resumes(tmp_path: Path) -> None:
    done = await run_kernel(tmp_path / "kernel.db")
    assert done["answer"] == "five" and done["default_turns"] == 50
    assert set(done["middleware"]) == {"on_user_message", "on_pre_llm", "on_post_llm"}
    assert done["spans"] > 0
    kinds = [point["kind"] for point in done["checkpoints"]]
    assert kinds == ["after_user_input", "before_llm", "before_tool_calls", "after_tool_calls", "before_llm"]
    check_shape(done["checkpoints"], [CHECKPOINT])
    said, asked, calling, called, _ = done["checkpoints"]
    assert "2 and 3?" in json.dumps(said["user_input"])
    assert asked["messages"] and "add" in json.dumps(asked["tools"])
    assert calling["calls"][0]["tool"] == "add"
    assert called["calls"] and "5" in json.dumps(called)
    assert set(done["resumed"].values()) == {"answered"}
    sessions = {session_id for session_id, _, _ in done["bus"]}
    assert len(sessions) == 1 and [kind for _, kind, _ in done["bus"]] == [fact["type"] for fact in done["events"]]
    assert "200" in done["ceiling"]
    again = await run_kernel(tmp_path / "kernel.db")
    assert again["bus"][0] == done["bus"][0], "the bus begins with the oldest fact, also in another process"


async def test_checkpoints_are_listed_and_resumed_over_http(caller: Caller) -> None:
    session = await caller.call("POST", "/v1/sessions", {}, 201)
    path = f"/v1/sessions/{session['id']}"
    await caller.call("POST", f"{path}/messages", {"content": "use calculate"})
    listed = await caller.call("GET", f"{path}/checkpoints")
    points = listed if isinstance(listed, list) else listed["checkpoints"]
    check_shape(points, [CHECKPOINT])
    before = next(point for point in points if point["kind"] == "after_tool_calls")
    await caller.call("POST", f"{path}/resume", {"after": before["seq"]})
    await caller.call("POST", f"{path}/resume", {"after": 10**6}, 422)
    too_many = await caller.call("PATCH", path, {"limits": {"turns": 300}}, 422)
    assert "200" in too_many["error"]["message"]
    await caller.call("POST", "/v1/sessions", {"limits": {"calls": False}}, 422)
