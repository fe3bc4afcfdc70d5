"""A command fills its private copy with traps. None of them reaches the user's repository, and nothing runs later."""

import os
import subprocess
import zlib
from hashlib import sha1
from pathlib import Path

import pytest

from tests.git.place import Command, put_commit, put_object, set_main
from tests.git.victim import Victim
from tests.kit.host_git import GIT_ENVIRONMENT
from treadle.git import new_objects, take_back, take_refs
from treadle.git.index_file import EntryState, render_index
from treadle.git.object_format import SHA1
from treadle.git.private_copy import MARKER

FILES = ["HEAD", "index", "packed-refs", "refs/heads/x", "logs/HEAD", "MERGE_MSG"]


def run_canary(canary: Path) -> str:
    return f"sh -c 'touch {canary}'"


def write(command: Command, name: str, text: str, mode: int = 0o644) -> None:
    place = command.folder / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    place.chmod(mode)


def link(command: Command, name: str, target: Path) -> None:
    place = command.folder / name
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_dir():
        place.rename(place.with_name("moved"))
    place.unlink(missing_ok=True)
    place.symlink_to(target)


SETTINGS = "[core]\n\tfsmonitor = {0}\n\tsshCommand = {0}\n[diff]\n\texternal = {0}\n[alias]\n\tstatus = !{0}\n"


@pytest.mark.parametrize("name", ["config", "config.worktree"])
def test_settings_are_never_kept(victim: Victim, name: str) -> None:
    rejected = victim.suffer(lambda command, canary: write(command, name, SETTINGS.format(run_canary(canary))))
    assert any(name in sentence for sentence in rejected)


@pytest.mark.parametrize("name", ["pre-commit", "post-index-change", "fsmonitor-watchman", "reference-transaction"])
def test_hooks_are_never_kept(victim: Victim, name: str) -> None:
    rejected = victim.suffer(lambda c, canary: write(c, f"hooks/{name}", f"#!/bin/sh\ntouch {canary}\n", 0o755))
    assert any("hooks" in sentence for sentence in rejected)
    assert not (victim.git_dir / "hooks" / name).exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("commondir", "../evil\n"),
        ("gitdir", "/tmp/x/.git\n"),
        ("modules/x/config", SETTINGS.format("touch x")),
        ("worktrees/x/commondir", "../..\n"),
        ("worktrees/x/gitdir", "/tmp/x/.git\n"),
        ("objects/info/alternates", "/tmp\n"),
        ("objects/info/http-alternates", "http://127.0.0.1:9/\n"),
        ("info/attributes", "* filter=x diff=x\n"),
        ("info/grafts", "1234\n"),
        ("HEAD.lock", ""),
        ("index.lock", ""),
        ("refs/heads/main.lock", ""),
        ("packed-refs.lock", ""),
        ("shallow", "1" * 40 + "\n"),
        ("FETCH_HEAD", "x\n"),
        ("rebase-apply/next", "1\n"),
        ("sharedindex." + "1" * 40, "x"),
        ("fsmonitor--daemon.ipc", "x"),
        ("BISECT_LOG", "git bisect start\n"),
        ("rebase-merge/gpg_sign_opt", "-S"),
        ("rebase-merge/unknown", "x"),
    ],
)
def test_other_files_are_never_kept(victim: Victim, name: str, text: str) -> None:
    victim.suffer(lambda command, canary: write(command, name, text))
    assert not (victim.git_dir / name).exists()


