"""Typed answers: the schema of a type that pydantic knows, and the check of an answer against it."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from treadle.errors import BadInput
from treadle.messages import Json

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails
    from typing_extensions import TypeVar

    T = TypeVar("T", default=str)
    """The type of an agent's answers: text, unless its `output` is another type."""
else:
    from typing import TypeVar

    T = TypeVar("T")

MAX_PROBLEMS = 5
MAX_VALUE = 60
"""How many characters of a wrong value are shown."""
_FENCE = re.compile(r"```(?:json)?[^\S\n]*\n(.*)```", re.DOTALL | re.IGNORECASE)


def _get_adapter(wanted: Any) -> TypeAdapter[Any]:
    """Return the adapter of a type. Adapters of hashable types are cached."""
    try:
        hash(wanted)
    except TypeError:
        return _build_adapter.__wrapped__(wanted)
    return _build_adapter(wanted)


@lru_cache(maxsize=64)
def _build_adapter(wanted: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(wanted)


def build_output_schema(wanted: Any) -> dict[str, Json]:
    """Build the JSON schema that an answer must fit. Raises `BadInput` when the type has no schema."""
    from pydantic.errors import PydanticUserError

    try:
        return _get_adapter(wanted).json_schema()
    except PydanticUserError as error:
        why = str(error).splitlines()[0]
        raise BadInput(f"output={wanted!r} cannot be made into a schema: {why}") from None


def parse_output(wanted: Any, text: str) -> Any:
    """Read an answer as the wanted type. A code fence around it is removed."""
    fenced = _FENCE.fullmatch(text.strip())
    return _get_adapter(wanted).validate_json(fenced[1] if fenced else text)


def check_output(wanted: Any, text: str) -> str:
    """Describe what does not fit: each field, what it should be and what it is. Empty when the answer fits."""
    from pydantic import ValidationError

    try:
        parse_output(wanted, text)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        more = f"; and {len(problems) - MAX_PROBLEMS} more" if len(problems) > MAX_PROBLEMS else ""
        return "; ".join(map(_describe_problem, problems[:MAX_PROBLEMS])) + more
    return ""


def _describe_problem(problem: ErrorDetails) -> str:
    field = ".".join(map(str, problem["loc"])) or "the answer"
    if problem["type"] == "missing":  # its input is the object around it
        return f"{field}: {problem['msg']}"
    value = repr(problem["input"])
    return f"{field}: {problem['msg']}; got {value if len(value) <= MAX_VALUE else f'{value[:MAX_VALUE]}…'}"
