"""`treadle tools`: list the tools that an agent can call here, and the state of the MCP servers."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from treadle.app.compose import check_mcp_servers
from treadle.app.workspace_agents import build_agents
from treadle.cli.console import is_terminal, print_line, print_note, terminal_width, truncate_line
from treadle.cli.open_session import DEFAULT_AGENT
from treadle.cli.options import Parser, add_run_options, create_parser, load_command_settings
from treadle.errors import NotFound

EXAMPLES = """\
  treadle tools                  all of them, in a line each
  treadle tools --agent reader   those of another agent
  treadle tools edit_file        what a model is told about one"""


def parser() -> Parser:
    made = create_parser("tools", "What an agent can call here. --approve and --forbid go by these names.", EXAMPLES)
    made.add_argument("name", nargs="?", help="one of them, whole")
    add_run_options(made)
    return made


def main(args: argparse.Namespace) -> int:
    settings = load_command_settings(args).settings
    agents = build_agents(settings, "llamacpp:any").agents  # this model needs no key and is never called
    name = settings.agent or DEFAULT_AGENT
    if name not in agents:
        raise NotFound(f"there is no agent {name!r}; there are: {', '.join(sorted(agents))}")
    tools = agents[name].toolbox
    if args.name:
        name = args.name
        tool = tools.get(name) or next((one for one in tools.values() if name in one.aliases), None)
        if tool is None:
            raise NotFound(f"there is no tool {name!r}; there are: {', '.join(sorted(tools))}")
        also = f" (also {', '.join(tool.aliases)})" if tool.aliases else ""
        print_line(f"{tool.name}{also}\n")
        print_line(tool.spec.description + "\n")
        print_line(json.dumps(tool.spec.parameters, indent=2, ensure_ascii=False))
        return 0
    room = terminal_width() if is_terminal(sys.stdout) else 120
    for tool in tools.values():
        print_line(f"{tool.name:<14}{truncate_line(tool.spec.description, room - 15)}")
    if settings.mcp:
        for health in asyncio.run(check_mcp_servers(settings)):
            why = f": {health.error}" if health.error else ""
            print_line(f"{health.server + '__*':<14}{health.state}{why}, {health.tools} tools")
        print_note("the servers were started to look at them, and are stopped again")
    return 0
