"""What `treadle nodes` says where there are none, and how a node is named."""

import json
from pathlib import Path

import pytest

from tests.kit.postgres import needs_postgres
from tests.kit.terminal import Place
from treadle.cli.nodes import describe_state, find_node
from treadle.errors import BadInput, NotFound
from treadle.log.base import Node
from treadle.log.postgres import PostgresLog

NODES = [Node("web-1:12:aaa"), Node("web-2:34:bbb"), Node("web-2:56:ccc"), Node("old:1:ddd", is_alive=False)]


async def test_a_store_of_one_machine_has_no_nodes(place: Place, tmp_path: Path) -> None:
    for action in (["list"], ["drain", "x"], []):
        done = await place.quick("nodes", *action, "--store", str(tmp_path / "store.db"))
        assert done.code == 2 and "this store belongs to one machine" in done.err and not done.out


@needs_postgres
async def test_nodes_are_listed_for_people_and_for_programs(place: Place, postgres_url: str) -> None:
    done = await place.quick("nodes", "list", "--store", postgres_url)
    assert (done.code, done.out) == (0, "") and "no node has used this store" in done.err
    async with PostgresLog(postgres_url) as log:
        await log.join(Node("web-1:12:aaa", "web-1", "1.2", log.now(), log.now(), 10.0, ("/srv/work",)))
        done = await place.quick("nodes", "list", "--store", postgres_url)
        assert done.out.splitlines()[1].split() == ["web-1:12:aaa", "alive", "0", "1.2", "web-1", "/srv/work"]
        done = await place.quick("nodes", "drain", "web-1", "--store", postgres_url, "--json")
        assert json.loads(done.out)["is_draining"] and "asked web-1:12:aaa" in done.err
        done = await place.quick("nodes", "list", "--store", postgres_url)
        assert done.out.splitlines()[1].split()[1] == "draining"


def test_a_node_is_found_by_how_its_name_begins() -> None:
    assert find_node(NODES, "web-1").name == find_node(NODES, "web-1:12:aaa").name == "web-1:12:aaa"
    assert find_node(NODES, "old:1:ddd").name == "old:1:ddd"
    with pytest.raises(BadInput, match="matches web-2:34:bbb, web-2:56:ccc"):
        find_node(NODES, "web-2")
    for reference in ("old", "", "web-3"):
        with pytest.raises(NotFound):
            find_node(NODES, reference)


def test_a_node_that_is_gone_says_when_it_was_seen() -> None:
    assert describe_state(Node("a", seen_at=100.0, is_alive=False), 190.0) == "last seen 90 s ago"
    assert describe_state(Node("a", seen_at=200.0, is_alive=False, is_draining=True), 190.0) == "last seen 0 s ago"
    assert describe_state(Node("a", is_draining=True), 190.0) == "draining"
