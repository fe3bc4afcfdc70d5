"""Runs the curl examples of docs/api.md as they are. `# →` says what must be in the output."""

import asyncio
import os
import re
import shutil
from pathlib import Path

import pytest

from tests.kit.server import OWNER, serve_agents
from tests.kit.sessions import Tables
from treadle import Agent
from treadle.messages import Request, ResultMessage, UserMessage, render_parts
from treadle.testing import ScriptedModel, call

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)

SEEN = {
    "curl -sSN --max-time 2": "curl -sSN",
    "/events || true": "/events | sed '/^id: 2/q'",
    '/events?after=0" || true': "/events?after=0\" | sed '/^data: /q'",
    "?wait=1": "?wait=0",
    "APPROVAL=": 'until curl -sS -H "$AUTH" $BASE/v1/approvals | grep -q \'"id"\'; do sleep 0.1; done\nAPPROVAL=',
}
"""Replaces what the examples do after a fixed time, because a busy machine may need longer."""


def follow_example(request: Request) -> object:
    """Reply as the examples expect."""
    last = request.messages[-1]
    if isinstance(last, ResultMessage):
        return "Done."
    assert isinstance(last, UserMessage)
    said = render_parts(last.parts)
    if "Drop" in said and request.tools:
        return call("drop", table="users")
    return call("note", text="tea is out") if "Note" in said and request.tools else "Hello."


@pytest.mark.skipif(shutil.which("curl") is None, reason="CURL IS MISSING: the examples of docs/api.md are not run")
async def test_the_examples_in_the_documentation_work_as_written() -> None:
    blocks = BLOCK.findall(PAGE.read_text("utf-8"))
    assert len(blocks) >= 8
    script = "set -eu\n" + "\necho '@@'\n".join(blocks)
    for timed, seen in SEEN.items():
        assert timed in script, timed
        script = script.replace(timed, seen)
    agent = Agent(ScriptedModel(*[follow_example] * 100), tools=Tables().tools, name="default")  # type: ignore[list-item]
    async with serve_agents(agent, keep_alive=0.2) as client:
        env = {**os.environ, "BASE": client.base, "TOKEN": OWNER.value, "NO_PROXY": "127.0.0.1"}
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", script, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await asyncio.wait_for(process.communicate(), 300)
    assert process.returncode == 0, (out.decode(), err.decode())
    outputs = out.decode().split("@@\n")
    for block, output in zip(blocks, outputs, strict=True):
        for wanted in re.findall(r"^# → (.*)$", block, re.MULTILINE):
            assert wanted in output, f"{wanted!r} is not in:\n{output}"


async def test_every_route_is_named_on_the_page() -> None:
    page = PAGE.read_text("utf-8")
    async with serve_agents(Agent(ScriptedModel())) as client:
        paths = client.app.openapi()["paths"]
    assert len(paths) > 40
    for path in paths:
        last = [part for part in path.split("/") if part and not part.startswith("{")][-1]
        assert re.search(rf"[/…]{last}\b|`{last}`", page), path
