"""A short test of how well a driver gets calls from a model. It decides between drivers, once for each model file."""

from __future__ import annotations

import msgspec

from treadle.errors import ModelError
from treadle.messages import Json, Reply, Request, TextPart, ToolSpec, UserMessage
from treadle.models.local.driver import Driver

PROBE_TOKENS = 256


def _build_tool(name: str, description: str, *parameters: str) -> ToolSpec:
    properties: dict[str, Json] = {each: {"type": "string"} for each in parameters}
    return ToolSpec(name, description, {"type": "object", "properties": properties, "required": list(parameters)})


TOOLS = (
    _build_tool("room_temperature", "Measure the temperature in a room.", "room"),
    _build_tool("send_message", "Send a message to a person.", "person", "message"),
    _build_tool("current_time", "Tell the current date and time."),
)
REQUESTS: tuple[tuple[str, str, str], ...] = (
    ("How warm is it in the kitchen right now?", "room_temperature", "kitchen"),
    ("Send Anna a message that I am late", "send_message", "late"),
    ("What time is it?", "current_time", ""),
    ("Hello! How are you?", "", ""),
)
"""Each request with the tool that it needs, if any, and a word that must be in the arguments."""


async def count_right_calls(driver: Driver) -> int:
    """How many of the requests get the right call, or no call where none is needed."""
    right = 0
    for text, tool, word in REQUESTS:
        request = Request("", (UserMessage((TextPart(text),)),), TOOLS, max_tokens=PROBE_TOKENS)
        reply = Reply()
        try:
            async for event in driver.stream(request):
                if isinstance(event, Reply):
                    reply = event
            values = [
                " ".join(msgspec.json.decode(call.arguments, type=dict[str, str]).values()) for call in reply.calls
            ]
        except (ModelError, msgspec.DecodeError):
            continue
        is_right = [call.tool for call in reply.calls] == ([tool] if tool else [])
        right += is_right and all(word in value.lower() for value in values) and bool(reply.calls or reply.text)
    return right
