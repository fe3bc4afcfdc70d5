"""`treadle models`: list models and why some are unreachable, set the default, and download weights."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Coroutine
from typing import Any

from msgspec.structs import asdict

from treadle.app.compose import choose_model
from treadle.app.diagnose import (
    find_model_sources,
    has_local_runtime,
    list_pullable_models,
    pull_weights,
    unload_engines,
)
from treadle.app.settings import Settings, save_setting
from treadle.cli.console import escape_controls, is_terminal, print_line, print_note, style_text, wants_colour
from treadle.cli.options import Parser, add_actions, add_token_option, create_parser
from treadle.errors import BadInput

EXAMPLES = """\
  treadle models list
  treadle models default ollama:qwen3
  treadle models pull                       list the open models that can be downloaded by name
  treadle models pull qwen3-4b              then use it with --model local:qwen3-4b
  treadle models pull https://host/model.gguf --sha256 3605803b…
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
    pull = actions.add_parser("pull", help="list open models, or download one to the user's data folder")
    pull.add_argument("source", metavar="NAME|URL|PATH", nargs="?", help="leave it out to list the names")
    pull.add_argument("--sha256", metavar="HEX", default="", help="refuse a file that has another digest")
    pull.add_argument("--json", action="store_true", help="one JSON object per line")
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
    if args.source is None:
        return list_models(args.json)
    if args.sha256 and not re.fullmatch(r"[0-9a-fA-F]{64}", args.sha256):
        raise BadInput("--sha256 takes the 64 hexadecimal digits of a SHA-256")
    progress = PullProgress(is_terminal(sys.stderr))
    try:  # not in an event loop: Ctrl-C stops the download
        file, name = pull_weights(args.source, progress.show, args.sha256.lower())
    finally:
        progress.clear()
    if args.json:
        print_line(json.dumps({"model": name, "file": str(file), "bytes": file.stat().st_size}))
        return 0
    print_line(str(file))
    needs = "" if has_local_runtime() else ', after: pip install "treadle[local]"'
    print_note(f"use it with: --model {name}{needs}")
    return 0


class PullProgress:
    """Shows a download on stderr: one line that changes on a terminal, otherwise one line for each phase."""

    def __init__(self, is_live: bool) -> None:
        self._is_live = is_live
        self._shown = ""

    def show(self, phase: str, done: float, total: float) -> None:
        line = escape_controls(phase)
        if self._is_live and total:
            line += f"  {int(100 * done / total)} % of {format_gigabytes(total)}"
        if line != self._shown:
            self._shown = line
            sys.stderr.write(f"\r\x1b[2K{line}" if self._is_live else f"{line}\n")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._is_live and self._shown:
            sys.stderr.write("\r\x1b[2K")


def format_gigabytes(size: float) -> str:
    """A size for people, such as `0.4 GB`."""
    return f"{size / 1e9:.1f} GB"


def list_models(as_json: bool) -> int:
    """Print the models that can be downloaded by name."""
    found = list_pullable_models()
    if as_json:
        for model, is_here in found:
            print_line(json.dumps(asdict(model) | {"installed": is_here}))
        return 0
    print_line(f"  {'name':<20}{'size':>8}{'memory':>9}  {'licence':<12}good for")
    for model, is_here in found:
        mark, size, memory = "✓" if is_here else " ", format_gigabytes(model.size), format_gigabytes(model.memory)
        print_line(f"{mark} {model.name:<20}{size:>8}{memory:>9}  {model.licence:<12}{model.about}")
    print_note("download one with: treadle models pull NAME; ✓ is on this machine")
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
