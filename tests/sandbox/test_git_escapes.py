"""Attempts to get out through git, each run for real: it must fail in the sandbox and succeed without it.

After each attempt the user runs `git status`, `git diff` and `git commit` outside. A canary that starts then, a victim
that changes or the word REACHED mean that the attempt got through.
"""

import asyncio
import contextlib
from pathlib import Path

import pytest

from tests.kit.git_attempts import (
    SECRET,
    Attempt,
    Prepare,
    borrowed_keys,
    hard_linked,
    hooks_of_a_branch,
    hooks_of_a_place,
    hooks_of_the_folder_above,
    hooks_of_the_user,
    included,
    included_missing,
    link_to_other,
    link_to_tree,
    linked_hooks,
    linked_keys,
    linked_objects,
    missing_hooks,
    nested_link_to_other,
    no_repository,
    other,
    own_hooks,
    settings_of_the_user,
    submodule,
    tokens,
    tokens_of_a_split_index,
    tokens_of_many,
    tokens_of_submodules,
    without_checkout,
)
from tests.kit.git_places import GitPlace, user_settings
from tests.kit.sandbox import needs_bubblewrap, until
from treadle.errors import BadInput

pytestmark = needs_bubblewrap

USER = """
git status; git diff; git diff HEAD~1; git log -2
echo user >> file0; git add file0; git commit -m user; git status
"""


def settings(name: str, key: str, then: str = "", more: str = "", value: str = "$CANARY") -> Attempt:
    return Attempt(f"settings: {name}", f'git config "{key}" "{value}"; {more}', then=then)


EVIL = "git init -q $1; echo x > $1/x; git -C $1 add x; git -C $1 commit -qm x; git -C $1 config core.fsmonitor $CANARY"
MAKE_EVIL = f"evil() {{ {EVIL}; }}; "
HOOK = 'printf "#!/bin/sh\\nexec $CANARY\\n" > {0}; chmod +x {0}'
GO_DEEP = "name=$(seq -s- 70); for i in $(seq 16); do mkdir -p $name; cd $name; done"
EVIL_COMMON = (
    "cp -r .git evil; git config -f evil/config core.fsmonitor $CANARY; git config -f evil/config core.worktree $PWD"
)

ON_TERMINAL = "python3 -c 'import pty, sys; pty.spawn(sys.argv[1:])'"

SETTINGS = [
    settings("fsmonitor", "core.fsmonitor"),
    settings("hooksPath", "core.hooksPath", more=f"mkdir h; {HOOK.format('h/pre-commit')}", value="$PWD/h"),
    settings("sshCommand", "core.sshCommand", "git fetch ssh://localhost/x"),
    settings("alias", "alias.hello", "git hello", value="!$CANARY"),
    settings("include", "include.path", more="git config -f evil.inc core.fsmonitor $CANARY", value="$PWD/evil.inc"),
    settings("clean filter", "filter.x.clean", more="echo '* filter=x' > .gitattributes; touch file*"),
    settings("textconv", "diff.x.textconv", "git diff HEAD~1", more="echo '* diff=x' > .gitattributes"),
    settings("external diff", "diff.external"),
    settings(
        "credential helper",
        "credential.helper",
        "printf 'protocol=https\\nhost=x\\n\\n' | git credential fill",
        value="!$CANARY",
    ),
    settings("pager", "core.pager", f"PAGER=cat {ON_TERMINAL} git log"),
    settings("editor", "core.editor", "unset GIT_EDITOR; git commit --amend"),
    settings("signing program", "gpg.program", more="git config commit.gpgSign true"),
    settings(
        "another address",
        "url.ext::$CANARY .insteadOf",
        "git fetch https://x",
        "git config protocol.ext.allow always",
        "https",
    ),
    settings("a remote's program", "remote.o.uploadpack", "git fetch o", "git config remote.o.url $WORKSPACE"),
    settings(
        "merge driver",
        "merge.x.driver",
        "git merge side",
        "echo '* merge=x' > .gitattributes; git switch -qc side; echo a > file1; git commit -qam a; "
        "git switch -q main; echo b > file1; git commit -qam b",
    ),
    Attempt(
        "settings of a worktree",
        "git config extensions.worktreeConfig true; git config -f .git/config.worktree core.fsmonitor $CANARY",
    ),
    Attempt("settings replaced", "printf '[core]\\n\\tfsmonitor = %s\\n' $CANARY > c; mv c .git/config"),
    Attempt(
        "settings of a submodule's update",
        'git config submodule.libs/sub.update "!$CANARY"',
        submodule,
        "git submodule update --force",
    ),
    Attempt("a submodule's settings", "cd libs/sub && git config core.fsmonitor $CANARY", submodule),
    Attempt(
        "a submodule's settings by their place",
        "mkdir -p .git/modules/libs/sub; git config -f .git/modules/libs/sub/config core.fsmonitor $CANARY",
        submodule,
    ),
    Attempt(
        "token in the settings", "cat .git/config; git config -l; git remote -v; git credential fill </dev/null", tokens
    ),
]

