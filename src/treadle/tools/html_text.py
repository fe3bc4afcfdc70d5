"""HTML as plain text that reads well: title, headings, paragraphs, lists, and links with where they lead.

Strangers write it, so it is read in one pass that no page can make slow; the standard library's parser takes hours
for a page of the wrong two megabytes.
"""

from __future__ import annotations

import html
import re
from urllib.parse import urljoin

_LONGEST_TAG = 2048
_MOST_TAGS = 100_000
_BEGIN = re.compile(r"<(?=[a-zA-Z/!?])")
_TAG = re.compile(r"""<(/?)([a-zA-Z][a-zA-Z0-9:-]*+)((?:[^<>"']++|"[^"]*+"|'[^']*+')*+)>""")
_RAW = re.compile(r"script|style|noscript|template|svg|iframe|object|canvas|math|textarea|title")
_BLOCKS = re.compile(
    r"address|article|aside|blockquote|body|dd|details|div|dl|dt|fieldset|figcaption|figure|footer|form|header|hr|main"
    r"|nav|ol|p|pre|section|summary|table|ul|h[1-6]"
)
_LINES = re.compile(r"br|li|tr")


def convert_html(source: str, base: str) -> str:
    """The text of a page; links are made whole with the page's own address."""
    reader = _Reader(source, base)
    reader.read()
    return reader.text()


class _Reader:
    """Goes through a page once, from one tag to the next."""

    def __init__(self, source: str, base: str) -> None:
        self._source, self._base = source, base
        self._pieces: list[str] = []
        self._title = ""
        self._link, self._link_start = "", 0
        self._in_pre = False

    def text(self) -> str:
        lines = (re.sub(r"[ \t\xa0]+", " ", line).strip() for line in "".join(self._pieces).split("\n"))
        body = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip().replace("\v", " ")
        title = " ".join(self._title.split())
        return f"{title}\n\n{body}".strip() if title and not body.startswith(f"# {title}") else body

    def read(self) -> None:
        source, at = self._source, 0
        for _ in range(_MOST_TAGS):
            found = _BEGIN.search(source, at)
            self._say(source[at : found.start() if found else len(source)])
            if found is None:
                return
            at = self._markup(found.start())
        self._pieces.append("\n[the rest is left out: this page has too many tags]")

    def _markup(self, at: int) -> int:
        """Take in what begins with `<`; where it ends."""
        source = self._source
        if source.startswith("<!--", at):
            return _after(source, "-->", at + 4)
        tag = _TAG.match(source, at, at + _LONGEST_TAG)
        if tag is None:
            return _after(source, ">", at)  # too long or broken: no text either way
        closing, name, about = tag[1], tag[2].lower(), tag[3]
        if closing:
            self._end(name)
        elif _RAW.fullmatch(name) and not about.endswith("/"):
            return self._raw(name, tag.end())
        else:
            self._start(name, about)
        return tag.end()

    def _raw(self, name: str, at: int) -> int:
        """What is no text of the page, up to its end; the title is kept."""
        end = re.compile(f"</{name}", re.IGNORECASE).search(self._source, at)
        if name == "title" and not self._title:
            self._title = _unescaped(self._source[at : end.start() if end else at + 200])
        return _after(self._source, ">", end.end()) if end else len(self._source)

    def _start(self, name: str, about: str) -> None:
        if _BLOCKS.fullmatch(name) or _LINES.fullmatch(name):
            self._pieces.append("\n" if _LINES.fullmatch(name) else "\n\n")
        if name == "a":
            self._end_link()
            self._link, self._link_start = _attribute(about, "href"), len(self._pieces)
        elif re.fullmatch(r"h[1-6]", name):
            self._pieces.append("#" * int(name[1]) + " ")
        elif name in ("li", "td", "th"):
            self._pieces.append("- " if name == "li" else " | ")
        elif name == "img" and (words := _attribute(about, "alt")):
            self._pieces.append(f"[image: {words}]")
        self._in_pre = self._in_pre or name == "pre"

    def _end(self, name: str) -> None:
        self._in_pre = self._in_pre and name != "pre"
        if name == "a":
            self._end_link()
        elif _BLOCKS.fullmatch(name) or _LINES.fullmatch(name):
            self._pieces.append("\n" if _LINES.fullmatch(name) else "\n\n")

    def _say(self, text: str) -> None:
        text = _unescaped(text)
        # Blanks that stay are marked until the text is put together.
        self._pieces.append(text.replace(" ", "\v") if self._in_pre else re.sub(r"\s+", " ", text))

    def _end_link(self) -> None:
        href, self._link = self._link, ""
        if not href:
            return
        text = " ".join("".join(self._pieces[self._link_start :]).split())
        try:
            whole = urljoin(self._base, href.strip())
        except ValueError:
            return
        if text and re.match(r"https?://", whole):
            self._pieces[self._link_start :] = [f"[{text}]({whole})"]


def _after(source: str, mark: str, at: int) -> int:
    found = source.find(mark, at)
    return found + len(mark) if found >= 0 else len(source)


def _attribute(about: str, name: str) -> str:
    found = re.search(rf"""(?:^|\s){name}\s*=\s*("[^"]*"|'[^']*'|[^\s"']+)""", about, re.IGNORECASE)
    return _unescaped(found[1].strip("\"'")) if found else ""


def _unescaped(text: str) -> str:
    try:
        return html.unescape(text)
    except ValueError:  # a number with thousands of digits
        return text
