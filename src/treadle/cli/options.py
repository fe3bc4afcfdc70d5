"""The options that run, chat and serve share, and the settings built from them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast

from treadle.app.settings import LoadedSettings, Settings, load_settings
from treadle.errors import BadInput

_PATTERN = re.compile(r"[\w*?\[\]-]+(\(.*\))?")


class Parser(argparse.ArgumentParser):
    """A parser that raises `BadInput` for usage errors, so that they can be reported as JSON.

    Its help shows the lines of `examples` that belong to this command.
    """

    def __init__(self, *, examples: str = "", **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        own = [line for line in examples.splitlines() if f"{options.get('prog')} " in f"{line} "]
        if own:
            options.setdefault("epilog", "\n".join(("examples:", *own)))
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message}; {self._guess(message)}`{self.prog} --help` shows the usage")

    def _guess(self, message: str) -> str:
        """Suggest the option or action that is closest to an unknown one."""
        import difflib

        words = [
            word
            for argument in iterate_arguments(self)
            for word in (*argument.option_strings, *map(str, argument.choices or ()))
        ]
        unknown = re.search(r"(?:unrecognized arguments:.*?|invalid choice: ')(-*\w[\w-]+)", message)
        # An option of another action is no help.
        near = difflib.get_close_matches(unknown[1], words, 1) if unknown and unknown[1] not in words else []
        return f"did you mean {near[0]}? " if near else ""


def iterate_arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Iterate over the options and arguments of a parser and of its subparsers."""
    for argument in parser._actions:  # pyright: ignore[reportPrivateUsage]
        yield argument
        if isinstance(argument.choices, dict):
            for below in cast("dict[str, argparse.ArgumentParser]", argument.choices).values():
                yield from iterate_arguments(below)


class SeveralValues(argparse.Action):
    """An option with one or more values that can be repeated. `groups` keeps the values of each use together."""

    def __call__(self, parser: object, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        groups: list[list[str]] = [*getattr(namespace, "groups", ()), list(values)]
        namespace.groups = groups
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or ()), *values])


def take_back_word(args: argparse.Namespace, *options: str, is_no_value: Callable[[str], bool]) -> str | None:
    """Take back a positional argument that an option with several values consumed. Return None if there is none.

    Only the last value of a group can be one. `is_no_value` says whether a text cannot be a value of the option.
    """
    for group in reversed(getattr(args, "groups", ())):
        if len(group) > 1 and is_no_value(group[-1]):
            for name in options:
                values: list[str] = getattr(args, name) or []
                if group[-1] in values:
                    values.remove(group[-1])
                    return group[-1]
    return None


def is_message(word: str) -> bool:
    """Whether a word is a message rather than a pattern of calls or a file."""
    return not _PATTERN.fullmatch(word) and not Path(word).is_file()


def create_parser(name: str, about: str, examples: str) -> Parser:
    """Create the parser of a command. Its help shows the examples below the options."""
    return Parser(prog=f"treadle {name}", description=about, epilog=f"examples:\n{examples}")


def add_actions(parser: Parser, examples: str) -> argparse._SubParsersAction[Parser]:  # pyright: ignore[reportPrivateUsage]
    """Add subparsers for the actions of a command."""
    subparser = cast("type[Parser]", partial(Parser, examples=examples))
    return parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=subparser)


def add_session_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument that selects a session."""
    parser.add_argument("session", metavar="SESSION", help="an id, the start of an id, a name, or `last`")


def add_store_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the commands that only read the store."""
    parser.add_argument("--store", metavar="PATH|URL", help="the store of the sessions (default: in the data folder)")
    parser.add_argument("--config", metavar="FILE", default="", help="use this file instead of the user's config.toml")


