"""`treadle doctor`: check model, sandbox, store, terminal and proxy, and say how to fix each problem."""

from __future__ import annotations

import argparse
import asyncio
import sys

from treadle.app.diagnose import run_checks
from treadle.cli.console import escape_controls, style_text, wants_colour
from treadle.cli.options import Parser, add_run_options, create_parser, load_command_settings

EXAMPLES = """\
  treadle doctor
  treadle doctor --model ollama:qwen3 --store ./work.db

exit codes: 0 all is well or could be better, 1 something does not work"""

_MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "bad": ("✗", "red")}


def parser() -> Parser:
    made = create_parser("doctor", "Look at everything a run needs. Changes nothing, sends no prompt.", EXAMPLES)
    add_run_options(made)
    return made


def main(args: argparse.Namespace) -> int:
    return asyncio.run(_look(args))


async def _look(args: argparse.Namespace) -> int:
    colour, worst = wants_colour(sys.stdout), 0
    async for check in run_checks(load_command_settings(args)):
        mark, style = _MARKS[check.state]
        sys.stdout.write(f"{style_text(mark, style, colour)} {check.name:<14}{escape_controls(check.finding)}\n")
        if check.advice and check.state != "ok":
            sys.stdout.write(f"  {'':<14}{style_text(escape_controls(check.advice), 'bold', colour)}\n")
        sys.stdout.flush()
        worst |= check.state == "bad"
    return int(worst)
