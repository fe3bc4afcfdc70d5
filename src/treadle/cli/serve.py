"""`treadle serve`: serve sessions over HTTP, with the web page. treadle.server implements it."""

from __future__ import annotations

import argparse

from treadle.cli.console import print_note
from treadle.cli.options import add_run_options, create_parser, load_command_settings

EXAMPLES = """\
  treadle serve                                  on this machine only, with the first model that works
  treadle serve --model local --port 9000
  treadle serve --host 0.0.0.0 --host-name box.example.org --root ~/projects
"""


def parser() -> argparse.ArgumentParser:
    """Create the parser of this command."""
    made = create_parser(
        "serve", "Put sessions behind HTTP: REST, SSE, WebSocket, JSON-RPC and the web page.", EXAMPLES
    )
    server = made.add_argument_group("server")
    server.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: this machine only)")
    server.add_argument("--port", type=int, default=8420, help="default: 8420")
    server.add_argument("--host-name", metavar="NAME", action="append", help="a name it may be called by")
    server.add_argument("--origin", metavar="URL", action="append", help="a page of another place that may use it")
    server.add_argument("--root", metavar="DIR", action="append", help="where workspaces may lie (default: this one)")
    server.add_argument("--offer", metavar="MODEL", action="append", help="another model that requests may name")
    server.add_argument("--token-file", metavar="FILE", default="", help="default: in the user's data folder")
    server.add_argument("--grace", metavar="SECONDS", type=float, default=10.0, help="for what runs at the end")
    server.add_argument("--allow-root", action="store_true", help="serve although this is the root user")
    add_run_options(made)
    return made


def main(args: argparse.Namespace) -> int:
    """Serve until a signal arrives. Return the exit code."""
    import asyncio

    from treadle.server.serve import ServeOptions, serve

    options = ServeOptions(
        host=args.host,
        port=args.port,
        names=args.host_name or (),
        origins=args.origin or (),
        roots=args.root or (),
        models=args.offer or (),
        token_file=args.token_file,
        grace=args.grace,
        allow_root=args.allow_root,
    )
    loaded = load_command_settings(args)
    for remark in loaded.ignored:
        print_note(remark)
    asyncio.run(serve(loaded.settings, options))
    return 0
