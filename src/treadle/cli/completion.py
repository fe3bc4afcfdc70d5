"""`treadle completion`: print a shell script that completes commands, actions and options."""

from __future__ import annotations

import argparse
import importlib
import sys

from treadle.cli.options import (
    Parser,
    add_actions,
    add_message_options,
    add_run_options,
    create_parser,
    iterate_arguments,
)

EXAMPLES = """\
  treadle completion bash > ~/.local/share/bash-completion/completions/treadle
  treadle completion zsh > ~/.zfunc/_treadle       (with fpath+=~/.zfunc before compinit)
  treadle completion fish > ~/.config/fish/completions/treadle.fish"""


def parser() -> Parser:
    made = create_parser("completion", "Completion of commands and options in a shell.", EXAMPLES)
    made.add_argument("shell", choices=("bash", "zsh", "fish"))
    return made


def build_whole_parser() -> Parser:
    """Build one parser of all commands. Without a command it has the options of chat."""
    from treadle.cli.main import COMMANDS

    whole = Parser(prog="treadle")
    add_message_options(whole, with_picker=True)
    add_run_options(whole)
    commands = add_actions(whole, "")
    for name, about in COMMANDS.items():
        commands.add_parser(name, help=about)
        commands.choices[name] = importlib.import_module(f"treadle.cli.{name}").parser()
    return whole


def main(args: argparse.Namespace) -> int:
    import shtab

    whole = build_whole_parser()
    for argument in iterate_arguments(whole):
        if argument.choices is None and argument.nargs != 0:
            # shtab reads this attribute; argparse does not declare it, so plain assignment fails the type check.
            setattr(argument, "complete", shtab.DIRECTORY if argument.metavar == "DIR" else shtab.FILE)  # noqa: B010
    sys.stdout.write(shtab.complete(whole, args.shell))
    return 0
