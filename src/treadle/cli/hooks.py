"""`treadle hooks`: list the hooks, and trust those of the workspace after reading their text."""

from __future__ import annotations

import argparse
import sys

from treadle.app.command_hooks import load_hooks
from treadle.app.settings import Settings
from treadle.app.workspace_hooks import (
    HOOKS_FILE,
    WorkspaceHooks,
    check_trust,
    describe_trust,
    forget_trust,
    list_trust_folders,
    read_workspace_hooks,
    refuse_hooks,
    trust_hooks,
)
from treadle.cli.console import confirm, is_terminal, print_note, print_table
from treadle.cli.options import Parser, add_actions, add_run_options, create_parser, load_command_settings
from treadle.errors import BadInput

EXAMPLES = """\
  treadle hooks list
  treadle hooks trust                   show the hooks of this workspace, and ask whether to run them
  treadle hooks trust --digest 3f2a91…  trust exactly this text, without a terminal
  treadle hooks forget                  run none of them any longer, and ask again at the next start"""

WARNING = (
    "These commands run outside the sandbox, with your rights. An agent can change programs of the workspace that they "
    "start, except those in .treadle/hooks, which are part of what you trust."
)


def parser() -> Parser:
    options = create_parser("hooks", "List the hooks: commands that run around calls and messages.", EXAMPLES)
    actions = add_actions(options, EXAMPLES)
    add_run_options(actions.add_parser("list", help="list the hooks of the user and of the workspace"))
    trust = actions.add_parser("trust", help="show the hooks of the workspace, and trust exactly this text")
    trust.add_argument("--digest", metavar="SHA256", default="", help="the digest of the text, instead of a question")
    add_run_options(trust)
    add_run_options(actions.add_parser("forget", help="forget your yes or no to the hooks of the workspace"))
    return options


async def main(args: argparse.Namespace) -> int:
    settings = load_command_settings(args).settings
    match args.action:
        case "list":
            print_hooks(settings)
        case "trust":
            await confirm_trust(settings, args.digest)
        case _:
            is_known = forget_trust(settings.folder)
            again = "the hooks of this workspace do not run any longer; treadle asks again at the next start"
            print_note(again if is_known else "you were not asked about hooks of this workspace yet")
    return 0


def print_hooks(settings: Settings) -> None:
    """Print the hooks as a table, and why some do not run."""
    loaded, note = load_hooks(settings)
    rows = [
        [one.point, one.origin, one.trust, ",".join(one.hook.tools), f"{one.hook.timeout:g} s", one.name]
        for one in loaded
    ]
    if rows:
        print_table(rows, ["point", "from", "trust", "tools", "limit", "command"])
    else:
        print_note("there are no hooks here")
    if note:
        print_note(note)


async def confirm_trust(settings: Settings, digest: str) -> None:
    """Show the hooks of the workspace, and trust them if the user says yes or the digest is right."""
    found = read_workspace_hooks(settings.folder)
    if found is None:
        raise BadInput(f"{settings.folder} has no {HOOKS_FILE}, so there is nothing to trust")
    found.parse()
    _show_text(found)
    if digest and digest != found.digest:
        raise BadInput(f"the digest of the hooks is {found.digest}, not {digest}; nothing was trusted")
    if not digest and not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise BadInput("trust needs a terminal, or --digest with the digest above; nothing was trusted")
    if digest or await confirm("trust these hooks, and run them from now on?"):
        trust_hooks(found, settings.folder)
        print_note("the hooks of this workspace run from now on; any change of their text asks again")
    else:
        print_note("nothing was trusted")


async def offer_trust(settings: Settings) -> None:
    """Show hooks of the workspace that are not trusted, and ask. Without a terminal nothing is asked."""
    if not is_terminal(sys.stdin) or not is_terminal(sys.stderr):
        return
    try:
        found = read_workspace_hooks(settings.folder)
        if found is None or (trust := check_trust(found, list_trust_folders(settings))) in ("trusted", "refused"):
            return
        found.parse()
    except BadInput:  # a note says so when the session opens
        return
    print_note(describe_trust(settings.folder, trust))
    _show_text(found)
    print_note("treadle remembers a no for exactly this text, until `treadle hooks forget`")
    remember = trust_hooks if await confirm("trust these hooks, and run them from now on?") else refuse_hooks
    remember(found, settings.folder)


def _show_text(hooks: WorkspaceHooks) -> None:
    """Show every byte that is trusted, as far as a terminal can show it."""
    for name, data in hooks.files.items():
        print_note(f"── {name if name.isprintable() else ascii(name)}")
        try:
            print_note(data.decode().rstrip("\n"))
        except UnicodeDecodeError:
            print_note(f"this file is no text; it has {len(data)} bytes")
    print_note(f"── digest {hooks.digest}\n{WARNING}")
