"""`treadle agents`: list the agents of the workspace, the agents of the user and the built-in agents."""

from __future__ import annotations

import argparse

from treadle.app.settings import config_folder
from treadle.app.workspace_knowledge import WorkspaceKnowledge
from treadle.cli.console import print_line, print_note, print_table
from treadle.cli.options import Parser, add_run_options, create_parser, load_command_settings
from treadle.errors import NotFound

EXAMPLES = """\
  treadle agents
  treadle agents coder              show its instructions
  treadle run "review it" --agent reader"""


def parser() -> Parser:
    options = create_parser(
        "agents", "List the agents: Markdown files in .treadle/agents and in the user's folder.", EXAMPLES
    )
    options.add_argument("name", nargs="?", help="show the instructions of this agent")
    add_run_options(options)
    return options


def main(args: argparse.Namespace) -> int:
    knowledge = WorkspaceKnowledge(load_command_settings(args).settings.folder, config_folder())
    agents = knowledge.agents
    if args.name:
        if args.name not in agents:
            raise NotFound(f"there is no agent {args.name!r}; there are: {', '.join(sorted(agents))}")
        print_line(agents[args.name].instructions)
        return 0
    rows = [[agent.name, agent.origin, agent.posture, agent.description or "–"] for agent in agents.values()]
    print_table(rows, ["agent", "from", "posture", "purpose"])
    for problem in knowledge.problems:
        print_note(str(problem))
    return 0
