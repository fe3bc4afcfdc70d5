"""Diffs of lines: what they say is right, also for large files, and their work is bounded."""

import difflib
import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.workspace import line_diff
from treadle.workspace.line_diff import MAX_WORK, diff_lines

Lines = st.lists(st.sampled_from("abcdefgh"), max_size=25)
HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")


def apply_diff(old: Sequence[str], diff: Sequence[str]) -> list[str]:
    """Apply a unified diff as a patching program does."""
    new: list[str] = []
    at = 0
    for line in diff[2:]:
        if hunk := HUNK.fullmatch(line):
            start = int(hunk[1]) - (hunk[2] != "0")
            new += old[at:start]
            at = start
            continue
        if line[0] in " -":
            assert old[at] == line[1:]
            at += 1
        if line[0] in " +":
            new.append(line[1:])
    return [*new, *old[at:]]


@given(Lines, Lines)
def test_a_diff_of_large_files_leads_from_one_to_the_other(old: list[str], new: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_diff, "MAX_WORK", 10)  # so that these files are large ones
        found = list(diff_lines(old, new, "a", "b", ""))
    assert apply_diff(old, found) == new and (bool(found) or old == new)


def test_a_diff_of_small_files_is_that_of_the_standard_library() -> None:
    old, new = ["one\n", "two\n", "three\n"], ["one\n", "2\n", "three\n"]
    assert list(diff_lines(old, new, "a", "b")) == list(difflib.unified_diff(old, new, "a", "b"))


def test_lines_that_are_unique_align_a_large_file() -> None:
    old = [f"line {at}" for at in range(6000)]
    new = [*old[:10], "added", *old[10:3000], "changed", *old[3001:]]
    found = list(diff_lines(old, new, "a", "b", ""))
    assert found[2:7] == ["@@ -8,6 +8,7 @@", " line 7", " line 8", " line 9", "+added"]
    assert [line for line in found[7:] if line[0] in "+-"] == ["-line 3000", "+changed"]
    assert found == list(difflib.unified_diff(old, new, "a", "b", lineterm=""))


def test_few_equal_lines_in_large_files_are_not_compared_with_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """difflib takes minutes for two files of which every other line is one of a few."""
    old, new = ([line for at in range(8000) for line in (f"{side} {at}", f"key {at % 150}")] for side in "ab")
    compared: list[int] = []

    class Matcher(difflib.SequenceMatcher[str]):
        def __init__(self, junk: None, a: Sequence[str], b: Sequence[str]) -> None:
            compared.append(len(a) * len(b))
            super().__init__(junk, a, b)

    monkeypatch.setattr(difflib, "SequenceMatcher", Matcher)
    found = list(diff_lines(old, new, "a", "b", ""))
    assert sum(compared) <= MAX_WORK and apply_diff(old, found) == new
