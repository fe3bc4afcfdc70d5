"""HTML as plain text: title, headings, paragraphs, lists, and links with their addresses.

Strangers write the pages, so a page is read in one pass that no page can make slow (docs/decisions/0010).
"""

from __future__ import annotations

import html
import re
from urllib.parse import urljoin

_MAX_TAG_CHARACTERS = 2048
_MAX_TAGS = 100_000
_MARKUP_START = re.compile(r"<(?=[a-zA-Z/!?])")
_TAG = re.compile(r"""<(/?)([a-zA-Z][a-zA-Z0-9:-]*+)((?:[^<>"']++|"[^"]*+"|'[^']*+')*+)>""")
_SKIPPED = re.compile(r"script|style|noscript|template|svg|iframe|object|canvas|math|textarea|title")
_BLOCKS = re.compile(
    r"address|article|aside|blockquote|body|dd|details|div|dl|dt|fieldset|figcaption|figure|footer|form|header|hr|main"
    r"|nav|ol|p|pre|section|summary|table|ul|h[1-6]"
)
_LINES = re.compile(r"br|li|tr")


def convert_html(source: str, base: str) -> str:
    """Return the text of a page. Links are completed with `base`, the page's own address."""
    reader = _PageReader(source, base)
    reader.read()
    return reader.build_text()


class _PageReader:
    """Reads a page once, from one tag to the next."""

    def __init__(self, source: str, base: str) -> None:
        self._source, self._base = source, base
        self._pieces: list[str] = []
        self._title = ""
        self._link, self._link_start = "", 0
        self._in_pre = False

    def build_text(self) -> str:
        lines = (re.sub(r"[ \t\xa0]+", " ", line).strip() for line in "".join(self._pieces).split("\n"))
        body = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip().replace("\v", " ")
        title = " ".join(self._title.split())
        return f"{title}\n\n{body}".strip() if title and not body.startswith(f"# {title}") else body

    def read(self) -> None:
        source, position = self._source, 0
        for _ in range(_MAX_TAGS):
            found = _MARKUP_START.search(source, position)
            text = _unescape(source[position : found.start() if found else len(source)])
            # The vertical tab marks a space that stays, until the text is complete.
            self._pieces.append(text.replace(" ", "\v") if self._in_pre else re.sub(r"\s+", " ", text))
            if found is None:
                return
            position = self._read_markup(found.start())
        self._pieces.append("\n[the rest is left out: this page has too many tags]")

    def _read_markup(self, start: int) -> int:
        """Read a tag or a comment. Return its end."""
        source = self._source
        if source.startswith("<!--", start):
            return _find_end(source, "-->", start + 4)
        tag = _TAG.match(source, start, start + _MAX_TAG_CHARACTERS)
        if tag is None:
            return _find_end(source, ">", start)  # too long or broken: it is no text either way
        is_end, name, attributes = tag[1], tag[2].lower(), tag[3]
        if not is_end and _SKIPPED.fullmatch(name) and not attributes.endswith("/"):
            return self._skip_element(name, tag.end())
        if _BLOCKS.fullmatch(name) or _LINES.fullmatch(name):
            self._pieces.append("\n" if _LINES.fullmatch(name) else "\n\n")
        if name == "a":
            self._end_link()
        if name == "pre":
            self._in_pre = not is_end
        if not is_end:
            self._start_element(name, attributes)
        return tag.end()

    def _skip_element(self, name: str, start: int) -> int:
        """Skip an element whose content is not shown. The title is kept."""
        end = re.compile(f"</{name}", re.IGNORECASE).search(self._source, start)
        if name == "title" and not self._title:
            self._title = _unescape(self._source[start : end.start() if end else start + 200])
        return _find_end(self._source, ">", end.end()) if end else len(self._source)

    def _start_element(self, name: str, attributes: str) -> None:
        if name == "a":
            self._link, self._link_start = _read_attribute(attributes, "href"), len(self._pieces)
        elif re.fullmatch(r"h[1-6]", name):
            self._pieces.append("#" * int(name[1]) + " ")
        elif name in ("li", "td", "th"):
            self._pieces.append("- " if name == "li" else " | ")
        elif name == "img" and (words := _read_attribute(attributes, "alt")):
            self._pieces.append(f"[image: {words}]")

    def _end_link(self) -> None:
        href, self._link = self._link, ""
        if not href:
            return
        text = " ".join("".join(self._pieces[self._link_start :]).split())
        try:
            address = urljoin(self._base, href.strip())
        except ValueError:
            return
        if text and re.match(r"https?://", address):
            self._pieces[self._link_start :] = [f"[{text}]({address})"]


def _find_end(source: str, mark: str, start: int) -> int:
    found = source.find(mark, start)
    return found + len(mark) if found >= 0 else len(source)


def _read_attribute(attributes: str, name: str) -> str:
    found = re.search(rf"""(?:^|\s){name}\s*=\s*("[^"]*"|'[^']*'|[^\s"']+)""", attributes, re.IGNORECASE)
    return _unescape(found[1].strip("\"'")) if found else ""


def _unescape(text: str) -> str:
    try:
        return html.unescape(text)
    except ValueError:  # a number with thousands of digits
        return text