def add_token_option(parser: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add the option for the token of a server."""
    parser.add_argument(
        "--token-file", metavar="FILE", default="", help="default: tokens.json in the user's data folder"
    )


def add_message_options(parser: argparse.ArgumentParser, *, with_picker: bool = False) -> None:
    """Add the options of run and chat: session, name and images. `with_picker` adds `--resume`."""
    session = parser.add_mutually_exclusive_group()
    session.add_argument("--session", metavar="ID|NAME", default="", help="continue this session")
    about = "continue the last session of this folder"
    session.add_argument("--continue", dest="latest", action="store_true", help=about)
    if with_picker:
        session.add_argument("--resume", action="store_true", help="choose the session to continue")
    about = "give the new session its own git branch treadle/NAME in its own folder"
    session.add_argument("--worktree", metavar="NAME", dest="worktree_name", nargs="?", const="", help=about)
    parser.add_argument("--name", metavar="NAME", default="", help="name the new session")
    parser.add_argument(
        "--image", metavar="FILE", nargs="+", action=SeveralValues, default=[], help="attach images to the message"
    )


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of run, chat and serve."""
    model = parser.add_argument_group("model")
    model.add_argument("--model", metavar="NAME", help="local, openai:NAME, anthropic:NAME, ollama:NAME, …")
    model.add_argument("--base-url", metavar="URL", help="use an OpenAI-compatible server")
    model.add_argument("--api-key-env", metavar="VAR", help="the environment variable that holds the API key")
    model.add_argument("--agent", metavar="NAME", help="an agent of the workspace or of the user")
    model.add_argument("--system-prompt", metavar="TEXT|@FILE", help="replace the instructions of the agent")
    rights = parser.add_argument_group("rights")
    rights.add_argument("--workspace", metavar="DIR", help="the folder to work in (default: the current one)")
    rights.add_argument("--access", choices=("plan", "read-only", "sandbox", "full"), help="default: sandbox")
    rights.add_argument("--plan", dest="access", action="store_const", const="plan", help="= --access plan: only plan")
    rights.add_argument("--full-access", dest="access", action="store_const", const="full", help="= --access full")
    rights.add_argument("--approve", metavar="GLOB", nargs="+", action=SeveralValues, help="allow without asking")
    rights.add_argument("--forbid", metavar="GLOB", nargs="+", action=SeveralValues, help="never run these")
    about = "also allow sending data out and lasting changes after reading text that others wrote"
    rights.add_argument("--approve-flow", action="store_const", const=True, help=about)
    rights.add_argument("--yes", action="store_const", const=True, help="allow all calls that need approval")
    about = "run although the user is root"
    rights.add_argument("--allow-root", action="store_const", const=True, help=about)
    rights.add_argument("--web", action=argparse.BooleanOptionalAction, help="offer fetch_url, or do not")
    rights.add_argument("--allow-host", metavar="H", dest="network", action="append", help="commands may connect to it")
    limits = parser.add_argument_group("limits of a run")
    limits.add_argument("--max-turns", metavar="N", help="default: 50; 0 means text only")
    limits.add_argument("--max-calls", metavar="N", help="default: 50")
    limits.add_argument("--max-tokens", metavar="N", help="generated tokens")
    limits.add_argument("--max-cost", metavar="USD")
    limits.add_argument("--timeout", metavar="SECONDS", help="wall time")
    limits.add_argument("--retry-seconds", metavar="N", help="wait for an overloaded provider; default: 600")
    about = "others take over after this silence; default: 10"
    parser.add_argument("--lease", metavar="SECONDS", help=about)
    add_store_options(parser)


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the commands that wait for a run to finish."""
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="one document on stdout; events as JSON lines on stderr")
    output.add_argument("--jsonl", action="store_true", help="every event as a JSON line on stdout")
    parser.add_argument("--ask-later", action="store_true", help="leave questions open in the log and exit with 4")


def load_command_settings(args: argparse.Namespace) -> LoadedSettings:
    """Load the settings for a command's arguments. A command does this once."""
    return load_settings({name: getattr(args, name, None) for name in Settings.__struct_fields__}, args.config)
