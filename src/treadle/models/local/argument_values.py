"""Finds a tool's arguments in the words of a request: the values that each argument may take.

The tool's own examples show how an argument is found: as a path, a number, or words of the request. An argument that
is not found there is left to the model, under the argument's schema. This module knows no tool by name.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from itertools import permutations, product
from typing import Literal

from msgspec import Struct

from treadle.messages import Json, ToolSpec
from treadle.models.local import request_text

ValueKind = Literal["number", "path", "sum", "word", "span", "open"]

_ENDS = " \t\n.,;:!?"
_EDGES = _ENDS + "\"'`()"
_PATH_HINT = re.compile(r"path|file|folder|director|url|address", re.IGNORECASE)
_SUM_HINT = re.compile(r"expression|formula|arithmetic|equation", re.IGNORECASE)
_JOINS = (" + ", " - ", " * ", " / ")
LONGEST_SPAN = 12
MOST_SPANS = 160
LONGEST_VALUE = 200


class ArgumentField(Struct, frozen=True):
    """One argument, and how its value is found.

    `joins` stand between the numbers of a sum. `cues` are the words right before the value in the examples.
    `reaches_end` says that the value goes on to the end of the request in all of them.
    """

    name: str
    kind: ValueKind
    is_required: bool
    is_used: bool = True
    reaches_end: bool = False
    cues: tuple[str, ...] = ()
    joins: tuple[str, ...] = _JOINS


class ValueSources(Struct, frozen=True):
    """The texts that values may come from: the clause itself, then results and earlier messages, newest first."""

    clause: str
    results: tuple[str, ...] = ()
    earlier: tuple[str, ...] = ()
    refers_back: bool = False

    @classmethod
    def collect(cls, clause: str, results: Sequence[str], earlier: Sequence[str]) -> ValueSources:
        """The sources for a clause. `results` are those so far, oldest first; `earlier` messages, newest first."""
        refers = bool(results) and request_text.refers_back(clause)
        clause = request_text.insert_result(clause, results[-1]) if results else clause
        return cls(clause, tuple(reversed(results)), tuple(earlier), refers)

    def find_nearest(self, find: Callable[[str], list[str]]) -> list[str]:
        """The results of `find` for the first text that has any."""
        for text in (self.clause, *self.results, *self.earlier):
            if found := find(text):
                return found
        return []


def list_fields(tool: ToolSpec) -> list[ArgumentField]:
    """The arguments of a tool."""
    properties: dict[str, Json] = tool.parameters.get("properties", {})
    required = tool.parameters.get("required", ())
    return [_describe_field(tool, name, schema, name in required) for name, schema in properties.items()]


def _describe_field(tool: ToolSpec, name: str, schema: Json, is_required: bool) -> ArgumentField:
    schema = _drop_null(schema)
    kind = schema.get("type")
    if "enum" in schema or "const" in schema or kind not in ("string", "integer", "number"):
        is_used = any(name in arguments for _, arguments in tool.examples)
        return ArgumentField(name, "open", is_required, is_used=is_used)
    if kind != "string":
        return ArgumentField(name, "number", is_required)
    samples = [(request, str(arguments[name])) for request, arguments in tool.examples if name in arguments]
    if not samples:
        hint = f"{name} {schema.get('description', '')}"
        found: ValueKind = "path" if _PATH_HINT.search(hint) else "sum" if _SUM_HINT.search(hint) else "span"
        return ArgumentField(name, found, is_required, is_used=found == "path" and not tool.examples)
    values = [value for _, value in samples]
    if all(request_text.SUM.fullmatch(value) for value in values):
        joins = [join for value in values for join in re.split(r"[\d.]+", value) if join]
        return ArgumentField(name, "sum", is_required, joins=tuple(dict.fromkeys(joins)))
    if all(request_text.PATH.fullmatch(value) for value in values):
        return ArgumentField(name, "path", is_required)
    if not all(value.lower() in request.lower() for request, value in samples):
        return ArgumentField(name, "open", is_required)
    if all(re.fullmatch(r"[\w-]+", value) for value in values):
        return ArgumentField(name, "word", is_required)
    reaches_end = all(request.lower().rstrip(_EDGES).endswith(value.lower()) for request, value in samples)
    before = [request.lower().split(value.lower())[0].split() for request, value in samples]
    cues = tuple(dict.fromkeys(words[-1] for words in before if words))
    return ArgumentField(name, "span", is_required, reaches_end=reaches_end, cues=cues)


def _drop_null(schema: Json) -> Json:
    """The schema of a value that is given: the other half of "or null"."""
    others = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    return {**schema, **others[0]} if len(others) == 1 else schema


def find_values(tool: ToolSpec, field: ArgumentField, sources: ValueSources) -> list[Json] | None:
    """The values that the argument may take, or None when only its schema limits them."""
    found: list[Json]
    match field.kind:
        case "open":
            return None
        case "number":
            numbers = sources.find_nearest(request_text.find_numbers)
            found = list(dict.fromkeys(float(number) if "." in number else int(number) for number in numbers))
        case "path":
            found = list(sources.find_nearest(request_text.find_paths))
        case "sum":
            found = _find_sums(field.joins, sources)
        case "word":
            known = set(request_text.extract_words(tool.description)) | request_text.COMMON
            for request, arguments in tool.examples:
                values = {str(value).lower() for value in arguments.values()}
                known.update(word for word in request_text.extract_words(request) if word not in values)
            words = [word.strip(_EDGES) for word in sources.clause.split()]
            found = list(dict.fromkeys(word for word in words if word and word.lower() not in known))
        case "span":
            found = _find_spans(field, sources)
    schema = _drop_null(tool.parameters["properties"][field.name])
    return [value for value in found if _fits_schema(schema, value)]


def _fits_schema(schema: Json, value: Json) -> bool:
    if isinstance(value, str):
        with contextlib.suppress(re.error):  # the tool itself checks a pattern that Python does not know
            if "pattern" in schema and not re.search(schema["pattern"], value):
                return False
        return schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
    if schema.get("type") == "integer" and value != int(value):
        return False
    is_above = schema.get("minimum", value) <= value and schema.get("exclusiveMinimum", value - 1) < value
    return is_above and value <= schema.get("maximum", value) and value < schema.get("exclusiveMaximum", value + 1)


def _find_sums(joins: Sequence[str], sources: ValueSources) -> list[Json]:
    if written := request_text.SUM.search(sources.clause):
        return [written.group()]
    terms = request_text.find_numbers(sources.clause)
    if len(terms) == 1 and sources.results:
        terms = request_text.find_numbers(sources.results[0])[:1] + terms
    if not 2 <= len(terms) <= 6:
        return []
    orders = permutations(terms) if len(terms) == 2 else [terms]
    alike = [(join,) * (len(terms) - 1) for join in joins] if len(terms) > 3 else product(joins, repeat=len(terms) - 1)
    mixes = list(alike)
    return [
        "".join(term + join for term, join in zip(order, (*mix, ""), strict=True)) for order in orders for mix in mixes
    ]


def _find_spans(field: ArgumentField, sources: ValueSources) -> list[Json]:
    if sources.refers_back:
        result = sources.results[0].strip()
        return list(dict.fromkeys([result, *(line.strip() for line in result.splitlines() if line.strip())]))
    clause = sources.clause.rstrip(_ENDS)
    marks = [(match.start(), match.end()) for match in re.finditer(r"\S+", clause)]
    cued = [i + 1 for i, (start, end) in enumerate(marks[:-1]) if clause[start:end].lower() in field.cues]
    if not cued and (quoted := re.findall(r"\"([^\"]+)\"|“([^”]+)”|(?<!\w)'([^']+)'(?!\w)", clause)):
        return ["".join(groups) for groups in quoted]
    if field.reaches_end:
        spans = [clause[marks[i][0] :] for i in cued[:1] or range(1, len(marks))]
    else:
        spans = [clause[marks[i][0] : end] for i in cued or range(len(marks)) for _, end in marks[i : i + LONGEST_SPAN]]
    values: dict[str, None] = {}
    for span in spans:
        value = span.strip(_ENDS)
        if len(value) > 2 and value[0] + value[-1] in ('""', "''", "“”", "``"):
            value = value[1:-1]
        if value:
            values[value] = None
    return list(values)[:MOST_SPANS]


def can_fill(tool: ToolSpec, sources: ValueSources) -> bool:
    """Whether a value can be found for every argument that the tool must have."""
    return all(find_values(tool, field, sources) != [] for field in list_fields(tool) if field.is_required)


def is_written_freely(tool: ToolSpec) -> bool:
    """Whether the model itself must write an argument, such as a command."""
    return any(field.kind == "open" and field.is_required for field in list_fields(tool))


def needs_only_named_file(tool: ToolSpec, sources: ValueSources) -> bool:
    """Whether the clause names a file, and a file is all that this tool needs.

    This does not help a tool with examples: they have shown which requests are its own.
    """
    kinds = {field.kind for field in list_fields(tool) if field.is_required}
    return not tool.examples and kinds == {"path"} and bool(request_text.find_paths(sources.clause))


def narrow_arguments(tool: ToolSpec, sources: ValueSources) -> tuple[dict[str, Json], dict[str, list[Json]]]:
    """The tool's schema with only the arguments worth asking for, and the values they may take."""
    clause = ValueSources(sources.clause)
    values: dict[str, list[Json]] = {}
    kept: dict[str, Json] = {}
    fields = list_fields(tool)
    paths = request_text.find_paths(sources.clause) if any(field.kind == "path" for field in fields) else []
    for field in fields:
        found = find_values(tool, field, sources if field.is_required else clause)
        if found and field.kind == "span":
            found = [value for value in found if value not in paths] or found
        if field.is_required or (field.is_used and found != []):
            kept[field.name] = tool.parameters["properties"][field.name]
            if found is not None:
                values[field.name] = found
            elif kept[field.name].get("type") == "string":
                kept[field.name] = {"maxLength": LONGEST_VALUE} | kept[field.name]
    return {**tool.parameters, "properties": kept}, values


def find_only_arguments(schema: dict[str, Json], values: dict[str, list[Json]]) -> dict[str, Json] | None:
    """The arguments, when there is only one way to give them."""
    names = schema["properties"]
    if all(name in schema.get("required", ()) and len(values.get(name, ())) == 1 for name in names):
        return {name: values[name][0] for name in names}
    return None
