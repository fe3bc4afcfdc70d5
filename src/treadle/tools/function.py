"""`@tool` makes a tool of a plain function, sync or async. Its schema comes from its hints and docstring."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin, get_type_hints, overload

import msgspec

from treadle.errors import ToolDefinitionError
from treadle.events import Safety, Tier
from treadle.messages import Json, ToolSpec
from treadle.permissions.data_flow import Trait
from treadle.tools.base import (
    DEFAULT_CAP,
    DEFAULT_TIMEOUT,
    ArgumentAlias,
    ParsedArguments,
    Recovery,
    Tool,
    ToolContext,
    ToolInputError,
)
from treadle.workspace.short_functions import FunctionPlace

if TYPE_CHECKING:
    from pydantic import BaseModel

Function = Callable[..., Any]  # a function of the user: it may take and return anything
ClassifySafety = Callable[[Mapping[str, Json]], Safety]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_SAFETIES: tuple[Safety, ...] = get_args(Safety)
_MAX_PROBLEMS = 5


class ToolOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `@tool(...)`; see the fields of `Tool`.

    `thread` says whether a function that is not async runs in a thread. None: a safe one that has proved to be short
    does not, any other does. `traits` say what a call brings in and can do.
    """

    name: str = ""
    description: str = ""
    safety: Safety | ClassifySafety = "caution"
    timeout: float | None = DEFAULT_TIMEOUT
    cap: int = DEFAULT_CAP
    polling: bool = False
    on_error: Recovery | None = None
    examples: Sequence[tuple[str, dict[str, Json]]] = ()
    aliases: Sequence[str] = ()
    argument_aliases: Mapping[str, ArgumentAlias] = msgspec.field(default_factory=dict[str, ArgumentAlias])
    thread: bool | None = None
    traits: Collection[Trait] = ()


