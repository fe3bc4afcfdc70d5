"""From a request to a tool's arguments: which values each argument may take, as far as the text can tell.

How an argument is found is learnt from the tool's own examples: a path, a number, words that stand in the
request. What is not found there is left to the model under the argument's schema. Knows no tool by name.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from itertools import permutations, product
from typing import Literal

from msgspec import Struct

from treadle.messages import Json, ToolSpec
from treadle.models.local import request_text as text

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

    `joins` stand between the numbers of a sum; `cues` are the words right before the value in the examples, and
    `to_end` says that it goes on to the end of the request in all of them.
    """

    name: str
    kind: ValueKind
    is_required: bool
    is_used: bool = True
    reaches_end: bool = False
    cues: tuple[str, ...] = ()
    joins: tuple[str, ...] = _JOINS


class ValueSources(Struct, frozen=True):
    """Where values may come from: the clause itself, then what was found or said before, newest first."""

    clause: str
    results: tuple[str, ...] = ()
    earlier: tuple[str, ...] = ()
    refers_back: bool = False

    @classmethod
    def collect(cls, clause: str, found: Sequence[str], said: Sequence[str]) -> ValueSources:
        """`found` are the results so far, oldest first; `said` is the conversation, newest first."""
        refers = bool(found) and text.refers_back(clause)
        clause = text.insert_result(clause, found[-1]) if found else clause
        return cls(clause, tuple(reversed(found)), tuple(said), refers)

    def list_texts(self) -> list[str]:
        return [self.clause, *self.results, *self.earlier]


def list_fields(tool: ToolSpec) -> list[ArgumentField]:
    """The arguments of a tool."""
    properties: dict[str, Json] = tool.parameters.get("properties", {})
    required = tool.parameters.get("required", ())
    return [_field(tool, name, schema, name in required) for name, schema in properties.items()]


def _field(tool: ToolSpec, name: str, schema: Json, required: bool) -> ArgumentField:
    schema = _plain(schema)
    kind = schema.get("type")
    if "enum" in schema or "const" in schema or kind not in ("string", "integer", "number"):
        return ArgumentField(name, "open", required, is_used=any(name in arguments for _, arguments in tool.examples))
    if kind != "string":
        return ArgumentField(name, "number", required)
    samples = [(request, str(arguments[name])) for request, arguments in tool.examples if name in arguments]
    if not samples:
        hint = f"{name} {schema.get('description', '')}"
        found: ValueKind = "path" if _PATH_HINT.search(hint) else "sum" if _SUM_HINT.search(hint) else "span"
        return ArgumentField(name, found, required, is_used=found == "path" and not tool.examples)
    values = [value for _, value in samples]
    if all(text.SUM.fullmatch(value) for value in values):
        joins = [join for value in values for join in re.split(r"[\d.]+", value) if join]
        return ArgumentField(name, "sum", required, joins=tuple(dict.fromkeys(joins)))
    if all(text.PATH.fullmatch(value) for value in values):
        return ArgumentField(name, "path", required)
    if not all(value.lower() in request.lower() for request, value in samples):
        return ArgumentField(name, "open", required)
    if all(re.fullmatch(r"[\w-]+", value) for value in values):
        return ArgumentField(name, "word", required)
    to_end = all(request.lower().rstrip(_EDGES).endswith(value.lower()) for request, value in samples)
    return ArgumentField(name, "span", required, reaches_end=to_end, cues=_cues(samples))


