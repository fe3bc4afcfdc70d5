"""GBNF, the grammar language of llama.cpp, made from JSON schemas.

Whatever a grammar made here admits is JSON on one line that fits the schema, but for patterns, formats and
what `not`, `if` and `multipleOf` say: those are left to whoever checks the arguments afterwards.
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
    """The grammar of the JSON texts that fit `schema`; `fields` replaces the rules of its properties."""
    rules = _Rules(schema)
    return rules.text(rules.of(schema, fields))


def build_call_grammar(calls: Sequence[tuple[str, Schema]], otherwise: str | None) -> str:
    """The grammar of `{"tool": name, "arguments": …}` for each of `calls`, or the text `otherwise` if given."""
    texts: dict[str, str] = {}
    names: list[str] = []
    for index, (tool, schema) in enumerate(calls):
        rules = _Rules(schema, f"t{index}-")
        arguments = rules.of(schema)
        opening = quote_literal(f'{{"tool": {_json(tool)}, "arguments": ')
        names.append(rules.name("call", f'{opening} {arguments} "}}"'))
        texts |= rules.used()
    return _text(" | ".join(names if otherwise is None else [*names, quote_literal(otherwise)]), texts)


def quote_literal(text: str) -> str:
    """A rule that admits exactly `text`."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def build_choice(values: Iterable[Json]) -> str:
    """A rule that admits exactly the JSON of these values."""
    return _group([quote_literal(_json(value)) for value in values])


def _json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


def _group(choices: Sequence[str]) -> str:
    return choices[0] if len(choices) == 1 else f"({' | '.join(choices)})"


def _text(root: str, rules: Mapping[str, str]) -> str:
    return "\n".join([f"root ::= {root}", *(f"{name} ::= {body}" for name, body in rules.items())]) + "\n"


