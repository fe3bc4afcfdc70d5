"""`treadle tools`: list the tools that an agent can call here, and the state of the MCP servers."""

from __future__ import annotations

import argparse
import asyncio
import json

from treadle.app.compose import check_mcp_servers
from treadle.app.workspace_knowledge import build_agents
from treadle.cli.console import print_line, print_note, print_table
from treadle.cli.open_session import DEFAULT_AGENT
from treadle.cli.options import Parser, add_run_options, create_parser, load_command_settings
from treadle.errors import NotFound

EXAMPLES = """\
  treadle tools                  list all tools
  treadle tools --agent reader   list the tools of another agent
  treadle tools edit_file        show the description and parameters of a tool"""


def parser() -> Parser:
    options = create_parser(
        "tools", "List the tools that an agent can call here. --approve and --forbid use these names.", EXAMPLES
    )
    options.add_argument("name", nargs="?", help="show this tool in full")
    add_run_options(options)
    return options


def main(args: argparse.Namespace) -> int:
    settings = load_command_settings(args).settings
    agents = build_agents(settings, "llamacpp:any").agents  # this model needs no key and is never called
    name = settings.agent or DEFAULT_AGENT
    if name not in agents:
        raise NotFound(f"there is no agent {name!r}; there are: {', '.join(sorted(agents))}")
    tools = agents[name].toolbox
    if args.name:
        tool = tools.get(args.name) or next((tool for tool in tools.values() if args.name in tool.aliases), None)
        if tool is None:
            raise NotFound(f"there is no tool {args.name!r}; there are: {', '.join(sorted(tools))}")
        also = f" (also {', '.join(tool.aliases)})" if tool.aliases else ""
        print_line(f"{tool.name}{also}\n")
        print_line(tool.spec.description + "\n")
        print_line(json.dumps(tool.spec.parameters, indent=2, ensure_ascii=False))
        return 0
    rows = [[tool.name, tool.spec.description] for tool in tools.values()]
    for health in asyncio.run(check_mcp_servers(settings)) if settings.mcp else ():
        error = f": {health.error}" if health.error else ""
        rows.append([f"{health.server}__*", f"{health.state}{error}, {health.tools} tools"])
    print_table(rows, ["tool", "purpose"])
    if settings.mcp:
        print_note("the MCP servers were started for this check, and are stopped again")
    return 0