@pytest.mark.parametrize(
    "name",
    [
        *("HEAD", "index", "packed-refs", "refs", "refs/heads", "refs/heads/main", "objects", "objects/pack", "logs"),
        *("logs/HEAD", "logs/refs/heads/main", "logs/refs/stash", "COMMIT_EDITMSG", "MERGE_MSG", "MERGE_HEAD"),
        *("rebase-merge", "rebase-merge/git-rebase-todo", "sequencer/opts", "config", "treadle-marker", "objects/ab"),
    ],
)
@pytest.mark.parametrize("has_commit", [True, False])
def test_links_are_not_followed(victim: Victim, name: str, has_commit: bool, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    (secret / "heads").mkdir(parents=True)
    (secret / "id").write_text("private text of the user\n")

    def attack(command: Command, canary: Path) -> None:
        if has_commit:
            command.git("commit", "-q", "--allow-empty", "-m", "x")
        link(command, name, secret / "id" if "/" in name else secret)

    victim.suffer(attack)
    assert sorted(path.name for path in secret.rglob("*")) == ["heads", "id"]
    assert (secret / "id").read_text() == "private text of the user\n"
    found = subprocess.run(["grep", "-r", "private text", victim.git_dir], capture_output=True, check=False)
    assert found.stdout == b""


@pytest.mark.parametrize("name", [*FILES, "objects/ab/c"])
def test_a_pipe_does_not_stop_the_take_back(victim: Victim, name: str) -> None:
    def attack(command: Command, canary: Path) -> None:
        place = command.folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        os.mkfifo(place)

    victim.suffer(attack)


@pytest.mark.parametrize("name", [*FILES, "config"])
def test_a_huge_file_is_not_read(victim: Victim, name: str) -> None:
    def attack(command: Command, canary: Path) -> None:
        (command.folder / name).parent.mkdir(parents=True, exist_ok=True)
        with (command.folder / name).open("ab") as file:
            file.truncate(1 << 40)

    victim.suffer(attack)


CONTENT = b"blob 5\0hello"
DAMAGED = {
    "wrong hash": zlib.compress(b"blob 5\0jello"),
    "cut off": zlib.compress(CONTENT)[:-3],
    "garbage after": zlib.compress(CONTENT) + b"x",
    "wrong size": zlib.compress(b"blob 4\0hello"),
    "no zlib": CONTENT,
    "wrong head": zlib.compress(b"blub 5\0hello"),
    "bomb": zlib.compress(b"blob 9999999\0" + bytes(9_999_999)),
    "empty": b"",
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_object_is_refused(victim: Victim, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_objects, "MAX_OBJECT_BYTES", 1 << 20)
    right = sha1(CONTENT).hexdigest()

    def attack(command: Command, canary: Path) -> None:
        put_object(command, "blob", b"", right)
        (command.folder / "objects" / right[:2] / right[2:]).write_bytes(DAMAGED[what])

    rejected = victim.suffer(attack)
    assert right[:12] in rejected[0] and victim.git("cat-file", "-e", right, check=False) == ""
    assert not (victim.git_dir / "objects" / right[:2] / right[2:]).exists()


def test_a_bomb_of_small_objects_is_bounded(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(take_back, "_WORK_BYTES", 10 << 20)
    rejected = victim.suffer(
        lambda command, canary: [put_object(command, "blob", bytes([number]) * (3 << 20)) for number in range(8)]
    )
    assert any("more work than is allowed" in sentence for sentence in rejected)


NAMES = [
    *(b".git", b".GIT", b".Git ", b".git.", b"git~1", b"GIT~2", b".g\xe2\x80\x8cit", b".git::$INDEX_ALLOCATION"),
    *(b"..", b".", b"a/b", b"x\\.git\\config"),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_tree_with_a_dangerous_name_is_refused(victim: Victim, name: bytes) -> None:
    def attack(command: Command, canary: Path) -> None:
        blob = put_object(command, "blob", b"x")
        tree = put_object(command, "tree", b"100644 " + name + b"\0" + bytes.fromhex(blob))
        set_main(command, put_commit(command, tree, command.copy.refs["refs/heads/main"]))

    before = victim.git("rev-parse", "main")
    rejected = victim.suffer(attack)
    assert "refs/heads/main was not kept" in rejected[0] and victim.git("rev-parse", "main~1") == before


@pytest.mark.parametrize(
    "tree",
    [
        b"100644 b\0" + bytes(20) + b"100644 a\0" + bytes(20),
        b"100644 a\0" + bytes(19),
        b"100644 a" + bytes(20),
        b"777 a\0" + bytes(20),
        b"40000 a\0" + b"1" * 20,
        b"120000 .gitmodules\0" + b"1" * 20,
    ],
)
def test_a_damaged_or_incomplete_tree_is_refused(victim: Victim, tree: bytes) -> None:
    def attack(command: Command, canary: Path) -> None:
        set_main(command, put_commit(command, put_object(command, "tree", tree)))

    assert "refs/heads/main was not kept" in victim.suffer(attack)[0]


def test_a_commit_without_its_parent_is_refused_also_the_second_time(victim: Victim) -> None:
    tree = victim.git("rev-parse", "HEAD^{tree}")
    for _ in range(2):
        rejected = victim.suffer(lambda command, canary: set_main(command, put_commit(command, tree, "1" * 40)))
        assert "refs/heads/main was not kept" in rejected[0] and victim.subjects()[-1] == "one"


BAD_REFS = [
    *("refs/heads/-x", "refs/heads/HEAD", "refs/heads/a..b", "refs/heads/@{1}", "refs/heads/x y", "refs/heads/.x"),
    *("refs/heads/x~1", "refs/heads/a\tb", "refs/heads/x.", "refs/heads/a/@", "refs/heads/\udcff"),
    *("refs/replace/" + "1" * 40, "refs/remotes/origin/main", "refs/notes/commits", "refs/bisect/bad", "refs/x"),
    *("refs/original/x/y", "refs/worktree/x"),
    *("refs/heads/$(id)", "refs/heads/`id`", "refs/tags/a;b", "refs/heads/a|b", "refs/heads/x'y", 'refs/heads/x"y'),
    *("refs/heads/x\u009b31m", "refs/heads/main\u200b", "refs/heads/\u202ex"),
]


@pytest.mark.parametrize("name", BAD_REFS)
@pytest.mark.parametrize("is_packed", [True, False])
def test_refs_of_other_names_are_never_kept(victim: Victim, name: str, is_packed: bool) -> None:
    def attack(command: Command, canary: Path) -> None:
        head = command.copy.refs["refs/heads/main"]
        if is_packed:
            with (command.folder / "packed-refs").open("ab") as file:
                file.write(os.fsencode(f"{head} {name}\n"))
        else:
            write(command, name, f"{head}\n")

    rejected = victim.suffer(attack)
    assert victim.git("for-each-ref", "--format=%(refname)") == "refs/heads/main"
    assert len(rejected) == 1
    assert not any("\t" in sentence or "\udcff" in sentence for sentence in rejected)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("refs/heads/x", "ref: refs/heads/main"),
        ("refs/heads/main", "ref: ../../secret"),
        ("refs/heads/main", "1" * 40),
        ("refs/heads/main", "nonsense"),
        ("refs/heads/main", ""),
        ("HEAD", "ref: refs/remotes/x"),
        ("HEAD", "ref: ../config"),
        ("HEAD", "ref: refs/heads/$(id)"),
        ("HEAD", "2" * 40),
        ("HEAD", "nonsense"),
        ("refs/stash", "{head}"),
    ],
)
def test_bad_values_of_refs_are_never_kept(victim: Victim, name: str, value: str) -> None:
    def attack(command: Command, canary: Path) -> None:
        write(command, name, value.format(head=command.copy.refs["refs/heads/main"]) + "\n")

    assert len(victim.suffer(attack)) == 1 and victim.subjects() == ["after", "one"]
    assert victim.git("for-each-ref", "--format=%(refname)") == "refs/heads/main"


def test_a_branch_cannot_lead_to_a_tree(victim: Victim) -> None:
    rejected = victim.suffer(lambda command, canary: set_main(command, command.git("rev-parse", "HEAD^{tree}")))
    assert "a branch must lead to a commit" in rejected[0]


EXECS = [
    "exec touch {canary}\n",
    "x touch {canary}\n",
    "pick {head} x\nexec touch {canary}\n",
    "\texec touch {canary}\n",
]


@pytest.mark.parametrize("line", EXECS)
def test_exec_lines_of_a_rebase_are_dropped(victim: Victim, line: str) -> None:
    def attack(command: Command, canary: Path) -> None:
        head = command.copy.refs["refs/heads/main"]
        for name, text in {
            "git-rebase-todo": line.format(canary=canary, head=head),
            "done": line.format(canary=canary, head=head),
            "head-name": "refs/heads/main\n",
            "onto": head,
            "orig-head": head,
            "interactive": "",
            "end": "1\n",
            "msgnum": "0\n",
            "strategy": "../../../tmp/evil\n",
            "strategy_opts": "--upload-pack=evil\n",
            "gpg_sign_opt": "-S\n",
            "author-script": f"GIT_AUTHOR_NAME='x'; touch {canary}\n",
            "rewritten-list": "x\n",
        }.items():
            write(command, f"rebase-merge/{name}", text)

    command = victim.start_command()
    canary = victim.aside / "canary"
    attack(command, canary)
    report = command.end()
    kept = sorted(path.name for path in (victim.git_dir / "rebase-merge").iterdir())
    assert kept == ["done", "end", "git-rebase-todo", "head-name", "interactive", "msgnum", "onto", "orig-head"]
    assert report and any("exec lines" in sentence for sentence in report.rejected)
    assert "exec" not in (victim.git_dir / "rebase-merge/git-rebase-todo").read_text()
    victim.git("rebase", "--continue", check=False)
    victim.git("rebase", "--abort", check=False)
    assert not canary.exists()
    victim.check()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sequencer/opts", "[options]\n\tstrategy = evil\n"),
        ("sequencer/opts", "[options]\n\tgpg-sign = x\n"),
        ("sequencer/opts", "[core]\n\tfsmonitor = x\n"),
        ("sequencer/opts", "[include]\n\tpath = /tmp/x\n"),
        ("sequencer/head", "nonsense\n"),
        ("MERGE_HEAD", "1" * 40 + "\n"),
        ("MERGE_MODE", "evil"),
        ("MERGE_AUTOSTASH", "x"),
        ("CHERRY_PICK_HEAD", "../x"),
        ("AUTO_MERGE", "1" * 40),
        ("MERGE_MSG", "x\0y"),
        ("rebase-merge/head-name", "refs/remotes/x\n"),
        ("rebase-merge/update-refs", "refs/remotes/x\n" + "0" * 40 + "\n" + "0" * 40 + "\n"),
        ("rebase-merge/end", "x" * 50),
    ],
)
def test_bad_state_of_an_operation_is_never_kept(victim: Victim, name: str, text: str) -> None:
    rejected = victim.suffer(lambda command, canary: write(command, name, text))
    assert any(f"{name} in .git was not kept" in sentence for sentence in rejected)
    assert not (victim.git_dir / name).exists()


