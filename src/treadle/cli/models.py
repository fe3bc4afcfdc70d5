"""`treadle models`: list models and why some are unreachable, set the default, and download weights."""

from __future__ import annotations

import argparse
import asyncio
import sys

from treadle.app.compose import choose_model
from treadle.app.diagnose import find_model_sources
from treadle.app.settings import Settings, data_folder, save_setting
from treadle.cli.console import escape_controls, is_terminal, print_line, print_note, style_text, wants_colour
from treadle.cli.options import Parser, add_actions, create_parser

EXAMPLES = """\
  treadle models list
  treadle models default ollama:qwen3
  treadle models pull local                 the embedded model's weights
  treadle models pull https://host/model.gguf
  treadle models pull ~/model.gguf
  treadle models load ollama:qwen3
  treadle models unload local               on a server that runs; --url says which"""

MAX_SHOWN_MODELS = 8
DEFAULT_URL = "http://127.0.0.1:8420"


def parser() -> Parser:
    made = create_parser("models", "The models that can be used from here.", EXAMPLES)
    kinds = add_actions(made, EXAMPLES)
    kinds.add_parser("list", help="what is reachable, and why not")
    default = kinds.add_parser("default", help="use this one when none is named")
    default.add_argument("name")
    default.add_argument("--config", metavar="FILE", default="", help="another file than the user's config.toml")
    pull = kinds.add_parser("pull", help="bring weights into the user's data folder")
    pull.add_argument("source", metavar="local|URL|PATH")
    for name, about in (("load", "have a server get it ready"), ("unload", "have a server give back what it holds")):
        one = kinds.add_parser(name, help=about)
        one.add_argument("name")
        one.add_argument("--url", default=DEFAULT_URL, help=f"the server (default: {DEFAULT_URL})")
        one.add_argument("--token-file", metavar="FILE", default="", help="default: in the user's data folder")
    return made


def main(args: argparse.Namespace) -> int:
    match args.action:
        case "list":
            return asyncio.run(_list())
        case "default":
            return asyncio.run(_default(args.name, args.config))
        case "load" | "unload":
            return asyncio.run(_on_server(args))
        case _:
            return _pull(args.source)


async def _list() -> int:
    colour = wants_colour(sys.stdout)
    async for way in find_model_sources():
        mark = style_text("✓", "green", colour) if way.is_usable else style_text("–", "dim", colour)
        sys.stdout.write(f"{mark} {way.name:<22}{escape_controls(way.reason)}\n")
        for name in way.models[:MAX_SHOWN_MODELS]:
            print_line(f"    {name}")
        if len(way.models) > MAX_SHOWN_MODELS:
            print_line(f"    and {len(way.models) - MAX_SHOWN_MODELS} more")
        sys.stdout.flush()
    return 0


async def _default(name: str, config: str) -> int:
    model, _ = await choose_model(Settings(model=name))
    await model.close()
    print_note(f"{name} is the default now: {save_setting('model', name, config)}")
    return 0


async def _on_server(args: argparse.Namespace) -> int:
    from treadle.cli.session_link import post_json

    file = args.token_file or str(data_folder() / "tokens.json")
    await post_json(args.url, f"/v1/models/{args.action}", {"model": args.name}, file)
    print_note(f"{args.name} is {args.action}ed at {args.url}")
    return 0


def _pull(source: str) -> int:
    from treadle.app.diagnose import has_local_runtime, pull_weights

    live = is_terminal(sys.stderr)

    def show_progress(message: str, done: float, total: float) -> None:
        if live:
            share = f" {done / total:.0%}" if total else ""
            sys.stderr.write(f"\r\x1b[2K{escape_controls(message)}{share}")
            sys.stderr.flush()

    file = pull_weights(source, show_progress)
    if live:
        sys.stderr.write("\r\x1b[2K")
    print_line(str(file))
    needs = "" if has_local_runtime() else ', after: pip install "treadle[local]"'
    print_note(f"use it with: --model {'local' if source == 'local' else f'local:{file}'}{needs}")
    return 0
