"""Where the inner command begins in the words of a command that runs another one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from treadle.permissions.shell.command_parts import ShellWord
from treadle.permissions.shell.command_table import Wrapper


def find_helper_commands(words: Sequence[str], options: Sequence[str]) -> list[tuple[int, str]]:
    """The commands that a command runs because of these options: the number of the word that holds it, and its text.

    The text is empty where the value of an option is missing.
    """
    found: list[tuple[int, str]] = []
    for number, word in enumerate(words[1:] if options else (), 1):
        is_long = word.startswith("--")
        name, equals, value = word.partition("=") if is_long else (word[:2], word[2:], word[2:])
        # Most programs accept the beginning of a long option.
        if any(len(name) > 2 and one.startswith(name[2:]) if is_long else name == f"-{one}" for one in options):
            found.append((number, value) if equals else (number + 1, "".join(words[number + 1 : number + 2])))
    return found


def find_first_operand(words: Sequence[str], wrapper: Wrapper) -> int | None:
    """The number of the first word after a wrapper's options; None when an option is not known."""
    number = 1
    while number < len(words):
        word = words[number]
        if not word.startswith("-") or word == "-":
            return number
        if word == "--":
            return number + 1
        length = _count_option_words(word, wrapper)
        if length is None:
            return None
        number += length
    return number


def _count_option_words(text: str, wrapper: Wrapper) -> int | None:
    """How many words an option takes, its value included; None when the option is not known."""
    if text.startswith("--"):
        name, equals, _ = text[2:].partition("=")
        if name in wrapper.values:
            return 1 if equals else 2
        return 1 if name in wrapper.flags else None
    for number, letter in enumerate(text[1:], 1):
        if letter in wrapper.values:
            return 1 if number < len(text) - 1 else 2
        if letter not in wrapper.flags:
            return None
    return 1


def find_exec_commands(words: Sequence[ShellWord]) -> list[tuple[ShellWord, ...]]:
    """The commands that `find` runs on the files it finds; an empty one where it is not clear which."""
    found: list[tuple[ShellWord, ...]] = []
    start = 0
    for number, word in enumerate(words):
        if not start and word.text in ("-exec", "-execdir", "-ok", "-okdir"):
            start = number + 1
        elif start and word.text in (";", "+"):
            found.append(tuple(words[start:number]))
            start = 0
    return [*found, ()] if start else found


def find_xargs_placeholder(options: Sequence[ShellWord]) -> str:
    """The text that `xargs` replaces with its input."""
    for number, word in enumerate(options):
        if found := re.match(r"-\w*I(.*)", word.text):
            return found[1] or (options[number + 1].text if number + 1 < len(options) else "") or "{}"
    return "{}"
