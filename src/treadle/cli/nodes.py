"""`treadle nodes`: the processes that run the sessions of a store which several machines share."""

from __future__ import annotations

import argparse
import sys

import msgspec

from treadle.cli import console
from treadle.cli.find_session import open_command_store
from treadle.cli.options import Parser, add_actions, add_store_options, create_parser
from treadle.errors import BadInput, NotFound, describe_wait
from treadle.log.base import Log, Node

EXAMPLES = """\
  treadle nodes list
  treadle nodes list --json | jq -r 'select(.is_alive) | .name'
  treadle nodes drain web-1:4711:9f2c31      hand its sessions over to the other nodes
  treadle nodes drain web-1                  the same, if only one node has a name that begins so

A node is a process that runs sessions of a store on PostgreSQL: a server, a chat, or one task. A drained node takes no
session any more until it is started again."""


def parser() -> Parser:
    options = create_parser("nodes", "See which nodes share a store, and drain one.", EXAMPLES)
    actions = add_actions(options, EXAMPLES)
    listing = actions.add_parser("list", help="list the nodes of the store, and how many sessions each runs")
    listing.add_argument("--json", action="store_true", help="one JSON object per line")
    drain = actions.add_parser("drain", help="ask a node to hand its sessions over and take no more")
    drain.add_argument("node", metavar="NODE", help="the name of a node, or how it begins")
    drain.add_argument("--json", action="store_true", help="print the node as a JSON object")
    for action in actions.choices.values():
        add_store_options(action)
    return options


async def main(args: argparse.Namespace) -> int:
    async with open_command_store(args) as log:
        if not log.is_shared:
            raise BadInput(
                "this store belongs to one machine, so it has no nodes; name a store on PostgreSQL, as --store "
                "postgresql://USER@HOST/DATABASE"
            )
        nodes = await log.list_nodes()
        if args.action == "drain":
            node = find_node(nodes, args.node)
            await log.drain_node(node.name)
            if args.json:
                _print_json(msgspec.structs.replace(node, is_draining=True))
            count = f"{node.sessions} session{'' if node.sessions == 1 else 's'}"
            console.print_note(f"asked {node.name} to hand over {count}; `treadle nodes list` shows when it has none")
        elif args.json:
            for node in nodes:
                _print_json(node)
        else:
            _print_nodes(nodes, log)
    return 0


def find_node(nodes: list[Node], reference: str) -> Node:
    """Find a node by its name, or by how it begins. Raise `NotFound`, or `BadInput` if several match."""
    found = [node for node in nodes if node.name == reference]
    found = found or [node for node in nodes if reference and node.is_alive and node.name.startswith(reference)]
    if not found:
        raise NotFound(f"no node that is alive has the name {reference!r}; `treadle nodes list` shows all of them")
    if len(found) > 1:
        raise BadInput(f"{reference!r} matches {', '.join(node.name for node in found)}; write more of the name")
    return found[0]


def _print_json(node: Node) -> None:
    sys.stdout.write(msgspec.json.encode(node).decode() + "\n")


def _print_nodes(nodes: list[Node], log: Log) -> None:
    if not nodes:
        console.print_note("no node has used this store in the last day; `treadle serve` starts one")
        return
    heads = ["node", "state", "sessions", "version", "host", "folders"]
    rows = [
        [
            node.name,
            describe_state(node, log.now()),
            str(node.sessions),
            node.version or "–",
            node.host,
            "all" if node.roots is None else ", ".join(node.roots) or "none",
        ]
        for node in nodes
    ]
    console.print_table(rows, heads)


def describe_state(node: Node, now: float) -> str:
    """Describe whether a node is alive, and otherwise when it was last seen. `now` is the time of the store."""
    if not node.is_alive:
        return f"last seen {describe_wait(max(0.0, now - node.seen_at))} ago"
    return "draining" if node.is_draining else "alive"
