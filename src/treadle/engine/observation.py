"""What a model is shown of a tool's output: text, cleaned of control characters and cut to a cap. Pure."""

from __future__ import annotations

import re

import msgspec

from treadle.errors import BadInput
from treadle.messages import Part, replace_surrogates
from treadle.tools.base import ToolResult

# A sequence that is never closed ends with its line, so that it cannot swallow the rest.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]")
_CONTROLS = {
    **{code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"},
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
    0x7F: 0x2421,
}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def render_result(value: object) -> tuple[str, tuple[Part, ...], bool]:
    """A tool's result as text, parts and whether it went well; raises `BadInput` when it is not JSON."""
    if isinstance(value, ToolResult):
        return remove_control_characters(value.text), _readable(value.parts), value.ok
    if value is None:
        return "", (), True
    if isinstance(value, str):
        return remove_control_characters(value), (), True
    try:
        return remove_control_characters(msgspec.json.encode(value, enc_hook=_to_json).decode()), (), True
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadInput(
            f"the tool returned a {type(value).__name__}, which is not JSON ({error}). It may have run. "
            "Its author should return text, numbers, lists, dicts or a pydantic model."
        ) from None


def _readable(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    try:
        return msgspec.json.decode(msgspec.json.encode(parts), type=tuple[Part, ...]) if parts else ()
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise BadInput(
            f"the tool returned parts that are not text, images or files ({error}). It may have run."
        ) from None


def _to_json(value: object) -> object:
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    if hasattr(value, "__fspath__"):
        return str(value)
    raise TypeError(f"{type(value).__name__} inside")


def remove_control_characters(text: str) -> str:
    """Without terminal escape sequences, and with other control characters made visible."""
    if "\r\n" in text:
        text = text.replace("\r\n", "\n")
    if _CONTROL.search(text):
        text = _ESCAPES.sub("", text).translate(_CONTROLS)
    return replace_surrogates(text)


def cut_output(text: str, cap: int) -> tuple[str, str, int]:
    """(head, tail, characters left out) so that head and tail have at most `cap` bytes together."""
    data = text.encode()
    if len(data) <= cap:
        return text, "", 0
    head = data[: cap * 2 // 3].decode("utf-8", "ignore")
    tail = data[len(data) - cap // 3 :].decode("utf-8", "ignore")
    return head, tail, len(text) - len(head) - len(tail)
