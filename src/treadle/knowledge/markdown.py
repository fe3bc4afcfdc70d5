"""Markdown with front matter: its fields with the lines they stand on, and the text below. YAML without surprises."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from msgspec import Struct

from treadle.knowledge.base import Problem

LARGEST_FRONT = 16 * 1024
_FENCE = re.compile(r"^---[ \t]*$")


class Document(Struct, frozen=True):
    """A file's fields, the line each stands on, and the rest of its text."""

    path: str
    fields: Mapping[str, Any]
    lines: Mapping[str, int]
    body: str
    first: int = 1

    def problem(self, field: str, message: str) -> Problem:
        """Something wrong with a field, or with the whole where there is no such field."""
        return Problem(self.path, self.lines.get(field, self.first), message)


def read_document(path: str, text: str, first: int = 1) -> Document | Problem:
    """Take a text apart; a text without front matter has no fields. `first` is the line the text begins on."""
    lines = text.split("\n")
    if not _FENCE.match(lines[0]):
        return Document(path, {}, {}, text.strip(), first)
    end = next((number for number, line in enumerate(lines[1:], 1) if _FENCE.match(line)), 0)
    if not end:
        return Problem(path, first, "the front matter that begins here has no end; close it with a line of ---")
    front = "\n".join(lines[1:end])
    if len(front) > LARGEST_FRONT:
        return Problem(path, first, f"the front matter is longer than {LARGEST_FRONT} characters")
    found = _fields(path, front, first + 1)
    if isinstance(found, Problem):
        return found
    fields, places = found
    return Document(path, fields, places, "\n".join(lines[end + 1 :]).strip(), first)


def _fields(path: str, front: str, first: int) -> tuple[dict[str, Any], dict[str, int]] | Problem:
    import yaml

    reader: Any = yaml  # comes without types
    try:
        if any(isinstance(token, yaml.AliasToken) for token in reader.scan(front)):
            return Problem(path, first, "YAML aliases (*name) are not taken here; write the value out")
        node = reader.compose(front, Loader=yaml.SafeLoader)
        value: object = reader.safe_load(front)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = first + mark.line if mark is not None else first
        return Problem(path, line, f"the front matter is not YAML: {getattr(error, 'problem', None) or error}")
    except (ValueError, RecursionError) as error:  # a date that is none, a number without end
        return Problem(path, first, f"the front matter cannot be read: {error}")
    if value is None:
        return {}, {}
    if not isinstance(value, dict):
        return Problem(path, first, "the front matter must be fields, such as `description: what it is for`")
    fields = {str(key): one for key, one in cast("dict[object, Any]", value).items()}
    places = {str(key.value): first + key.start_mark.line for key, _ in node.value}
    return fields, places


class Fields:
    """Reads the fields of a document as what they should be, and gathers what is wrong with them."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[Problem] = []
        self._known: set[str] = set()

    def wrong(self, field: str, message: str) -> None:
        """Note a problem with a field."""
        self.problems.append(self.document.problem(field, message))

    def text(self, field: str, most: int = 1024) -> str:
        """A text, empty where the field is missing."""
        value = self._value(field)
        if value is None:
            return ""
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            self.wrong(field, f"{field} must be text")
            return ""
        if len(str(value)) > most:
            self.wrong(field, f"{field} has {len(str(value))} characters; {most} are the most")
        return str(value).strip()

    def number(self, field: str, least: float, most: float) -> float | None:
        """A number within bounds, or None where the field is missing."""
        value = self._value(field)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            self.wrong(field, f"{field} must be a number from {least:g} to {most:g}, not {value!r}")
            return None
        return value

    def whole(self, field: str, least: int, most: int) -> int | None:
        """A whole number within bounds, or None where the field is missing."""
        value = self.number(field, least, most)
        if isinstance(value, float):
            self.wrong(field, f"{field} must be a whole number, not {value!r}")
            return None
        return value

    def flag(self, field: str) -> bool | None:
        """Yes or no, or None where the field is missing; also as the words that people write."""
        value = self._value(field)
        words = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
        if value is None or isinstance(value, bool):
            return value
        if str(value).lower() not in words:
            self.wrong(field, f"{field} must be on or off, not {value!r}")
            return None
        return words[str(value).lower()]

    def words(self, field: str) -> tuple[str, ...] | None:
        """A list of texts, also written as one line with commas; None where the field is missing."""
        value = self._value(field)
        if value is None:
            return None
        if isinstance(value, str):
            return tuple(word for piece in value.split(",") if (word := piece.strip()))
        items = cast("list[object]", value) if isinstance(value, list) else [None]
        if not all(isinstance(item, str) and item.strip() for item in items):
            self.wrong(field, f"{field} must be a list of texts")
            return None
        return tuple(str(item).strip() for item in items)

    def choice(self, field: str, choices: tuple[str, ...]) -> str:
        """One of several words, empty where the field is missing."""
        value = self.text(field)
        if value and value not in choices:
            self.wrong(field, f"{field} must be one of {', '.join(choices)}, not {value!r}")
            return ""
        return value

    def inside(self, field: str) -> Fields:
        """The fields of a field that has fields itself."""
        value = self._value(field)
        if value is not None and not isinstance(value, dict):
            self.wrong(field, f"{field} must be fields, such as `{field}:` and indented lines below")
            value = None
        here = self.document
        found = {str(key): one for key, one in cast("dict[object, Any]", value or {}).items()}
        return Fields(Document(here.path, found, {}, "", here.lines.get(field, here.first)))

    def unknown(self) -> list[str]:
        """The fields that nobody has asked for."""
        return [field for field in self.document.fields if field not in self._known]

    def _value(self, field: str) -> Any:
        self._known.add(field)
        return self.document.fields.get(field)
