"""The entry point: finds the command, imports only its module, and maps errors to messages and exit codes.

The `main` of a command returns its exit code, or a coroutine that returns it.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import TextIO

COMMANDS = {
    "run": "run one task and exit",
    "chat": "talk to an agent, and steer it while it works",
    "serve": "serve sessions over HTTP, with a web page",
    "sessions": "list, show, trace, search, resume, continue, fork, rename, export, import, delete",
    "store": "check, back up, recover, shrink and copy the store; delete old sessions",
    "nodes": "list the nodes that share a store, and drain one",
    "approvals": "answer the questions of agents, in any session",
    "attach": "watch and steer a session that another process runs",
    "models": "list the models, set the default, download weights",
    "tools": "list the tools that an agent can call here",
    "skills": "list the skills that an agent can use here",
    "agents": "list the agents of this workspace and of the user",
    "hooks": "list the hooks, and trust those of this workspace",
    "memory": "show and edit what agents remember across sessions",
    "sandbox": "run a command in the sandbox of the shell tool",
    "config": "show and change the settings",
    "doctor": "check the setup, and say how to fix problems",
    "completion": "print a completion script for bash, zsh or fish",
    "version": "print the version",
}

LIST_COMMANDS = ("sessions", "nodes", "approvals", "models", "skills", "hooks", "memory")
"""Commands whose default action is `list`."""

BUSY_COMMANDS = ("run", "serve")
"""Commands that do many steps. The others are over, or wait for a person, before a faster event loop would pay."""

_HIDDEN_WORDS = "TREADLE_HIDDEN_WORDS"
_HELP = """\
usage: treadle ["MESSAGE"] [OPTIONS]      open a chat, and send the message
       treadle COMMAND [OPTIONS]

treadle is a durable agent runtime. It records everything as it happens, so any session can be resumed.

commands:
{commands}

examples:
  treadle                               talk to an agent, and steer it while it works
  treadle "why does the build fail?"    the same, with a first message
  treadle run "summarise README.md"     one task
  treadle sessions list                 the sessions of this store
  treadle doctor                        check the setup, and say how to fix problems

`treadle COMMAND --help` shows the options and examples of a command.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code."""
    words = _hide_passwords(sys.argv[1:]) if argv is None else list(argv)
    _prepare_streams()
    try:
        code = _run_command(words)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _report_error(words, "cancelled", 130)
    except BrokenPipeError:  # the reader has closed our output
        return _silence(sys.stdout)
    except Exception as error:
        from treadle.cli.console import describe_bug
        from treadle.errors import BadInput, TreadleError

        is_expected = isinstance(error, TreadleError)
        if not is_expected and os.environ.get("TREADLE_DEBUG"):
            raise
        try:
            text = str(error) if is_expected else describe_bug(error)
            return _report_error(words, text, 2 if isinstance(error, BadInput) else 1)
        except OSError:  # the terminal is closed
            return _silence(sys.stdout, sys.stderr)


def _hide_passwords(words: list[str]) -> list[str]:
    """Start this program again if its words show a password, as every user of the machine sees them.

    The new process gets the words in its environment, which only its user sees, and drops them there.
    """
    hidden = os.environ.pop(_HIDDEN_WORDS, "")
    if not hidden and (sys.platform == "win32" or not any("postgres" in word and "@" in word for word in words)):
        return words
    import json

    from treadle.secrets.store_url import hide_password

    if hidden:
        return json.loads(hidden)
    shown = [hide_password(word) for word in sys.orig_argv]
    if shown != sys.orig_argv:
        os.environ[_HIDDEN_WORDS] = json.dumps(words)
        os.execv(sys.executable, [sys.executable, *shown[1:]])
    return words


def _prepare_streams() -> None:
    """Reopen closed standard streams on /dev/null, so that no later file gets their descriptor."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
            # The stream stays open as long as the process.
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8"))  # noqa: SIM115
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):  # a bad character must not end the run
            stream.reconfigure(errors="replace")


def _silence(*streams: TextIO) -> int:
    from treadle.cli.console import silence_stream

    for stream in streams:
        silence_stream(stream)
    return 1


def _run_command(words: list[str]) -> int:
    words[:] = complete_words(words)
    if words[0] == "help":
        sys.stdout.write(_HELP.format(commands="\n".join(f"  {name:<12}{about}" for name, about in COMMANDS.items())))
        return 0
    name = words[0]
    has_action = len(words) > 1 and (not words[1].startswith("-") or words[1] in ("-h", "--help"))
    if name in LIST_COMMANDS and not has_action:
        words.insert(1, "list")
    command = importlib.import_module(f"treadle.cli.{name}")
    try:
        result = command.main(command.parser().parse_args(words[1:]))
        if isinstance(result, int):
            return result
        if name in BUSY_COMMANDS:
            from treadle.app.event_loop import run_in_fast_loop

            return run_in_fast_loop(result)
        import asyncio

        return asyncio.run(result)
    except SystemExit as stop:  # argparse has printed the help
        return int(stop.code or 0)


def complete_words(words: list[str]) -> list[str]:
    """Complete the words of a command line, so that they begin with a command.

    Options, and a message, belong to `chat`. A first word without a space is a message only if it stands alone, is not
    close to the name of a command, and there is a terminal to chat in.
    """
    if words and words[0] in COMMANDS:
        return words
    aliases = {"-h": "help", "--help": "help", "help": "help", "-V": "version", "--version": "version"}
    if words and words[0] in aliases:
        return [aliases[words[0]], *words[1:]]
    has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not words:
        return ["chat"] if has_terminal else ["help"]
    first, *rest = words
    if first.startswith("-") or any(map(str.isspace, first)):
        return ["chat", *words]
    import difflib

    near = difflib.get_close_matches(first, COMMANDS, 1)
    is_alone = not rest or rest[0].startswith("-")
    if is_alone and not near and has_terminal:
        return ["chat", *words]
    import shlex

    from treadle.errors import BadInput

    message = shlex.join([" ".join(words) if not is_alone else first])
    hint = f"did you mean {near[0]}?" if near else f"to send a message: treadle run {message}."
    raise BadInput(f"there is no command {first!r}; {hint} `treadle --help` lists the commands")


def _report_error(words: list[str], text: str, code: int) -> int:
    from treadle.cli.console import print_note

    if "--json" in words and (words[0] == "run" or words[1:2] in (["resume"], ["continue"])):
        from treadle.cli.drive import build_failure_report

        reason = "usage" if code == 2 else "cancelled" if code == 130 else "failed"
        sys.stdout.buffer.write(build_failure_report(reason, text).encode())
        sys.stdout.flush()
    else:
        print_note(f"treadle: {text}")
    return code
