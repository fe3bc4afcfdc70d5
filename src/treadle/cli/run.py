"""`treadle run`: run one objective to its outcome, in a terminal, a script or a cron job."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from pathlib import Path

from treadle import Run
from treadle.cli.drive import drive_run
from treadle.cli.message_content import build_message
from treadle.cli.open_session import OpenSession
from treadle.cli.options import (
    Parser,
    SeveralValues,
    add_output_options,
    add_run_options,
    create_parser,
    load_command_settings,
    take_back_word,
)
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

_PATTERN = re.compile(r"[\w*?\[\]-]+(\(.*\))?")


def parser() -> Parser:
    made = create_parser(
        "run", "Do one thing and end. Everything is kept; any session can be taken up again.", EXAMPLES
    )
    made.add_argument("objective", nargs="?", help='what to do; "-" reads it from stdin, @path adds a file')
    made.add_argument("--session", metavar="ID|NAME", default="", help="go on with this session")
    made.add_argument("--name", metavar="NAME", default="", help="name the new session")
    made.add_argument(
        "--image", metavar="FILE", nargs="+", action=SeveralValues, default=[], help="goes with the objective"
    )
    add_output_options(made)
    add_run_options(made)
    return made


def main(args: argparse.Namespace) -> int:
    said = find_objective(args)
    objective = sys.stdin.read() if said == "-" else said
    if objective is None and not args.session:
        raise BadInput('say what is to be done: treadle run "…", or - for stdin')
    if objective is not None and not objective.strip():
        raise BadInput("the objective is empty; say what is to be done")
    if args.session and args.name:
        raise BadInput("--name is for a new session; `treadle sessions rename` renames one")
    loaded = load_command_settings(args)
    if objective is not None and not args.session:  # report a bad message before creating a session
        build_message(objective, loaded.settings.folder, args.image)

    def begin(opened: OpenSession) -> Run:
        if objective is None:
            return opened.session.resume()
        return opened.session.run(build_message(objective, opened.settings.folder, args.image))

    return asyncio.run(drive_run(args, loaded, begin))


def find_objective(args: argparse.Namespace) -> str | None:
    """Find the objective, even after the values of an option: `treadle run --approve read_* "look"`."""
    if args.objective is not None:
        return args.objective
    lists = ("approve", "forbid", "image")
    found = take_back_word(
        args, *lists, is_no_value=lambda word: not _PATTERN.fullmatch(word) and not Path(word).is_file()
    )
    if found is None and not args.session:
        found = take_back_word(args, *lists, is_no_value=lambda word: True)
    return found
