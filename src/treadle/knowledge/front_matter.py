"""Markdown with front matter: the fields with their line numbers, and the text below. A small, safe part of YAML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeAlias, cast

from msgspec import Struct

from treadle.knowledge.base import Problem

MAX_FRONT_LENGTH = 8 * 1024
MAX_BRACKETS = 64
"""YAML takes time in the square of the depth of brackets, and nobody needs so many here."""
_NUMBER = re.compile(r"-?\d{1,18}(\.\d{1,9})?")
_PLAIN_VALUE = re.compile(r"^([A-Za-z][\w-]*:[ \t]+)([^\s\"'\[{|>].*)$", re.MULTILINE)
_FENCE = re.compile(r"^---[ \t]*$")
_FLAGS = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}

Value: TypeAlias = "str | list[Value] | dict[str, Value] | None"


class Document(Struct, frozen=True):
    """A file: its fields, the line of each, and the text below. `first_line` is the line that it begins on."""

    path: str
    fields: Mapping[str, Any]
    lines: Mapping[str, int]
    body: str
    first_line: int = 1

    def build_problem(self, field: str, message: str) -> Problem:
        """Build a problem at the line of a field, or at the first line when there is no such field."""
        return Problem(self.path, self.lines.get(field, self.first_line), message)


def read_document(path: str, text: str, first_line: int = 1) -> Document | Problem:
    """Read the fields and the text of a file. Without front matter there are no fields."""
    lines = text.split("\n")
    if not _FENCE.match(lines[0]):
        return Document(path, {}, {}, text.strip(), first_line)
    end = next((number for number, line in enumerate(lines[1:], 1) if _FENCE.match(line)), 0)
    if not end:
        return Problem(path, first_line, "the front matter that begins here has no end; close it with a line of ---")
    front = "\n".join(lines[1:end])
    if len(front) > MAX_FRONT_LENGTH:
        return Problem(path, first_line, f"the front matter is longer than {MAX_FRONT_LENGTH} characters")
    if front.count("[") + front.count("{") > MAX_BRACKETS:
        return Problem(path, first_line, f"the front matter has more than {MAX_BRACKETS} brackets")
    found = _parse_fields(path, front, first_line + 1)
    if isinstance(found, Problem):
        return found
    fields, numbers = found
    return Document(path, fields, numbers, "\n".join(lines[end + 1 :]).strip(), first_line)


def _parse_fields(path: str, front: str, first_line: int) -> tuple[dict[str, Value], dict[str, int]] | Problem:
    import yaml

    try:
        node = _compose_yaml(front)
        if node is None:
            return {}, {}
        value = _read_node(node, set())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = first_line + mark.line if mark is not None else first_line
        return Problem(path, line, f"the front matter is not YAML: {getattr(error, 'problem', None) or error}")
    except (ValueError, RecursionError) as error:
        return Problem(path, first_line, f"the front matter cannot be read: {error}")
    if not isinstance(value, dict):
        return Problem(path, first_line, "the front matter must be fields, such as `description: what it is for`")
    return value, {str(key.value): first_line + key.start_mark.line for key, _ in node.value}


def _compose_yaml(front: str) -> Any:
    """Parse YAML. If that fails, try again with quotes around plain values.

    Many people write a description such as `Use it when: a form is to be filled`, and other readers accept it.
    """
    import yaml

    reader: Any = yaml  # has no type information
    try:
        return reader.compose(front, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        quoted = _PLAIN_VALUE.sub(lambda one: one[1] + "'" + one[2].rstrip().replace("'", "''") + "'", front)
        with suppress(yaml.YAMLError):
            return reader.compose(quoted, Loader=yaml.SafeLoader)
        raise


def _read_node(node: Any, seen: set[int]) -> Value:
    """Read a node as texts, lists and fields: no dates, no numbers of other bases, nothing that runs."""
    if id(node) in seen:
        raise ValueError("YAML aliases (*name) are not accepted here; write the value out")
    seen.add(id(node))
    if node.id == "mapping":
        return {str(key.value): _read_node(one, seen) for key, one in node.value}
    if node.id == "sequence":
        return [_read_node(one, seen) for one in node.value]
    return None if node.tag == "tag:yaml.org,2002:null" else str(node.value)


class Fields:
    """Reads the fields of a document with the types they should have, and collects problems."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[Problem] = []
        self._known: set[str] = set()

    def add_problem(self, field: str, message: str) -> None:
        """Add a problem with a field."""
        self.problems.append(self.document.build_problem(field, message))

    def read_text(self, field: str, limit: int = 1024) -> str:
        """Read a text; empty when the field is missing."""
        value = self._read_value(field)
        if value is None:
            return ""
        if not isinstance(value, str):
            self.add_problem(field, f"{field} must be text")
            return ""
        if len(value) > limit:
            self.add_problem(field, f"{field} has {len(value)} characters; {limit} are the most")
        return value.strip()

    def read_number(self, field: str, least: float, most: float | None) -> float | None:
        """Read a number within bounds; None when the field is missing."""
        value = self._read_value(field)
        if value is None:
            return None
        number = float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else None
        if number is None or number < least or (most is not None and number > most):
            bounds = f"from {least:g} to {most:g}" if most is not None else f"of at least {least:g}"
            self.add_problem(field, f"{field} must be a number {bounds}, not {str(value)[:40]!r}")
            return None
        return number

    def read_integer(self, field: str, least: int, most: int | None = None) -> int | None:
        """Read a whole number within bounds; None when the field is missing."""
        value = self.read_number(field, least, most)
        if value is not None and value != int(value):
            self.add_problem(field, f"{field} must be a whole number, not {value!r}")
            return None
        return None if value is None else int(value)

    def read_flag(self, field: str) -> bool | None:
        """Read yes or no, also as on, off, true or false; None when the field is missing."""
        value = self._read_value(field)
        if value is None:
            return None
        flag = _FLAGS.get(str(value).lower())
        if flag is None:
            self.add_problem(field, f"{field} must be on or off, not {str(value)[:40]!r}")
        return flag

    def read_words(self, field: str, separator: str = ",") -> tuple[str, ...] | None:
        """Read a list of texts, or one text with separators; None when the field is missing."""
        value = self._read_value(field)
        if value is None:
            return None
        if isinstance(value, str):
            return tuple(word for piece in value.split(separator) if (word := piece.strip()))
        items = cast("list[object]", value) if isinstance(value, list) else [None]
        if not all(isinstance(item, str) and item.strip() for item in items):
            self.add_problem(field, f"{field} must be a list of texts")
            return None
        return tuple(str(item).strip() for item in items)

    def read_choice(self, field: str, choices: tuple[str, ...]) -> str:
        """Read one of several words; empty when the field is missing."""
        value = self.read_text(field)
        if value and value not in choices:
            self.add_problem(field, f"{field} must be one of {', '.join(choices)}, not {value[:40]!r}")
            return ""
        return value

    def read_nested(self, field: str) -> Fields:
        """Read a field that has fields itself."""
        value = self._read_value(field)
        if value is not None and not isinstance(value, dict):
            self.add_problem(field, f"{field} must be fields, such as `{field}:` and indented lines below")
            value = None
        here = self.document
        found = {str(key): one for key, one in cast("dict[object, Any]", value or {}).items()}
        return Fields(Document(here.path, found, {}, "", here.lines.get(field, here.first_line)))

    def list_unknown(self) -> list[str]:
        """List the fields that nobody has read."""
        return [field for field in self.document.fields if field not in self._known]

    def _read_value(self, field: str) -> Any:
        self._known.add(field)
        return self.document.fields.get(field)
