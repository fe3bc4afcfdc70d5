"""The public names of `treadle` and `treadle.testing` with their parameters and defaults, and the exceptions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import treadle
import treadle.errors
import treadle.testing
from tests.pins.conftest import check_snapshot

PROTOCOL_METHODS = {"__aenter__", "__aexit__", "__aiter__", "__anext__", "__await__", "__call__", "__enter__"}


@pytest.mark.parametrize("module", [treadle, treadle.testing], ids=lambda module: module.__name__)
def test_public_names_keep_their_parameters_and_defaults(module: ModuleType) -> None:
    lines = [line for name in sorted(module.__all__) for line in describe(name, getattr(module, name))]
    check_snapshot(f"names/{module.__name__}.txt", "\n".join(lines) + "\n")


def test_exceptions_keep_their_names_and_bases() -> None:
    found = {**vars(treadle.errors), **{name: getattr(treadle, name) for name in treadle.__all__}}
    exceptions = {name: value for name, value in found.items() if isinstance(value, type) and is_exception(value)}
    lines = [f"{name} < {', '.join(b.__name__ for b in value.__bases__)}" for name, value in sorted(exceptions.items())]
    check_snapshot("names/exceptions.txt", "\n".join(lines) + "\n")


def is_exception(value: type) -> bool:
    return issubclass(value, BaseException) and value.__module__.startswith("treadle")


def describe(name: str, value: Any) -> Iterator[str]:
    """A public name, and below it the public members of a class."""
    if not inspect.isclass(value):
        yield f"{prefix(value)}{name}{parameters(value)}"
        return
    yield f"class {name}{parameters(value)}"
    own = [one for one in reversed(value.__mro__) if one.__module__.startswith("treadle")]
    members = {member for one in own for member in vars(one)}
    for member in sorted(member for member in members if not member.startswith("_") or member in PROTOCOL_METHODS):
        found = inspect.getattr_static(value, member)
        function = getattr(found, "__func__", found)  # of a class method or a static method
        is_method = inspect.isfunction(function)
        yield f"    {prefix(function)}{member}{parameters(getattr(value, member))}" if is_method else f"    {member}"


def prefix(function: Any) -> str:
    return "async def " if inspect.iscoroutinefunction(function) else "def "


def parameters(function: Any) -> str:
    """The parameters without annotations: types may move from module to module."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # an exception that takes what every exception takes
        return "(*args)"
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
    text = str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))
    return re.sub(r"<function .*?>", "<function>", re.sub(r"\btreadle(\.\w+)+\.", "", text))
