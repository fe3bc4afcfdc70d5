"""`treadle doctor`: check model, sandbox, store, terminal and proxy, and say how to fix each problem."""

from __future__ import annotations

import argparse
import sys

from treadle.app.diagnose import run_checks
from treadle.cli.console import escape_controls, style_text, wants_colour
from treadle.cli.options import Parser, add_run_options, create_parser, load_command_settings

EXAMPLES = """\
  treadle doctor
  treadle doctor --model ollama:qwen3 --store ./work.db

exit codes: 0 everything works, perhaps with warnings; 1 something does not work"""

_MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "bad": ("✗", "red")}


def parser() -> Parser:
    options = create_parser("doctor", "Check everything that a run needs. Changes nothing, sends no prompt.", EXAMPLES)
    add_run_options(options)
    return options


async def main(args: argparse.Namespace) -> int:
    colour, code = wants_colour(sys.stdout), 0
    async for check in run_checks(load_command_settings(args)):
        mark, style = _MARKS[check.state]
        sys.stdout.write(f"{style_text(mark, style, colour)} {check.name:<14}{escape_controls(check.finding)}\n")
        if check.advice and check.state != "ok":
            sys.stdout.write(f"  {'':<14}{style_text(escape_controls(check.advice), 'bold', colour)}\n")
        sys.stdout.flush()
        code = 1 if check.state == "bad" else code
    return code
