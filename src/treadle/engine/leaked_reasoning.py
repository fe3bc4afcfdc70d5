"""Separates reasoning that a model leaked into its answer. Streams and whole texts are split alike. Pure.

A mark is part of the answer in code, after a quotation mark, as a word of a sentence, and in a JSON object.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

_NAMES = "(?:thinking|think|reasoning|thought)"
_ATTRIBUTES = r"(?:\s[^<>]{0,100})?"
_CHANNEL = r"<\|channel\|>\s{0,3}"
_HEADER_END = r"(?:[^<\n]{0,80}(?:<\|constrain\|>[^<\n]{0,40})?<\|message\|>)?"
_ROLE = r"(?:assistant)?(?:[^<\n]{0,80}(?=<\|(?:channel|message)\|>))?"


class ReasoningForm(NamedTuple):
    """How a family of models marks its reasoning: the patterns that open and close it."""

    name: str
    opening: str
    closing: str


FORMS = (
    ReasoningForm("tag", f"<{_NAMES}{_ATTRIBUTES}>", rf"</{_NAMES}\s{{0,3}}>"),
    ReasoningForm("arrow", "◁think▷", "◁/think▷"),
    ReasoningForm("bracket", r"\[THINK\]", r"\[/THINK\]"),
    ReasoningForm("gemma", r"<\|channel>(?:thought)?\n?", r"<channel\|>"),
    ReasoningForm(
        "harmony",
        rf"{_CHANNEL}(?:analysis|commentary)\b{_HEADER_END}",
        rf"{_CHANNEL}final\b{_HEADER_END}|<\|(?:end|return|call)\|>|<\|start\|>{_ROLE}",
    ),
)
"""The marks that count anywhere in a reply."""

_HEADING = re.compile(
    r"(?P<gemma>thought\r?\n)|(?P<words>analysis(?=[A-Z]))"
    r"|(?:assistant(?=<\|channel\|>)|(?P<channel>analysis|commentary|final)<\|message\|>)"
)
"""What is left of the marks at the very start of a reply where a server drops the special tokens.