@pytest.mark.parametrize("missing", ["head-name", "onto", "orig-head"])
@pytest.mark.parametrize("is_empty", [True, False])
def test_a_rebase_that_git_could_not_end_is_never_kept(victim: Victim, missing: str, is_empty: bool) -> None:
    def attack(command: Command, canary: Path) -> None:
        head = command.copy.refs["refs/heads/main"]
        for name, text in (("head-name", "refs/heads/main"), ("onto", head), ("orig-head", head), ("end", "1")):
            if is_empty or name != missing:
                write(command, f"rebase-merge/{name}", "" if name == missing else f"{text}\n")

    assert "neither continued nor ended" in victim.suffer(attack)[0]
    assert not (victim.git_dir / "rebase-merge").exists()


@pytest.mark.parametrize(
    "text", ["nonsense\n", "\0" * 100, "{zero} {head} x\n", "{zero} {head} A <a> 1 +0000\tx\x1b[0m\n"]
)
def test_a_rewritten_log_is_replaced_by_our_own_line(victim: Victim, text: str) -> None:
    def attack(command: Command, canary: Path) -> None:
        command.git("commit", "-q", "--allow-empty", "-m", "x")
        head = command.git("rev-parse", "HEAD")
        for name in ("logs/HEAD", "logs/refs/heads/main"):
            (command.folder / name).write_text(text.format(zero="0" * 40, head=head))

    before = (victim.git_dir / "logs/HEAD").read_text()
    victim.suffer(attack)
    log = (victim.git_dir / "logs/HEAD").read_text()
    assert log.startswith(before) and "treadle: kept from a command" in log and "\x1b" not in log


