"""Render text as safe HTML: plain text, highlighted code, and Markdown. Nothing in it can run or load a file.

Markdown cannot contain HTML or images here. Its links lead to http, https and mailto only.
"""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

MAX_MARKDOWN = 100_000
MAX_MARKS = 10_000
"""Characters such as brackets and stars in one text. The time that they take grows with the square of their number."""

MAX_HIGHLIGHTED = 30_000
LINK = re.compile(r"(?:https?|mailto):", re.IGNORECASE)
_TERMINAL_CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
# Controls, and characters that change the direction of text or take no place: a reader must see them.
_HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)


def escape_text(text: object) -> str:
    """Escape a text for HTML. Hidden characters become visible, and colours of the terminal are left out."""
    return html.escape(show_hidden(str(text)), quote=True)


def show_hidden(text: str) -> str:
    """Replace hidden characters by their number, such as ‹U+202E›."""
    text = _TERMINAL_CODES.sub("", text.replace("\r\n", "\n"))
    return _HIDDEN.sub(lambda found: f"‹U+{ord(found[0]):04X}›", text)


def render_markdown(text: str) -> str:
    """Render Markdown. A very long text, or one with very many marks, stays as it is written."""
    if len(text) > MAX_MARKDOWN or sum(map(text.count, "[]*_~`<&!>")) > MAX_MARKS:
        return f"<pre>{escape_text(text)}</pre>"
    return f'<div class="prose">{_create_parser().render(show_hidden(text))}</div>'


def highlight_code(code: str, language: str) -> str:
    """Escape code and colour it with four inks, if Pygments knows the language."""
    from pygments.lexers import get_lexer_by_name  # pyright: ignore[reportUnknownVariableType]
    from pygments.token import Token
    from pygments.util import ClassNotFound

    if len(code) > MAX_HIGHLIGHTED or not language:
        return escape_text(code)
    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return escape_text(code)
    inks = ((Token.Comment, "c"), (Token.Literal.String, "s"), (Token.Literal.Number, "n"), (Token.Keyword, "k"))
    pieces: list[str] = []
    for kind, value in lexer.get_tokens(show_hidden(code)):
        ink = next((name for token, name in inks if kind in token), "")
        pieces.append(f'<span class="c-{ink}">{escape_text(value)}</span>' if ink else escape_text(value))
    return "".join(pieces)


@functools.cache
def _create_parser() -> MarkdownIt:
    from markdown_it import MarkdownIt
    from markdown_it.renderer import RendererHTML

    def highlight(code: str, language: str, attributes: str) -> str:
        return highlight_code(code, language)

    parser = MarkdownIt("commonmark", {"html": False, "highlight": highlight}, renderer_cls=RendererHTML)
    parser.enable(["table", "strikethrough"]).disable("image")
    parser.validateLink = lambda url: LINK.match(url) is not None
    renderer = cast("RendererHTML", parser.renderer)
    inner = renderer.renderToken

    def render_link(tokens: Sequence[Any], index: int, options: Any, env: Any) -> str:
        if not LINK.match(tokens[index].attrs.get("href", "")):  # an empty link is not validated
            tokens[index].attrs.pop("href", None)
        tokens[index].attrSet("rel", "noopener noreferrer nofollow")
        return inner(tokens, index, options, env)

    def render_cell(tokens: Sequence[Any], index: int, options: Any, env: Any) -> str:
        style = tokens[index].attrs.pop("style", "")  # the policy of the page allows no style in a tag
        if style:
            tokens[index].attrSet("class", style.removeprefix("text-align:"))
        return inner(tokens, index, options, env)

    def wrap_table(tokens: Sequence[Any], index: int, options: Any, env: Any) -> str:
        return f'<div class="wide">{inner(tokens, index, options, env)}'

    def unwrap_table(tokens: Sequence[Any], index: int, options: Any, env: Any) -> str:
        return f"{inner(tokens, index, options, env)}</div>"

    rules: dict[str, Any] = {  # the library types them as bound methods; it calls any function
        "link_open": render_link,
        "th_open": render_cell,
        "td_open": render_cell,
        "table_open": wrap_table,
        "table_close": unwrap_table,
    }
    renderer.rules.update(rules)
    return parser
