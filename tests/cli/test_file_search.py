"""Files are found by some of their letters, and a hostile folder cannot make the search long."""

from pathlib import Path

import pytest

from treadle.app import file_search
from treadle.app.file_search import list_paths, search_paths


def fill(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")


def test_ignored_linked_and_unprintable_names_are_left_out(tmp_path: Path) -> None:
    fill(tmp_path, "src/a.py", "src/a.pyc", "build/out.js", "node_modules/x.js", "bad\x1bname", "docs/build.md")
    (tmp_path / ".gitignore").write_text("*.pyc\n/build/\n")
    (tmp_path / "link").symlink_to("/")
    assert list_paths(tmp_path) == [".gitignore", "docs/", "link", "src/", "docs/build.md", "src/a.py"]


def test_a_name_is_better_than_a_folder_and_a_word_is_better_than_scattered_letters() -> None:
    paths = ["status/a.py", "src/cli/status.py", "src/set_apart_tools.py", "other.py"]
    assert [one.path for one in search_paths("stat", paths)] == ["src/cli/status.py", "status/a.py", paths[2]]


def test_the_search_ends_in_time_within_one_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, *(f"{number:03}" for number in range(500)))
    clock = iter(range(1000))
    monkeypatch.setattr(file_search, "MAX_SECONDS", 100)
    monkeypatch.setattr(file_search.time, "monotonic", lambda: next(clock))
    assert 0 < len(list_paths(tmp_path)) < 110
