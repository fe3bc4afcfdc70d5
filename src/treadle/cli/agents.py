"""`treadle agents`: list the agents of the workspace, the agents of the user and the built-in agents."""

from __future__ import annotations

import argparse
import sys

from treadle.app.settings import config_folder
from treadle.app.workspace_knowledge import WorkspaceKnowledge
from treadle.cli.console import format_table, is_terminal, print_line, print_note, terminal_width
from treadle.cli.options import Parser, add_run_options, create_parser, load_command_settings
from treadle.errors import NotFound

EXAMPLES = """\
  treadle agents
  treadle agents coder              its instructions
  treadle run "review it" --agent reader"""


def parser() -> Parser:
    made = create_parser("agents", "Agents are Markdown files in .treadle/agents and in the user's folder.", EXAMPLES)
    made.add_argument("name", nargs="?", help="one of them, whole")
    add_run_options(made)
    return made


def main(args: argparse.Namespace) -> int:
    library = WorkspaceKnowledge(load_command_settings(args).settings.folder, config_folder())
    if args.name:
        if args.name not in library.agents:
            raise NotFound(f"there is no agent {args.name!r}; there are: {', '.join(sorted(library.agents))}")
        print_line(library.agents[args.name].instructions)
        return 0
    rows = [[one.name, one.origin, one.posture, one.description or "–"] for one in library.agents.values()]
    for line in format_table(
        rows, ["agent", "from", "posture", "what it is for"], terminal_width() if is_terminal(sys.stdout) else 0
    ):
        print_line(line)
    for problem in library.problems:
        print_note(str(problem))
    return 0
