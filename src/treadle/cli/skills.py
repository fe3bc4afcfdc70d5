"""`treadle skills`: list the skills that agents can use here, enable or disable them, and accept drafts."""

from __future__ import annotations

import argparse
import sys

from treadle.app.settings import config_folder
from treadle.app.workspace_knowledge import WorkspaceKnowledge
from treadle.cli.console import format_table, is_terminal, print_line, print_note, terminal_width
from treadle.cli.options import Parser, add_actions, add_run_options, create_parser, load_command_settings

EXAMPLES = """\
  treadle skills list
  treadle skills disable release-notes
  treadle skills enable release-notes
  treadle skills proposals          drafts from what was done, with skill_autogen
  treadle skills accept bisect-a-failure
  treadle skills decline bisect-a-failure"""


def parser() -> Parser:
    made = create_parser("skills", "Skills are folders with a SKILL.md, of the workspace or of the user.", EXAMPLES)
    kinds = add_actions(made, EXAMPLES)
    add_run_options(kinds.add_parser("list", help="all of them"))
    add_run_options(kinds.add_parser("proposals", help="what was drafted from work done, to accept or decline"))
    for name in ("enable", "disable", "accept", "decline"):
        one = kinds.add_parser(name, help=f"{name} one")
        one.add_argument("skill", metavar="NAME")
        add_run_options(one)
    return made


def main(args: argparse.Namespace) -> int:
    library = WorkspaceKnowledge(load_command_settings(args).settings.folder, config_folder())
    match args.action:
        case "list":
            _list(library)
        case "proposals":
            found = library.proposals.list()
            for one in found:
                print_line(one.diff.rstrip("\n"))
                print_note(f"nothing of it is active. Take it with: treadle skills accept {one.name}")
            if not found:
                print_note("no skill is proposed")
        case "accept":
            print_note(f"{args.skill} is one of your skills now: {library.proposals.accept(args.skill)}")
        case "decline":
            library.proposals.decline(args.skill)
            print_note(f"{args.skill} is declined, and not drafted again")
        case _:
            library.enable_skill(args.skill, on=args.action == "enable")
            print_note(f"{args.skill} is {args.action}d")
    return 0


def _list(library: WorkspaceKnowledge) -> None:
    rows = [[one.name, one.origin, "on" if one.enabled else "off", one.description] for one in library.skills.values()]
    if not rows:
        print_note("there are no skills here")
    for line in format_table(
        rows, ["skill", "from", "", "what it is for"], terminal_width() if is_terminal(sys.stdout) else 0
    ):
        if rows:
            print_line(line)
    for problem in library.problems:
        print_note(str(problem))
    if waiting := len(library.proposals.list()):
        print_note(f"{waiting} drafted from work done: treadle skills proposals")
