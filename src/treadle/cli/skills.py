"""`treadle skills`: what agents here can look up when a task calls for it; switched off, or accepted when drafted."""

from __future__ import annotations

import argparse
import sys

from treadle.app.settings import config_folder
from treadle.cli.options import Parser, actions_of, add_options, parser_of, settings_of
from treadle.cli.terminal_text import columns, is_terminal, note, say, table
from treadle.knowledge.library import Library
from treadle.knowledge.skill_drafts import accept, decline, proposals

EXAMPLES = """\
  treadle skills list
  treadle skills disable release-notes
  treadle skills enable release-notes
  treadle skills proposals          drafts from what was done, with skill_autogen
  treadle skills accept bisect-a-failure
  treadle skills decline bisect-a-failure"""


def parser() -> Parser:
    made = parser_of("skills", "Skills are folders with a SKILL.md, of the workspace or of the user.", EXAMPLES)
    kinds = actions_of(made, EXAMPLES)
    add_options(kinds.add_parser("list", help="all of them"))
    add_options(kinds.add_parser("proposals", help="what was drafted from work done, to accept or decline"))
    for name in ("enable", "disable", "accept", "decline"):
        one = kinds.add_parser(name, help=f"{name} one")
        one.add_argument("skill", metavar="NAME")
        add_options(one)
    return made


def main(args: argparse.Namespace) -> int:
    library = Library(settings_of(args).settings.folder, config_folder())
    match args.action:
        case "list":
            _list(library)
        case "proposals":
            _proposals(library)
        case "accept":
            note(f"{args.skill} is one of your skills now: {accept(library, args.skill)}")
        case "decline":
            decline(library, args.skill)
            note(f"{args.skill} is declined, and not drafted again")
        case _:
            library.switch(args.skill, on=args.action == "enable")
            note(f"{args.skill} is {args.action}d")
    return 0


def _proposals(library: Library) -> None:
    found = proposals(library)
    for one in found:
        say(one.diff.rstrip("\n"))
        note(f"nothing of it is active. Take it with: treadle skills accept {one.name}")
    if not found:
        note("no skill is proposed")


def _list(library: Library) -> None:
    rows = [[one.name, one.origin, "on" if one.enabled else "off", one.description] for one in library.skills.values()]
    if not rows:
        note("there are no skills here")
    for line in table(rows, ["skill", "from", "", "what it is for"], columns() if is_terminal(sys.stdout) else 0):
        if rows:
            say(line)
    for problem in library.problems:
        note(str(problem))
    if waiting := len(proposals(library)):
        note(f"{waiting} drafted from work done: treadle skills proposals")