FILES = [
    Attempt("a hook", HOOK.format(".git/hooks/pre-commit")),
    Attempt(
        "a folder of hooks that is a link",
        f"mkdir h; {HOOK.format('h/pre-commit')}; rm -rf .git/hooks; ln -s $PWD/h .git/hooks",
    ),
    Attempt("a common folder", f"{EVIL_COMMON}; echo $PWD/evil > .git/commondir"),
    Attempt(
        "a repository replaced",
        MAKE_EVIL + "evil sub; rm -rf .git; mv .git old; mv -T sub/.git .git; cp -rT sub/.git .git; "
        "cp sub/.git/config .git/config",
    ),
    Attempt("a repository replaced by a file", f"{EVIL_COMMON}; rm -rf .git; echo gitdir: $PWD/evil > .git"),
    Attempt("a repository replaced by a link", f"{EVIL_COMMON}; rm -rf .git; ln -sT evil .git; ln -s evil .git"),
    Attempt(
        "a worktree with settings",
        "git worktree add -q wt; git config extensions.worktreeConfig true; "
        "git config -f .git/worktrees/wt/config.worktree core.fsmonitor $CANARY",
        then="cd wt && git status",
    ),
    Attempt("a link for the log of HEAD", "rm .git/logs/HEAD; ln -s $FOLDER/victim .git/logs/HEAD"),
    Attempt(
        "a link for the log of a branch", "rm .git/logs/refs/heads/main; ln -s $FOLDER/victim .git/logs/refs/heads/main"
    ),
    Attempt("a link for the message", "rm -f .git/COMMIT_EDITMSG; ln -s $FOLDER/victim .git/COMMIT_EDITMSG"),
    Attempt(
        "HEAD as a link", "rm .git/HEAD; ln -s refs/heads/main .git/HEAD", then="test -L .git/HEAD && echo REACHED"
    ),
    Attempt("a lock left behind", "touch .git/index.lock", then="git add file0 || echo REACHED"),
    Attempt(
        "a lock of a branch left behind",
        "touch .git/refs/heads/main.lock",
        then="git commit --allow-empty -m x || echo REACHED",
    ),
    Attempt(
        "a replaced commit", "git replace HEAD $(git commit-tree -m REACHED HEAD^{tree})", then="git log -3 --format=%s"
    ),
    Attempt(
        "grafted history",
        "git rev-parse HEAD > .git/info/grafts",
        then="git log --format=%s | grep -q first || echo REACHED",
    ),
    Attempt(
        "a program in a rebase",
        'printf \'sed -i "1s/^pick/edit/; 1a exec %s" "$1"\' $CANARY > ed; chmod +x ed; '
        "GIT_SEQUENCE_EDITOR='sh ./ed' git rebase -i HEAD~1; rm ed",
        then="git rebase --continue",
    ),
    Attempt(
        "a program in a rebase that stopped",
        "GIT_SEQUENCE_EDITOR='sed -i 1s/^pick/edit/' git rebase -i HEAD~1; "
        "echo exec $CANARY >> .git/rebase-merge/git-rebase-todo",
        then="git rebase --continue",
    ),
    Attempt(
        "an entry below .git in the index",
        "git -c core.protectNTFS=false update-index --add --cacheinfo 100644,$(git hash-object -w file0),git~1/config",
        then="git -c core.protectNTFS=false ls-files | grep -q git~1 && echo REACHED",
    ),
    Attempt(
        "objects of a hard-linked clone damaged",
        "chmod -R u+w .git/objects; "
        "for f in $(find .git/objects /run/treadle -type f -path '*/??/*'); do echo x > $f; done",
        hard_linked,
        "cd $FOLDER/linked && git fsck || echo REACHED",
    ),
    Attempt(
        "objects of the repository removed",
        "rm -rf .git/objects/* /run/treadle/objects/*",
        then="git fsck || echo REACHED",
    ),
    Attempt(
        "objects of another repository",
        "echo $FOLDER/other/.git/objects > .git/objects/info/alternates",
        other,
        "git show $KEY | grep -q the-secret && echo REACHED",
    ),
    Attempt(
        "objects of another repository, shown by git",
        "echo $FOLDER/other/.git/objects >> .git/objects/info/alternates; "
        "for f in $FOLDER/other/.git/objects/??/*; do git cat-file -p $(echo $f | tail -c 42 | tr -d /); done",
        other,
    ),
]

