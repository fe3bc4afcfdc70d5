"""Builds grammars in GBNF, the grammar language of llama.cpp, from JSON schemas.

A grammar admits only JSON on one line that fits the schema. It ignores patterns, formats, `not`, `if` and
`multipleOf`: the tool checks its arguments for those.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from treadle.messages import Json

Schema = Mapping[str, Json]

LARGEST = 10**15
LONGEST = 1000
"""llama.cpp refuses a rule that is repeated much more often."""

_COMMA = ' ", " '
_BASICS = {
    "string": r'"\"" char* "\""',
    "char": r'[^"\\\x00-\x1F\x7F] | "\\" ["\\/bfnrt]',
    "integer": '"-"? natural',
    "natural": '"0" | [1-9] [0-9]{0,14}',
    "number": 'integer ("." [0-9]{1,15})?',
    "boolean": '"true" | "false"',
    "null": '"null"',
    "array": '"[" (value (", " value)*)? "]"',
    "object": '"{" (member (", " member)*)? "}"',
    "member": 'string ": " value',
    "value": "string | number | boolean | null | array | object",
}


def build_schema_grammar(schema: Schema, fields: Mapping[str, str] | None = None) -> str:
    """The grammar of the JSON texts that fit `schema`. `fields` replaces the rules of its properties."""
    rules = _Rules(schema)
    root = rules.build(schema, fields)
    return _render(root, rules.collect(root))


def build_call_grammar(
    calls: Sequence[tuple[str, Schema]],
    otherwise: str | None,
    frame: tuple[str, str, str] = ('{"tool": "', '", "arguments": ', "}"),
) -> str:
    """The grammar of a call of each of `calls`, or of the rule `otherwise` if given.

    `frame` has the texts before the name, between name and arguments, and after them.
    """
    texts: dict[str, str] = {}
    names: list[str] = []
    opening, middle, closing = frame
    for index, (tool, schema) in enumerate(calls):
        rules = _Rules(schema, f"t{index}-")
        arguments = rules.build(schema)
        name = encode_json(tool)[1:-1]
        names.append(
            rules.add("call", f"{quote_literal(opening + name + middle)} {arguments} {quote_literal(closing)}")
        )
        texts |= rules.collect()
    return _render(" | ".join(names if otherwise is None else [*names, otherwise]), texts)


def quote_literal(text: str) -> str:
    """A rule that admits exactly `text`."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def build_choice(values: Iterable[Json]) -> str:
    """A rule that admits exactly the JSON of these values."""
    return _join_choices([quote_literal(encode_json(value)) for value in values])


def encode_json(value: Json) -> str:
    """JSON on one line, as the grammars admit it."""
    return json.dumps(value, ensure_ascii=False)


def _join_choices(choices: Sequence[str]) -> str:
    return choices[0] if len(choices) == 1 else f"({' | '.join(choices)})"


def _render(root: str, rules: Mapping[str, str]) -> str:
    return "\n".join([f"root ::= {root}", *(f"{name} ::= {body}" for name, body in rules.items())]) + "\n"


