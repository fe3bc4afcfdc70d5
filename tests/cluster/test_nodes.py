"""`treadle nodes` beside real servers: who is alive, what each one holds, and draining one."""

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.server import Odd
from tests.kit.postgres import needs_postgres
from tests.kit.serve_process import start_nodes
from tests.kit.server import Client
from tests.kit.sessions import PATIENCE
from tests.kit.terminal import Place, create_place
from treadle.messages import Reply

pytestmark = needs_postgres


async def list_nodes(place: Place, url: str) -> dict[str, Any]:
    done = await place.quick("nodes", "--store", url, "--json")
    assert done.code == 0, done.err
    nodes = [json.loads(line) for line in done.out.splitlines()]
    return {node["name"]: node for node in nodes}


async def wait_for_node(place: Place, url: str, name: str, **wanted: Any) -> dict[str, Any]:
    """Wait until a node is listed with these values. One that is missing has the default."""
    async with asyncio.timeout(PATIENCE):
        while True:
            node = (await list_nodes(place, url))[name]
            if all(node.get(key) == value for key, value in wanted.items()):
                return node
            await asyncio.sleep(0.1)


async def read_metrics(client: Client) -> dict[str, float]:
    async with client.request("GET", "/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


async def test_a_drained_node_hands_its_sessions_over_and_is_not_ready(tmp_path: Path, postgres_url: str) -> None:
    place, never = create_place(tmp_path), asyncio.Event()
    script = (Odd(Reply(text="x"), held=never), Reply(text="From the other node."), Reply(text="Again."))
    async with (
        StrictChat(script) as provider,
        start_nodes(tmp_path, provider, postgres_url, "--grace", "1", "--lease", "3") as (_, (one, two)),
        Client(one.address, one.token) as first,
        Client(two.address, two.token) as second,
    ):
        session_id = await first.session(name="held")
        sending = asyncio.create_task(first.send(session_id, "go"))
        await second.wait_for(session_id, "turn_started")
        nodes = await list_nodes(place, postgres_url)
        (name,) = [node["name"] for node in nodes.values() if node.get("sessions")]
        assert f":{one.process.pid}:" in name and len(nodes) == 2
        assert all(node["is_alive"] and str(tmp_path / "work") in node["roots"] for node in nodes.values())
        done = await place.quick("nodes", "drain", name, "--store", postgres_url)
        assert done.code == 0 and f"asked {name} to hand over 1 session;" in done.err
        assert (await sending)["reply"] == "From the other node."
        await wait_for_node(place, postgres_url, name, is_draining=True, sessions=0)
        async with first.request("GET", "/ready") as answer:
            document = await answer.json()
        assert (answer.status, list(document["problems"])) == (503, ["server"])
        assert (await first.send(session_id, "more"))["reply"] == "Again."
        shown = await place.quick("nodes", "list", "--store", postgres_url)
        states = {line.split()[0]: line.split()[1] for line in shown.out.splitlines()[1:]}
        assert sorted(states.values()) == ["alive", "draining"] and states[name] == "draining"

        measured = await read_metrics(second)
        assert measured["treadle_claims_total"] >= 1 and measured["treadle_fenced_writes_total"] == 0
        assert 0 <= measured["treadle_wakeup_lag_seconds"] < 60 and measured["treadle_takeovers_total"] == 0
        assert "treadle_store_connections_used" in measured and "treadle_store_statements_waiting" in measured

        two.process.kill()
        await two.process.wait()
        (other,) = nodes.keys() - {name}
        await wait_for_node(place, postgres_url, other, is_alive=False)
        shown = await place.quick("nodes", "--store", postgres_url)
        assert f"{other}  last seen" in shown.out
        done = await place.quick("nodes", "drain", other[:-2], "--store", postgres_url)
        assert done.code == 2 and "no node that is alive" in done.err
    assert name not in await list_nodes(place, postgres_url), "a node that is stopped leaves the list"
