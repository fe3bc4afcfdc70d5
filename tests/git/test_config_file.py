"""The settings of a repository are read as git reads them, and nothing else happens."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.git.config_file import ConfigError, parse_config, quote_value

SAMPLE = """\
# a comment
[core]
	bare = false ; another
	FileMode
[remote "origin"]
	url = https://example.org/a.git
	url = "with \\"quotes\\" and # no comment"   # one
	fetch = +refs/heads/*:\\
refs/remotes/origin/*
[branch "a\\"b.c"] merge = refs/heads/a  b \t
[Section.Sub]
	key = two  words
	tab = a\\tb
	empty =
"""


def read_with_git(path: Path) -> dict[str, list[str]]:
    words = ["git", "config", "--file", str(path), "--no-includes", "-z", "--list"]
    done = subprocess.run(words, capture_output=True, check=True)
    found: dict[str, list[str]] = {}
    for entry in done.stdout.decode().split("\0")[:-1]:
        name, separator, value = entry.partition("\n")
        found.setdefault(name, []).append(value if separator else "true")
    return found


def test_a_file_means_what_git_reads_in_it(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(SAMPLE)
    found = parse_config(SAMPLE)
    assert found == read_with_git(path)
    assert found["remote.origin.url"][1] == 'with "quotes" and # no comment'
    assert found['branch.a"b.c.merge'] == ["refs/heads/a  b"]


@pytest.mark.parametrize("text", ["[core", '[remote "a]\nurl = x', '[a]\nb = "open\n', "[a]\nb = \\q", "[a]\n-b = c"])
def test_what_git_refuses_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(subprocess.CalledProcessError):
        read_with_git(path)
    with pytest.raises(ConfigError, match="line"):
        parse_config(text)


@given(st.text(st.characters(blacklist_characters="\0\n\r", blacklist_categories=("Cs",))))
def test_a_quoted_value_is_read_back(value: str) -> None:
    assert parse_config(f"[a {quote_value(value)}]\n\tb = {quote_value(value)}\n") == {f"a.{value}.b": [value]}


def test_a_line_break_cannot_be_quoted() -> None:
    with pytest.raises(ConfigError):
        quote_value("a\n[core]\n\thooksPath = /x")
