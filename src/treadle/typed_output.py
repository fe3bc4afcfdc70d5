"""Typed answers: the schema of a type that pydantic knows, and the check of an answer against it."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from treadle.errors import BadInput
from treadle.messages import Json

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from typing_extensions import TypeVar

    T = TypeVar("T", default=str)
    """The type of an agent's answers: text, unless its `output` is another type."""
else:
    from typing import TypeVar

    T = TypeVar("T")

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
    """Describe the problems of an answer for the model. Empty when the answer fits."""
    from pydantic import ValidationError

    try:
        parse_output(wanted, text)
    except ValidationError as error:
        problems = [
            f"{'.'.join(str(piece) for piece in one['loc']) or 'the answer'}: {one['msg']}"
            for one in error.errors(include_url=False, include_context=False)
        ]
        return f"It must be JSON that fits the schema, and nothing else: {'; '.join(problems[:5])}."
    return ""