NEW = [
    Attempt(
        "a submodule's parent renamed",
        MAKE_EVIL + "mv libs old; cp -r old libs; rm -rf libs/sub/.git; evil libs/sub",
        submodule,
    ),
    Attempt(
        "a submodule's folder renamed",
        MAKE_EVIL + "mv libs/sub old; cp -r old libs/sub; rm -rf libs/sub/.git; evil libs/sub",
        submodule,
    ),
    Attempt(
        "a submodule's parent renamed and the submodule pointed elsewhere",
        MAKE_EVIL + "evil $WORKSPACE/new; mv libs old; cp -r old libs; echo gitdir: $PWD/new/.git > libs/sub/.git",
        submodule,
    ),
    Attempt(
        "a submodule pointed to another place",
        MAKE_EVIL + "evil new; rm -f libs/sub/.git; echo gitdir: $PWD/new/.git > libs/sub/.git",
        submodule,
    ),
    Attempt("a submodule without a checkout", MAKE_EVIL + "evil libs/sub", without_checkout),
    Attempt(
        "a submodule whose folders are gone",
        MAKE_EVIL + "rm -rf libs; mv libs old; mkdir -p libs; evil libs/sub",
        without_checkout,
    ),
    Attempt("a new repository in the index", MAKE_EVIL + "evil sub; git add sub; git commit -qm sub"),
    Attempt(
        "a new repository in the index by hand",
        MAKE_EVIL + "evil sub; git update-index --add --cacheinfo 160000,$(git -C sub rev-parse HEAD),sub",
    ),
    Attempt("a new repository with its folder visited", MAKE_EVIL + "evil a/b/c", then="cd a/b/c && git status"),
    Attempt(
        "a new repository behind many entries",
        MAKE_EVIL
        + "mkdir -p node_modules/a; cd node_modules/a; seq 20000 | xargs touch; cd ../..; evil node_modules/z/y",
        then="cd node_modules/z/y && git status",
    ),
    Attempt(
        "a new repository with a hook",
        f"git init -q sub; {HOOK.format('sub/.git/hooks/pre-commit')}",
        then="cd sub; git commit --allow-empty -m x",
    ),
    Attempt(
        "a folder that looks like a repository",
        "git init -q --bare store; git config -f store/config core.bare false; "
        "git config -f store/config core.worktree ..; git config -f store/config core.fsmonitor $CANARY",
        then="cd store && git status",
    ),
    Attempt(
        "a folder of sources that looks like a repository",
        "mkdir src; echo 1 > src/code; git init -q --bare store; mv store/* src; "
        "git config -f src/config core.bare false; git config -f src/config core.worktree ..; "
        "git config -f src/config core.fsmonitor $CANARY",
        then="cd src && git status",
    ),
    Attempt(
        "a folder with a common folder",
        f"{EVIL_COMMON}; rm evil/HEAD; mkdir tree; cp .git/HEAD tree; echo ../evil > tree/commondir",
        then="cd tree && git --work-tree=.. status",
    ),
    Attempt(
        "the workspace itself as a repository",
        "git init -q --bare s; mv s/* .; git config -f config core.bare false; git config -f config core.worktree .; "
        "git config -f config core.fsmonitor $CANARY",
        no_repository,
    ),
    Attempt(
        "a new repository in the workspace with settings",
        "git init -q .; git config core.fsmonitor $CANARY; touch file0; git add .; git commit -qm x",
        no_repository,
    ),
    Attempt(
        "a file that points to a repository",
        MAKE_EVIL + "evil p; mkdir sub; echo gitdir: $PWD/p/.git > sub/.git",
        then="cd sub; git status",
    ),
    Attempt(
        "a link to a repository", MAKE_EVIL + "evil p; mkdir sub; ln -s $PWD/p/.git sub/.git", then="cd sub; git status"
    ),
    Attempt(
        "a repository hidden in another",
        MAKE_EVIL + "git init -q --bare store; evil store/objects/x",
        then="cd store/objects/x && git status",
    ),
    Attempt(
        "a repository behind a very long path",
        f"{GO_DEEP}; git init -q .; git config core.fsmonitor $CANARY",
        then=f"{GO_DEEP}; git status",
    ),
    Attempt(
        "a repository in a folder without permissions",
        MAKE_EVIL + "evil a/sub; chmod 000 a",
        then="chmod 755 a; cd a/sub && git status",
    ),
]

