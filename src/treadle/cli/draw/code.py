"""Highlight code with Pygments, in the sixteen colours of the terminal."""

from __future__ import annotations

from functools import cache
from typing import Any

from pygments.lexer import Lexer
from pygments.lexers import find_lexer_class_by_name
from pygments.token import Comment, Generic, Keyword, Name, Number, Operator, String
from pygments.util import ClassNotFound
from rich.style import Style
from rich.text import Text

MAX_HIGHLIGHTED = 100_000
"""Characters of code from which on it is not highlighted: a lexer may need long for it."""

_STYLES = {
    Comment: Style(dim=True, italic=True),
    Keyword: Style(color="magenta"),
    Keyword.Constant: Style(color="cyan"),
    String: Style(color="green"),
    String.Doc: Style(color="green", italic=True),
    Number: Style(color="cyan"),
    Name.Function: Style(bold=True),
    Name.Class: Style(bold=True),
    Name.Decorator: Style(color="magenta"),
    Name.Tag: Style(color="magenta"),
    Operator.Word: Style(color="magenta"),
    Generic.Deleted: Style(color="red"),
    Generic.Inserted: Style(color="green"),
    Generic.Heading: Style(bold=True),
    Generic.Subheading: Style(color="cyan"),
}


@cache
def find_lexer(language: str) -> Lexer | None:
    """Return the lexer of a language, if Pygments knows it."""
    try:
        return find_lexer_class_by_name(language)(stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


@cache
def find_style(token: Any) -> Style | None:
    """Return the style of a token: its own, or that of the nearest kind above it."""
    return next((style for kind, style in reversed(_STYLES.items()) if token in kind), None)


def highlight_code(code: str, language: str) -> list[Text]:
    """Return the lines of the code in colour. An unknown language is plain text."""
    lexer = find_lexer(language.lower()) if language and len(code) <= MAX_HIGHLIGHTED else None
    text = Text(no_wrap=True, overflow="ignore", end="")
    if lexer is None:
        text.append(code)
    else:
        for token, piece in lexer.get_tokens(f"{code}\n"):  # some lexers know a line by its end
            text.append(piece, find_style(token))
        text.right_crop(1)
    return list(text.split("\n", allow_blank=True))
