"""Which settings of git a command gets, and which repositories of a workspace are accepted."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.git_places import GitPlace, user_settings
from treadle.git.remote_address import remove_account
from treadle.git.repository import Repository
from treadle.sandbox import git_settings
from treadle.sandbox.git_settings import (
    Setting,
    build_private_config,
    build_user_config,
    find_setting,
    read_excludes,
    read_settings,
)
from treadle.sandbox.repositories import find_repositories
from treadle.sandbox.workspace_scan import scan_workspace


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GitPlace]:
    place = GitPlace(tmp_path)
    with user_settings(place, monkeypatch):
        yield place


@pytest.mark.parametrize(
    ("address", "stripped"),
    [
        ("https://me:token@example.org/x", "https://example.org/x"),
        ("https://token@ssh.example.org/x?key=1#2", "https://ssh.example.org/x"),
        ("http::https://me:token@example.org/x", "http::https://example.org/x"),
        ("ssh://git:password@example.org/x", "ssh://git@example.org/x"),
        ("git@example.org:me/x", "git@example.org:me/x"),
        ("../a@b/c", "../a@b/c"),
    ],
)
def test_addresses_lose_their_secrets(address: str, stripped: str) -> None:
    assert remove_account(address) == stripped


def test_only_harmless_settings_are_passed_on_and_git_reads_them_as_they_were(place: GitPlace) -> None:
    work_tree = place.make_layout("plain")
    odd = 'a "b" \\ c\td # e'
    place.host(
        "git config core.fsmonitor x; git config alias.a x; git config filter.f.clean x; git config include.path x; "
        "git config core.pager x; git config http.extraheader x; git config branch.main.remote origin; "
        "git config core.hooksPath .husky/_; git config submodule.s.update '!x'; git config diff.external x"
    )
    place.host(f"git config user.name '{odd}'; git config 'branch.o\"d.remote' origin")
    git_dir = work_tree / ".git"
    text = build_private_config(
        read_settings(git_dir, git_dir), Repository(work_tree, git_dir, git_dir), work_tree, names_work_tree=True
    )
    (place.folder / "config").write_text(text)
    listed = place.host(f"git config -f {place.folder}/config -l").splitlines()
    keys = {line.partition("=")[0] for line in listed}
    assert not keys & {
        "core.fsmonitor",
        "alias.a",
        "filter.f.process",
        "include.path",
        "core.pager",
        "http.extraheader",
    }
    assert not keys & {"submodule.s.update", "diff.external"} and "filter.f.clean=x" not in listed
    assert {"branch.main.remote=origin", 'branch.o"d.remote=origin', "core.hookspath=.husky/_"} <= set(listed)
    assert f"user.name={odd}" in listed and f"core.worktree={work_tree}" in listed


def test_hooks_elsewhere_are_not_named(place: GitPlace) -> None:
    work_tree = place.make_layout("plain")
    settings = [Setting("core.hookspath", str(place.folder), is_own=True)]
    text = build_private_config(settings, Repository(work_tree, work_tree, work_tree), work_tree, names_work_tree=False)
    assert "hookspath" not in text


def test_a_file_that_the_repository_includes_is_not_read(place: GitPlace) -> None:
    work_tree = place.make_layout("plain")
    (place.folder / "private").write_text('[remote "secret"]\n\turl = https://example.org/secret\n')
    place.host(f"git config include.path {place.folder}/private")
    settings = read_settings(work_tree / ".git", work_tree / ".git")
    assert find_setting(settings, "remote.secret.url") is None
    assert find_setting(settings, "user.name") == "Ann Author"


def test_settings_are_read_again_only_after_a_change(place: GitPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    git_dir = place.make_layout("plain") / ".git"
    read_settings(git_dir, git_dir)
    with monkeypatch.context() as patch:
        patch.setattr(git_settings, "_GIT", ())
        assert find_setting(read_settings(git_dir, git_dir), "user.name") == "Ann Author"
    (place.home / ".gitconfig").write_text("[user]\n\tname = Bob\n")
    assert find_setting(read_settings(git_dir, git_dir), "user.name") == "Bob"
    assert 'name = "Bob"' in build_user_config()


def test_the_users_list_of_ignored_files_is_theirs_and_not_the_repositorys_choice(place: GitPlace) -> None:
    git_dir = place.make_layout("plain") / ".git"
    (place.folder / "secret").write_text("the-secret")
    place.host(f"git config core.excludesFile {place.folder}/secret")
    assert read_excludes(read_settings(git_dir, git_dir)) == ""
    (place.home / "ignored").write_text("*.log\n")
    with (place.home / ".gitconfig").open("a") as file:
        file.write("[core]\n\texcludesFile = ~/ignored\n")
    assert read_excludes(read_settings(git_dir, git_dir)) == "*.log\n"


def accepted(place: GitPlace) -> list[str]:
    found = find_repositories(place.workspace, scan_workspace(place.workspace).repositories)
    return [one.entry for one in found.accepted]


def test_folders_worktrees_and_submodules_are_accepted(place: GitPlace) -> None:
    place.make_layout("submodule")
    place.host("git worktree add -q trees/one; git init -q nested; git commit -q --allow-empty -m x", place.workspace)
    assert sorted(accepted(place)) == [".git", "libs/sub/.git", "nested/.git", "trees/one/.git"]


@pytest.mark.parametrize(
    "change",
    [
        "git config core.worktree /elsewhere",
        "git config core.bare true",
        "echo x > .git/commondir",
        "mv .git/objects o; ln -s $PWD/o .git/objects",
        "mv .git/HEAD h; ln -s $PWD/h .git/HEAD",
        "mv .git/config c; ln -s $PWD/c .git/config",
        "mv .git g; ln -s g .git",
        "mv .git g; echo gitdir: g > .git",
        "mv .git g; mkfifo .git",
    ],
)
def test_a_folder_that_leads_elsewhere_is_not_accepted(change: str, place: GitPlace) -> None:
    place.make_layout("plain")
    assert accepted(place) == [".git"]
    place.host(change)
    assert ".git" not in accepted(place)


@pytest.mark.parametrize("layout", ["worktree", "submodule"])
def test_a_file_is_accepted_only_where_it_belongs(layout: str, place: GitPlace) -> None:
    tree = place.make_layout(layout)
    entry = str((tree / ".git").relative_to(place.workspace))
    assert entry in accepted(place)
    (place.workspace / "copy").mkdir()
    gitdir = place.host("git rev-parse --absolute-git-dir", tree).strip()
    (place.workspace / "copy/.git").write_text(f"gitdir: {gitdir}\n")
    (place.workspace / "way").symlink_to(os.path.dirname(gitdir))
    assert "copy/.git" not in accepted(place)
    (tree / ".git").write_text(f"gitdir: {place.workspace}/way/{os.path.basename(gitdir)}\n")
    assert entry not in accepted(place)


def test_only_the_nearest_repositories_get_a_copy(place: GitPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.sandbox.repositories.MAX_COPIES", 2)
    place.make_layout("plain")
    place.host("for d in a a/b a/b/c; do git init -q $d; done")
    found = find_repositories(place.workspace, scan_workspace(place.workspace).repositories)
    assert [one.entry for one in found.accepted] == [".git", "a/.git"] and "2 nearest" in found.notes[-1]
