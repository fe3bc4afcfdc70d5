"""Find the files of a folder by some of their letters. It only reads names, and only for a bounded time."""

from __future__ import annotations

import os
import time
from collections import deque
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

MAX_FILES = 20_000
MAX_SECONDS = 1.0
MAX_MATCHES = 100
_MAX_IGNORE_BYTES = 64 * 1024
_SKIPPED = {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", ".mypy_cache", ".ruff_cache"}


class FileMatch(NamedTuple):
    """A path that has the letters. `places` are their positions in it. The path of a folder ends in a slash."""

    path: str
    places: set[int]


def list_paths(folder: Path) -> list[str]:
    """List files and folders below a folder, nearest first, without those that `.gitignore` names.

    It ends after `MAX_FILES` names or `MAX_SECONDS`, and follows no link.
    """
    found: list[str] = []
    end = time.monotonic() + MAX_SECONDS
    waiting: deque[tuple[str, tuple[tuple[str, str], ...]]] = deque([("", ())])
    while waiting and time.monotonic() < end:
        at, rules = waiting.popleft()
        rules += tuple((at, rule) for rule in read_ignored_names(folder / at / ".gitignore"))
        try:
            with os.scandir(folder / at) as opened:
                entries = sorted(opened, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            if len(found) >= MAX_FILES or time.monotonic() > end:  # one folder may have many files, and many rules
                break
            path, is_folder = at + entry.name, entry.is_dir(follow_symlinks=False)
            if entry.name in _SKIPPED or _is_ignored(path, rules, is_folder=is_folder):
                continue
            found.append(f"{path}/" if is_folder else path)
            if is_folder:
                waiting.append((f"{path}/", rules))
    return [path for path in found if path.isprintable()]


def read_ignored_names(file: Path) -> list[str]:
    """Read the patterns of a `.gitignore`. Exceptions from them (`!name`) are left out: their files are hidden too."""
    try:
        if not file.is_file() or file.is_symlink():
            return []
        with file.open("rb") as opened:
            lines = opened.read(_MAX_IGNORE_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [line.strip() for line in lines if line.strip() and not line.startswith(("#", "!"))]


def _is_ignored(path: str, rules: tuple[tuple[str, str], ...], *, is_folder: bool) -> bool:
    for at, rule in rules:
        if rule.endswith("/") and not is_folder:
            continue
        plain, inner = rule.strip("/").removeprefix("**/"), path.removeprefix(at)
        if fnmatchcase(inner if "/" in plain or rule.startswith("/") else inner.rpartition("/")[2], plain):
            return True
    return False


def match_letters(letters: str, path: str) -> tuple[int, set[int]] | None:
    """Find the letters in a path in their order. Return a cost and their places, or None.

    Letters at the start of a word and next to each other cost least. Upper and lower case are the same.
    """
    low, wanted = path.lower(), letters.lower()
    if wanted in low:  # all of them stand together
        start = low.find(wanted, low.rstrip("/").rfind("/") + 1)  # best of all in the name itself
        at = start if start >= 0 else low.rfind(wanted)
        is_word = at == 0 or not low[at - 1].isalnum()
        return (0 if is_word else 2) + (0 if start >= 0 else 3), set(range(at, at + len(wanted)))
    for find in (_find_word, str.find):  # a word's start may stand behind the only place of the next letter
        places: list[int] = []
        for letter in wanted:
            at = places[-1] + 1 if places else 0
            places.append(at if places and low[at : at + 1] == letter else find(low, letter, at))
            if places[-1] < 0:
                break
        else:
            gaps = sum(two - one > 1 for one, two in pairwise(places))
            return 10 + gaps + (places[-1] - places[0]) // 8, set(places)
    return None


def _find_word(text: str, letter: str, start: int) -> int:
    """Find the next word that begins with the letter, else the next place of the letter."""
    places = (at for at in range(start, len(text)) if text[at] == letter and (at == 0 or not text[at - 1].isalnum()))
    return next(places, text.find(letter, start))


def search_paths(letters: str, paths: list[str]) -> list[FileMatch]:
    """Return the best matches. Hidden files match only if the letters name them by a dot."""
    found: list[tuple[int, int, int, FileMatch]] = []
    for position, path in enumerate(paths):
        is_hidden = path.startswith(".") or "/." in path
        if is_hidden and "." not in letters[:1] and "/." not in letters:
            continue
        if letters.endswith("/") and path == letters:
            continue  # its contents are asked for
        if (match := match_letters(letters, path)) is not None:
            found.append((match[0], path.rstrip("/").count("/"), position, FileMatch(path, match[1])))
    found.sort(key=lambda one: one[:3])
    return [one[3] for one in found[:MAX_MATCHES]]
