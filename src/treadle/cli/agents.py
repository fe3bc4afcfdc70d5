"""`treadle agents`: the agents of this workspace, of the user, and those that are always there."""

from __future__ import annotations

import argparse
import sys

from treadle.app.settings import config_folder
from treadle.cli.options import Parser, add_options, parser_of, settings_of
from treadle.cli.terminal_text import columns, is_terminal, note, say, table
from treadle.errors import NotFound
from treadle.knowledge.library import Library

EXAMPLES = """\
  treadle agents
  treadle agents coder              its instructions
  treadle run "review it" --agent reader"""


def parser() -> Parser:
    made = parser_of("agents", "Agents are Markdown files in .treadle/agents and in the user's folder.", EXAMPLES)
    made.add_argument("name", nargs="?", help="one of them, whole")
    add_options(made)
    return made


def main(args: argparse.Namespace) -> int:
    library = Library(settings_of(args).settings.folder, config_folder())
    if args.name:
        if args.name not in library.agents:
            raise NotFound(f"there is no agent {args.name!r}; there are: {', '.join(sorted(library.agents))}")
        say(library.agents[args.name].instructions)
        return 0
    rows = [[one.name, one.origin, one.posture, one.description or "–"] for one in library.agents.values()]
    for line in table(
        rows, ["agent", "from", "posture", "what it is for"], columns() if is_terminal(sys.stdout) else 0
    ):
        say(line)
    for problem in library.problems:
        note(str(problem))
    return 0
