"""Reads the text of a git configuration file. It follows no include, and no setting in it has an effect here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from treadle.errors import BadInput

_HEADER = re.compile(r"\[\s*([A-Za-z0-9.-]+)(?:\s+\"((?:[^\"\\\n]|\\[^\n])*)\")?\s*\]")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b", '"': '"', "\\": "\\"}


class ConfigError(BadInput):
    """A configuration file is not what git writes. Nothing of it was used."""


ConfigValues = Mapping[str, Sequence[str]]
"""All values of each setting, in order, such as `remote.origin.url`. Only the part between the dots keeps its case."""


def parse_config(text: str) -> ConfigValues:
    """Parse the text of a configuration file; raises `ConfigError`."""
    found: dict[str, list[str]] = {}
    section, position = "", 0
    text = text.replace("\r\n", "\n").removeprefix("\ufeff")
    while position < len(text):
        if text[position].isspace():
            position += 1
        elif text[position] in "#;":
            position = _find_line_end(text, position)
        elif text[position] == "[":
            header = _HEADER.match(text, position)
            if header is None:
                raise _build_error(text, position)
            subsection = re.sub(r"\\(.)", r"\1", header[2]) if header[2] is not None else None
            section = header[1].lower() + (f".{subsection}" if subsection is not None else "")
            position = header.end()
        else:
            name = _NAME.match(text, position)
            if name is None or not section:
                raise _build_error(text, position)
            value, position = _read_value(text, name.end())
            found.setdefault(f"{section}.{name[0].lower()}", []).append(value)
    return found


def quote_value(value: str) -> str:
    """Quote a value, or the name of a subsection, for a configuration file."""
    if "\0" in value or "\n" in value:
        raise ConfigError("a setting of git cannot hold a line break")
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _read_value(text: str, position: int) -> tuple[str, int]:
    """Read the value after a name. Return it, and where its line ends. A name alone means `true`."""
    while text[position : position + 1] in (" ", "\t"):
        position += 1
    if text[position : position + 1] != "=":
        if text[position : position + 1] not in ("", "\n", "#", ";"):
            raise _build_error(text, position)
        return "true", _find_line_end(text, position)
    position += 1
    pieces: list[str] = []
    kept, is_quoted = 0, False  # blanks after the last kept piece are dropped
    while position < len(text) and (text[position] != "\n" or is_quoted):
        character = text[position]
        if character == "\n":
            raise _build_error(text, position)
        if character == '"':
            is_quoted = not is_quoted
            kept = len(pieces)
        elif character == "\\":
            position += 1
            escaped = text[position : position + 1]
            if escaped != "\n":
                if escaped not in _ESCAPES:
                    raise _build_error(text, position)
                pieces.append(_ESCAPES[escaped])
                kept = len(pieces)
        elif character in "#;" and not is_quoted:
            return "".join(pieces[:kept]), _find_line_end(text, position)
        elif character.isspace() and not is_quoted:
            if pieces:
                pieces.append(character)
        else:
            pieces.append(character)
            kept = len(pieces)
        position += 1
    if is_quoted:
        raise _build_error(text, position)
    return "".join(pieces[:kept]), position


def _find_line_end(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end


def _build_error(text: str, position: int) -> ConfigError:
    line = text.count("\n", 0, position) + 1
    return ConfigError(f"line {line} of the repository's configuration cannot be read; `git config --list` says more")
