"""The frames that set what others wrote apart from the rest of a prompt; no text can open or close one itself."""

from __future__ import annotations

import re

_FRAMES = re.compile(r"<(\s*(?:/\s*)?(?:file|skills?|memories)\b)", re.IGNORECASE)


def escape_frames(text: str) -> str:
    """The text with its own frames broken."""
    return _FRAMES.sub(r"<\\\1", text)


def frame_text(kind: str, text: str, **said: str) -> str:
    """A text in its frame, with where it is from."""
    about = "".join(f' {name.rstrip("_")}="{_quoted(value)}"' for name, value in said.items())
    return f"<{kind}{about}>\n{escape_frames(text)}\n</{kind}>"


def _quoted(value: str) -> str:
    return re.sub(r'["<>\x00-\x1f]', "?", value)
