"""`treadle memory`: show, add, correct and forget what agents remember across sessions."""

from __future__ import annotations

import argparse
import asyncio
import sys

from treadle.app.compose import build_embedding, open_store
from treadle.app.settings import Settings
from treadle.cli.console import format_table, format_time_since, is_terminal, print_line, print_note, terminal_width
from treadle.cli.options import Parser, add_actions, add_store_options, create_parser, load_command_settings
from treadle.memory.base import Memories, Memory, MemoryQuery

EXAMPLES = """\
  treadle memory list
  treadle memory search "tabs or spaces"
  treadle memory add "Releases are cut on Mondays." --kind procedure
  treadle memory edit mem_3f2a "Releases are cut on Fridays."
  treadle memory forget mem_3f2a"""


def parser() -> Parser:
    made = create_parser("memory", "What is remembered here, and for you everywhere.", EXAMPLES)
    kinds = add_actions(made, EXAMPLES)
    kinds.add_parser("list", help="all of it").add_argument("--all", action="store_true", help="of every workspace")
    search = kinds.add_parser("search", help="by words, and by meaning where embed_model is set")
    search.add_argument("words")
    search.add_argument("--all", action="store_true", help="in every workspace")
    add = kinds.add_parser("add", help="something to remember")
    add.add_argument("text")
    add.add_argument("--kind", choices=("fact", "preference", "procedure"), default="fact")
    add.add_argument("--everywhere", action="store_true", help="not only in this workspace")
    edit = kinds.add_parser("edit", help="by id")
    edit.add_argument("id")
    edit.add_argument("text")
    kinds.add_parser("forget", help="by id").add_argument("id")
    for one in kinds.choices.values():
        one.add_argument("--workspace", metavar="DIR", help="default: this folder")
        add_store_options(one)
    return made


def main(args: argparse.Namespace) -> int:
    return asyncio.run(_main(args))


async def _main(args: argparse.Namespace) -> int:
    settings = load_command_settings(args).settings
    async with open_store(settings) as log:
        await _do(args, log.memories, settings)
    return 0


async def _do(args: argparse.Namespace, memories: Memories, settings: Settings) -> None:
    folder = str(settings.folder)
    match args.action:
        case "add":
            kept = await memories.add(Memory(args.text, args.kind, "" if args.everywhere else folder))
            print_line(kept.id)
        case "edit":
            print_note(f"{(await memories.edit(args.id, args.text)).id} is changed")
        case "forget":
            await memories.delete(args.id)
            print_note(f"forgot {args.id}")
        case "search":
            memories.embed = build_embedding(settings)
            _print(await memories.search(args.words, None if args.all else ("", folder)), folder)
        case _:
            _print(await memories.list(MemoryQuery(None if args.all else ("", folder), limit=sys.maxsize)), folder)


def _print(found: list[Memory], folder: str) -> None:
    if not found:
        print_note("nothing is remembered")
        return
    places = {"": "everywhere", folder: "here"}
    rows = [
        [
            one.id,
            one.kind,
            places.get(one.scope, one.scope),
            one.session_id[:8] or "you",
            format_time_since(one.at),
            one.text,
        ]
        for one in found
    ]
    titles = ["id", "kind", "where", "from", "age", "what"]
    for line in format_table(rows, titles, terminal_width() if is_terminal(sys.stdout) else 0):
        print_line(line)
