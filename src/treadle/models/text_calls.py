"""Recovers tool calls that a model wrote as text, when name and arguments fit an offered tool. Pure.

All other text stays as it is: a JSON answer is an answer. Only the notation of a call is repaired.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, cast

from treadle.messages import ToolSpec


class TextCall(NamedTuple):
    """A call in text: the tool, and its arguments as JSON."""

    tool: str
    arguments: str


CallCandidate = tuple[str, Mapping[str, Any] | str]
"""A name and arguments that may be a call. The arguments are an object, or text with tags."""

_NAMES = ("name", "tool", "tool_name", "function", "function_name", "action")
_ARGUMENTS = ("arguments", "parameters", "args", "input", "tool_input", "action_input", "params")
_LONGEST_TEXT = 1 << 20
_MOST_BARE_TEXT = 1 << 19
"""How much text is read in search of bare JSON. Every line may begin some, and each is read to the end."""

_TAGGED = re.compile(
    r"(?s)<\|?(?P<tag>tool_call|function_call|tool_use|tool_code|call)\|?>(?P<inner>.*?)"
    r"(?:</?\|?(?P=tag)\|?>|<\|/(?P=tag)\|>|\Z)"
)
_FUNCTION = re.compile(r"(?s)<function=[\"']?(?P<name>[\w.-]+)[\"']?>(?P<inner>.*?)(?:</function>|\Z)")
_INVOKE = re.compile(r"(?s)<invoke name=[\"'](?P<name>[\w.-]+)[\"']>(?P<inner>.*?)(?:</invoke>|\Z)")
_KIMI = re.compile(
    r"(?s)<\|tool_call_begin\|>\s*(?:functions\.)?(?P<name>[\w-]+)(?::\d+)?\s*<\|tool_call_argument_begin\|>"
    r"(?P<inner>.*?)(?:<\|tool_call_end\|>|\Z)"
)
_DEEPSEEK = re.compile(
    r"(?s)<[｜|]tool▁call▁begin[｜|]>(?:function<[｜|]tool▁sep[｜|]>)?(?P<name>[\w-]+)(?:<[｜|]tool▁sep[｜|]>)?"
    r"(?P<inner>.*?)(?:<[｜|]tool▁call▁end[｜|]>|\Z)"
)
_MISTRAL = re.compile(r"(?s)\[TOOL_CALLS\]\s*(?P<name>[\w-]*)(?:\[ARGS\])?(?P<inner>.*?)(?=\[TOOL_CALLS\]|\Z)")
_PYTHON_TAG = re.compile(r"(?s)<\|python_tag\|>(?P<inner>.*?)(?:<\|eom_id\|>|<\|eot_id\|>|\Z)")
_FENCE = re.compile(r"^[ \t]*```(?P<language>[\w-]*)[ \t]*$", re.MULTILINE)
_BARE = re.compile(r"^[ \t]*[\[{]", re.MULTILINE)
_PARAMETER = re.compile(r"<parameter(?:=| name=)[\"']?(?P<key>[\w.-]+)[\"']?>")
_GLM_ARGUMENT = re.compile(r"<(?P<key>arg_key|arg_value)>")
_CHILD = re.compile(r"<(?P<key>[\w-]+)>")
_CLOSING = re.compile(r"</[\w.-]+>")
_WRAPPERS = re.compile(
    r"</?(?:tool_calls|function_calls|tools|[\w]+:tool_call|tool_call)>|<[|｜]tool[_▁]calls?[_▁\w]*[|｜]>"
)


def recover_calls(text: str, tools: Sequence[ToolSpec]) -> tuple[str, list[TextCall]]:
    """The text without the calls in it, and those calls in their order."""
    if not tools or len(text) > _LONGEST_TEXT or not ("{" in text or "<" in text or "[" in text):
        return text, []
    offered = {tool.name: tool for tool in tools}
    if not any(name in text for name in offered):
        return text, []
    for recognise in (_find_marked, _find_fenced, _find_bare):
        found = [(span, calls) for span, pairs in recognise(text, offered) if (calls := _fit_tools(pairs, offered))]
        if found:
            kept: list[str] = []
            at = 0
            for (start, end), _ in found:
                kept.append(text[at:start])
                at = max(at, end)
            rest = _WRAPPERS.sub("", "".join([*kept, text[at:]])).strip()
            return rest, [call for _, calls in found for call in calls]
    return text, []


Matches = Iterator[tuple[tuple[int, int], Sequence[CallCandidate]]]


def _find_marked(text: str, offered: Mapping[str, ToolSpec]) -> Matches:
    """Calls between marks that mean nothing else. The outermost mark counts."""
    readers: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Sequence[CallCandidate]]], ...] = (
        (_TAGGED, lambda m: _read_tag(m["inner"])),
        (_FUNCTION, _read_match),
        (_INVOKE, _read_match),
        (_KIMI, _read_match),
        (_DEEPSEEK, _read_match),
        (_MISTRAL, lambda m: _read_match(m) if m["name"] else _read_tag(m["inner"])),
        (_PYTHON_TAG, lambda m: _read_tag(m["inner"])),
    )
    places = [(*match.span(), partial(read, match)) for pattern, read in readers for match in pattern.finditer(text)]
    for element in _find_elements(text, re.compile(rf"<(?P<key>{'|'.join(map(re.escape, offered))})>")):
        places.append((element.start, element.end, partial(_read_call, element.key, element.inner)))
    used = bytearray(len(text))
    found: list[tuple[tuple[int, int], Sequence[CallCandidate]]] = []
    for start, end, read in places:
        if used.find(1, start, end) < 0 and _fit_tools(pairs := read(), offered):
            used[start:end] = b"\x01" * (end - start)
            found.append(((start, end), pairs))
    yield from sorted(found, key=lambda item: item[0])


class _Element(NamedTuple):
    """The text between a tag and the tag that closes it."""

    key: str
    inner: str
    start: int
    end: int


def _find_elements(text: str, opening: re.Pattern[str], closing: str = "") -> Iterator[_Element]:
    """The elements of `text`, one after the other. `closing` names the last tag where it differs from the first.

    This takes one pass. A lazy pattern would search the rest of the text again for every tag that is never closed.
    """
    last = {found[0]: found.start() for found in _CLOSING.finditer(text)}
    at = 0
    while (tag := opening.search(text, at)) is not None:
        at = tag.end()
        mark = f"</{closing or tag['key']}>"
        if last.get(mark, -1) >= at:
            inner = text[at : text.index(mark, at)]
            at += len(inner) + len(mark)
            yield _Element(tag["key"], inner, tag.start(), at)


def _find_fenced(text: str, offered: Mapping[str, ToolSpec]) -> Matches:
    """JSON between code fences."""
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif not fence["language"]:
            yield (opened.start(), fence.end()), _read_json(text[opened.end() + 1 : fence.start() - 1])
            opened = None


def _find_bare(text: str, offered: Mapping[str, ToolSpec]) -> Matches:
    """JSON that begins a line and reaches to the end of the text."""
    tried = 0
    for match in islice(_BARE.finditer(text), 50):
        inner = text[match.start() :]
        if pairs := _read_json(inner) or _read_python(inner):
            yield (match.start(), len(text)), pairs
            return
        tried += len(inner)
        if tried > _MOST_BARE_TEXT:
            return


def _read_match(match: re.Match[str]) -> Sequence[CallCandidate]:
    return _read_call(match["name"], match["inner"])


def _read_call(name: str, inner: str) -> Sequence[CallCandidate]:
    return [(name, _decode(inner) or inner)]


def _read_tag(inner: str) -> Sequence[CallCandidate]:
    """The calls in a tag: JSON, a nested function form, or a name followed by arguments in tags."""
    if pairs := _read_json(inner):
        return pairs
    if pairs := [pair for pattern in (_FUNCTION, _INVOKE) for m in pattern.finditer(inner) for pair in _read_match(m)]:
        return pairs
    name, _, rest = inner.strip().partition("\n")
    if not re.fullmatch(r"[\w.-]+", name):
        name, _, rest = inner.strip().partition("<")
        rest = "<" + rest
    return [(name.strip(), _decode(rest) or rest)]


def _read_json(text: str) -> Sequence[CallCandidate]:
    """The calls in one JSON value, or in several. Nothing where one of them is something else."""
    whole = _decode(text)
    values: list[Any] = cast("list[Any]", whole) if isinstance(whole, list) else [whole]
    if whole is None:
        values = []
        decoder = json.JSONDecoder(strict=False)
        at = 0
        while at < len(text):
            if text[at] in " \t\r\n,;":
                at += 1
                continue
            try:
                value, at = decoder.raw_decode(text, at)
            except (ValueError, RecursionError):
                return []
            values.append(value)
    pairs = [_read_object(value) for value in values]
    return [pair for pair in pairs if pair is not None] if pairs and all(pairs) else []


def _read_object(value: Any) -> CallCandidate | None:
    if not isinstance(value, Mapping):
        return None
    fields = cast("Mapping[str, Any]", value)
    inner = fields.get("function")
    if isinstance(inner, Mapping):
        return _read_object(inner)
    name = next((fields[key] for key in _NAMES if isinstance(fields.get(key), str)), None)
    key = next((key for key in _ARGUMENTS if key in fields), None)
    if name is None or key is None:
        return None
    arguments = fields[key]
    if isinstance(arguments, str):
        arguments = _decode(arguments)
    return (name, cast("Mapping[str, Any]", arguments)) if isinstance(arguments, Mapping) else None


def _read_python(text: str) -> Sequence[CallCandidate]:
    """`[add(a=1, b=2)]`, as some models write calls."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    if not isinstance(tree, ast.List):
        return []
    pairs: list[CallCandidate] = []
    for node in tree.elts:
        match node:
            case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords):
                try:
                    pairs.append((name, {word.arg: ast.literal_eval(word.value) for word in keywords if word.arg}))
                except ValueError:
                    return []
            case _:
                return []
    return pairs


