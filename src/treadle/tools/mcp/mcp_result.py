"""Converts an MCP server's answer into text and parts for a model. Pure; it trusts nothing in the answer."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

import msgspec

from treadle.messages import FilePart, ImagePart, Part
from treadle.tools.base import ToolResult

if TYPE_CHECKING:
    from mcp.types import CallToolResult

IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""The images that providers take. Any other image becomes a file, so that it cannot spoil the next request."""

MAX_BYTES = 5 * 1024 * 1024
MAX_PARTS = 20


def convert_result(answer: CallToolResult) -> ToolResult:
    """Join the texts and convert images and files to parts. Structured content is JSON when no text says the same."""
    texts: list[str] = []
    parts: list[Part] = []
    for block in answer.content:
        match block.type:
            case "text":
                converted = block.text
            case "image" | "audio":
                converted = _convert_data(block.type, block.data, block.mime_type)
            case "resource_link":
                converted = f"[{block.title or block.name}: {block.uri}]"
            case "resource":
                resource = block.resource
                name = str(resource.uri).rstrip("/").rpartition("/")[2] or "resource"
                media_type = resource.mime_type or "application/octet-stream"
                if hasattr(resource, "text"):
                    converted = f"[{resource.uri}]\n{getattr(resource, 'text', '')}"
                else:
                    converted = _convert_data(name, getattr(resource, "blob", ""), media_type)
        if isinstance(converted, str):
            texts.append(converted)
        elif len(parts) < MAX_PARTS:
            parts.append(converted)
        else:
            texts.append("[a part was left out: there are too many]")
    if answer.structured_content is not None and not any(block.type == "text" for block in answer.content):
        texts.append(msgspec.json.encode(answer.structured_content).decode())
    return ToolResult("\n".join(texts), tuple(parts), ok=not answer.is_error)


def _convert_data(name: str, data: str, media_type: str) -> str | Part:
    media_type = media_type.lower().partition(";")[0].strip()
    if len(data) > MAX_BYTES * 4 // 3:
        return f"[{name}, {media_type}: left out, it is larger than {MAX_BYTES // 1024**2} MB]"
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return f"[{name}, {media_type}: left out, it cannot be read]"
    clean = base64.b64encode(raw).decode()
    return ImagePart(clean, media_type) if media_type in IMAGE_TYPES else FilePart(name, clean, media_type)