class FunctionTool(Tool):
    """A function as a tool. It can still be called as a function. `traits` are what a call brings in and can do."""

    traits: frozenset[Trait] = frozenset()

    def __init__(self, function: Function, options: ToolOptions) -> None:
        self.function = function
        self.timeout, self.cap = options.timeout, options.cap
        self.polling, self.on_error = options.polling, options.on_error
        self.traits |= frozenset(options.traits)
        self.aliases, self.argument_aliases = tuple(options.aliases), options.argument_aliases
        safety = options.safety
        self._classify: ClassifySafety = safety if callable(safety) else lambda arguments: safety
        self._is_async = inspect.iscoroutinefunction(function)
        self._place = FunctionPlace(True if options.thread is None and safety != "safe" else options.thread)
        self.ends_when_cancelled = not self._is_async
        name = options.name or getattr(function, "__name__", "")
        if not _NAME.fullmatch(name):
            raise ToolDefinitionError(
                f"{name!r} cannot be a tool's name: give one of letters, digits, _ and -, as @tool(name=...)."
            )
        if not callable(safety) and safety not in _SAFETIES:
            raise ToolDefinitionError(f"{name}: safety={safety!r} is not one of {_SAFETIES}.")
        if options.on_error is not None and options.on_error not in get_args(Recovery):
            raise ToolDefinitionError(f"{name}: on_error={options.on_error!r} is not one of {get_args(Recovery)}.")
        if unknown := sorted(self.traits - frozenset(get_args(Trait))):
            raise ToolDefinitionError(f"{name}: traits has {unknown[0]!r}, which is not one of {get_args(Trait)}.")
        if options.timeout is not None and not _is_positive(options.timeout):
            raise ToolDefinitionError(f"{name}: timeout={options.timeout!r} is no number of seconds; None is no limit.")
        if not _is_positive(options.cap):
            raise ToolDefinitionError(f"{name}: cap={options.cap!r} is no number of bytes to show of its output.")
        if options.thread is not None and self._is_async:
            raise ToolDefinitionError(f"{name}: it is async, so it runs in the event loop; leave `thread` out.")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ToolDefinitionError(f"{name}: it yields; return the result, and show output with context.output.")
        text, about = _read_docstring(function)
        self._context_parameter, model, schema = _build_model(name, function, about)
        self._validate, self._dump = model.__pydantic_validator__.validate_json, model.__pydantic_serializer__.to_python
        self._fields = [(info.alias or field, field) for field, info in model.model_fields.items()]
        self.spec = ToolSpec(
            name=name,
            description=options.description or text or name.replace("_", " "),
            parameters=schema,
            examples=tuple(options.examples),
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def assess_safety(self, arguments: Mapping[str, Json]) -> Safety:
        try:
            safety = self._classify(arguments)
        except Exception:  # when the danger is unknown, the call is not harmless
            return "destructive"
        return safety if safety in _SAFETIES else "destructive"

    def parse(self, arguments: str) -> ParsedArguments:
        try:
            model = self._validate(arguments or "{}")
            parsed = self._dump(model, mode="json", by_alias=True, warnings=False)
        except Exception as error:
            raise ToolInputError(_describe_problem(self.name, error, self.spec.parameters)) from None
        return ParsedArguments(parsed, {parameter: getattr(model, field) for parameter, field in self._fields})

    def list_traits(self, tier: Tier) -> frozenset[Trait]:
        return self.traits

    async def run(self, parsed: ParsedArguments, context: ToolContext) -> object:
        values = dict(parsed.values)
        if self._context_parameter:
            values[self._context_parameter] = context
        if self._is_async:
            return await self.function(**values)
        result = await self._place.call(partial(self.function, **values))
        return await result if inspect.isawaitable(result) else result


@overload
def tool(function: Function, /) -> FunctionTool: ...
@overload
def tool(**options: Any) -> Callable[[Function], FunctionTool]: ...
def tool(function: Function | None = None, /, **options: Any) -> FunctionTool | Callable[[Function], FunctionTool]:
    """Make a tool of a function: `@tool`, or `@tool(safety="safe", timeout=10)` with the fields of `ToolOptions`.

    The name, the parameters and their descriptions come from the function. The runtime fills in a parameter of type
    `ToolContext`; the model does not see it.
    """
    try:
        chosen = ToolOptions(**options)
    except TypeError as error:
        known = ", ".join(ToolOptions.__struct_fields__)
        raise ToolDefinitionError(f"@tool: {error}. It takes {known}.") from None

    def decorate(function: Function) -> FunctionTool:
        if isinstance(function, type):  # it would become a tool that creates objects
            raise ToolDefinitionError(f"{function.__name__} is a class: pass {function.__name__}(), or a function.")
        if not callable(function):
            raise ToolDefinitionError(f"{function!r} cannot be a tool: pass a function, or an object of a Tool class.")
        return FunctionTool(function, chosen)

    return decorate(function) if function is not None else decorate


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and value > 0


def _build_model(
    name: str, function: Function, about: Mapping[str, str]
) -> tuple[str, type[BaseModel], dict[str, Json]]:
    """Return the name of the parameter that takes the context, and a pydantic model and JSON schema of the others."""
    from pydantic import ConfigDict, Field, create_model
    from pydantic.errors import PydanticUserError
    from pydantic.fields import FieldInfo
    from pydantic.json_schema import PydanticJsonSchemaWarning
    from pydantic_core import PydanticUndefined

    try:
        hints, parameters = get_type_hints(function, include_extras=True), inspect.signature(function).parameters
    except Exception as error:
        raise ToolDefinitionError(f"{name}: its type hints cannot be read: {error}") from None
    context = ""
    fields: dict[str, Any] = {}
    for number, parameter in enumerate(parameters.values()):
        hint = hints.get(parameter.name)
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ToolDefinitionError(
                f"{name}: parameter {parameter} has no name a model could use; give it a plain one."
            )
        if _wants_context(hint):
            context = parameter.name
            continue
        if hint is None:
            raise ToolDefinitionError(
                f"{name}: parameter {parameter.name!r} has no type hint; add one, such as `{parameter.name}: str`."
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        if isinstance(default, FieldInfo):  # `count: int = Field(1, ge=1)` means the same as in the hint
            hint, default = Annotated[hint, default], PydanticUndefined
        described: dict[str, Any] = {"description": about[parameter.name]} if parameter.name in about else {}
        # As an alias, a parameter can have any name, even one that pydantic models use, such as `json`.
        fields[f"p{number}"] = (hint, Field(default, alias=parameter.name, **described))
    try:
        model = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
        with warnings.catch_warnings():
            warnings.simplefilter("error", PydanticJsonSchemaWarning)  # a default that is not JSON
            schema = model.model_json_schema()
    except (PydanticUserError, PydanticJsonSchemaWarning, TypeError, ValueError, NameError) as error:
        raise ToolDefinitionError(f"{name}: no schema can be made from its parameters: {error}") from None
    schema.pop("title", None)
    for field in schema.setdefault("properties", {}).values():
        field.pop("title", None)
    return context, model, schema


def _wants_context(hint: object) -> bool:
    """Tell whether a hint is the context. `ToolContext | None` is for functions that are also called directly."""
    if get_origin(hint) in (Annotated, Union, UnionType):
        return any(map(_wants_context, get_args(hint)))
    return hint is ToolContext


def _describe_problem(name: str, error: Exception, schema: Mapping[str, Json]) -> str:
    """Say what is wrong with a call's arguments, so that a model can correct them."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):  # a validator of the tool's author
        return f"The arguments of {name} cannot be read: {error!r}."
    problems: list[str] = []
    for detail in error.errors(include_url=False, include_context=False):
        where = ".".join(str(piece) for piece in detail["loc"])
        if detail["type"] == "json_invalid":
            return f"The arguments of {name} are not valid JSON ({detail['msg']}). Send them again, whole."
        given = "" if detail["type"] == "missing" else f" (got {str(detail['input'])[:80]!r})"
        problems.append(f"{where or 'arguments'}: {detail['msg']}{given}")
    takes = ", ".join(schema.get("properties", {})) or "none"
    more = f" and {len(problems) - _MAX_PROBLEMS} more" if len(problems) > _MAX_PROBLEMS else ""
    return f"The arguments of {name} do not fit: {'; '.join(problems[:_MAX_PROBLEMS])}{more}. Its parameters: {takes}."


_SECTION = re.compile(r"^(args|arguments|parameters|returns?|raises|yields|examples?|notes?):?\s*$", re.IGNORECASE)
_ITEM = re.compile(r"^\s+\*?(\w+)\s*(?:\([^)]*\))?\s*:\s*(.+)$")
_FIELD = re.compile(r"^:(?:param\s+(?:\S+\s+)?(\w+)|[^:]*)\s*:\s*(.*)$")


def _read_docstring(function: Function) -> tuple[str, dict[str, str]]:
    """Read the description of a function and of its parameters (Google style `Args:` or `:param name:`)."""
    description: list[str] = []
    about: dict[str, str] = {}
    section, last = "", ""
    for line in (inspect.getdoc(function) or "").splitlines():
        if field := _FIELD.match(line):
            section, last = "field", field[1] or ""
            if last:
                about[last] = field[2].strip()
        elif heading := _SECTION.match(line):
            section, last = heading[1].lower(), ""
        elif section and line[:1].isspace():
            if section.startswith(("arg", "param")) and (item := _ITEM.match(line)):
                last = item[1]
                about[last] = item[2].strip()
            elif last:
                about[last] += " " + line.strip()
        elif line or not section:
            section = ""
            description.append(line)
    return "\n".join(description).strip(), about
