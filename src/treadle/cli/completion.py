"""`treadle completion`: a script for the shell, made from the commands themselves."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator
from typing import cast

from treadle.cli.options import Parser, create_parser

EXAMPLES = """\
  treadle completion bash > ~/.local/share/bash-completion/completions/treadle
  treadle completion zsh > ~/.zfunc/_treadle       (with fpath+=~/.zfunc before compinit)
  treadle completion fish > ~/.config/fish/completions/treadle.fish"""

_BASH = """\
_treadle() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} words=""
    case "${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}" in
{cases}
    esac
    case "${{COMP_WORDS[COMP_CWORD-1]}}" in
{values}
    esac
    if [ "$COMP_CWORD" -eq 1 ]; then words="{commands}"; fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    if [ ${{#COMPREPLY[@]}} -eq 0 ]; then COMPREPLY=($(compgen -f -- "$current")); fi
}}
complete -o filenames -F _treadle treadle
"""

_ZSH = """\
#compdef treadle
autoload -U +X bashcompinit && bashcompinit
{bash}"""


def parser() -> Parser:
    made = create_parser("completion", "Completion of commands and options in a shell.", EXAMPLES)
    made.add_argument("shell", choices=("bash", "zsh", "fish"))
    return made


def main(args: argparse.Namespace) -> int:
    parsers = dict(_parsers())
    script = {"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](parsers)
    sys.stdout.write(script)
    return 0


Parsers = dict[tuple[str, ...], argparse.ArgumentParser]


def _parsers() -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """The parser of each command, and of each of its actions."""
    from treadle.cli.main import COMMANDS

    for name in COMMANDS:
        made: argparse.ArgumentParser = importlib.import_module(f"treadle.cli.{name}").parser()
        yield (name,), made
        for action, one in _actions(made).items():
            yield (name, action), one


def _words(parser: argparse.ArgumentParser) -> list[str]:
    """What can follow."""
    return [*_actions(parser), *_options(parser)]


def _values(parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """The values of those options that take only certain ones."""
    return {
        option: [str(choice) for choice in action.choices]
        for action in parser._actions  # pyright: ignore[reportPrivateUsage]
        for option in action.option_strings
        if action.choices
    }


def _actions(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:  # pyright: ignore[reportPrivateUsage]
        if isinstance(action, argparse._SubParsersAction):  # pyright: ignore[reportPrivateUsage]
            return cast("dict[str, argparse.ArgumentParser]", action.choices)
    return {}


def _options(parser: argparse.ArgumentParser) -> list[str]:
    found: list[str] = []
    for action in parser._actions:  # pyright: ignore[reportPrivateUsage]
        found += [option for option in action.option_strings if option.startswith("--")]
        if not action.option_strings and action.choices and not isinstance(action.choices, dict):
            found += [str(choice) for choice in action.choices]
    return found


def _bash(parsers: Parsers) -> str:
    deep = [(key, _words(one)) for key, one in parsers.items() if len(key) == 2]
    flat = [(key, _words(one)) for key, one in parsers.items() if len(key) == 1]
    cases = [f'        "{" ".join(key)}") words="{" ".join(found)}" ;;' for key, found in deep]
    cases += [f'        "{key[0]} "*) words="{" ".join(found)}" ;;' for key, found in flat]
    known = {option: found for one in parsers.values() for option, found in _values(one).items()}
    values = [f'        {option}) words="{" ".join(found)}" ;;' for option, found in known.items()]
    commands = " ".join(key[0] for key, _ in flat)
    return _BASH.format(cases="\n".join(cases), values="\n".join(values), commands=commands)


def _zsh(parsers: Parsers) -> str:
    return _ZSH.format(bash=_bash(parsers))


def _fish(parsers: Parsers) -> str:
    from treadle.cli.main import COMMANDS

    lines = ["complete -c treadle -f"]
    for name, about in COMMANDS.items():
        lines.append(f"complete -c treadle -n __fish_use_subcommand -a {name} -d {_quoted(about)}")
    for key, one in parsers.items():
        seen, values = " && ".join(f"__fish_seen_subcommand_from {word}" for word in key), _values(one)
        for word in _words(one):
            what = f"-l {word[2:]}" if word.startswith("--") else f"-a {word}"
            what += f" -xa {_quoted(' '.join(values[word]))}" if word in values else ""
            lines.append(f"complete -c treadle -n {_quoted(seen)} {what}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "\\'") + "'"
