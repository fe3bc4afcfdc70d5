"""Rolling upgrades: nodes of two releases serve one database, forth and back, and no session is stranded."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.previous_release import (
    PROJECT,
    Release,
    build_previous_release,
    find_missing_part,
    find_previous_commit,
)
from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.server import Odd
from tests.kit.obedient_provider import answer_request
from tests.kit.postgres import needs_postgres
from tests.kit.serve_process import SHARED_TOKEN, TREADLE, ServeProcess, start_process, write_tokens
from tests.kit.server import Client, SentEvent
from tests.kit.sessions import PATIENCE

pytestmark = [
    needs_postgres,
    pytest.mark.skipif(find_missing_part() != "", reason=f"NOT TESTED, {find_missing_part()}"),
]
NEWER = ("env", f"PYTHONPATH={PROJECT}:{PROJECT / 'src'}", sys.executable, "-m", "tests.cluster.newer_node")


@pytest.fixture(scope="module")
def old_release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return build_previous_release(tmp_path_factory.mktemp("previous"))


class Node:
    """A node that runs, and a client of it."""

    def __init__(self, server: ServeProcess, client: Client, work: Path) -> None:
        self.server, self.client, self.work = server, client, work

    async def leave(self) -> None:
        """Stop as at an upgrade."""
        self.server.process.terminate()
        await self.server.process.wait()

    async def die(self) -> None:
        """Be killed."""
        self.server.process.kill()
        await self.server.process.wait()

    async def create(self, name: str = "") -> str:
        """Create a session in the folder that all nodes share."""
        try:
            return await self.client.session(name=name, workspace=str(self.work))
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.server.read_log()}") from None

    async def begin(self, session_id: str, content: str) -> None:
        """Send a message, and wait for nothing."""
        await self.client.send(session_id, content, params={"wait": "0"})

    async def park(self, name: str) -> str:
        """Create a session that waits for the approval of a file."""
        session_id = await self.create(name)
        arguments = json.dumps({"path": f"{name}.txt", "content": f"by {name}\n"})
        await self.begin(session_id, f"use write_file {arguments}")
        await self.wait_for_status(session_id, "waiting")
        return session_id

    async def approve(self, session_id: str) -> None:
        """Allow what the session asks."""
        (asked,) = (await self.client.json("GET", f"/v1/sessions/{session_id}"))["pending"]
        await self.client.json("POST", f"/v1/approvals/{asked['id']}", {"approved": True})

    async def find(self, session_id: str) -> Any:
        """Find the session in the list. The list shows every session to every node."""
        listed = await self.client.json("GET", "/v1/sessions")
        return next(one for one in listed["sessions"] if one["id"] == session_id)

    async def wait_for_status(self, session_id: str, status: str) -> Any:
        """Wait until the session has this status, and return its entry in the list."""
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while (shown := await self.find(session_id))["status"] != status:
            assert asyncio.get_running_loop().time() < deadline, (shown, self.server.read_log())
            await asyncio.sleep(0.02)
        return shown


class Nodes:
    """Starts nodes of one database, with one workspace, one provider and one token."""

    def __init__(self, home: Path, url: str) -> None:
        self.home, self.url, self.work = home, url, home / "work"
        self.held = asyncio.Event()
        self._provider = StrictChat(self._answer)
        self._stack, self._count = AsyncExitStack(), 0

    async def __aenter__(self) -> "Nodes":
        self.work.mkdir()
        await self._stack.enter_async_context(self._provider)
        return self

    async def __aexit__(self, *error: Any) -> None:
        self.held.set()
        await self._stack.aclose()

    async def start(self, program: Sequence[str] = (str(TREADLE),)) -> Node:
        self._count += 1
        folder = self.home / f"node{self._count}"
        write_tokens(folder, {"name": "owner", "value": SHARED_TOKEN})
        places = ("--store", self.url, "--workspace", str(self.work), "--root", str(self.work))
        options = (*places, "--access", "read-only", "--lease", "2")
        server = await self._stack.enter_async_context(start_process(folder, self._provider, *options, program=program))
        return Node(server, await self._stack.enter_async_context(Client(server.address, server.token)), self.work)

    def read_files(self) -> dict[str, str]:
        return {path.name: path.read_text("utf-8") for path in sorted(self.work.glob("*.txt"))}

    async def wait_for_requests(self, count: int) -> None:
        """Wait until the model was asked so often."""
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while len(self._provider.seen) < count:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.02)

    def _answer(self, body: dict[str, Any]) -> Any:
        reply = answer_request(body)
        return Odd(reply, held=self.held) if "slowly" in str(body["messages"][-1]) else reply


@pytest.fixture
async def nodes(tmp_path: Path, postgres_url: str) -> AsyncIterator[Nodes]:
    async with Nodes(tmp_path, postgres_url) as opened:
        yield opened


@asynccontextmanager
async def watch_list(node: Node) -> AsyncIterator[AsyncIterator[SentEvent]]:
    """The changes of the list, as the page follows them."""
    async with node.client.stream("/v1/sessions/stream") as events:
        yield events


async def wait_for_session(events: AsyncIterator[SentEvent], session_id: str, status: str) -> None:
    async for event in events:
        if event.event == "session" and (event.data["id"], event.data["status"]) == (session_id, status):
            return
    raise AssertionError("the stream ended")


# ── the release before, forth and back ───────────────────────────────────────────────────────────────────


ASK = """
import json
from typing import get_args
from treadle.events import AnyFact
from treadle.log import postgres_rows as rows
from treadle.log.postgres_schema import MIGRATIONS
kinds = sorted(kind.__struct_config__.tag for kind in get_args(AnyFact))
late = sorted(kind.__struct_config__.tag for kind in rows._MIN_READERS)
print(json.dumps({"migrations": MIGRATIONS, "reader": rows.READER, "kinds": kinds, "late": late}))
"""


def ask(*program: str) -> Any:
    """Ask a release what it knows."""
    done = subprocess.run([*program, "-c", ASK], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def test_what_was_released_stays_and_new_facts_name_their_first_reader(old_release: Release) -> None:
    if not find_previous_commit():
        pytest.skip(
            "NOT TESTED, no release before this one has a log in PostgreSQL. The last commit stands for it: "
            f"{old_release.commit[:8]}, {old_release.version}"
        )
    old, new = ask(*old_release.program[:3]), ask(sys.executable)
    assert new["migrations"][: len(old["migrations"])] == old["migrations"], "a released migration never changes"
    assert len(new["migrations"]) <= len(old["migrations"]) + 1, "a release brings one migration"
    added = set(new["kinds"]) - set(old["kinds"])
    assert added <= set(new["late"]), "_MIN_READERS must list them"
    assert new["reader"] == old["reader"] + bool(added)
    assert set(old["kinds"]) <= set(new["kinds"]), "they are in the stores of users"


async def test_nodes_are_upgraded_one_by_one_and_put_back_while_approvals_wait(
    nodes: Nodes, old_release: Release
) -> None:
    old = await nodes.start(old_release.program)
    parked = {name: await old.park(name) for name in ("one", "two", "three")}
    new = await nodes.start()
    await new.approve(parked["one"])  # what the old one asked is answered at the new one
    await old.approve(parked["two"])
    parked |= {name: await new.park(name) for name in ("four", "five", "six")}
    await old.approve(parked["four"])  # and the other way round
    for node in (old, new):
        for name in ("one", "two", "four"):
            await node.wait_for_status(parked[name], "answered")
    await old.leave()  # the upgrade is done
    await new.approve(parked["three"])
    parked["seven"] = await new.park("seven")
    back = await nodes.start(old_release.program)  # and is taken back
    await back.approve(parked["five"])
    await new.leave()
    for name in ("six", "seven"):
        await back.approve(parked[name])
    for name, session_id in parked.items():
        assert (await back.wait_for_status(session_id, "answered"))["name"] == name
        facts = await back.client.facts(session_id)
        assert [fact["seq"] for fact in facts] == list(range(1, len(facts) + 1))
        finished = [fact["status"] for fact in facts if fact["type"] == "call_finished"]
        assert finished == ["ok"], "the call ran once"
    assert nodes.read_files() == {f"{name}.txt": f"by {name}\n" for name in sorted(parked)}


async def test_a_run_of_an_old_node_that_dies_goes_on_at_a_new_one_and_back(nodes: Nodes, old_release: Release) -> None:
    for first, second in ((old_release.program, (str(TREADLE),)), ((str(TREADLE),), old_release.program)):
        nodes.held.clear()
        dying = await nodes.start(first)
        session_id = await dying.create()
        await dying.begin(session_id, "say: slowly")
        await dying.client.wait_for(session_id, "turn_started")
        heir = await nodes.start(second)
        nodes.held.set()
        await dying.die()
        await heir.wait_for_status(session_id, "answered")
        await heir.leave()


# ── a kind of fact that the older release cannot read ────────────────────────────────────────────────────


async def test_an_old_node_leaves_sessions_alone_that_it_cannot_read(nodes: Nodes, old_release: Release) -> None:
    old, newer = await nodes.start(old_release.program), await nodes.start(NEWER)
    async with watch_list(old) as changes:
        dreaming = await newer.create("dreaming")
        await newer.begin(dreaming, 'use write_file {"path": "dream.txt", "content": "of sheep"}')
        await wait_for_session(changes, dreaming, "waiting")
        plain = await newer.park("plain")
        await wait_for_session(changes, plain, "waiting")
    assert [one["session_id"] for one in await old.client.json("GET", "/v1/approvals")] == [plain]
    for method, path, body in (
        ("GET", f"/v1/sessions/{dreaming}", None),
        ("GET", f"/v1/sessions/{dreaming}/events?follow=false", None),
        ("GET", f"/v1/sessions/{dreaming}/state", None),
        ("POST", f"/v1/sessions/{dreaming}/approvals/call_1", {"decision": "allow"}),
        ("POST", f"/v1/sessions/{dreaming}/messages", {"content": "hello"}),
        ("POST", f"/v1/sessions/{dreaming}/cancel", None),
        ("POST", f"/v1/sessions/{dreaming}/fork", {}),
    ):
        problem = await old.client.problem(method, path, body, 503)
        assert "was written by a newer treadle" in problem["message"], (method, path, problem)
        assert "a node with a newer treadle can do this" in problem["hint"]
    await newer.die()
    await old.approve(plain)  # the other sessions go on
    await old.wait_for_status(plain, "answered")
    await old.client.json("PATCH", f"/v1/sessions/{dreaming}", {"archived": True})
    assert [hit["session_id"] for hit in await old.client.json("GET", "/v1/search?q=sheep")] == [dreaming]
    newer = await nodes.start(NEWER)
    await newer.approve(dreaming)
    await newer.wait_for_status(dreaming, "answered")
    assert nodes.read_files() == {"dream.txt": "of sheep", "plain.txt": "by plain\n"}
    await old.client.json("DELETE", f"/v1/sessions/{dreaming}", status=204)


async def test_a_run_goes_on_at_a_newer_node_when_it_gets_a_fact_that_its_owner_cannot_read(
    nodes: Nodes, old_release: Release
) -> None:
    old = await nodes.start(old_release.program)
    session_id = await old.create()
    waiting = asyncio.create_task(old.client.send(session_id, "say: slowly", status=503))
    await old.client.wait_for(session_id, "turn_started")
    newer = await nodes.start(NEWER)
    await newer.begin(session_id, "say: I had a dream")
    assert "was written by a newer treadle" in (await waiting)["error"]["message"], "the owner gives up at once"
    await nodes.wait_for_requests(2)  # a newer node asks again, while the model has not answered the first one
    nodes.held.set()
    await newer.wait_for_status(session_id, "answered")
    facts = await newer.client.facts(session_id)
    assert [fact["seq"] for fact in facts] == list(range(1, len(facts) + 1))
    assert {fact["reason"] for fact in facts if fact["type"] == "run_finished"} == {"answered"}


async def test_an_old_node_that_is_alone_with_sessions_it_cannot_run_stays_idle(
    nodes: Nodes, old_release: Release
) -> None:
    newer = await nodes.start(NEWER)
    session_id = await newer.create()
    await newer.begin(session_id, "slowly, as in a dream")
    await newer.client.wait_for(session_id, "turn_started")
    old = await nodes.start(old_release.program)
    await newer.die()
    shown = await old.find(session_id)
    assert shown["status"] == "running"
    before = measure_cpu(old)
    plain = await old.park("plain")
    await old.approve(plain)
    await old.wait_for_status(plain, "answered")
    print(f"the old node used {measure_cpu(old) - before:.2f} s of CPU")
    assert (await old.find(session_id))["status"] == "running"
    nodes.held.set()
    newer = await nodes.start(NEWER)
    await newer.wait_for_status(session_id, "answered")


def measure_cpu(node: Node) -> float:
    """The CPU seconds that a node has used."""
    stat = Path(f"/proc/{node.server.process.pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
