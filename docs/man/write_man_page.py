#!/usr/bin/env python3
"""Write treadle.1 from the parsers of the commands: `python docs/man/write_man_page.py`. A test checks that it is new.

The options of `run` stand there once. The other commands that take them refer to it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from treadle import __version__
from treadle.cli.completion import build_whole_parser
from treadle.cli.drive import ANSWERED, CANCELLED, FAILED, STOPPED, UNANSWERED, USAGE
from treadle.cli.main import COMMANDS

PAGE = Path(__file__).with_name("treadle.1")
SHARED_GROUPS = ("model", "rights", "limits of a run")
SUMMARY = "treadle is a durable agent runtime. It records everything as it happens, so any session can be resumed."
RULE = (
    "Without a command treadle opens a chat in the current folder, and takes the options of treadle chat. "
    "A first word that has no space is a message only if it is not close to the name of a command."
)
CODES = {
    ANSWERED: "The run ended with an answer, or the command succeeded.",
    FAILED: "The provider failed, or there was an internal error.",
    USAGE: "The usage or the configuration is wrong. Nothing was started.",
    STOPPED: "A limit or a loop stopped the run.",
    UNANSWERED: "The run waits for an approval or an answer, or a call was denied because nobody could be asked.",
    CANCELLED: "The run was cancelled.",
}
FILES = {
    "~/.config/treadle/config.toml": "The settings of the user.",
    ".treadle/config.toml": "The settings of a workspace. They may narrow rights and never widen them.",
    "~/.local/share/treadle/treadle.db": "The store of the sessions.",
}
VARIABLES = {
    "TREADLE_KEY": "Sets a setting, such as TREADLE_MODEL. It overrides the files; an option overrides it.",
    "ANTHROPIC_API_KEY, OPENAI_API_KEY": "The keys of providers. Without a model, the first that is set chooses it.",
    "NO_COLOR": "Removes colours.",
    "VISUAL, EDITOR": "The editor of treadle config edit.",
}


def escape(text: str) -> str:
    """Escape a text for roff. Characters beyond ASCII get their number, so that every groff can read the page."""
    text = text.replace("…", "...").replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    text = re.sub(r"[^\x00-\x7f]", lambda found: f"\\[u{ord(found[0]):04X}]", text)
    return re.sub(r"(?m)^(?=\.)", r"\\&", text)


def write_items(items: dict[str, str]) -> Iterator[str]:
    """A list of terms, each with its description."""
    for term, about in items.items():
        yield f".TP\n\\fB{escape(term)}\\fR"
        yield escape(about) or "\\&"


def describe_options(parser: argparse.ArgumentParser, *, with_shared: bool) -> Iterator[str]:
    """The arguments and options of a parser."""
    shared = False
    for group in parser._action_groups:
        if group.title in SHARED_GROUPS and not with_shared:
            shared = True
            continue
        for action in group._group_actions:
            if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
                continue
            choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
            value = action.metavar if isinstance(action.metavar, str) else choices
            value = "" if action.nargs == 0 else f"[{value}]" if action.nargs == "?" else value
            value += "..." if action.nargs in ("+", "*") else ""
            term = ", ".join(f"{name} {value}".rstrip() for name in action.option_strings) or value
            yield from write_items({term: action.help or ""})
    if shared:
        yield ".PP\nThe options of \\fBtreadle run\\fR for the model, the rights and the limits hold here too."


def describe_command(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The part of a command: what it does, its options, its actions and its examples."""
    yield f".SS {escape(parser.prog)}"
    yield escape(parser.description or "")
    yield from describe_options(parser, with_shared=parser.prog == "treadle run")
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            abouts = {one.dest: one.help or "" for one in action._choices_actions}
            for name, below in action.choices.items():
                yield f".PP\n\\fB{escape(f'{parser.prog} {name}')}\\fR: {escape(abouts.get(name, ''))}\n.RS"
                yield from describe_options(below, with_shared=False)
                yield ".RE"
    yield f".PP\n.nf\n{escape(parser.epilog or '')}\n.fi"


def write_page() -> str:
    """The whole page."""
    whole = build_whole_parser()
    commands = next(one for one in whole._actions if isinstance(one, argparse._SubParsersAction))
    lines = [
        '.\\" Written by docs/man/write_man_page.py. Change the parsers, not this file.',
        f'.TH TREADLE 1 "" "treadle {__version__}" "User commands"',
        ".SH NAME\ntreadle \\- run agents, and keep everything that they do",
        ".SH SYNOPSIS\n.B treadle\n[\\(dqMESSAGE\\(dq] [OPTIONS]\n.br\n.B treadle\nCOMMAND [OPTIONS]",
        f".SH DESCRIPTION\n{escape(SUMMARY)}\n.PP\n{escape(RULE)}",
        *write_items(COMMANDS),
        ".SH COMMANDS",
    ]
    for parser in commands.choices.values():
        lines += describe_command(parser)
    lines += [".SH EXIT STATUS", *write_items({str(code): about for code, about in CODES.items()})]
    lines += [".SH ENVIRONMENT", *write_items(VARIABLES), ".SH FILES", *write_items(FILES)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(write_page(), "utf-8")
