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

    __slots__ = ("_has_forms", "_names")

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._has_forms = any(name.endswith(("#", ".*")) for name in self._names)

    def __contains__(self, name: str) -> bool:
        if name in self._names or not self._has_forms:  # asked for each row of the table
            return name in self._names
        unversioned, family = name.rstrip("0123456789."), name.partition(".")[0]
        return f"{unversioned}#" in self._names or f"{family}.*" in self._names


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
    runs_program: bool = False

    def matches(self, name: str, words: str) -> bool:
        return name in self.commands and (self.when is None or self.when.match(words) is not None)


class NetworkCommand(_Row, frozen=True):
    """Commands that send data out, always or when their words match."""

    commands: CommandNames
    when: re.Pattern[str] | None = None


class Wrapper(_Row, frozen=True):
    """A command that runs the command in the rest of its words, after its options and `skip` more words."""

    commands: CommandNames
    verbs: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()
    values: frozenset[str] = frozenset()
    skip: int = 0
    is_listed: bool = False
    is_script: bool = False
    has_any_flag: bool = False

    def find_first_operand(self, words: Sequence[str]) -> int | None:
        """Find the number of the first word after the options; None when an option is not known."""
        number = 2 if self.verbs else 1
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
            return 1 if name in self.flags or self.has_any_flag else None
        for number, letter in enumerate(text[1:], 1):
            if letter in self.values:
                return 1 if number < len(text) - 1 else 2
            if letter not in self.flags:
                return None
        return 1


class HelperCommands(_Row, frozen=True):
    """Which words of a command make it run other commands on the way."""

    commands: CommandNames
    options: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    when: re.Pattern[str] | None = None
    sets_variables: bool = False

    def is_unreadable(self, words: Sequence[str]) -> bool:
        """Whether these words run something in a way that is not read here."""
        if self.when is not None and self.when.match(" ".join(words)):
            return True
        if any(read_option(word, self.unreadable) for word in words):
            return True
        return any(
            found is not None and found[0] is None for found in (read_option(word, self.options) for word in words)
        )

    def find_values(self, words: Sequence[str]) -> list[tuple[int, str]]:
        """Find the values of the options that are commands: the number of the word that holds it, and its text.

        The text is empty where the value of an option is missing.
        """
        values: list[tuple[int, str]] = []
        for number, word in enumerate(words if self.options else ()):
            match read_option(word, self.options):
                case ("", _):
                    values.append((number + 1, "".join(words[number + 1 : number + 2])))
                case (str(value), _):
                    values.append((number, value))
                case _:
                    pass
        return values


def read_option(word: str, names: Sequence[str]) -> tuple[str | None, str] | None:
    """Read one of the named options from a word: its value and its name; None for another word.

    The value is empty when it is the next word, and None when it is not clear: `-xIf` of tar. Most programs accept
    the beginning of a long option.
    """
    if word.startswith("--"):
        name, _, value = word[2:].partition("=")
        return next(((value, one) for one in names if name and len(one) > 1 and one.startswith(name)), None)
    letters = re.match(r"-([a-zA-Z0-9]+)", word)
    for number, letter in enumerate(letters[1] if letters else ""):
        if letter in names:
            rest = word[number + 2 :]
            return (rest if number == 0 or not rest else None), letter
    return None


class Variable(_Row, frozen=True):
    """Variables that change what other commands run. The value of one that `is_command` is a command itself."""

    names: re.Pattern[str]
    is_command: bool = False
    harmless: re.Pattern[str] | None = None


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
    with_scripts: CommandNames


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

    def split_options(self, words: Sequence[str]) -> tuple[list[str], list[str]]:
        """Split git's words into the options before its verb, and the rest. Long options are completed."""
        whole = [complete_option(word, self.long_options) for word in words]
        number = self.count_options(words)
        return whole[:number], whole[number:]

    def count_options(self, words: Sequence[str]) -> int:
        """Count the words before git's verb."""
        number = 0
        while number < len(words) and words[number].startswith("-"):
            number += 2 if words[number] in self.value_options else 1
        return number

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
    helper: tuple[HelperCommands, ...]
    variable: tuple[Variable, ...]
    files: FileCommands
    programs: Programs
    bash: BashBuiltins
    git: GitFacts
    rules: RuleFacts

    def find_safe(self, name: str) -> SafeCommand | None:
        return next((row for row in self.safe if name in row.commands), None)

    def find_danger(self, name: str, words: Sequence[str]) -> tuple[str, bool]:
        """Say why a command with these words is destructive, or nothing, and whether it runs another program."""
        if name == "git":
            options, words = self.git.split_options(words)
            if self.git.may_run_program(" ".join(options)):
                return "it lets git run another program", True
        text = " ".join(words)
        return next(((row.why, row.runs_program) for row in self.destructive if row.matches(name, text)), ("", False))

    def sends_data(self, name: str, words: str) -> bool:
        """Whether a command with these words is known to send data out."""
        rows = (row for row in self.network if name in row.commands)
        return any(row.when is None or row.when.match(words) is not None for row in rows)

    def find_wrapper(self, name: str, first: str = "") -> Wrapper | None:
        """Find how a command runs another one. Some do so only after a verb, which is their `first` word."""
        rows = (row for row in self.wrapper if name in row.commands)
        return next((row for row in rows if not row.verbs or first in row.verbs), None)

    def find_helper(self, name: str) -> HelperCommands | None:
        return next((row for row in self.helper if name in row.commands), None)

    def find_variable(self, name: str) -> Variable | None:
        return next((row for row in self.variable if row.names.fullmatch(name)), None)


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