class _Rules:
    """The rules of one schema, under a prefix of their own so that several can share a grammar."""

    def __init__(self, root: Schema, prefix: str = "") -> None:
        self._root = root
        self._prefix = prefix
        self._made: dict[str, str] = {}
        self._references: dict[str, str] = {}

    def text(self, root: str) -> str:
        return _text(root, self.used(root))

    def used(self, root: str = "") -> dict[str, str]:
        """The rules made so far and the basic ones that they or `root` need."""
        rules = dict(self._made)
        waiting = [root, *rules.values()]
        while waiting:
            for name in re.findall(r"[a-z]+", re.sub(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]', "", waiting.pop())):
                if name in _BASICS and name not in rules:
                    rules[name] = _BASICS[name]
                    waiting.append(rules[name])
        return rules

    def name(self, hint: str, body: str) -> str:
        name = f"{self._prefix}{hint}-{len(self._made)}"
        self._made[name] = body
        return name

    def of(self, schema: Schema | bool, fields: Mapping[str, str] | None = None) -> str:
        """A rule for `schema`."""
        if isinstance(schema, bool):
            return "value"
        if "$ref" in schema:
            return self._reference(schema["$ref"])
        if "const" in schema:
            return build_choice([schema["const"]])
        if "enum" in schema:
            return build_choice(schema["enum"])
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return _group([self.of(each) for each in schema[key]])
        if "allOf" in schema:
            return self.of(self._merged(schema))
        kind = schema.get("type") or ("object" if "properties" in schema else "value")
        if isinstance(kind, list):
            return _group([self.of({**schema, "type": each}) for each in cast(list[str], kind)])
        match kind:
            case "object":
                return self._object(schema, fields or {})
            case "array":
                return self._array(schema)
            case "string":
                return _string(schema)
            case "integer" | "number":
                return _number(schema, kind)
            case _:
                return kind

    def _resolved(self, reference: str) -> Schema:
        target: Json = self._root
        for step in reference.removeprefix("#").strip("/").split("/"):
            target = target[step.replace("~1", "/").replace("~0", "~")] if step else target
        return target

    def _reference(self, reference: str) -> str:
        if reference not in self._references:
            # Named before it is made, so that a schema that holds itself refers to the rule.
            self._references[reference] = name = self.name("ref", "")
            self._made[name] = self.of(self._resolved(reference))
        return self._references[reference]

    def _merged(self, schema: Schema) -> Schema:
        whole: dict[str, Json] = {key: value for key, value in schema.items() if key != "allOf"}
        for part in schema["allOf"]:
            part = self._resolved(part["$ref"]) if "$ref" in part else part
            part = self._merged(part) if "allOf" in part else part
            properties = {**whole.get("properties", {}), **part.get("properties", {})}
            required = [*whole.get("required", []), *part.get("required", [])]
            whole |= {**part, "properties": properties, "required": required}
        return whole if whole.get("properties") else {k: v for k, v in whole.items() if k != "properties"}

    def _object(self, schema: Schema, fields: Mapping[str, str]) -> str:
        properties: dict[str, Json] = schema.get("properties", {})
        if not properties:
            extra = schema.get("additionalProperties", True)
            return '"{}"' if extra is False else self.name("map", self._map(extra))
        required = [name for name in properties if name in schema.get("required", ())]
        optional = [name for name in properties if name not in required]
        members = {
            name: f"{quote_literal(_json(name) + ': ')} {fields.get(name) or self.of(schema)}"
            for name, schema in properties.items()
        }
        rest = [f'(", " {members[name]})?' for name in optional]
        if required:
            inner = _COMMA.join(members[name] for name in required) + " " + " ".join(rest)
        else:
            starts = [" ".join([members[name], *rest[i + 1 :]]) for i, name in enumerate(optional)]
            inner = f"({' | '.join(starts)})?"
        return self.name("object", f'"{{" {inner.strip()} "}}"')

    def _map(self, extra: Schema | bool) -> str:
        return f'"{{" (string ": " {self.of(extra)} (", " string ": " {self.of(extra)})*)? "}}"'

    def _array(self, schema: Schema) -> str:
        if fixed := [self.of(each) for each in schema.get("prefixItems", ())]:
            return self.name("tuple", f'"[" {_COMMA.join(fixed)} "]"')
        item = self.of(schema.get("items", True))
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if most == 0:
            return '"[]"'
        more = f'(", " {item}){{{max(least - 1, 0)},{"" if most is None else most - 1}}}'
        return self.name("array", f'"[" {item} {more} "]"' if least else f'"[" ({item} {more})? "]"')


def _string(schema: Schema) -> str:
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if not least and most is None:
        return "string"
    return f'"\\"" char{{{least},{"" if most is None else min(most, LONGEST)}}} "\\""'


def _number(schema: Schema, kind: str) -> str:
    """Bounds are drawn in to whole numbers, which is exact for integers and never too wide for others."""
    least = max(math.ceil(schema.get("minimum", -LARGEST)), math.floor(schema.get("exclusiveMinimum", -LARGEST)) + 1)
    most = min(math.floor(schema.get("maximum", LARGEST)), math.ceil(schema.get("exclusiveMaximum", LARGEST)) - 1)
    if least > most or (least < -LARGEST // 10 and most > LARGEST // 10):
        return kind
    signs = [("", max(least, 0), most), ('"-" ', max(-most, 1 if kind == "integer" else 0), -least)]
    parts = [f"{sign}{part}" for sign, low, high in signs if low <= high for part in _from_to(low, high, kind)]
    return _group(parts)


def _from_to(low: int, high: int, kind: str) -> list[str]:
    """Numbers without a sign from `low` to `high`."""
    if kind == "integer":
        return _digits(low, high)
    whole = [f'{_group(_digits(low, high - 1))} ("." [0-9]{{1,15}})?'] if low < high else []
    return [*whole, quote_literal(str(high))]


def _digits(low: int, high: int) -> list[str]:
    rules: list[str] = []
    for length in range(len(str(low)), len(str(high)) + 1):
        first = max(low, 10 ** (length - 1) if length > 1 else 0)
        rules.append(_same_length(str(first), str(min(high, 10**length - 1))))
    return rules


def _same_length(low: str, high: str) -> str:
    if low == high:
        return quote_literal(low)
    rest = len(low) - 1
    if set(low[1:]) <= {"0"} and set(high[1:]) <= {"9"}:
        return f"[{low[0]}-{high[0]}]" + (f" [0-9]{{{rest},{rest}}}" if rest else "")
    if low[0] == high[0]:
        return f"{quote_literal(low[0])} {_same_length(low[1:], high[1:])}"
    middle = [_same_length(f"{int(low[0]) + 1}{'0' * rest}", f"{int(high[0]) - 1}{'9' * rest}")]
    ends = [_same_length(low, low[0] + "9" * rest), _same_length(high[0] + "0" * rest, high)]
    return _group([*(middle if int(high[0]) - int(low[0]) > 1 else []), *ends])
