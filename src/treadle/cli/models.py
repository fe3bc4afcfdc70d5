"""`treadle models`: list models and why some are unreachable, set the default, and download weights."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Coroutine
from typing import Any

from treadle.app.compose import choose_model
from treadle.app.diagnose import find_model_sources, has_local_runtime, pull_weights, unload_engines
from treadle.app.settings import Settings, save_setting
from treadle.cli.console import escape_controls, is_terminal, print_line, print_note, style_text, wants_colour
from treadle.cli.options import Parser, add_actions, add_token_option, create_parser

EXAMPLES = """\
  treadle models list
  treadle models default ollama:qwen3
  treadle models pull local                 the weights of the embedded model
  treadle models pull https://host/model.gguf
  treadle models pull ~/model.gguf
  treadle models load ollama:qwen3
  treadle models unload                     the engines that commands keep loaded here
  treadle models unload local               on a running server; --url selects it"""

MAX_SHOWN_MODELS = 8
DEFAULT_URL = "http://127.0.0.1:8420"


def parser() -> Parser:
    options = create_parser("models", "List and manage the models that can be used here.", EXAMPLES)
    actions = add_actions(options, EXAMPLES)
    actions.add_parser("list", help="list the models, and why others are not reachable")
    default = actions.add_parser("default", help="set the model that is used when none is named")
    default.add_argument("name")
    default.add_argument("--config", metavar="FILE", default="", help="use this file instead of the user's config.toml")
    pull = actions.add_parser("pull", help="download weights to the user's data folder")
    pull.add_argument("source", metavar="local|URL|PATH")
    unloads = "release the memory of the models that commands keep loaded, or of a model on a server"
    for name, about in (("load", "load a model on a server"), ("unload", unloads)):
        action = actions.add_parser(name, help=about)
        action.add_argument("name", nargs="?" if name == "unload" else None)
        action.add_argument("--url", default=DEFAULT_URL, help=f"the server (default: {DEFAULT_URL})")
        add_token_option(action)
    return options


def main(args: argparse.Namespace) -> int | Coroutine[Any, Any, int]:
    if args.action != "pull":
        return _run_action(args)
    is_live = is_terminal(sys.stderr)

    def show_progress(message: str, done: float, total: float) -> None:
        if is_live:
            share = f" {done / total:.0%}" if total else ""
            sys.stderr.write(f"\r\x1b[2K{escape_controls(message)}{share}")
            sys.stderr.flush()

    file = pull_weights(args.source, show_progress)  # not in an event loop: Ctrl-C stops the download
    if is_live:
        sys.stderr.write("\r\x1b[2K")
    print_line(str(file))
    needs = "" if has_local_runtime() else ', after: pip install "treadle[local]"'
    print_note(f"use it with: --model {'local' if args.source == 'local' else f'local:{file}'}{needs}")
    return 0


async def _run_action(args: argparse.Namespace) -> int:
    match args.action:
        case "default":
            model, _ = await choose_model(Settings(model=args.name))
            await model.close()
            print_note(f"{args.name} is now the default, set in {save_setting('model', args.name, args.config)}")
        case "unload" if args.name is None:
            ended = unload_engines()
            print_note("\n".join(f"unloaded {escape_controls(one)}" for one in ended) or "nothing is loaded")
        case "load" | "unload":
            from treadle.cli.session_link import change_model

            model = await change_model(args.url, args.action, args.name, args.token_file)
            if model["state"] == "failed":
                print_note(f"{args.name} could not be loaded at {args.url}: {escape_controls(model['error'])}")
                return 1
            print_note(f"{args.name} is {args.action}ed at {args.url}")
        case _:
            colour = wants_colour(sys.stdout)
            async for source in find_model_sources():
                mark = style_text("✓", "green", colour) if source.is_usable else style_text("–", "dim", colour)
                sys.stdout.write(f"{mark} {source.name:<22}{escape_controls(source.reason)}\n")
                for name in source.models[:MAX_SHOWN_MODELS]:
                    print_line(f"    {name}")
                if len(source.models) > MAX_SHOWN_MODELS:
                    print_line(f"    and {len(source.models) - MAX_SHOWN_MODELS} more")
                sys.stdout.flush()
    return 0