class _Rules:
    """The rules of one schema, with a prefix of their own, so that several schemas can share a grammar."""

    def __init__(self, root: Schema, prefix: str = "") -> None:
        self._root = root
        self._prefix = prefix
        self._rules: dict[str, str] = {}
        self._references: dict[str, str] = {}

    def collect(self, root: str = "") -> dict[str, str]:
        """The rules so far, with the basic ones that they or `root` need."""
        rules = dict(self._rules)
        waiting = [root, *rules.values()]
        while waiting:
            for name in re.findall(r"[a-z]+", re.sub(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]', "", waiting.pop())):
                if name in _BASICS and name not in rules:
                    rules[name] = _BASICS[name]
                    waiting.append(rules[name])
        return rules

    def add(self, hint: str, body: str) -> str:
        name = f"{self._prefix}{hint}-{len(self._rules)}"
        self._rules[name] = body
        return name

    def build(self, schema: Schema | bool, fields: Mapping[str, str] | None = None) -> str:
        """A rule for `schema`."""
        if isinstance(schema, bool):
            return "value"
        if "$ref" in schema:
            return self._build_reference(schema["$ref"])
        if "const" in schema:
            return build_choice([schema["const"]])
        if "enum" in schema:
            return build_choice(schema["enum"])
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return _join_choices([self.build(each) for each in schema[key]])
        if "allOf" in schema:
            return self.build(self._merge_all_of(schema))
        kind = schema.get("type") or ("object" if "properties" in schema else "value")
        if isinstance(kind, list):
            return _join_choices([self.build({**schema, "type": each}) for each in cast(list[str], kind)])
        match kind:
            case "object":
                return self._build_object(schema, fields or {})
            case "array":
                return self._build_array(schema)
            case "string":
                least, most = schema.get("minLength", 0), schema.get("maxLength")
                if not least and most is None:
                    return "string"
                return f'"\\"" char{{{least},{"" if most is None else min(most, LONGEST)}}} "\\""'
            case "integer" | "number":
                return _build_number(schema, kind)
            case _:
                return kind

    def _resolve(self, reference: str) -> Schema:
        target: Json = self._root
        for step in reference.removeprefix("#").strip("/").split("/"):
            target = target[step.replace("~1", "/").replace("~0", "~")] if step else target
        return target

    def _build_reference(self, reference: str) -> str:
        if reference not in self._references:
            # The rule has its name before its body, so that a schema can refer to itself.
            self._references[reference] = name = self.add("ref", "")
            self._rules[name] = self.build(self._resolve(reference))
        return self._references[reference]

    def _merge_all_of(self, schema: Schema) -> Schema:
        whole: dict[str, Json] = {key: value for key, value in schema.items() if key != "allOf"}
        for part in schema["allOf"]:
            part = self._resolve(part["$ref"]) if "$ref" in part else part
            part = self._merge_all_of(part) if "allOf" in part else part
            properties = {**whole.get("properties", {}), **part.get("properties", {})}
            required = [*whole.get("required", []), *part.get("required", [])]
            whole |= {**part, "properties": properties, "required": required}
        return whole if whole.get("properties") else {k: v for k, v in whole.items() if k != "properties"}

    def _build_object(self, schema: Schema, fields: Mapping[str, str]) -> str:
        properties: dict[str, Json] = schema.get("properties", {})
        if not properties:
            extra = schema.get("additionalProperties", True)
            return '"{}"' if extra is False else self.add("map", self._build_map(extra))
        required = [name for name in properties if name in schema.get("required", ())]
        optional = [name for name in properties if name not in required]
        members = {
            name: f"{quote_literal(encode_json(name) + ': ')} {fields.get(name) or self.build(schema)}"
            for name, schema in properties.items()
        }
        rest = [f'(", " {members[name]})?' for name in optional]
        if required:
            inner = _COMMA.join(members[name] for name in required) + " " + " ".join(rest)
        else:
            starts = [" ".join([members[name], *rest[i + 1 :]]) for i, name in enumerate(optional)]
            inner = f"({' | '.join(starts)})?"
        return self.add("object", f'"{{" {inner.strip()} "}}"')

    def _build_map(self, extra: Schema | bool) -> str:
        return f'"{{" (string ": " {self.build(extra)} (", " string ": " {self.build(extra)})*)? "}}"'

    def _build_array(self, schema: Schema) -> str:
        if fixed := [self.build(each) for each in schema.get("prefixItems", ())]:
            return self.add("tuple", f'"[" {_COMMA.join(fixed)} "]"')
        item = self.build(schema.get("items", True))
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if most == 0:
            return '"[]"'
        more = f'(", " {item}){{{max(least - 1, 0)},{"" if most is None else most - 1}}}'
        return self.add("array", f'"[" {item} {more} "]"' if least else f'"[" ({item} {more})? "]"')


def _build_number(schema: Schema, kind: str) -> str:
    """A rule for numbers in bounds. Bounds are narrowed to whole numbers: exact for integers, never too wide."""
    least = max(math.ceil(schema.get("minimum", -LARGEST)), math.floor(schema.get("exclusiveMinimum", -LARGEST)) + 1)
    most = min(math.floor(schema.get("maximum", LARGEST)), math.ceil(schema.get("exclusiveMaximum", LARGEST)) - 1)
    if least > most or (least < -LARGEST // 10 and most > LARGEST // 10):
        return kind
    choices: list[str] = []
    for sign, low, high in (("", max(least, 0), most), ('"-" ', max(-most, 1 if kind == "integer" else 0), -least)):
        if kind == "integer" and low <= high:
            choices += [f"{sign}{digits}" for digits in _build_digits(low, high)]
        elif low <= high:
            if low < high:
                choices.append(f'{sign}{_join_choices(_build_digits(low, high - 1))} ("." [0-9]{{1,15}})?')
            choices.append(f"{sign}{quote_literal(str(high))}")
    return _join_choices(choices)


def _build_digits(low: int, high: int) -> list[str]:
    rules: list[str] = []
    for length in range(len(str(low)), len(str(high)) + 1):
        first = max(low, 10 ** (length - 1) if length > 1 else 0)
        rules.append(_build_equal_length(str(first), str(min(high, 10**length - 1))))
    return rules


def _build_equal_length(low: str, high: str) -> str:
    if low == high:
        return quote_literal(low)
    rest = len(low) - 1
    if set(low[1:]) <= {"0"} and set(high[1:]) <= {"9"}:
        return f"[{low[0]}-{high[0]}]" + (f" [0-9]{{{rest},{rest}}}" if rest else "")
    if low[0] == high[0]:
        return f"{quote_literal(low[0])} {_build_equal_length(low[1:], high[1:])}"
    middle = [_build_equal_length(f"{int(low[0]) + 1}{'0' * rest}", f"{int(high[0]) - 1}{'9' * rest}")]
    ends = [_build_equal_length(low, low[0] + "9" * rest), _build_equal_length(high[0] + "0" * rest, high)]
    return _join_choices([*(middle if int(high[0]) - int(low[0]) > 1 else []), *ends])
