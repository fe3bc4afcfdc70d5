"""The table of shell commands: reads `commands.toml` once, checks it, and finds commands by name.

It holds facts only. The rules that use them are in `parse.py`, `classify.py` and `patterns.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast, get_origin

import msgspec
from msgspec import Struct


class CommandNames:
    """A set of command names. `python#` in it includes `python3.11`, and `mkfs.*` includes `mkfs.ext4`."""

    __slots__ = ("_names",)

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)

    def __contains__(self, name: str) -> bool:
        unversioned, family = name.rstrip("0123456789."), name.partition(".")[0]
        return name in self._names or f"{unversioned}#" in self._names or f"{family}.*" in self._names


class _Row(Struct, frozen=True, forbid_unknown_fields=True):
    """Strict: a misspelled field in the file is an error, not a fact that is silently lost."""


class SafeCommand(_Row, frozen=True):
    """Commands that only read, unless one of their words is named here."""

    commands: CommandNames
    unless_letters: str = ""
    unless_options: tuple[str, ...] = ()
    unless_words: re.Pattern[str] | None = None

    @property
    def is_always_safe(self) -> bool:
        return not self.unless_letters and not self.unless_options and self.unless_words is None

    def allows_word(self, word: str) -> bool:
        """Whether the command still only reads with this word."""
        if self.unless_letters and re.match(rf"-[a-zA-Z0-9]*[{self.unless_letters}]", word):
            return False
        if word.startswith("--"):
            option = complete_option(word, self.unless_options).partition("=")[0]
            if option[2:] in self.unless_options:
                return False
        return self.unless_words is None or self.unless_words.fullmatch(word) is None


class DestructiveCommand(_Row, frozen=True):
    """Commands that do harm, always or when their words match; `why` is shown to a person."""

    commands: CommandNames
    why: str
    when: re.Pattern[str] | None = None

    def matches(self, name: str, words: str) -> bool:
        return name in self.commands and (self.when is None or self.when.match(words) is not None)


class NetworkCommand(_Row, frozen=True):
    """Commands that send data out, always or when their words match."""

    commands: CommandNames
    when: re.Pattern[str] | None = None


class Wrapper(_Row, frozen=True):
    """A command that runs the command in the rest of its words, after its options and `skip` more words."""

    commands: CommandNames
    flags: frozenset[str] = frozenset()
    values: frozenset[str] = frozenset()
    skip: int = 0
    is_listed: bool = False

    def find_first_operand(self, words: Sequence[str]) -> int | None:
        """Find the number of the first word after the options; None when an option is not known."""
        number = 1
        while number < len(words):
            word = words[number]
            if not word.startswith("-") or word == "-":
                return number
            if word == "--":
                return number + 1
            length = self._count_option_words(word)
            if length is None:
                return None
            number += length
        return number

    def _count_option_words(self, text: str) -> int | None:
        """Count the words that an option takes, its value included; None when the option is not known."""
        if text.startswith("--"):
            name, equals, _ = text[2:].partition("=")
            if name in self.values:
                return 1 if equals else 2
            return 1 if name in self.flags else None
        for number, letter in enumerate(text[1:], 1):
            if letter in self.values:
                return 1 if number < len(text) - 1 else 2
            if letter not in self.flags:
                return None
        return 1


class HelperOptions(_Row, frozen=True):
    """Options of a command whose value is another command."""

    commands: CommandNames
    options: tuple[str, ...]


class FileCommands(_Row, frozen=True):
    """Which words of a command are files that it writes."""

    writes_paths: CommandNames
    writes_last_path: CommandNames
    keeps_devices: CommandNames
    edits_in_place: CommandNames
    writes_output: CommandNames
    output_options: re.Pattern[str]
    downloads: CommandNames
    opens_no_file: CommandNames
    changes_folder: CommandNames


class Programs(_Row, frozen=True):
    """Commands that run programs which other commands or files hold."""

    shells: CommandNames
    unreadable: CommandNames
    interpreters: CommandNames
    script_runners: CommandNames


class BashBuiltins(_Row, frozen=True):
    """Words and commands of bash itself."""

    reserved_words: frozenset[str]
    declares_variables: CommandNames
    sets_variables: CommandNames
    reads_text: CommandNames


class GitFacts(_Row, frozen=True):
    """How git's own options are read."""

    harmless_options: frozenset[str]
    value_options: frozenset[str]
    folder_options: frozenset[str]
    harmless_settings: tuple[str, ...]
    long_options: tuple[str, ...]
    folder_position: Mapping[str, int]

    def may_run_program(self, options: str) -> bool:
        """Whether git's options before its verb hold a setting that may name a program."""
        harmless = "|".join(map(re.escape, self.harmless_settings))
        # `-c` is a setting and `-C` a folder; the rest is matched in any case.
        risky = rf"(^| )((?-i:-c) (?!{harmless})|--config-env|--exec-path=)"
        return re.search(risky, options, re.IGNORECASE) is not None