Gemma's reasoning then ends with its first paragraph, or before its last line: nothing else marks the end. Harmony
becomes words, as in `analysisThe user greets me.assistantfinalHello`.
"""
_FINAL_WORDS = "assistantfinal"

_OPENING = re.compile("|".join(f"(?P<{form.name}>{form.opening})" for form in FORMS))
_CLOSING = {form.name: re.compile(form.closing) for form in FORMS}
_UNOPENED = re.compile("|".join([rf"{_CHANNEL}final\b{_HEADER_END}", *(form.closing for form in FORMS[:-1])]))
_EMPTY_BLOCK = re.compile(rf"<{_NAMES}{_ATTRIBUTES}/>")
_FRAME = re.compile(rf"<\|message\|>|{FORMS[-1].closing}")
_STOP = {"text": re.compile("[<◁[`]"), "reasoning": re.compile("[<◁[]"), "code": re.compile("[`\n]")}
_TICKS = re.compile("`{1,100}")  # at most, so that no longer run is held back and read again
_AFTER_WORD = re.compile(r"[ \t.,;:!?)]|\Z")
_BLANK_LINE = re.compile(r"\n[ \t\r]*\n")


def _match_beginnings(*literals: str) -> str:
    """Build a pattern for every beginning of the literals that is not the whole."""
    return "|".join(re.escape(literal[:end]) for literal in literals for end in range(len(literal) - 1, 0, -1))


_SPECIAL = ("<|channel|>", "<|channel>", "<channel|>", "<|start|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>")
_HEADER_START = f"(?:{_match_beginnings('<|channel|>', '<|message|>')})?"
_BEGINNING = re.compile(
    rf"(?:{_match_beginnings(*_SPECIAL, '◁think▷', '◁/think▷', '[THINK]', '[/THINK]')}"
    rf"|</?(?:{_match_beginnings('thinking', 'reasoning', 'thought')})?|</?{_NAMES}(?:\s[^<>]{{0,100}}|/)?"
    rf"|<\|channel>(?:{_match_beginnings('thought')}|thought)?"
    rf"|<\|start\|>[^<\n]{{0,80}}{_HEADER_START}"
    rf"|{_CHANNEL}(?:{_match_beginnings('analysis', 'commentary', 'final')})?"
    rf"|{_CHANNEL}(?:analysis|commentary|final)[^<\n]{{0,80}}"
    rf"(?:{_match_beginnings('<|constrain|>')}|<\|constrain\|>[^<\n]{{0,40}})?{_HEADER_START})\Z"
)
"""The end of a text that may be the beginning of a mark."""
_LONGEST_MARK = 200
_HEADINGS = (
    *("thought\n", "thought\r\n", "analysisA", "assistant<|channel|>"),
    *("analysis<|message|>", "commentary<|message|>", "final<|message|>"),
)


class ReasoningSplitter:
    """Separates leaked reasoning from the answer in text that arrives in pieces, wherever it is cut.

    A piece is held back only while it may be part of a mark. `misread` counts the characters of the answer that were
    reasoning: a mark closed a block that nothing had opened. Some chat templates open it in the prompt.
    """

    def __init__(self) -> None:
        self.misread = 0
        self._mode: Literal["start", "text", "reasoning", "heading", "words", "json"] = "start"
        self._form = ""
        self._text = ""
        self._at = 0
        self._is_last = False
        self._code = 0  # the number of backticks that opened the code
        self._last_character = ""
        self._is_harmony = False
        self._has_opened = False
        self._skips_space = False
        self._written = 0
        self._answer: list[str] = []
        self._reasoning: list[str] = []

    def feed(self, text: str) -> tuple[str, str]:
        """Return the answer and the reasoning that are certain by now."""
        is_plain = not self._text and not self._code and self._mode in ("text", "reasoning")
        if is_plain and _STOP[self._mode].search(text) is None:  # nearly every piece
            if self._mode == "text" and text and not self._skips_space:
                self._written += len(text)
                self._last_character = text[-1]
                return text, ""
            self._add(text)
            return self._take()
        self._text += text
        return self._read()

    def finish(self) -> tuple[str, str]:
        """Return the rest: no more text follows."""
        self._is_last = True
        return self._read()

    def correct(self, answer: str, reasoning: str) -> tuple[str, str]:
        """Return the whole answer and the whole reasoning, with what was misread in its place."""
        thoughts = (answer[: self.misread].strip(), reasoning.strip())
        return answer[self.misread :], "\n".join(thought for thought in thoughts if thought)

    def _read(self) -> tuple[str, str]:
        if not self._text:
            return "", ""
        steps = {"start": self._read_start, "heading": self._read_heading, "words": self._read_words}
        while self._at < len(self._text) and steps.get(self._mode, self._read_marks)():
            pass
        self._text, self._at = self._text[self._at :], 0
        return self._take()

    def _take(self) -> tuple[str, str]:
        pieces = "".join(self._answer), "".join(self._reasoning)
        self._answer.clear()
        self._reasoning.clear()
        return pieces

    def _add(self, text: str) -> None:
        """Add text to the answer or to the reasoning."""
        if self._mode == "reasoning":
            self._reasoning.append(text)
            return
        if self._skips_space:
            text = text.lstrip()
        if text:
            self._skips_space = False
            self._written += len(text)
            self._last_character = text[-1]
            self._answer.append(text)

    def _add_until(self, end: int) -> None:
        self._add(self._text[self._at : end])
        self._at = end

    # Each reader takes what is certain. It returns False where it must wait for more text.

    def _read_start(self) -> bool:
        bare = self._text.lstrip()
        is_open = not bare or _BEGINNING.match(bare) or any(heading.startswith(bare) for heading in _HEADINGS)
        if is_open and not self._is_last:
            return False
        start = len(self._text) - len(bare)
        found = _HEADING.match(bare)
        self._is_harmony = bare.startswith("<|start|>")
        if found is None:
            self._mode = "json" if bare.startswith("{") else "text"
            if _OPENING.match(bare) or self._is_harmony:
                self._at = start  # other spaces are part of the answer
            return True
        if found["words"]:
            self._mode = "words"
            return True
        self._at, self._skips_space = start + found.end(), True
        self._mode = "heading" if found["gemma"] else "text"
        if not found["gemma"]:
            self._is_harmony = True
        if found["channel"] in ("analysis", "commentary"):
            self._open("harmony")
        return True

    def _read_marks(self) -> bool:
        if self._mode == "json":
            self._add_until(len(self._text))
            return True
        found = _STOP["code" if self._code else self._mode].search(self._text, self._at)
        if found is None:
            self._add_until(len(self._text))
            return True
        self._add_until(found.start())
        if found[0] == "`":
            return self._read_ticks()
        if found[0] == "\n":  # code in a line ends with it
            self._code = self._code if self._code >= 3 else 0
            self._add_until(found.end())
            return True
        is_near_end = len(self._text) - self._at <= _LONGEST_MARK
        if is_near_end and not self._is_last and _BEGINNING.match(self._text, self._at):
            return False
        mark = self._find_mark()
        if mark is not None and self._mode == "text" and self._last_character in (" ", "\t", "("):
            if mark.end() == len(self._text) and not self._is_last:
                return False
            mark = None if _AFTER_WORD.match(self._text, mark.end()) else mark  # a sentence about marks
        if mark is None:
            self._add_until(found.end())
        else:
            self._obey(mark)
            self._at = mark.end()
        return True

    def _read_ticks(self) -> bool:
        run = _TICKS.match(self._text, self._at)
        assert run is not None
        if run.end() == len(self._text) and not self._is_last:
            return False
        count = len(run[0])
        if not self._code:
            self._code = count
        elif count == self._code or count >= self._code >= 3:
            self._code = 0
        self._add_until(run.end())
        return True

    def _find_mark(self) -> re.Match[str] | None:
        """Find the mark at this position that has a meaning here."""
        text, at = self._text, self._at
        patterns = [_OPENING, *([_FRAME] if self._is_harmony else [])]
        if self._mode == "reasoning":
            found = next((found for each in (_CLOSING[self._form], *patterns) if (found := each.match(text, at))), None)
            is_foreign = found is not None and found.re is _OPENING and found.lastgroup != self._form
            return None if is_foreign else found
        if self._last_character in ("'", '"'):
            return None
        return next((found for each in (_EMPTY_BLOCK, *patterns, _UNOPENED) if (found := each.match(text, at))), None)

    def _obey(self, mark: re.Match[str]) -> None:
        if mark.re is _OPENING:
            self._open(mark.lastgroup or "")
        elif self._mode == "reasoning" and mark.re is not _FRAME:
            self._close()
        elif self._mode == "text" and mark[0].endswith("/>"):
            self._skips_space = self._skips_space or not self._written
        elif self._mode == "text":
            self._is_harmony = self._is_harmony or mark[0].startswith("<|channel|>")
            if mark.re is _UNOPENED and not self._has_opened:
                self.misread, self._has_opened = self._written, True
            self._close()

    def _open(self, form: str) -> None:
        self._mode, self._form, self._has_opened = "reasoning", form, True
        self._is_harmony = self._is_harmony or form == "harmony"

    def _close(self) -> None:
        self._mode = "text"
        self._skips_space = self._written == self.misread

    def _read_heading(self) -> bool:
        """Read up to the first blank line, or to the last line where there is none."""
        filled = len(self._text.rstrip())  # what follows may be a blank line, or nothing
        found = _CLOSING["gemma"].search(self._text, self._at, filled)
        found = _BLANK_LINE.search(self._text, self._at, found.start() if found is not None else filled) or found
        start = found.start() if found is not None else max(self._at, self._text.rfind("\n", 0, filled) + 1)
        self._reasoning.append(self._text[self._at : start])
        self._at = found.end() if found is not None else start
        if found is None and not self._is_last:
            return False
        self._mode = "text"
        return True

    def _read_words(self) -> bool:
        """Hold everything back until the last word of the heading comes. Without it, all is the answer."""
        end = self._text.find(_FINAL_WORDS)
        if end < 0 and not self._is_last:
            return False
        if end >= 0:
            self._reasoning.append(self._text[:end].lstrip().removeprefix("analysis"))
            self._at = end + len(_FINAL_WORDS)
            self._has_opened = self._skips_space = True
        self._mode = "text"
        return True


def split_reasoning(text: str) -> tuple[str, str]:
    """Split a whole text into the answer and the reasoning."""
    splitter = ReasoningSplitter()
    answer, reasoning = map("".join, zip(splitter.feed(text), splitter.finish(), strict=True))
    return splitter.correct(answer, reasoning)
