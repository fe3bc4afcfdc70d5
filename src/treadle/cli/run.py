"""`treadle run`: run one task to its outcome, in a terminal, a script or a cron job."""

from __future__ import annotations

import argparse
import sys

from treadle import Run
from treadle.cli.drive import drive_run
from treadle.cli.find_session import find_latest_session
from treadle.cli.message_content import build_message
from treadle.cli.open_session import OpenSession
from treadle.cli.options import (
    Parser,
    add_message_options,
    add_output_options,
    add_run_options,
    create_parser,
    is_message,
    load_command_settings,
    take_back_word,
)
from treadle.errors import BadInput

EXAMPLES = """\
  treadle run "why does the build fail?"
  treadle run "explain @src/app.py" --access read-only
  git diff | treadle run -                         read the task from stdin
  treadle run "fix the tests" --approve "shell(make *)" --max-cost 0.50
  treadle run "what is in this picture?" --image photo.png
  treadle run --session 3f2a91 "and now the docs"  continue a session
  treadle run --continue "and now the docs"        continue the last session of this folder
  treadle run --session 3f2a91                     resume unfinished work, for example after a crash
  treadle run "fix the tests" --worktree           work on a branch, in a folder of its own
  treadle run "list the TODOs" --json | jq -r .answer

exit codes: 0 answered, 1 failed, 2 bad usage or configuration, 3 stopped by a limit or a loop,
4 waits for an answer, or a call was denied because nobody could be asked, 130 cancelled"""


def parser() -> Parser:
    options = create_parser("run", "Run one task and exit. Everything is recorded, and can be resumed.", EXAMPLES)
    options.add_argument("objective", nargs="?", help='the task; "-" reads it from stdin, @path attaches a file')
    add_message_options(options)
    add_output_options(options)
    add_run_options(options)
    return options


async def main(args: argparse.Namespace) -> int:
    words = find_objective(args)
    objective = sys.stdin.read() if words == "-" else words
    if objective is None and not args.session and not args.latest:
        raise BadInput('the task is missing: treadle run "…", or - for stdin')
    if objective is not None and not objective.strip():
        raise BadInput("the task is empty; say what to do")
    if (args.session or args.latest) and args.name:
        raise BadInput("--name is for a new session; `treadle sessions rename` renames an existing one")
    loaded = load_command_settings(args)
    if args.latest:
        args.session = await find_latest_session(loaded.settings)
        if not args.session and objective is None:
            raise BadInput(f"there is no session in {loaded.settings.folder} yet; say what to do")
    if objective is not None and not args.session:  # report a bad message before creating a session
        build_message(objective, loaded.settings.folder, args.image)

    def begin(opened: OpenSession) -> Run:
        if objective is None:
            return opened.session.resume()
        return opened.session.run(build_message(objective, opened.settings.folder, args.image))

    return await drive_run(args, loaded, begin)


def find_objective(args: argparse.Namespace) -> str | None:
    """Find the objective, even after the values of an option: `treadle run --approve read_* "look"`."""
    if args.objective is not None:
        return args.objective
    lists = ("approve", "forbid", "image")
    found = take_back_word(args, *lists, is_no_value=is_message)
    if found is None and args.worktree_name:  # `treadle run --worktree "look"`
        found, args.worktree_name = args.worktree_name, ""
    if found is None and not args.session and not args.latest:
        found = take_back_word(args, *lists, is_no_value=lambda word: True)
    return found
