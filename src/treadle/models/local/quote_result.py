"""How a small model tells what a tool found: in words of the request around the result, which it must copy.

Left free, such a model contradicts the result about every third time. Here it only picks the frame.
"""

from __future__ import annotations

import re

from treadle.models.local import gbnf as grammar
from treadle.models.local import request_text as text

QUOTE = 400
"""Characters of a result that are repeated; of a longer one the passages nearest to the request."""

_VALUE = re.compile(r"(?!.*: )-?[\w$€£]\S*(?: \S+){0,5}(?<![^\w%°)])")
"""A number, a name, a date: what can stand inside a sentence."""

_VERBS = ("is", "are", "has", "says")
_EDGES = " .,;:!?\"'"
_EXAMPLES = (
    ("What is 20 plus 5?", "25", "20 plus 5 is 25."),
    ("Which day is it?", "Sunday 3 March", "The day is Sunday 3 March."),
    ("How many lines does log.txt have?", "12", "log.txt has 12 lines."),
    ("Take away 6 from 10", "4", "6 from 10 is 4."),
    ("What is in the garden folder?", "roses.txt\ntulips.txt", "roses.txt\ntulips.txt"),
    ("Read plan.md", "Meet at the bus.\nBring the tickets.", "plan.md says:\nMeet at the bus.\nBring the tickets."),
)


def build_prompt(asked: str, found: str) -> str:
    """A few examples, and the case at hand up to the answer."""
    shots = "".join(f"{_case(request, result)} {said}\n\n" for request, result, said in _EXAMPLES)
    return shots + _case(asked, found)


def build_grammar(asked: str, found: str) -> str:
    """The grammar of the answers: the result to the letter, framed by words of the request."""
    if not _VALUE.fullmatch(found):
        says = ":\n" if "\n" in found else ": "
        leads = [grammar.quote_literal(f"{path} says{says}") for path in text.find_paths(asked)]
        return f'root ::= " " {_maybe(leads)} {grammar.quote_literal(found)}\n'
    verbs = " | ".join(grammar.quote_literal(f"{verb} ") for verb in _VERBS)
    leads = [grammar.quote_literal(f"{span} ") for span in _spans(asked)]
    units = [
        grammar.quote_literal(f" {word}")
        for word in text.extract_words(asked)
        if word.isalpha() and word not in text.COMMON
    ]
    frame = f'("The "? ({" | ".join(leads)}) ({verbs})?)?' if leads else ""
    return f'root ::= " " {frame} {grammar.quote_literal(found)} {_maybe(units)} "."\n'


def shorten_result(found: str, asked: str) -> str:
    """The result, or of a long one the lines that share most words with the request, in their order."""
    found = found.strip()
    if len(found) <= QUOTE:
        return found
    lines = [line.strip() for line in re.split(r"\n+|(?<=[.!?])\s+", found) if line.strip()]
    sought = set(text.extract_words(asked)) - text.COMMON
    nearest = sorted(range(len(lines)), key=lambda i: (-len(sought & set(text.extract_words(lines[i]))), i))
    kept: list[int] = []
    for i in nearest:
        if sum(len(lines[k]) for k in kept) + len(lines[i]) <= QUOTE:
            kept.append(i)
    if not kept:
        return f"{found[:QUOTE]}…"
    return "\n".join(lines[i] for i in sorted(kept)) + "\n…"


def _case(asked: str, found: str) -> str:
    return f"Request: {asked}\nFound: {found}\nAnswer:"


def _maybe(choices: list[str]) -> str:
    return f"({' | '.join(choices)})?" if choices else ""


def _spans(asked: str) -> list[str]:
    """The runs of words in the request that hold all its numbers and paths."""
    marks = [(match.start(), match.end()) for match in re.finditer(r"\S+", asked)]
    needed = {*text.find_numbers(asked), *text.find_paths(asked)}
    runs = [asked[start:end].strip(_EDGES) for i, (start, _) in enumerate(marks) for _, end in marks[i : i + 8]]
    return list(
        dict.fromkeys(run for run in runs if run and needed <= {*text.find_numbers(run), *text.find_paths(run)})
    )