READS = [
    Attempt("a .git that is a link to keys", "cat .git/id_rsa", linked_keys),
    Attempt("objects that are a link to keys", "cat .git/objects/id_rsa /run/treadle/objects/*/id_rsa", linked_objects),
    Attempt(
        "objects borrowed from keys",
        "cat $(cat .git/objects/info/alternates | head -1)/id_rsa /run/treadle/objects/*/id_rsa",
        borrowed_keys,
    ),
    Attempt("tokens of a repository without a private copy", "cat .git/config; git config -l", tokens_of_a_split_index),
    Attempt("tokens of many repositories", "cat r*/.git/config", tokens_of_many),
    Attempt("tokens of a submodule", "cat .git/modules/libs/sub/config", tokens_of_submodules),
    Attempt("a .git file that names another repository", "git log -p --all", link_to_other),
    Attempt("a .git file that names another worktree", "git log -p --all", link_to_tree),
    Attempt(
        "a .git file further down that names another repository", "cd sub && git log -p --all", nested_link_to_other
    ),
]

WRITE_HOOK = f"mkdir -p {{0}}; {HOOK.format('{0}/pre-commit')}"
MOVE = "rm -rf {0}; mv {0} old; mv $(dirname {0}) older; "

NAMED = [
    Attempt("hooks in a folder that settings name", WRITE_HOOK.format("tools/hooks"), own_hooks),
    Attempt(
        "hooks in a folder that settings name, moved",
        MOVE.format("tools/hooks") + WRITE_HOOK.format("tools/hooks"),
        own_hooks,
    ),
    Attempt("hooks in a folder that is missing", WRITE_HOOK.format("tools/hooks"), missing_hooks),
    Attempt("hooks behind a link", WRITE_HOOK.format("real"), linked_hooks),
    Attempt("hooks behind a link that is replaced", f"rm hooks; {WRITE_HOOK.format('hooks')}", linked_hooks),
    Attempt("settings that are included", "echo '[core]fsmonitor='$CANARY >> .gitconfig", included),
    Attempt(
        "settings that are included, replaced",
        "printf '[core]\n\tfsmonitor = %s\n' $CANARY > c; mv c .gitconfig",
        included,
    ),
    Attempt("hooks that included settings name", WRITE_HOOK.format("h"), included),
    Attempt(
        "settings that would be included",
        "mkdir -p conf; printf '[core]\n\tfsmonitor = %s\n' $CANARY > conf/git",
        included_missing,
    ),
    Attempt("hooks that the user's settings name", WRITE_HOOK.format("hooks"), hooks_of_the_user),
    Attempt("the user's settings", "printf '[core]\n\tfsmonitor = %s\n' $CANARY >> gitconfig", settings_of_the_user),
    Attempt(
        "hooks that the user's settings name in a new repository",
        f"git init -q sub; cd sub; {WRITE_HOOK.format('hooks')}",
        hooks_of_the_user,
        "cd sub && git commit --allow-empty -m x",
    ),
    Attempt(
        "hooks that another branch switches on", f"git switch -qc dev; {WRITE_HOOK.format('hooks')}", hooks_of_a_branch
    ),
    Attempt(
        "hooks that the place of a new repository switches on",
        f"git init -q sub; cd sub; {WRITE_HOOK.format('hooks')}",
        hooks_of_a_place,
        "cd sub && git commit --allow-empty -m x",
    ),
    Attempt("hooks of a repository around the workspace", WRITE_HOOK.format("hooks"), hooks_of_the_folder_above),
]