def _cues(samples: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    before = [request.lower().split(value.lower())[0].split() for request, value in samples]
    return tuple(dict.fromkeys(words[-1] for words in before if words))


def _plain(schema: Json) -> Json:
    """What an argument is when it is given: the other half of "or null"."""
    others = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    return {**schema, **others[0]} if len(others) == 1 else schema


def find_values(tool: ToolSpec, field: ArgumentField, sources: ValueSources) -> list[Json] | None:
    """The values that the argument may take, or None when only its schema limits them."""
    schema = _plain(tool.parameters["properties"][field.name])
    found = _found(tool, field, sources)
    return None if found is None else [value for value in found if _fits(schema, value)]


def _fits(schema: Json, value: Json) -> bool:
    if isinstance(value, str):
        with contextlib.suppress(re.error):  # a pattern that Python does not know is left to the tool
            if "pattern" in schema and not re.search(schema["pattern"], value):
                return False
        return schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
    if schema.get("type") == "integer" and value != int(value):
        return False
    above = schema.get("minimum", value) <= value and schema.get("exclusiveMinimum", value - 1) < value
    return above and value <= schema.get("maximum", value) and value < schema.get("exclusiveMaximum", value + 1)


def _found(tool: ToolSpec, field: ArgumentField, sources: ValueSources) -> list[Json] | None:
    match field.kind:
        case "open":
            return None
        case "number":
            found = _nearest(text.find_numbers, sources)
            return list(dict.fromkeys(float(number) if "." in number else int(number) for number in found))
        case "path":
            return list(_nearest(text.find_paths, sources))
        case "sum":
            return _sums(field.joins, sources)
        case "word":
            framed = {word for request, arguments in tool.examples for word in _frame(request, arguments)}
            taken = framed | set(text.extract_words(tool.description)) | text.COMMON
            spoken = [word.strip(_EDGES) for word in sources.clause.split()]
            return list(dict.fromkeys(word for word in spoken if word and word.lower() not in taken))
        case "span":
            return _spans(field, sources)


def _nearest(find: Callable[[str], list[str]], sources: ValueSources) -> list[str]:
    """What `find` finds in the first text in which it finds anything."""
    for each in sources.list_texts():
        if found := find(each):
            return found
    return []


def _frame(request: str, arguments: dict[str, Json]) -> list[str]:
    values = {str(value).lower() for value in arguments.values()}
    return [word for word in text.extract_words(request) if word not in values]


def _sums(joins: Sequence[str], sources: ValueSources) -> list[Json]:
    if written := text.SUM.search(sources.clause):
        return [written.group()]
    terms = text.find_numbers(sources.clause)
    if len(terms) == 1 and sources.results:
        terms = text.find_numbers(sources.results[0])[:1] + terms
    if not 2 <= len(terms) <= 6:
        return []
    orders = permutations(terms) if len(terms) == 2 else [terms]
    alike = [(join,) * (len(terms) - 1) for join in joins] if len(terms) > 3 else product(joins, repeat=len(terms) - 1)
    mixes = list(alike)
    return [
        "".join(term + join for term, join in zip(order, (*mix, ""), strict=True)) for order in orders for mix in mixes
    ]


def _spans(field: ArgumentField, sources: ValueSources) -> list[Json]:
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
    return list(dict.fromkeys(clean for span in spans if (clean := _unquoted(span.strip(_ENDS)))))[:MOST_SPANS]


def _unquoted(span: str) -> str:
    return span[1:-1] if len(span) > 2 and span[0] + span[-1] in ('""', "''", "“”", "``") else span


def can_fill(tool: ToolSpec, sources: ValueSources) -> bool:
    """Whether a value can be found for every argument that the tool must have."""
    return all(find_values(tool, field, sources) != [] for field in list_fields(tool) if field.is_required)


def needs_only_named_file(tool: ToolSpec, sources: ValueSources) -> bool:
    """Whether the clause names a file, and a file is all that this tool needs.

    A tool with examples has shown by them which requests are its own, and is not helped by this.
    """
    kinds = {field.kind for field in list_fields(tool) if field.is_required}
    return not tool.examples and kinds == {"path"} and bool(text.find_paths(sources.clause))


def narrow_arguments(tool: ToolSpec, sources: ValueSources) -> tuple[dict[str, Json], dict[str, list[Json]]]:
    """The tool's schema with only the arguments worth asking for, and the values they may take."""
    clause = ValueSources(sources.clause)
    values: dict[str, list[Json]] = {}
    kept: dict[str, Json] = {}
    paths = text.find_paths(sources.clause) if any(field.kind == "path" for field in list_fields(tool)) else []
    for field in list_fields(tool):
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
