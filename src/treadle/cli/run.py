"""`treadle run`: one objective, one run, one outcome; at home in a terminal, a script and a cron job."""

from __future__ import annotations

import argparse
import asyncio
import sys

from treadle import Run
from treadle.cli.content import message_of
from treadle.cli.drive import drive
from treadle.cli.opening import Opened
from treadle.cli.options import Parser, add_options, add_output, parser_of
from treadle.errors import BadInput

EXAMPLES = """\
  treadle run "why does the build fail?"
  treadle run "explain @src/app.py" --access read-only
  git diff | treadle run -                         the objective from stdin
  treadle run "fix the tests" --approve "shell(make *)" --max-cost 0.50
  treadle run "what is in this picture?" --image photo.png
  treadle run --session 3f2a91 "and now the docs"  go on with a session
  treadle run --session 3f2a91                     take up what a crash left unfinished
  treadle run "list the TODOs" --json | jq -r .answer

exit codes: 0 answered, 1 failed, 2 bad usage or configuration, 3 stopped by a limit or a loop,
4 waits for an answer or something was denied because nobody could be asked, 130 cancelled"""


def parser() -> Parser:
    made = parser_of("run", "Do one thing and end. Everything is kept; any session can be taken up again.", EXAMPLES)
    made.add_argument("objective", nargs="?", help='what to do; "-" reads it from stdin, @path adds a file')
    made.add_argument("--session", metavar="ID|NAME", default="", help="go on with this session")
    made.add_argument("--name", metavar="NAME", default="", help="name the new session")
    made.add_argument("--image", metavar="FILE", action="append", default=[], help="an image; may be repeated")
    add_output(made)
    add_options(made)
    return made


def main(args: argparse.Namespace) -> int:
    objective = sys.stdin.read() if args.objective == "-" else args.objective
    if objective is None and not args.session:
        raise BadInput('say what is to be done: treadle run "…", or - for stdin')
    if objective is not None and not objective.strip():
        raise BadInput("the objective is empty; say what is to be done")
    if args.session and args.name:
        raise BadInput("--name is for a new session; `treadle sessions rename` renames one")

    def begin(opened: Opened) -> Run:
        if objective is None:
            return opened.session.resume()
        return opened.session.run(message_of(objective, opened.settings.folder, args.image))

    return asyncio.run(drive(args, begin, args.name))
