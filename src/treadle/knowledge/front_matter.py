"""Markdown with front matter: its fields with the lines they stand on, and the text below. YAML without surprises."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeAlias, cast

from msgspec import Struct

from treadle.knowledge.base import Problem

MAX_FRONT_LENGTH = 8 * 1024
MAX_BRACKETS = 64
"""YAML takes time in the square of how deep its brackets are nested; nobody needs so many here."""
_NUMBER = re.compile(r"-?\d{1,9}(\.\d{1,9})?")
_PLAIN = re.compile(r"^([A-Za-z][\w-]*:[ \t]+)([^\s\"'\[{|>].*)$", re.MULTILINE)
_FENCE = re.compile(r"^---[ \t]*$")

Value: TypeAlias = "str | list[Value] | dict[str, Value] | None"


class Document(Struct, frozen=True):
    """A file's fields, the line each stands on, and the rest of its text."""

    path: str
    fields: Mapping[str, Any]
    lines: Mapping[str, int]
    body: str
    first_line: int = 1

    def build_problem(self, field: str, message: str) -> Problem:
        """Something wrong with a field, or with the whole where there is no such field."""
        return Problem(self.path, self.lines.get(field, self.first_line), message)


def read_document(path: str, text: str, first: int = 1) -> Document | Problem:
    """Take a text apart; a text without front matter has no fields. `first` is the line the text begins on."""
    lines = text.split("\n")
    if not _FENCE.match(lines[0]):
        return Document(path, {}, {}, text.strip(), first)
    end = next((number for number, line in enumerate(lines[1:], 1) if _FENCE.match(line)), 0)
    if not end:
        return Problem(path, first, "the front matter that begins here has no end; close it with a line of ---")
    front = "\n".join(lines[1:end])
    if len(front) > MAX_FRONT_LENGTH:
        return Problem(path, first, f"the front matter is longer than {MAX_FRONT_LENGTH} characters")
    if front.count("[") + front.count("{") > MAX_BRACKETS:
        return Problem(path, first, f"the front matter has more than {MAX_BRACKETS} brackets")
    found = _fields(path, front, first + 1)
    if isinstance(found, Problem):
        return found
    fields, places = found
    return Document(path, fields, places, "\n".join(lines[end + 1 :]).strip(), first)


def _fields(path: str, front: str, first: int) -> tuple[dict[str, Value], dict[str, int]] | Problem:
    import yaml

    try:
        node = _composed(front)
        if node is None:
            return {}, {}
        value = _value(node, set())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = first + mark.line if mark is not None else first
        return Problem(path, line, f"the front matter is not YAML: {getattr(error, 'problem', None) or error}")
    except (ValueError, RecursionError) as error:
        return Problem(path, first, f"the front matter cannot be read: {error}")
    if not isinstance(value, dict):
        return Problem(path, first, "the front matter must be fields, such as `description: what it is for`")
    return value, {str(key.value): first + key.start_mark.line for key, _ in node.value}


def _composed(front: str) -> Any:
    """The front matter as YAML; where it is none, with the values in quotes that people leave without them.

    A description such as `Use it when: a form is to be filled` is what many write, and other readers take.
    """
    import yaml

    reader: Any = yaml  # comes without types
    try:
        return reader.compose(front, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        quoted = _PLAIN.sub(lambda found: found[1] + _quoted(found[2].rstrip()), front)
        with suppress(yaml.YAMLError):
            return reader.compose(quoted, Loader=yaml.SafeLoader)
        raise


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _value(node: Any, seen: set[int]) -> Value:
    """What a node says, as texts, lists and fields: no dates, no numbers of other bases, nothing that runs."""
    if id(node) in seen:
        raise ValueError("YAML aliases (*name) are not taken here; write the value out")
    seen.add(id(node))
    if node.id == "mapping":
        return {str(key.value): _value(one, seen) for key, one in node.value}
    if node.id == "sequence":
        return [_value(one, seen) for one in node.value]
    return None if node.tag == "tag:yaml.org,2002:null" else str(node.value)


class Fields:
    """Reads the fields of a document as what they should be, and gathers what is wrong with them."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[Problem] = []
        self._known: set[str] = set()

    def add_problem(self, field: str, message: str) -> None:
        """Note a problem with a field."""
        self.problems.append(self.document.build_problem(field, message))

    def read_text(self, field: str, most: int = 1024) -> str:
        """A text, empty where the field is missing."""
        value = self._value(field)
        if value is None:
            return ""
        if not isinstance(value, str):
            self.add_problem(field, f"{field} must be text")
            return ""
        if len(value) > most:
            self.add_problem(field, f"{field} has {len(value)} characters; {most} are the most")
        return value.strip()

    def read_number(self, field: str, least: float, most: float) -> float | None:
        """A number within bounds, or None where the field is missing."""
        value = self._value(field)
        if value is None:
            return None
        number = float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else None
        if number is None or not least <= number <= most:
            self.add_problem(field, f"{field} must be a number from {least:g} to {most:g}, not {str(value)[:40]!r}")
            return None
        return number

    def read_integer(self, field: str, least: int, most: int) -> int | None:
        """A whole number within bounds, or None where the field is missing."""
        value = self.read_number(field, least, most)
        if value is not None and value != int(value):
            self.add_problem(field, f"{field} must be a whole number, not {value!r}")
            return None
        return None if value is None else int(value)

    def read_flag(self, field: str) -> bool | None:
        """Yes or no, or None where the field is missing; also as the words that people write."""
        value = self._value(field)
        words = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
        if value is None:
            return None
        if str(value).lower() not in words:
            self.add_problem(field, f"{field} must be on or off, not {str(value)[:40]!r}")
            return None
        return words[str(value).lower()]

    def read_words(self, field: str, between: str = ",") -> tuple[str, ...] | None:
        """A list of texts, also written as one with something `between` them; None where the field is missing."""
        value = self._value(field)
        if value is None:
            return None
        if isinstance(value, str):
            return tuple(word for piece in value.split(between) if (word := piece.strip()))
        items = cast("list[object]", value) if isinstance(value, list) else [None]
        if not all(isinstance(item, str) and item.strip() for item in items):
            self.add_problem(field, f"{field} must be a list of texts")
            return None
        return tuple(str(item).strip() for item in items)

    def read_choice(self, field: str, choices: tuple[str, ...]) -> str:
        """One of several words, empty where the field is missing."""
        value = self.read_text(field)
        if value and value not in choices:
            self.add_problem(field, f"{field} must be one of {', '.join(choices)}, not {value[:40]!r}")
            return ""
        return value

    def read_nested(self, field: str) -> Fields:
        """The fields of a field that has fields itself."""
        value = self._value(field)
        if value is not None and not isinstance(value, dict):
            self.add_problem(field, f"{field} must be fields, such as `{field}:` and indented lines below")
            value = None
        here = self.document
        found = {str(key): one for key, one in cast("dict[object, Any]", value or {}).items()}
        return Fields(Document(here.path, found, {}, "", here.lines.get(field, here.first_line)))

    def list_unknown(self) -> list[str]:
        """The fields that nobody has asked for."""
        return [field for field in self.document.fields if field not in self._known]

    def _value(self, field: str) -> Any:
        self._known.add(field)
        return self.document.fields.get(field)
