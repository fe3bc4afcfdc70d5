"""The commits between two others, compared with what git lists."""

import random
import subprocess
from pathlib import Path

import pytest

from tests.kit.host_git import GIT_ENVIRONMENT, run_git
from treadle.git.commit_list import read_commits
from treadle.git.repository import Repository


@pytest.mark.parametrize("commits_a_second", [1, 5, 20])
def test_the_commits_between_two_are_those_that_git_lists(tmp_path: Path, commits_a_second: int) -> None:
    chance, ids = random.Random(commits_a_second), list[str]()
    run_git(tmp_path, "init", "-q")
    tree = run_git(tmp_path, "write-tree").strip()
    for number in range(20):
        parents = chance.sample(ids[-6:], min(len(ids), chance.choice([1, 1, 1, 2])))
        time = f"{1_700_000_000 + number // commits_a_second} +0000"
        words = ["git", "commit-tree", "-m", f"Number {number}", tree, *(w for one in parents for w in ("-p", one))]
        environment = {**GIT_ENVIRONMENT, "GIT_COMMITTER_DATE": time, "GIT_AUTHOR_DATE": time}
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        ids.append(done.stdout.strip())
    repository = Repository(tmp_path, tmp_path / ".git", tmp_path / ".git")
    for before, after in (chance.sample(ids, 2) for _ in range(15)):
        expected = run_git(tmp_path, "rev-list", after, "--not", before).split()
        found = [line.split()[0] for line in read_commits(repository, before, after, 99)]
        assert sorted(found) == sorted(one[:7] for one in expected)