def test_a_replaced_repository_is_noticed(victim: Victim) -> None:
    def attack(command: Command, canary: Path) -> None:
        subprocess.run(
            f"rm -rf {command.folder}/* && git init -q",
            shell=True,
            env={**GIT_ENVIRONMENT, "GIT_DIR": str(command.folder)},
            check=True,
        )
        command.git("commit", "-q", "--allow-empty", "-m", "other")
        command.git("branch", "-M", "main")

    assert victim.suffer(attack) == ("The repository was replaced by another one. Nothing was kept.",)
    assert victim.subjects() == ["after", "one"]


def test_sentences_are_few_and_short(victim: Victim) -> None:
    rejected = victim.suffer(
        lambda command, canary: [write(command, f"refs/heads/-{number}{'n' * 200}", "x\n") for number in range(100)]
    )
    assert len(rejected) == 20 and "more changes were not kept" in rejected[-1]
    assert all(len(sentence) <= 400 for sentence in rejected)


def test_millions_of_files_are_bounded(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_objects, "MAX_OBJECTS", 50)
    rejected = victim.suffer(
        lambda command, canary: [put_object(command, "blob", str(number).encode()) for number in range(200)]
    )
    assert any("more than 50 git objects" in sentence for sentence in rejected)


def test_very_many_branches_are_not_taken_one_by_one(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(take_refs, "_MAX_CHANGES", 3)
    command = victim.start_command()
    command.git("commit", "-q", "--allow-empty", "-m", "kept")
    head = command.git("rev-parse", "HEAD").strip()
    lines = "".join(f"{head} refs/heads/a{number}\n" for number in range(9))
    with (command.folder / "packed-refs").open("a") as file:
        file.write(lines)
    report = command.end()
    assert report is not None and len(report.changes) >= 3
    assert any("branches and tags were not kept" in sentence for sentence in report.rejected), report
    assert victim.git("log", "-1", "--format=%s").strip() == "kept"
    assert len(victim.git("branch", "--list", "a*").split()) == 2


def test_very_many_staged_files_are_not_kept(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(take_back, "MAX_OBJECTS", 10)

    def attack(command: Command, canary: Path) -> None:
        blob = bytes.fromhex(command.git("rev-parse", "HEAD:a.txt"))
        entries = {(b"%04d" % number, 0, 0o100644, blob, False): EntryState() for number in range(100)}
        (command.folder / "index").write_bytes(render_index(entries, SHA1))

    assert "more than 10 files were staged at once" in victim.suffer(attack)[0] and victim.seen == []


def test_a_branch_of_the_user_may_have_any_name(victim: Victim) -> None:
    victim.git("switch", "-qc", "fix-(one)")
    report = victim.run_gits("commit --allow-empty -qm x")
    assert report.rejected == () and victim.subjects() == ["x", "one"]


def test_a_copy_with_the_marker_of_another_is_noticed(victim: Victim) -> None:
    def attack(command: Command, canary: Path) -> None:
        (command.folder / MARKER).write_text("another")

    assert victim.suffer(attack) == ("The repository was replaced by another one. Nothing was kept.",)
