"""`treadle config`: show the settings and where they come from, and change the user's file."""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

import msgspec

from treadle.app.settings import (
    LoadedSettings,
    check_config,
    config_file,
    load_settings,
    parse_setting,
    read_config,
    save_setting,
    write_private_file,
)
from treadle.cli import console
from treadle.cli.options import Parser, add_actions, create_parser
from treadle.cli.user_programs import read_program
from treadle.errors import BadInput, Conflict, NotFound
from treadle.messages import Json
from treadle.secrets.store_url import hide_password, is_postgres_url

EXAMPLES = """\
  treadle config get                        all settings that are set, and where
  treadle config get model
  treadle config set model ollama:qwen3
  treadle config set approve "shell(git *)" "shell(make *)"
  treadle config set sandbox.read_only ~/datasets
  treadle config set max_cost --unset
  treadle config path
  treadle config edit                       in $VISUAL or $EDITOR; checked before it is saved"""

ACTIONS = {
    "get": "show settings, and where they come from",
    "set": "change a setting in the user's file",
    "path": "print the path of the user's file",
    "edit": "open the user's file in an editor",
}
NEW_FILE = "# The settings of treadle. `treadle config get` shows them, docs/cli.md describes them.\n"
_PASSWORD = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]*(?=@)")
_PRIVATE_TABLES = ("env", "headers")


def parser() -> Parser:
    options = create_parser("config", "Show and change the settings.", EXAMPLES)
    actions = add_actions(options, EXAMPLES)
    for name, about in ACTIONS.items():
        action = actions.add_parser(name, help=about)
        if name in ("get", "path"):
            action.add_argument("--json", action="store_true", help="one document on stdout")
        if name == "get":
            action.add_argument("key", nargs="?", help="such as model or sandbox.read_only (default: all that are set)")
        if name == "set":
            action.add_argument("key", help="such as model or sandbox.read_only")
            action.add_argument("value", nargs="*", help="the value; several for a list")
            action.add_argument("--unset", action="store_true", help="remove the setting from the file")
        action.add_argument("--config", metavar="FILE", default="", help="use this file instead of the user's")
    return options


async def main(args: argparse.Namespace) -> int:
    match args.action:
        case "get":
            return show_settings(args, load_settings(config=args.config))
        case "set":
            if bool(args.value) == args.unset:
                raise BadInput(f"config set {args.key} needs a value, or --unset; nothing was changed")
            value = None if args.unset else parse_setting(args.key, args.value)
            file = save_setting(args.key, value, args.config)
            console.print_note(f"{args.key} is {'removed from' if args.unset else 'set in'} {file}")
            warn_about_override(args)
            return 0
        case "path":
            return show_paths(args)
        case _:
            return await edit_file(config_file(args.config))


def show_settings(args: argparse.Namespace, loaded: LoadedSettings) -> int:
    """Print one setting or all that are set, and where each comes from."""
    values = cast("dict[str, Json]", msgspec.to_builtins(loaded.settings))
    values["approve"] = [*values.pop("always"), *values["approve"]]
    sources = {"approve" if key == "always" else key: source for key, source in loaded.sources.items()}
    if args.key is None:
        found = {key: hide_secrets(values[key]) for key in values if key in sources}
        if args.json:
            return _print_json({key: {"value": value, "source": sources[key]} for key, value in found.items()})
        if not found:
            console.print_note("nothing is set; docs/cli.md describes the settings")
            return 0
        console.print_table(
            [[key, _format_value(value), sources[key]] for key, value in found.items()], ["key", "value", "from"]
        )
        return 0
    name, *inner = args.key.split(".")
    if name not in values:
        check_config(f"{_format_value([name])[1:-1]} = 0", config_file(args.config))  # raises with the closest key
    value = values[name]
    for word in inner:
        if not isinstance(value, dict) or word not in value:
            raise NotFound(f"{args.key} is not set")
        value = cast("dict[str, Json]", value)[word]
    value, source = hide_secrets(value, inner[-1] if inner else ""), sources.get(name, "default")
    if args.json:
        return _print_json({"key": args.key, "value": value, "source": source})
    if value not in (None, "", [], {}):
        console.print_line(_format_value(value))
    is_empty = value in (None, "", [], {})
    console.print_note(f"{args.key} is not set" if is_empty and source == "default" else f"from: {source}")
    return 0


def _print_json(value: Json) -> int:
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    return 0


def _format_value(value: Json) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def hide_secrets(value: Json, key: str = "") -> Json:
    """Replace what may be secret by `***`: passwords in addresses, variables and headers of MCP servers."""
    if isinstance(value, dict):
        table = cast("dict[str, Json]", value)
        return {name: "***" if key in _PRIVATE_TABLES else hide_secrets(one, name) for name, one in table.items()}
    if isinstance(value, list):
        return [hide_secrets(one) for one in cast("list[Any]", value)]
    if not isinstance(value, str):
        return value
    return hide_password(value) if is_postgres_url(value) else _PASSWORD.sub("***", hide_password(value))


def warn_about_override(args: argparse.Namespace) -> None:
    """Say where another place decides about the setting."""
    name = args.key.partition(".")[0]
    loaded = load_settings(config=args.config)
    source = loaded.sources.get("always" if name == "approve" else name, "")
    if source and str(loaded.user_file) not in source:
        console.print_note(f"here {source} sets {name} too, and overrides it")


def show_paths(args: argparse.Namespace) -> int:
    """Print the path of the user's file, and note the file of the workspace."""
    loaded = load_settings()
    files = {"user": config_file(args.config), "workspace": loaded.read.workspace_file}
    if args.json:
        return _print_json({name: {"path": str(file), "exists": file.is_file()} for name, file in files.items()})
    console.print_line(str(files["user"]))
    if not files["user"].is_file():
        console.print_note("the file does not exist yet; `treadle config set` and `treadle config edit` create it")
    if files["workspace"].is_file():
        console.print_note(f"this workspace's file: {files['workspace']}")
    return 0


async def edit_file(file: Path) -> int:
    """Open a copy in the editor. Save it only if it is valid, or let the user correct it."""
    if not console.is_terminal(sys.stdin):
        raise BadInput("there is no terminal for an editor; use `treadle config set`")
    words = read_program("VISUAL", "EDITOR") or ["vi"]
    before = read_config(file)
    folder = Path(tempfile.mkdtemp(prefix="treadle-config-"))  # only the user can read it
    copy = folder / "config.toml"
    copy.write_text(before or NEW_FILE, "utf-8")
    while True:
        await run_editor([*words, str(copy)])
        text = copy.read_text("utf-8", "replace")
        try:
            check_config(text, file)
            break
        except BadInput as error:
            console.print_note(f"treadle: {error}")
        if not await console.confirm("edit it again?"):
            console.print_note(f"nothing was changed; your text is in {copy}")
            return 2
    if text == (before or NEW_FILE):
        console.print_note("nothing was changed")
    elif read_config(file) != before:
        raise Conflict(f"{file} was changed meanwhile, so it was not overwritten; your text is in {copy}")
    else:
        write_private_file(file, text)
        console.print_note(f"saved {file}")
    copy.unlink()
    folder.rmdir()
    return 0


async def run_editor(words: list[str]) -> None:
    """Run the editor until it ends. Raise `BadInput` if it fails."""
    import asyncio

    try:
        code = await (await asyncio.create_subprocess_exec(*words)).wait()
    except OSError as error:
        raise BadInput(f"{words[0]} cannot be started: {error.strerror}; set VISUAL or EDITOR") from None
    if code:
        raise BadInput(f"{words[0]} ended with exit code {code}; nothing was changed")
