"""Characters that could hide or disguise text, and how a question spells them out."""

from __future__ import annotations

import re

# Control characters except line feed and tab, characters that reorder text, and characters that show nothing.
HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)


def escape_hidden(text: str) -> str:
    """Spell out every character that could hide or disguise text, such as <U+200B>. Used for approval questions."""
    return HIDDEN.sub(lambda match: f"<U+{ord(match[0]):04X}>", text)
