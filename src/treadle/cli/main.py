"""The entry point: finds the command, imports only its module, and maps errors to messages and exit codes."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import TextIO

COMMANDS = {
    "run": "do one thing and end",
    "chat": "talk, and steer while it works",
    "serve": "sessions over HTTP, and the web page",
    "sessions": "list, show, search, resume, continue, fork, rename, export, import, delete",
    "approvals": "answer what agents ask, in any session",
    "attach": "watch and steer a session that runs elsewhere",
    "models": "what is reachable and why not, the default, weights to bring here",
    "tools": "what an agent can call here",
    "skills": "what an agent can look up here",
    "agents": "the agents of this workspace and of yours",
    "memory": "what is remembered from one session to the next",
    "sandbox": "run a command in the sandbox of the shell tool",
    "doctor": "what works here, and what to do about what does not",
    "completion": "a script that completes all this in bash, zsh and fish",
}

LIST_COMMANDS = ("sessions", "approvals", "models", "skills", "memory")
"""Commands whose default action is `list`."""

_TOP = """\
usage: treadle COMMAND [OPTIONS]

treadle is a durable agent runtime: everything is recorded as it happens, and any session can be taken up again.

commands:
{commands}

examples:
  treadle run "summarise README.md"     one-shot
  treadle chat                          talk, and steer while it works
  treadle sessions list                 every session of this store
  treadle doctor                        what works here, and what to do about what does not

`treadle COMMAND --help` shows options and examples of a command.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    _reopen_closed_streams()
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a bad character must not end the run
            stream.reconfigure(errors="replace")
    try:
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _report_error(words, "cancelled", 130)
    except BrokenPipeError:  # the reader has closed our output
        return _silence(sys.stdout)
    except Exception as error:
        try:
            return _report_error(words, *_describe_error(error))
        except OSError:  # the terminal is closed
            return _silence(sys.stdout, sys.stderr)


def _reopen_closed_streams() -> None:
    """Reopen closed standard streams on /dev/null, so that no later file gets their descriptor."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)
            # The stream stays open as long as the process.
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8"))  # noqa: SIM115


def _silence(*streams: TextIO) -> int:
    from treadle.cli.console import silence_stream

    for stream in streams:
        silence_stream(stream)
    return 1


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        sys.stdout.write(_TOP.format(commands="\n".join(f"  {name:<12}{about}" for name, about in COMMANDS.items())))
        return 0
    if words[0] in ("-V", "--version"):
        from treadle import __version__

        sys.stdout.write(f"treadle {__version__}\n")
        return 0
    if words[0] not in COMMANDS:
        from treadle.errors import BadInput

        raise BadInput(_describe_unknown_command(words[0]))
    if words[0] in LIST_COMMANDS and (
        len(words) == 1 or (words[1].startswith("-") and words[1] not in ("-h", "--help"))
    ):
        words.insert(1, "list")
    command = importlib.import_module(f"treadle.cli.{words[0]}")
    try:
        return command.main(command.parser().parse_args(words[1:]))
    except SystemExit as stop:  # argparse has printed the help
        return int(stop.code or 0)


def _describe_unknown_command(word: str) -> str:
    import difflib

    near = difflib.get_close_matches(word, COMMANDS, 1)
    hint = f"did you mean {near[0]}?" if near else f'to run an objective: treadle run "{word}".'
    return f"there is no command {word!r}; {hint} `treadle --help` lists them"


def _describe_error(error: Exception) -> tuple[str, int]:
    from treadle.errors import BadInput, TreadleError

    if isinstance(error, BadInput):
        return str(error), 2
    if isinstance(error, TreadleError):
        return str(error), 1
    if os.environ.get("TREADLE_DEBUG"):
        raise error
    from treadle.cli.console import describe_bug

    return describe_bug(error), 1


def _report_error(words: list[str], text: str, code: int) -> int:
    from treadle.cli.console import print_note

    if "--json" in words and (words[0] == "run" or words[1:2] in (["resume"], ["continue"])):
        from treadle.cli.report import build_failure_report

        reason = "usage" if code == 2 else "cancelled" if code == 130 else "failed"
        sys.stdout.buffer.write(build_failure_report(reason, text).encode())
        sys.stdout.flush()
    else:
        print_note(f"treadle: {text}")
    return code