def _fit_tools(pairs: Sequence[CallCandidate], offered: Mapping[str, ToolSpec]) -> list[TextCall]:
    """The calls, if every one of them fits a tool. Else none."""
    calls: list[TextCall] = []
    for name, arguments in pairs:
        tool = offered.get(name) or offered.get(name.removeprefix("functions."))
        if tool is None:
            return []
        properties: Mapping[str, Any] = tool.parameters.get("properties") or {}
        values = _read_tags(arguments, properties) if isinstance(arguments, str) else arguments
        if values is None or not set(tool.parameters.get("required") or ()) <= set(values):
            return []
        if not set(values) <= set(properties) and not tool.parameters.get("additionalProperties"):
            return []
        text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
        # JSON can contain half a surrogate pair, which cannot be stored.
        calls.append(TextCall(tool.name, text.encode("utf-8", "replace").decode()))
    return calls


def _read_tags(text: str, properties: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Arguments in tags. Text alone gives None, but an empty text is an empty object."""
    marked = {
        element.key: element.inner.removeprefix("\n").removesuffix("\n")
        for element in _find_elements(text, _PARAMETER, "parameter")
    }
    if not marked:
        key = ""
        for element in _find_elements(text, _GLM_ARGUMENT):
            if element.key == "arg_key":
                key = element.inner.strip()
            elif key:
                marked[key] = element.inner
    marked = marked or {
        element.key: element.inner.removeprefix("\n").removesuffix("\n") for element in _find_elements(text, _CHILD)
    }
    if marked:
        return {key: _read_value(value, properties.get(key)) for key, value in marked.items()}
    return {} if not text.strip() else None


def _read_value(value: str, schema: Any) -> Any:
    """A tag's text as the schema wants it: text stays text, anything else is read as JSON where possible."""
    kind = cast("Mapping[str, Any]", schema).get("type") if isinstance(schema, Mapping) else None
    if kind == "string":
        return value
    try:
        return json.loads(value.strip())
    except (ValueError, RecursionError):
        return {"True": True, "False": False, "None": None}.get(value.strip(), value)


def _decode(text: str) -> Any:
    """A JSON value, also in a fence, with raw line breaks, or in Python's notation. None where there is none."""
    text = text.strip()
    if fence := re.fullmatch(r"```[\w-]*\n(.*?)\n?```", text, re.DOTALL):
        text = fence[1].strip()
    if text[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        pass
    try:
        value = ast.literal_eval(text)
        json.dumps(value)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None
    return value
