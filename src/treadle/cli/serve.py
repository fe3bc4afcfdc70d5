"""`treadle serve`: serve sessions over HTTP, with the web page. treadle.server implements it."""

from __future__ import annotations

import argparse

from treadle.cli.console import print_note
from treadle.cli.options import (
    Parser,
    SeveralValues,
    add_run_options,
    add_token_option,
    create_parser,
    load_command_settings,
)

EXAMPLES = """\
  treadle serve                                  on this machine only, with the first model that works
  treadle serve --open                           and open the web page in the browser, logged in
  treadle serve --model local --port 9000
  treadle serve --host 0.0.0.0 --host-name box.example.org --root ~/projects
"""


def parser() -> Parser:
    options = create_parser(
        "serve", "Serve sessions over HTTP: REST, SSE, WebSocket, JSON-RPC and the web page.", EXAMPLES
    )
    server = options.add_argument_group("server")
    server.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: this machine only)")
    server.add_argument("--port", type=int, default=8420, help="default: 8420")
    server.add_argument("--host-name", metavar="NAME", action="append", help="a host name that requests may use")
    server.add_argument("--open", action="store_true", help="open the web page in the browser, logged in")
    server.add_argument("--origin", metavar="URL", action="append", help="another web page that may send requests")
    server.add_argument("--root", metavar="DIR", action="append", help="a folder of workspaces (default: this one)")
    server.add_argument("--offer", metavar="MODEL", action="append", help="another model that requests may name")
    server.add_argument(
        "--model-root",
        dest="model_roots",
        metavar="DIR",
        nargs="+",
        action=SeveralValues,
        help="folders of GGUF files that requests may load",
    )
    add_token_option(server)
    server.add_argument("--grace", metavar="SECONDS", type=float, default=10.0, help="for active runs at shutdown")
    add_run_options(options)
    return options


async def main(args: argparse.Namespace) -> int:
    """Serve until a signal arrives. Return the exit code."""
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
        open_browser=args.open,
    )
    loaded = load_command_settings(args)
    for note in loaded.ignored:
        print_note(note)
    await serve(loaded.settings, options)
    return 0
