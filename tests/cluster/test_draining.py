"""A node that is told to stop finishes the step under way and hands its sessions over; others go on at once."""

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.cluster.lease_node import build_agent, start_node
from tests.cluster.test_leases import post_orders, wait_for_ends, wait_for_lines
from tests.kit.postgres import needs_postgres
from tests.kit.processes import wait_until
from treadle import Runtime
from treadle.events import AnyFact, CallFinished, CallStarted
from treadle.log.open_log import open_log
from treadle.tools.delegate import derive_helper_id

pytestmark = needs_postgres


def find_starts(facts: list[AnyFact]) -> list[CallStarted]:
    return [fact for fact in facts if isinstance(fact, CallStarted)]


def find_results(facts: list[AnyFact]) -> list[str]:
    return [fact.status for fact in facts if isinstance(fact, CallFinished)]


@asynccontextmanager
async def open_node(url: str, folder: Path, *, grace: float = 0.0) -> AsyncGenerator[Runtime]:
    async with open_log(url) as log, Runtime(log, [build_agent(folder)], grace=grace) as runtime:
        yield runtime


async def test_a_node_that_is_stopped_finishes_its_step_and_another_goes_on(postgres_url: str, tmp_path: Path) -> None:
    with start_node(postgres_url, tmp_path, lease=60, grace=30) as stopped:
        async with open_log(postgres_url) as log:
            await post_orders(log, tmp_path, "change 2", ["one"])
            await wait_for_lines(tmp_path, 1)
            async with open_node(postgres_url, tmp_path) as other:
                stopped.send(signal.SIGTERM)
                (tmp_path / "go").touch()
                (end,) = await wait_for_ends(log, ["one"])
                assert end.reason == "answered"
                assert await asyncio.to_thread(stopped.wait) == 0
                facts = await log.read("one")
                assert find_results(facts) == ["ok", "ok"], "no call was cut off"
                assert [start.owner for start in find_starts(facts)] == [stopped.owner, other.coordinator.owner]
                begin = facts.index(next(fact for fact in facts if isinstance(fact, CallFinished)))
                assert facts[begin + 1].at - facts[begin].at < 2
                assert [node.name for node in await log.list_nodes()] == [other.coordinator.owner], "it has left"


async def test_a_call_that_takes_longer_than_the_grace_is_cut_off(postgres_url: str, tmp_path: Path) -> None:
    async with open_log(postgres_url) as log:
        async with open_node(postgres_url, tmp_path, grace=0.3):
            await post_orders(log, tmp_path, "change 1", ["one"])
            await wait_for_lines(tmp_path, 1)
        async with open_node(postgres_url, tmp_path):
            (end,) = await wait_for_ends(log, ["one"])
        assert end.reason == "answered"
        assert find_results(await log.read("one")) == ["interrupted"]


async def test_a_drained_node_stays_up_and_others_run_what_it_is_sent(postgres_url: str, tmp_path: Path) -> None:
    async with (
        open_node(postgres_url, tmp_path, grace=30) as drained,
        drained.session(workspace=tmp_path) as session,
        session.run("change 2") as run,
    ):
        await wait_for_lines(tmp_path, 1)
        async with open_node(postgres_url, tmp_path) as other:
            await other.log.drain_node(drained.coordinator.owner)
            await asyncio.to_thread(wait_until, lambda: drained.coordinator.is_closed)
            (tmp_path / "go").touch()
            outcome = await run.wait()
            assert outcome is not None and outcome.reason == "answered", "its watchers see the run to its end"
            later = await drained.create("holder", workspace=tmp_path)
            async with later.run("change 1") as second:
                outcome = await second.wait()
            assert outcome is not None and outcome.reason == "answered"
            owners = [start.owner for one in (session, later) for start in find_starts(await other.log.read(one.id))]
            here, there = drained.coordinator.owner, other.coordinator.owner
            assert owners == [here, there, there]
            nodes = {node.name: node for node in await other.log.list_nodes()}
            assert nodes[here].is_alive and nodes[here].is_draining and nodes[here].sessions == 0


async def test_a_helper_and_its_parent_are_handed_over_and_lose_nothing(postgres_url: str, tmp_path: Path) -> None:
    async with open_node(postgres_url, tmp_path, grace=30) as drained:
        await post_orders(drained.log, tmp_path, "delegate 1", ["parent"])
        await drained.coordinator.wake("parent")
        await wait_for_lines(tmp_path, 1)
        helper = derive_helper_id("parent", "call-0")
        async with open_node(postgres_url, tmp_path) as other:
            draining = asyncio.create_task(drained.drain())
            await asyncio.to_thread(wait_until, lambda: drained.coordinator.is_closed)
            (tmp_path / "go").touch()
            (end,) = await wait_for_ends(other.log, ["parent"])
            await draining
            assert end.reason == "answered"
            facts = await other.log.read(helper)
            assert find_results(facts) == ["ok", "ok"]
            owners = [start.owner for start in find_starts(facts)]
            assert owners == [drained.coordinator.owner, other.coordinator.owner]
            assert find_results(await other.log.read("parent")) == ["ok"]
            assert len(await wait_for_lines(tmp_path, 2)) == 2, "no call of the helper ran twice"
