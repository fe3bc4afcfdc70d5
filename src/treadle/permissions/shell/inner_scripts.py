"""Scripts of other languages in the words of a command: which of them are known to run no command. Pure.

What is not known to be plain is unreadable, so that a person is asked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from treadle.permissions.shell.command_parts import ShellWord, is_stream
from treadle.permissions.shell.command_table import read_option
from treadle.permissions.shell.grammar import remove_escapes

_UNKNOWN_SCRIPT = ShellWord("e")  # a command of `sed` that runs what it reads
_EXPANSION = re.compile(r"(?<!\\)(?:\$\{?(?P<name>\w+)\}?|\$\([^()]*\)|`[^`]*`)")
_AWK_TEXT = re.compile(r'"(?:\\.|[^"\\])*+"|(?:^|(?<=[~({;,&|!\n]))\s*/(?:\\.|[^/\\\n])*+/|#[^\n]*', re.DOTALL)
_AWK_RUNS = re.compile(r"\bsystem\b|(?<!\|)\|(?!\|)|@")
_SED_SUFFIX = re.compile(r"-[nErszu]*i|--in-place")  # `-ie` keeps a copy with the suffix e
_SED_ADDRESS = r"(?:\d+(?:~\d+)?|\$|/(?:\\.|[^/\\\n])*/[IM]*|\\(?P<{0}>[^\\\n])(?:\\.|(?!(?P={0})).)*(?P={0})[IM]*)"
_SED_RANGE = rf"(?:{_SED_ADDRESS.format('a')}(?:\s*,\s*(?:[+~]\d+|{_SED_ADDRESS.format('b')}))?\s*!?\s*)?"
_SED_COMMAND = re.compile(
    rf"[\s;]*(?:{_SED_RANGE}(?:"
    r"s(?P<d>[^\s\\\w])(?:\\.|(?!(?P=d)).)*(?P=d)(?:\\.|(?!(?P=d)).)*(?P=d)[gpiImM\d]*(?![\w])"
    r"|y(?P<e>[^\s\\\w])(?:\\.|(?!(?P=e)).)*(?P=e)(?:\\.|(?!(?P=e)).)*(?P=e)"
    r"|[=dDgGhHlLnNpPqQxzF]\s*\d*(?=[\s;}]|$)"
    r"|[{}]"
    r"|[aic](?:\\\n|[^\n])*"
    r"|[btT:][ ]*[\w.-]*"
    r"|\#[^\n]*"
    r"|r[^\n]*"
    r"))?[\s;]*",
    re.DOTALL,
)


def is_plain_program(words: Sequence[ShellWord], values: Mapping[str, str]) -> bool:
    """Whether the scripts of `sed` or `awk` are known to run no command. Those of `sed` write no other file either.

    `values` are those of the variables that the command sets to a known text.
    """
    if words[0].text in ("sed", "gsed"):
        return all(is_plain_sed_script(_expand(script, values)) for script in split_sed_words(words)[0])
    options, operands = _split_options(words, ("F", "v", "f", "field-separator", "assign", "file", "e", "source"))
    scripts = [value for name, value in options if name in ("e", "source")]
    files = [value for name, value in options if name in ("f", "file")]
    if any(is_stream(file) or not file.is_literal for file in files):
        return False
    programs = [_expand(script, values) for script in (scripts if scripts or files else operands[:1])]
    return not any(_AWK_RUNS.search(_AWK_TEXT.sub('""', program)) for program in programs)


def split_sed_words(words: Sequence[ShellWord]) -> tuple[list[ShellWord], list[ShellWord]]:
    """Split the words of `sed` into its scripts and its files. A script in a file is like any other program in one."""
    others = [word for word in words if not _SED_SUFFIX.match(word.text)]
    options, operands = _split_options(others, ("e", "expression", "f", "file"))
    if not options:
        return operands[:1], operands[1:]
    scripts = [value for name, value in options if name in ("e", "expression")]
    files = [value for name, value in options if name in ("f", "file")]
    unknown = [_UNKNOWN_SCRIPT for file in files if is_stream(file) or not file.is_literal]
    return [*scripts, *unknown], operands


def _split_options(
    words: Sequence[ShellWord], names: Sequence[str]
) -> tuple[list[tuple[str, ShellWord]], list[ShellWord]]:
    """Split the words after a name into the named options with their values, and the words that are no options."""
    options, operands, position = list[tuple[str, ShellWord]](), list[ShellWord](), 1
    while position < len(words):
        word, position = words[position], position + 1
        if (found := read_option(word.text, names)) is not None:
            value = ShellWord(found[0] or "", word.is_literal)
            if not value.text:
                value, position = (*words[position:], ShellWord("-"))[0], position + 1
            options.append((found[1], value))
        elif not word.text.startswith("-"):
            operands.append(word)
    return options, operands


def is_plain_sed_script(script: str) -> bool:
    """Whether each command of a script of `sed` is known, and none runs another command or writes another file."""
    position = 0
    while position < len(script):
        found = _SED_COMMAND.match(script, position)
        if found is None or found.end() == position:
            return False
        position = found.end()
    return True


def _expand(script: ShellWord, values: Mapping[str, str]) -> str:
    """Write a script as the shell would pass it on. A value that is not known counts as a number."""
    if script.is_literal:
        return script.text
    text = script.text[1:-1] if re.fullmatch(r'"(?:\\.|[^"\\])*+"', script.text, re.DOTALL) else script.text
    known = _EXPANSION.sub(lambda found: values.get(found["name"] or "", "1"), text)
    return remove_escapes(known, in_quotes=True)
