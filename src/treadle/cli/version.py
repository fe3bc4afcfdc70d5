"""`treadle version`: print the version of treadle, and with `--json` also what it runs on."""

from __future__ import annotations

import argparse
import sys

from treadle.cli.options import Parser, create_parser

EXAMPLES = """\
  treadle version
  treadle version --json"""


def parser() -> Parser:
    options = create_parser("version", "Print the version.", EXAMPLES)
    options.add_argument("--json", action="store_true", help="one document, with the versions of Python and the system")
    return options


def main(args: argparse.Namespace) -> int:
    from treadle import __version__

    if not args.json:
        sys.stdout.write(f"treadle {__version__}\n")
        return 0
    import json
    import platform

    versions = {"treadle": __version__, "python": platform.python_version(), "platform": platform.platform()}
    sys.stdout.write(json.dumps(versions) + "\n")
    return 0
