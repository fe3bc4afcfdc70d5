"""How a small model reports what a tool found: in words of the request around the result, which it must copy.

Left free, such a model contradicts the result about every third time. Here it only picks the words around it.
"""

from __future__ import annotations

import re
from collections import Counter

from treadle.engine.context import find_own_text
from treadle.messages import ResultMessage
from treadle.models.local.gbnf import quote_literal
from treadle.models.local.request_text import COMMON, extract_words, find_numbers, find_paths

LONGEST_QUOTE = 400
"""Characters of a result that are repeated. Of a longer one only the passages nearest to the request are."""

_VALUE = re.compile(r"(?!.*: )-?[\w$€£]\S*(?: \S+){0,5}(?<![^\w%°)])")
"""A number, a name, a date: anything that can stand inside a sentence."""

_NUMBERED = re.compile(r"\s*\d+\t")
_ADVICE = re.compile(r"(?<![\w./-])[a-z]+(?:_[a-z]+)+(?![\w/-]|\.\w)|\btell the user\b")
"""Advice to the model names a tool, or what to tell. Names of tools of one word may be ordinary words."""
_TWO_WORDS = re.compile(r"[a-z] [a-z]")
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


def clean_result(result: ResultMessage) -> str:
    """The text of a result without what is meant for the model: line numbers, notes, and advice what to do next."""
    whole = find_own_text(result).strip("\n")
    lines, broken = _drop_cuts(whole.splitlines())
    while lines and _is_note(lines[-1]):
        lines.pop()
    while lines and _is_note(lines[0]):
        lines.pop(0)
    if not lines:  # the note is all there is, such as an exit code
        return whole.strip("[]")
    if result.ok and all(_NUMBERED.match(line) or line in broken for line in lines):
        lines = [_NUMBERED.sub("", line) for line in lines if line not in broken] or lines
    text = "\n".join(lines).strip()
    if result.ok:
        return text
    sentences = re.split(r"(?<=[.!?])\s+", text)
    return " ".join(each for each in sentences if not _ADVICE.search(each)).strip() or text


def _drop_cuts(lines: list[str]) -> tuple[list[str], set[str]]:
    """The lines without the marks of what was cut out, and those beside a mark: they may lack an end or a beginning."""
    cuts = {number for number, line in enumerate(lines) if line.startswith("[… ")}
    broken = {line for number, line in enumerate(lines) if {number - 1, number + 1} & cuts}
    return [line for number, line in enumerate(lines) if number not in cuts], broken


def _is_note(line: str) -> bool:
    """Whether a line is a note of a tool: words in brackets. Lists of values have marks between their words."""
    is_framed = line.startswith("[") and line.endswith("]") and line[1:2] not in ("'", '"', "[", "{")
    return is_framed and bool(_TWO_WORDS.search(line))


def build_prompt(request: str, result: str) -> str:
    """A few examples, then this request and its result up to where the answer begins."""
    examples = "".join(f"{_build_case(*case)} {answer}\n\n" for *case, answer in _EXAMPLES)
    return examples + _build_case(request, result)


def build_grammar(request: str, result: str) -> str:
    """The grammar of the answers: the result to the letter, between words of the request."""
    literal = quote_literal(result)
    if not _VALUE.fullmatch(result):
        says = ":\n" if "\n" in result else ": "
        leads = [quote_literal(f"{path} says{says}") for path in find_paths(request) if path not in result]
        return f'root ::= " " {_build_option(leads)} {literal}\n'
    verbs = " | ".join(quote_literal(f"{verb} ") for verb in _VERBS)
    # The lead is a run of words in the request that holds all its numbers and paths.
    marks = [(match.start(), match.end()) for match in re.finditer(r"\S+", request)]
    runs = [request[start:end].strip(_EDGES) for i, (start, _) in enumerate(marks) for _, end in marks[i : i + 8]]
    needed = Counter([*find_numbers(request), *find_paths(request)])
    spans = dict.fromkeys(run for run in runs if run and needed <= Counter([*find_numbers(run), *find_paths(run)]))
    leads = [quote_literal(f"{span} ") for span in spans]
    words = [word for word in extract_words(request) if word.isalpha() and word not in COMMON]
    units = [quote_literal(f" {word}") for word in words]
    frame = f'("The "? ({" | ".join(leads)}) ({verbs})?)?' if leads else ""
    return f'root ::= " " {frame} {literal} {_build_option(units)} "."\n'


def shorten_result(result: str, request: str) -> str:
    """The result. Of a long one the lines that share most words with the request, in their order."""
    result = result.strip()
    if len(result) <= LONGEST_QUOTE:
        return result
    lines = [line.strip() for line in re.split(r"\n+|(?<=[.!?])\s+", result) if line.strip()]
    wanted = set(extract_words(request)) - COMMON
    nearest = sorted(range(len(lines)), key=lambda i: (-len(wanted & set(extract_words(lines[i]))), i))
    kept: list[int] = []
    for i in nearest:
        if sum(len(lines[k]) for k in kept) + len(lines[i]) <= LONGEST_QUOTE:
            kept.append(i)
    if not kept:
        return f"{result[:LONGEST_QUOTE]}…"
    return "\n".join(lines[i] for i in sorted(kept)) + "\n…"


def _build_case(request: str, result: str) -> str:
    return f"Request: {request}\nFound: {result}\nAnswer:"


def _build_option(choices: list[str]) -> str:
    return f"({' | '.join(choices)})?" if choices else ""
