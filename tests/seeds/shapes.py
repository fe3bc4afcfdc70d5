"""Checks documents field by field. A missing, misnamed or wrongly typed field fails; additional fields are fine."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

Shape = Any
"""A type, a tuple of allowed values or types, a dict of fields, a list with the shape of its items, or a function."""


def check_shape(value: Any, shape: Shape, where: str = "document") -> None:
    """Raise `AssertionError` with the place where the value does not have the shape."""
    match shape:
        case dict():
            assert isinstance(value, dict), f"{where} is no object but {value!r}"
            for name, inner in shape.items():
                if name.endswith("?"):
                    if name[:-1] in value:
                        check_shape(value[name[:-1]], inner, f"{where}.{name[:-1]}")
                    continue
                assert name in value, f"{where} has no {name!r}: {value}"
                check_shape(value[name], inner, f"{where}.{name}")
        case [inner]:
            assert isinstance(value, list), f"{where} is no list but {value!r}"
            for place, item in enumerate(value):
                check_shape(item, inner, f"{where}[{place}]")
        case tuple():
            matches = [one for one in shape if _fits(value, one, where)]
            assert matches, f"{where} is none of {shape} but {value!r}"
        case type():
            assert _is_a(value, shape), f"{where} is no {shape.__name__} but {value!r}"
        case _ if callable(shape):
            shape(value, where)
        case _:
            assert value == shape and type(value) is type(shape), f"{where} is not {shape!r} but {value!r}"


def is_iso_time(value: Any, where: str) -> None:
    """A time in ISO 8601, as a string with its zone."""
    assert isinstance(value, str), f"{where} is no string but {value!r}"
    assert datetime.fromisoformat(value).tzinfo is not None, f"{where} has no zone: {value!r}"


def has_one_line(value: Any, where: str) -> None:
    """A text without a line break."""
    assert isinstance(value, str) and "\n" not in value, f"{where} is not one line: {value!r}"


def check_kinds(frames: list[dict[str, Any]], shapes: dict[str, Shape], field: str = "type") -> None:
    """Check each frame by the shape of its kind. A kind that has no shape fails."""
    for place, frame in enumerate(frames):
        assert frame.get(field) in shapes, f"frame {place} has an unknown {field}: {frame}"
        check_shape(frame, shapes[frame[field]], f"frame {place} ({frame[field]})")


def _fits(value: Any, shape: Shape, where: str) -> bool:
    try:
        check_shape(value, shape, where)
    except AssertionError:
        return False
    return True


def _is_a(value: Any, kind: type) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


Check = Callable[[Any, str], None]