class RuleFacts(_Row, frozen=True):
    """Which commands a remembered rule can be made of."""

    open_ended: CommandNames
    with_verbs: CommandNames
    running_verbs: frozenset[str]


class CommandTable(_Row, frozen=True):
    """All that is known about commands."""

    safe: tuple[SafeCommand, ...]
    destructive: tuple[DestructiveCommand, ...]
    network: tuple[NetworkCommand, ...]
    wrapper: tuple[Wrapper, ...]
    helper: tuple[HelperOptions, ...]
    files: FileCommands
    programs: Programs
    bash: BashBuiltins
    git: GitFacts
    rules: RuleFacts

    def find_safe(self, name: str) -> SafeCommand | None:
        return next((row for row in self.safe if name in row.commands), None)

    def find_danger(self, name: str, words: str) -> str:
        """Say why a command with these words is destructive, or nothing."""
        return next((row.why for row in self.destructive if row.matches(name, words)), "")

    def sends_data(self, name: str, words: str) -> bool:
        """Whether a command with these words is known to send data out."""
        rows = (row for row in self.network if name in row.commands)
        return any(row.when is None or row.when.match(words) is not None for row in rows)

    def find_wrapper(self, name: str) -> Wrapper | None:
        return next((row for row in self.wrapper if name in row.commands), None)

    def find_helper_commands(self, words: Sequence[str]) -> list[tuple[int, str]]:
        """Find the commands that options make a command run: the number of the word that holds it, and its text.

        The text is empty where the value of an option is missing.
        """
        options = next((row.options for row in self.helper if words[0] in row.commands), ())
        found: list[tuple[int, str]] = []
        for number, word in enumerate(words[1:] if options else (), 1):
            is_long = word.startswith("--")
            name, equals, value = word.partition("=") if is_long else (word[:2], word[2:], word[2:])
            # Most programs accept the beginning of a long option.
            if any(len(name) > 2 and one.startswith(name[2:]) if is_long else name == f"-{one}" for one in options):
                found.append((number, value) if equals else (number + 1, "".join(words[number + 1 : number + 2])))
        return found


def complete_option(word: str, options: Sequence[str]) -> str:
    """Complete a long option: most programs accept the beginning of one."""
    name, equals, value = word.partition("=")
    if not re.match(r"--.", name):
        return word
    return next((f"--{option}{equals}{value}" for option in options if option.startswith(name[2:])), word)


@lru_cache(maxsize=1)
def load_command_table() -> CommandTable:
    """Read the table, once a process and not before a command is looked at."""
    return read_command_table(Path(__file__).with_name("commands.toml").read_text("utf-8"))


def read_command_table(text: str) -> CommandTable:
    """Check a table that is written as TOML."""
    import tomllib

    return msgspec.convert(tomllib.loads(text), CommandTable, dec_hook=_decode_field)


def _decode_field(kind: type, value: Any) -> object:
    """Build names from a list, and a pattern from one text or a list of alternatives."""
    texts = cast("list[str]", [value] if isinstance(value, str) else value)
    if get_origin(kind) is re.Pattern:
        return re.compile("|".join(texts), re.DOTALL)
    return CommandNames(texts)
