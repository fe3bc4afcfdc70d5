"""treadle: a durable agent runtime. Give it a model and tools; it runs the loop and never loses a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.agent import Agent
    from treadle.engine.setup import Answer, HookCall, HookResult, Middleware, later
    from treadle.errors import NotAnswered, TreadleError
    from treadle.events import (
        ApprovalRequested,
        CallFinished,
        CallStarted,
        Grant,
        InputRequested,
        Limits,
        ModelReplied,
        ReasoningDelta,
        RunFinished,
        TextDelta,
    )
    from treadle.messages import FilePart, ImagePart, TextPart
    from treadle.run import Run
    from treadle.runtime import Runtime
    from treadle.session import Session
    from treadle.tools.ask_user import AskUser
    from treadle.tools.base import Tool, ToolContext, ToolError, ToolResult
    from treadle.tools.function import tool

__all__ = [
    "Agent",
    "Answer",
    "ApprovalRequested",
    "AskUser",
    "CallFinished",
    "CallStarted",
    "FilePart",
    "Grant",
    "HookCall",
    "HookResult",
    "ImagePart",
    "InputRequested",
    "Limits",
    "Middleware",
    "ModelReplied",
    "NotAnswered",
    "ReasoningDelta",
    "Run",
    "RunFinished",
    "Runtime",
    "Session",
    "TextDelta",
    "TextPart",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolResult",
    "TreadleError",
    "later",
    "tool",
]
__version__ = "0.5.0"

# Where the public names live. Each is imported when it is first asked for, so that a command that needs none of
# them, such as `treadle --help`, does not pay for them.
_MODULES = {
    "agent": "Agent",
    "errors": "NotAnswered TreadleError",
    "events": "ApprovalRequested CallFinished CallStarted Grant InputRequested Limits ModelReplied ReasoningDelta "
    "RunFinished TextDelta",
    "messages": "FilePart ImagePart TextPart",
    "run": "Run",
    "runtime": "Runtime",
    "session": "Session",
    "engine.setup": "Answer HookCall HookResult Middleware later",
    "tools.ask_user": "AskUser",
    "tools.base": "Tool ToolContext ToolError ToolResult",
    "tools.function": "tool",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'treadle' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"treadle.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
