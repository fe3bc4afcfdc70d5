"""Reads a request without a model: its clauses, words, numbers and paths. English only."""

from __future__ import annotations

import re
from collections.abc import Collection

PATH = re.compile(
    r"https?://[^\s,;\"')]+[^\s,;.!?\"')]"
    r"|(?<![\w.~/])(?:~|\.{1,2})?(?:/[\w.-]*\w)+/?"
    r"|(?<![\w-])[\w-][\w.-]{0,254}(?:/[\w.-]*\w)+/?"
    r"|(?<![\w-])[\w-]{1,255}(?:\.\w{1,255}){0,9}\.[A-Za-z]\w{0,5}\b"
)
"""The bounds keep the search fast: without them a text of one long word is searched again from each letter."""
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w]|\.\d)")
SUM = re.compile(r"(?:(?<!\()\(+|(?<![\d(]))-?\d+(?:\.\d+)?\)*(?:\s*[-+*/^%]\s*\(*-?\d+(?:\.\d+)?\)*)+")
MOST_CLAUSES = 4
LONGEST_INSERTED = 40

_SENTENCE = re.compile(r"(?<=[.?!])\s+(?=[A-Z])")
_THEN = re.compile(r"[\s,;.]{0,20}\b(?:and then|and after that|after that|then)\b[,:]?\s+", re.IGNORECASE)
_AND = re.compile(r",?\s{1,20}and\s+(?:also\s+)?", re.IGNORECASE)
_OPEN = """what what's which who how when where is are tell show give open read list write save add make put store
create delete remove find search look check count calculate compute multiply divide subtract remember remind run say"""
_OPENERS = frozenset(_OPEN.split())
_REFERS = re.compile(
    r"(?<!is )(?<!was )\b(?:it|that|this|them|the (?:result|answer|total|sum|number))\b"
    r"(?=$|\s*[.,!?]|\s+(?:by|to|from|as|in|into|with|and|down|up)\b)",
    re.IGNORECASE,
)
_UNITS = """zero one two three four five six seven eight nine ten
eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_SPELLED = {
    **{word: i for i, word in enumerate(_UNITS.split())},
    **{word: 20 + 10 * i for i, word in enumerate(_TENS.split())},
    "hundred": 100,
    "thousand": 1000,
}
_COMMON = """a all also an and any are as at be by can could do does for from give have here how i in inside into is it
its list me my now of on or our out over please show tell that the their them there these this those to up us was we
what what's when where which who will with would you your folder directory file files"""
COMMON = frozenset(_COMMON.split())
"""Words that say little about what a request is about."""

_FILL = """a about all also am an and any are as at be been but by can could did do does for from get give go good had
has have he hello her hey hi him his how i i'm if in into is it it's its just know like make may me more my no not of oh
ok on one or our out over please say see she so some tell than thank thanks that the their them then there these they
this those to today too up us use very was we well what what's when where which who why will with would yes you your"""
FILLERS = frozenset(_FILL.split())
"""Words that occur in requests of every kind."""


def split_clauses(request: str, starters: Collection[str]) -> list[str]:
    """The parts of a request that may each need a tool of their own.

    A part after "and" counts when it begins with a word that often opens a request, or with one of `starters`:
    the words that open the requests in the tools' examples.
    """
    pieces: list[str] = []
    for step in (step for sentence in _SENTENCE.split(request.strip()) for step in _THEN.split(sentence)):
        begin = 0
        for match in _AND.finditer(step):
            first = step[match.end() :].split(" ", 1)[0].lower().strip(",:?!.")
            if first in starters or first in _OPENERS:
                pieces.append(step[begin : match.start()])
                begin = match.end()
        pieces.append(step[begin:])
    parts = [piece.strip(" ,;") for piece in pieces if piece.strip(" ,;.?!")]
    return [*parts[: MOST_CLAUSES - 1], " ".join(parts[MOST_CLAUSES - 1 :])] if len(parts) > MOST_CLAUSES else parts


def refers_back(clause: str) -> bool:
    """Whether the clause refers to an earlier result ("save it as a note")."""
    return bool(_REFERS.search(clause))


def insert_result(clause: str, result: str) -> str:
    """The clause with the last result in place of "it" or "that", when the result is short."""
    result = result.strip()
    if result and len(result) <= LONGEST_INSERTED and "\n" not in result:
        return _REFERS.sub(lambda _: result, clause)
    return clause


def extract_words(text: str) -> list[str]:
    """The words of `text` in lower case, with one word for all numbers and one for all paths."""
    text = NUMBER.sub(" <number> ", _replace_paths(text.lower(), " <path> "))
    return re.findall(r"<path>|<number>|[^\W\d_]+(?:'\w+)?|[-+*/=]", text)


def find_paths(text: str) -> list[str]:
    """The parts of `text` that look like a path or an address."""
    return list(dict.fromkeys(each for each in PATH.findall(text) if _is_path(each)))


def find_numbers(text: str) -> list[str]:
    """The numbers in `text`, in digits. Spelled numbers are included."""
    text = _replace_paths(text.lower(), " ")
    found = [(match.start(), match.group()) for match in NUMBER.finditer(text)]
    spelled = [match for match in re.finditer(r"[a-z]+", text) if match.group() in _SPELLED]
    found += [(match.start(), str(_SPELLED[match.group()])) for match in spelled]
    return [number for _, number in sorted(found)]


def _replace_paths(text: str, replacement: str) -> str:
    return PATH.sub(lambda match: replacement if _is_path(match.group()) else match.group(), text)


def _is_path(text: str) -> bool:
    return any(letter.isalpha() for letter in text) and text.lower() not in ("and/or", "e.g", "i.e")