ATTEMPTS = [*SETTINGS, *FILES, *NEW, *READS, *NAMED]


def find_reach(place: GitPlace, said: str) -> str:
    """Say by what an attempt got through, or nothing."""
    if place.started.exists():
        return f"the canary started: {place.started.read_text()}"
    if (place.folder / "victim").read_text() != "whole":
        return "the victim was changed"
    return said if "REACHED" in said else ""


def set_up(folder: Path, attempt: Attempt) -> GitPlace:
    folder.mkdir()
    place = GitPlace(folder)
    (folder / "victim").write_text("whole")
    attempt.prepare(place)
    return place


def act_as_user(place: GitPlace, attempt: Attempt) -> str:
    """Do what a user does after a command, without knowing what it did."""
    key = ""
    if (place.folder / "other").exists():
        key = place.host("git rev-parse main", place.folder / "other").strip()
    export = f"export KEY={key} FOLDER={place.folder} CANARY={place.canary}"
    return place.host(f"exec 2>&1; set +e; {export}\n( {USER} )\n( {attempt.then or 'true'} ); true")


@pytest.mark.parametrize("attempt", [pytest.param(attempt, id=attempt.name.replace(" ", "_")) for attempt in ATTEMPTS])
async def test_no_way_out_through_git(attempt: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = set_up(tmp_path / "free", attempt)
    export = f"export CANARY={free.canary} FOLDER={free.folder} WORKSPACE={free.workspace}"
    said = free.host(f"exec 2>&1; set +e; {export}; ( {attempt.code} ); true").replace(SECRET, "REACHED")
    said += act_as_user(free, attempt)
    assert find_reach(free, said), f"{attempt.name} proves nothing, it fails without a sandbox too: {said}"

    held = set_up(tmp_path / "held", attempt)
    with user_settings(held, monkeypatch):
        said = ""
        with contextlib.suppress(BadInput):  # a link in place of .git: no command runs there
            said = (await held.inside(attempt.code)).output.replace(SECRET, "REACHED")
    said += act_as_user(held, attempt)
    assert not find_reach(held, said), f"{attempt.name}: {find_reach(held, said)}\n{said}"


def test_there_are_enough_attempts_through_git_and_each_has_a_name() -> None:
    assert len({attempt.name for attempt in ATTEMPTS}) == len(ATTEMPTS) >= 60


@pytest.mark.parametrize(
    ("prepare", "code"),
    [
        pytest.param(without_checkout, "evil libs/sub; rm -rf libs; mkdir -p libs/sub; evil libs/sub", id="missing"),
        pytest.param(submodule, "mv libs old; cp -r old libs; rm -rf libs/sub/.git; evil libs/sub", id="checked-out"),
    ],
)
async def test_a_submodule_cannot_be_planted_while_the_command_still_runs(
    prepare: Prepare, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = set_up(tmp_path / "held", Attempt("", "", prepare))
    with user_settings(place, monkeypatch):
        wait = "touch began; while ! test -e go; do sleep 0.01; done"
        running = asyncio.ensure_future(place.inside(f"{MAKE_EVIL}{code}; {wait}"))
        await until((place.workspace / "began").exists)
        said = act_as_user(place, Attempt("", ""))
        (place.workspace / "go").touch()
        await running
    assert not place.started.exists(), said
    assert "user" in place.host("git log -1 --format=%s"), said
