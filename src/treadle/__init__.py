"""treadle: a durable agent runtime. Give it a model and tools; it runs the loop and never loses a step."""

from __future__ import annotations

from treadle.agent import Agent
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
from treadle.setup import Answer, Middleware, later
from treadle.tools.ask import AskUser
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
__version__ = "0.1.0"
