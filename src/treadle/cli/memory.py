"""`treadle memory`: show, add, correct and delete what agents remember across sessions."""

from __future__ import annotations

import argparse
import sys

from treadle.app.compose import build_embedding, open_store
from treadle.cli.console import format_time_since, print_line, print_note, print_table
from treadle.cli.options import Parser, add_actions, add_store_options, create_parser, load_command_settings
from treadle.memory.base import Memory, MemoryQuery

EXAMPLES = """\
  treadle memory list
  treadle memory search "tabs or spaces"
  treadle memory add "Releases are cut on Mondays." --kind procedure
  treadle memory edit mem_3f2a "Releases are cut on Fridays."
  treadle memory forget mem_3f2a"""


def parser() -> Parser:
    options = create_parser("memory", "Show and edit the memories of this workspace and of the user.", EXAMPLES)
    actions = add_actions(options, EXAMPLES)
    listing = actions.add_parser("list", help="list all memories")
    search = actions.add_parser("search", help="search by words, and by meaning if embed_model is set")
    search.add_argument("words")
    for action in (listing, search):
        action.add_argument("--all", action="store_true", help="include every workspace")
    add = actions.add_parser("add", help="add a memory")
    add.add_argument("text")
    add.add_argument("--kind", choices=("fact", "preference", "procedure"), default="fact")
    add.add_argument("--everywhere", action="store_true", help="use it in every workspace, not only in this one")
    edit = actions.add_parser("edit", help="change the text of a memory")
    edit.add_argument("id")
    edit.add_argument("text")
    actions.add_parser("forget", help="delete a memory").add_argument("id")
    for action in actions.choices.values():
        action.add_argument("--workspace", metavar="DIR", help="default: the current folder")
        add_store_options(action)
    return options


async def main(args: argparse.Namespace) -> int:
    settings = load_command_settings(args).settings
    folder = str(settings.folder)
    async with open_store(settings, read_only=args.action in ("list", "search")) as log:
        memories = log.memories
        scopes = None if getattr(args, "all", False) else ("", folder)
        match args.action:
            case "add":
                added = await memories.add(Memory(args.text, args.kind, "" if args.everywhere else folder))
                print_line(added.id)
            case "edit":
                await memories.edit(args.id, args.text)
                print_note(f"changed {args.id}")
            case "forget":
                await memories.delete(args.id)
                print_note(f"deleted {args.id}")
            case "search":
                memories.embed = build_embedding(settings)
                _print_memories(await memories.search(args.words, scopes), folder)
            case _:
                _print_memories(await memories.list(MemoryQuery(scopes, limit=sys.maxsize)), folder)
    return 0


def _print_memories(found: list[Memory], folder: str) -> None:
    if not found:
        print_note("no memories were found")
        return
    places = {"": "everywhere", folder: "here"}
    rows = [
        [
            one.id,
            one.kind,
            places.get(one.scope, one.scope),
            f"{one.session_id[:8] or 'you'}{', untrusted' if one.untrusted else ''}",
            format_time_since(one.at),
            one.text,
        ]
        for one in found
    ]
    print_table(rows, ["id", "kind", "where", "from", "age", "text"])
