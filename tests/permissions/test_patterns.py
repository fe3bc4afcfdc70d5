"""Globs match in linear time."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle import Grant
from treadle.permissions.patterns import Glob, compile_name_glob, compile_path_glob, compile_text_glob
from treadle.permissions.policy import Assessment, decide_call

patterns = st.lists(st.sampled_from(["a", "b", "/", " ", "*", "**", "**/", "?", "[*]", "[?]", "[", "."]), max_size=8)
texts = st.text("ab/ *?[.\n", max_size=10)


@given(patterns.map("".join), texts)
def test_matching_without_backtracking_agrees_with_regular_expressions(pattern: str, text: str) -> None:
    for made in (compile_name_glob(pattern), compile_text_glob(pattern), compile_path_glob(pattern)):
        assert made.matches_without_backtracking(text) == (made._regex.fullmatch(text) is not None)


@pytest.mark.parametrize(
    ("made", "text", "expected"),
    [
        (compile_text_glob("git *"), "git", True),
        (compile_text_glob("git *"), "git log -1", True),
        (compile_text_glob("git *"), "gitk", False),
        (compile_path_glob("src/**"), "src", True),
        (compile_path_glob("src/*"), "src/a/b", False),
        (compile_path_glob("**/x*.py"), "a/b/xy.py", True),
        (compile_path_glob("**/x*.py"), "a/x/b.py", False),
        (compile_text_glob("a[*]?"), "a*b", True),
        (compile_text_glob("a[*]?"), "abb", False),
        (compile_name_glob(""), "", True),
    ],
)
def test_globs_match_names_texts_and_paths(made: Glob, text: str, expected: bool) -> None:
    assert made.matches(text) is made.matches_without_backtracking(text) is expected


@pytest.mark.parametrize("made", [compile_name_glob, compile_text_glob, compile_path_glob])
@pytest.mark.parametrize("hostile", ["*a" * 60 + "b", "**a*a" * 40 + "b", "**/" * 60 + "b", "*" * 190 + "b", "*a*b"])
def test_a_hostile_glob_takes_linear_time(made: Callable[[str], Glob], hostile: str) -> None:
    for text in ("a" * 5000, "a/" * 2500):
        assert made(hostile).matches(text) is False


def test_a_hostile_pattern_in_a_grant_still_decides() -> None:
    grant = Grant(forbid=("t(x=" + "*a" * 60 + "b)",))
    assert decide_call([grant], [], "t", {"x": "a" * 5000}, Assessment("safe")).action == "allow"
    assert decide_call([grant], [], "t", {"x": "a" * 5000 + "b"}, Assessment("safe")).action == "deny"
