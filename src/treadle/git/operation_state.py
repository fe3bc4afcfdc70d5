"""The files in which git keeps an unfinished merge, rebase, cherry-pick or revert, and a check for each.

git acts on some of these files later: it runs the `exec` lines of a rebase and the program of a merge strategy. So only
what is known to be harmless is taken over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from msgspec import Struct

from treadle.git.git_folder import GitFolder, UnsafeFile, choose_temporary_name
from treadle.git.names import is_branch, is_ref_name, show_name
from treadle.git.object_format import ObjectFormat

MAX_STATE_BYTES = 4 << 20
STATE_FOLDERS = ("rebase-merge", "sequencer")
_MAX_FILES = 200

_STRATEGY = re.compile(rb"(?:ort|recursive|resolve|octopus|ours|subtree)?\n?")
_OPTION = (
    rb"(?:ours|theirs|patience|histogram|minimal|no-renames|renormalize|no-renormalize|ignore-space-change|"
    rb"ignore-all-space|ignore-space-at-eol|ignore-cr-at-eol|diff-algorithm=[a-z]+|(?:find-renames|rename-threshold)"
    rb"(?:=[0-9]+%?)?)"
)
_STRATEGY_OPTIONS = re.compile(rb"(?:\s*'?(?:--)?" + _OPTION + rb"'?)*\s*")
_FIXUPS = re.compile(rb"(?:(?:squash|fixup)(?: -[cC])? [0-9a-f]{4,64}\n?)*")
_FLAG = re.compile(rb"[A-Za-z-]{0,40}\n?")
_NUMBER = re.compile(rb"[0-9]{1,9}\n?")
_QUOTED = rb"'(?:[^'\x00-\x1f\x7f]|'\\['!]')*'"
_AUTHOR = re.compile(
    rb"GIT_AUTHOR_NAME=" + _QUOTED + rb"\nGIT_AUTHOR_EMAIL=" + _QUOTED + rb"\nGIT_AUTHOR_DATE=" + _QUOTED + rb"\n?"
)
_SEQUENCER_OPTIONS = re.compile(
    rb"(?:\[options\]\n|\t(?:no-commit|edit|signoff|record-origin|allow-ff|allow-empty|keep-redundant-commits|"
    rb"drop-redundant-commits|allow-empty-message|allow-rerere-auto|commit-use-reference) = (?:true|false)\n|"
    rb"\tmainline = [0-9]+\n|\tstrategy = (?:ort|recursive|resolve|octopus|ours|subtree)\n|\tstrategy-option = "
    + _OPTION
    + rb"\n|\tdefault-msg-cleanup = [a-z]+\n)*"
)
_TEXT = r"(?: [^\x00-\x08\x0a-\x1f\x7f]*)?"
_PICK = re.compile(rf"(?:pick|p|reword|r|edit|e|squash|s|fixup|f|drop|d|revert)(?: -[cC])? ([0-9a-f]{{4,64}}){_TEXT}")
_LABEL = re.compile(rf"(?:label|l|reset|t) (\[new root\]|[^\s-]\S*){_TEXT}")
_MERGE = re.compile(rf"(?:merge|m)(?: -[cC] ([0-9a-f]{{4,64}}))?((?: [^\s#-]\S*)+)(?: #{_TEXT})?")
_UPDATE_REF = re.compile(r"(?:update-ref|u) (\S+)\s*")


class StateRefused(Exception):
    """A file of the state is not taken over. The message says why."""


class StateChecks(Struct, frozen=True):
    """The checks of the files. They ask for the format of ids, and whether an object or a commit is there.

    A check returns what is kept of a file, or raises `StateRefused`.
    """

    form: ObjectFormat
    has: Callable[[str], bool]
    has_commit: Callable[[str], bool]

    def check_file(self, name: str, data: bytes, rejected: list[str]) -> bytes | None:
        """Check a file, and return what of it is kept; None for nothing. `rejected` gets a sentence on the rest."""
        check = _CHECKS.get(name)
        if check is None:
            rejected.append(f"{show_name(name)} in .git was not kept: it is not known to be harmless.")
            return None
        try:
            kept = check(self, data)
        except StateRefused as refused:
            rejected.append(f"{name} in .git was not kept: {refused}.")
            return None
        if kept != data:
            rejected.append(
                f"Lines of {name} in .git were dropped: only lines that move commits and branches are kept, and no "
                "exec lines."
            )
        return kept

    def check_text(self, data: bytes) -> bytes:
        """Check a message."""
        if b"\0" in data:
            raise StateRefused("it is not a text")
        return data

    def check_commits(self, data: bytes) -> bytes:
        """Check lines with one or two ids of commits each."""
        for word in data.decode(errors="replace").split():
            if not self.form.is_id(word) or not self.has_commit(word):
                raise StateRefused("it names a commit that is missing")
        return data

    def check_tree(self, data: bytes) -> bytes:
        """Check the id of a tree."""
        value = data.decode(errors="replace").strip()
        if not self.form.is_id(value) or not self.has(value):
            raise StateRefused("it names an object that is missing")
        return data

    def check_head_name(self, data: bytes) -> bytes:
        """Check the name of the branch that is rebased."""
        value = data.decode(errors="surrogateescape").rstrip("\n")
        if value != "detached HEAD" and not is_branch(value):
            raise StateRefused("it is not the name of a branch")
        return data

    def check_update_refs(self, data: bytes) -> bytes:
        """Check branches that a rebase moves: each has three lines, its name and two ids."""
        lines = data.decode(errors="surrogateescape").split("\n")
        for number, line in enumerate(lines[:-1] if lines[-1] == "" else lines):
            is_known = line == self.form.null_id or (self.form.is_id(line) and self.has_commit(line))
            if not (is_branch(line) if number % 3 == 0 else is_known):
                raise StateRefused("it names something other than branches")
        return data

    def check_todo(self, data: bytes) -> bytes:
        """Keep the lines of a todo list that only move commits and branches."""
        lines = data.decode(errors="surrogateescape").split("\n")
        return "\n".join(filter(self.is_todo_line, lines)).encode(errors="surrogateescape")

    def is_todo_line(self, line: str) -> bool:
        """Whether a line of a todo list only moves commits and branches."""
        if not line.strip() or line.strip() in ("noop", "break", "b"):
            return True
        if line.startswith("#"):
            return not re.search(r"[\x00-\x08\x0a-\x1f\x7f]", line)
        if match := _PICK.fullmatch(line):
            return self._is_known_start(match[1])
        if match := _LABEL.fullmatch(line):
            return match[1] == "[new root]" or is_ref_name(f"refs/rewritten/{match[1]}")
        if match := _MERGE.fullmatch(line):
            labels = match[2].split()
            return self._is_known_start(match[1] or "") and all(is_ref_name(f"refs/rewritten/{one}") for one in labels)
        match = _UPDATE_REF.fullmatch(line)
        return match is not None and is_branch(match[1])

    def _is_known_start(self, value: str) -> bool:
        """Whether a value is an id that is there, or the start of an id, which git looks up itself."""
        return len(value) < self.form.size * 2 or (self.form.is_id(value) and self.has_commit(value))


Check = Callable[[StateChecks, bytes], bytes]


def _check_pattern(pattern: re.Pattern[bytes]) -> Check:
    def check(checks: StateChecks, data: bytes) -> bytes:
        if not pattern.fullmatch(data):
            raise StateRefused("it has a content that git does not write")
        return data

    return check


_FLAGS = (
    *("interactive", "quiet", "verbose", "signoff", "drop_redundant_commits", "keep_redundant_commits"),
    *("reschedule-failed-exec", "no-reschedule-failed-exec", "cdate_is_adate", "ignore_date"),
    "allow_rerere_autoupdate",
)
_HEADS = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD", "ORIG_HEAD", "MERGE_AUTOSTASH")
_TODOS = ("git-rebase-todo", "git-rebase-todo.backup", "done", "dropped")
_COMMITS = ("onto", "orig-head", "amend", "stopped-sha", "squash-onto", "autostash", "rewritten-list")
_CHECKS: dict[str, Check] = {
    **dict.fromkeys(_HEADS, StateChecks.check_commits),
    **dict.fromkeys(("MERGE_MSG", "COMMIT_EDITMSG", "SQUASH_MSG"), StateChecks.check_text),
    "MERGE_MODE": _check_pattern(re.compile(rb"(?:no-ff)?\n?")),
    "AUTO_MERGE": StateChecks.check_tree,
    **dict.fromkeys((f"rebase-merge/{name}" for name in _COMMITS), StateChecks.check_commits),
    **dict.fromkeys((f"rebase-merge/{name}" for name in _FLAGS), _check_pattern(_FLAG)),
    **dict.fromkeys(("rebase-merge/end", "rebase-merge/msgnum"), _check_pattern(_NUMBER)),
    **dict.fromkeys((f"rebase-merge/message{end}" for end in ("", "-squash", "-fixup")), StateChecks.check_text),
    **dict.fromkeys((f"rebase-merge/{name}" for name in _TODOS), StateChecks.check_todo),
    "rebase-merge/rewritten-pending": StateChecks.check_commits,
    "rebase-merge/head-name": StateChecks.check_head_name,
    "rebase-merge/author-script": _check_pattern(_AUTHOR),
    "rebase-merge/current-fixups": _check_pattern(_FIXUPS),
    "rebase-merge/strategy": _check_pattern(_STRATEGY),
    "rebase-merge/strategy_opts": _check_pattern(_STRATEGY_OPTIONS),
    "rebase-merge/update-refs": StateChecks.check_update_refs,
    "rebase-merge/patch": StateChecks.check_text,
    "sequencer/head": StateChecks.check_commits,
    "sequencer/abort-safety": StateChecks.check_commits,
    "sequencer/todo": StateChecks.check_todo,
    "sequencer/opts": _check_pattern(_SEQUENCER_OPTIONS),
}
TOP_FILES = tuple(name for name in _CHECKS if "/" not in name)

# Without these, git can neither continue a rebase nor abort it.
_NEEDED = tuple(f"rebase-merge/{name}" for name in ("head-name", "onto", "orig-head"))

# What git writes as a by-product of many commands. If both sides changed it, the user's stays and nobody needs to know.
_BY_PRODUCTS = {"ORIG_HEAD", "COMMIT_EDITMSG", "AUTO_MERGE", "REBASE_HEAD"}


def read_state(folder: GitFolder, odd: list[str] | None = None) -> dict[str, bytes]:
    """Read the files of an unfinished operation. `odd` gets the names of those that are no regular files."""
    names = [*TOP_FILES]
    for top in STATE_FOLDERS:
        names.extend(f"{top}/{entry.name}" for entry in folder.list_entries(top, _MAX_FILES))
    found: dict[str, bytes] = {}
    for name in names:
        try:
            data = folder.read_file(name, MAX_STATE_BYTES)
        except UnsafeFile:
            if odd is not None:
                odd.append(name)
            continue
        if data is not None:
            found[name] = data
    return found


class StateResult(Struct, frozen=True):
    """Whether anything was taken over, and sentences on what was not."""

    is_changed: bool
    rejected: list[str]


def take_state(before: Mapping[str, bytes], private: GitFolder, real: GitFolder, checks: StateChecks) -> StateResult:
    """Bring the state of an unfinished operation to what the command left, as far as the user has not changed it."""
    odd: list[str] = []
    after, current = read_state(private, odd), read_state(real)
    rejected = [f"{show_name(name)} in .git was not kept: it is no regular file, or too large." for name in odd]
    changed = [name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]
    # A folder appears as a whole: git would take a part of it for a rebase that it cannot finish.
    new = {top: choose_temporary_name() for top in STATE_FOLDERS if not real.is_folder(top)}
    is_changed = False
    is_partial = any(name.startswith("rebase-merge/") for name in after) and not all(
        after.get(name, b"").strip() and checks.check_file(name, after[name], []) is not None for name in _NEEDED
    )
    for name in changed:
        top, _, rest = name.partition("/")
        if is_partial and top == "rebase-merge":
            rejected.append(f"{show_name(name)} in .git was not kept: the rebase could be neither continued nor ended.")
            continue
        group = [one for one in {*before, *current} if one.partition("/")[0] == top]
        if name in odd:
            continue
        if any(before.get(one) != current.get(one) for one in group):
            if name not in _BY_PRODUCTS and after.get(name) != current.get(name):
                rejected.append(f"{show_name(name)} in .git was not kept: the user changed it meanwhile.")
        elif name not in after:
            is_changed |= real.remove_file(name)
        elif (kept := checks.check_file(name, after[name], rejected)) is not None:
            real.write_file(f"{new[top]}/{rest}" if top in new else name, kept)
            is_changed = True
    for top in STATE_FOLDERS:
        if top in new and real.is_folder(new[top]):
            real.rename(new[top], top)
        elif top not in new and not private.list_entries(top, 1):
            real.remove_empty_tree(top)
    return StateResult(is_changed, rejected)
