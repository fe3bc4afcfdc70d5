"""`treadle skills`: list the skills that agents can use here, enable or disable them, and accept drafts."""

from __future__ import annotations

import argparse

from treadle.app.settings import config_folder
from treadle.app.workspace_knowledge import WorkspaceKnowledge
from treadle.cli.console import print_line, print_note, print_table
from treadle.cli.options import Parser, add_actions, add_run_options, create_parser, load_command_settings

EXAMPLES = """\
  treadle skills list
  treadle skills disable release-notes
  treadle skills enable release-notes
  treadle skills proposals          show the drafts; the setting skill_autogen creates them
  treadle skills accept bisect-a-failure
  treadle skills decline bisect-a-failure"""


def parser() -> Parser:
    options = create_parser(
        "skills", "List the skills: folders with a SKILL.md, of the workspace or of the user.", EXAMPLES
    )
    actions = add_actions(options, EXAMPLES)
    add_run_options(actions.add_parser("list", help="list all skills"))
    add_run_options(actions.add_parser("proposals", help="show the skills that were drafted from finished work"))
    for name, what in (("enable", "skill"), ("disable", "skill"), ("accept", "draft"), ("decline", "draft")):
        action = actions.add_parser(name, help=f"{name} a {what}")
        action.add_argument("skill", metavar="NAME")
        add_run_options(action)
    return options


def main(args: argparse.Namespace) -> int:
    knowledge = WorkspaceKnowledge(load_command_settings(args).settings.folder, config_folder())
    proposals = knowledge.proposals
    match args.action:
        case "list":
            skills = knowledge.skills.values()
            rows = [[one.name, one.origin, "on" if one.enabled else "off", one.description] for one in skills]
            if rows:
                print_table(rows, ["skill", "from", "", "purpose"])
            else:
                print_note("there are no skills here")
            for problem in knowledge.problems:
                print_note(str(problem))
            if count := len(proposals.list()):
                print_note(f"drafted from finished work: {count}; see: treadle skills proposals")
        case "proposals":
            found = proposals.list()
            for one in found:
                print_line(one.diff.rstrip("\n"))
                print_note(f"this draft is not active; accept it with: treadle skills accept {one.name}")
            if not found:
                print_note("no skill is proposed")
        case "accept":
            print_note(f"{args.skill} is now one of your skills: {proposals.accept(args.skill)}")
        case "decline":
            proposals.decline(args.skill)
            print_note(f"{args.skill} is declined, and will not be drafted again")
        case _:
            knowledge.enable_skill(args.skill, on=args.action == "enable")
            print_note(f"{args.skill} is {args.action}d")
    return 0
