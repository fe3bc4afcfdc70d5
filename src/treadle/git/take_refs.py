"""Takes branches, tags, the stash and HEAD over from a private copy, each by compare-and-swap, with their logs.

If the user moved a branch meanwhile, it stays where the user put it, and the command's commit gets a branch of its own.
"""

from __future__ import annotations

from contextlib import suppress

from treadle.git.git_folder import GitFolder, LockHeld, UnsafeFile
from treadle.git.names import is_branch, is_plain_name, is_ref_name, show_name
from treadle.git.new_objects import NewObjects
from treadle.git.private_copy import PrivateCopy, sign_file
from treadle.git.real_repository import RealRepository, RefMoved
from treadle.git.reflogs import append_lines, choose_lines, parse_log, read_log, read_new_part, remove_log, render_line
from treadle.git.refs import STASH, RefList, read_loose_refs, read_packed_refs, read_ref_file
from treadle.git.worktrees import list_foreign_branches
from treadle.sandbox.base import RefChange

_TAKEN = ("refs/heads/", "refs/tags/")
_SHOWN_REFS = 5
_MAX_CHANGES = 5_000
"""Branches and tags that one command can change. Each takes milliseconds, and a file may list millions."""


class RefTaker:
    """Takes the refs of one private copy over. `changes` are those that the real repository got."""

    def __init__(self, copy: PrivateCopy, private: GitFolder, real: RealRepository, objects: NewObjects) -> None:
        self._copy, self._private, self._real, self._objects = copy, private, real, objects
        self._foreign = list_foreign_branches(real)
        self.changes: list[RefChange] = []
        self.rejected: list[str] = []
        self._refused: set[str] = set()

    def take_refs(self) -> None:
        """Take branches, tags and the stash over."""
        try:
            packed = self._read_packed_refs()
        except UnsafeFile as error:
            self._refuse("", f"Branches and tags were not kept: {error}")
            return
        loose = read_loose_refs(self._private, self._copy.form)
        now, before = {**packed, **loose.values}, self._copy.refs
        changed = [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
        others = [name for name in changed if not name.startswith(_TAKEN) and name != STASH]
        if others:
            names = ", ".join(map(show_name, others[:_SHOWN_REFS])) + (" …" if len(others) > _SHOWN_REFS else "")
            self.rejected.append(f"Only branches, tags and the stash are kept. These refs were not: {names}.")
        self._refuse_odd(loose)
        names = [name for name in changed if name.startswith(_TAKEN) and name not in self._refused]
        current = self._copy.head.removeprefix("ref: ")
        # What is deleted makes room. The branch on which the command began is never too much.
        names.sort(key=lambda name: (name in now, name != current, name))
        if len(names) > _MAX_CHANGES:
            left = names[_MAX_CHANGES:]
            self._refused.update(left)
            self.rejected.append(
                f"{len(left)} branches and tags were not kept: no more than {_MAX_CHANGES} can change."
            )
        for name in names[:_MAX_CHANGES]:
            if reason := self._find_fault(name, now.get(name, "")):
                self._refuse(name, f"{show_name(name)} was not kept: {reason}.")
            else:
                self._take_ref(name, before.get(name, ""), now.get(name, ""))
        if STASH not in self._refused:
            self._take_stash(now.get(STASH, ""))

    def _read_packed_refs(self) -> dict[str, str]:
        """Read the packed refs of the copy, unless its file is untouched: all refs were packed at the start."""
        if sign_file(self._private, "packed-refs") == self._copy.signatures.get("packed-refs"):
            return {name: value for name, value in self._copy.refs.items() if not value.startswith("ref:")}
        return read_packed_refs(self._private, self._copy.form)

    def _refuse_odd(self, loose: RefList) -> None:
        """Refuse what stands in the place of a ref and is none. A ref below a link was not deleted by that."""
        for odd in loose.odd:
            self._refuse(odd, f"{show_name(odd)} was not kept: it is not a regular file with an id in it.")
            self._refused.update(name for name in self._copy.refs if name.startswith(f"{odd}/"))

    def _find_fault(self, name: str, value: str) -> str:
        if not is_ref_name(name):
            return "git does not allow this name"
        if value and name not in self._copy.refs and not is_plain_name(name):
            return "a shell or a terminal could obey this name"
        if value.startswith("ref:"):
            return "it refers to another ref, which only HEAD may"
        if not value:
            return ""
        kind = self._objects.read_kind(value)
        if not kind:
            return f"its object {value[:12]} is missing or incomplete"
        return "" if kind == "commit" or name.startswith("refs/tags/") else "a branch must lead to a commit"

    def _take_ref(self, name: str, before: str, after: str) -> None:
        if name in self._foreign:
            self._keep_aside(name, after, "it is checked out in another worktree")
            return
        try:
            self._real.update_ref(name, before, after)
        except RefMoved as moved:
            if moved.value != after:
                self._keep_aside(name, after, "the user or another command changed it meanwhile")
            return
        except LockHeld:
            self._keep_aside(name, after, "another git process has it locked")
            return
        except UnsafeFile as error:
            self._keep_aside(name, after, str(error))
            return
        self.changes.append(RefChange(name, before, after))
        with suppress(UnsafeFile, OSError):
            if after:
                self._append_log(name, before, after)
            else:
                remove_log(self._real.choose_folder(name), name)

    def _append_log(self, name: str, before: str, after: str) -> None:
        folder, log = self._real.choose_folder(name), f"logs/{name}"
        if folder.look_up(log) or self._private.look_up(log):  # otherwise logs are switched off here
            new = read_new_part(self._private, name, self._copy.log_sizes.get(name, 0))
            append_lines(folder, name, choose_lines(new, (before, after), self._copy.form, self._objects.has))

    def _keep_aside(self, name: str, value: str, reason: str) -> None:
        """Give a commit that found no place a branch of its own, so that nothing is lost."""
        short, reason = name.removeprefix("refs/heads/").removeprefix("refs/"), reason.rstrip(".")
        if not value or name.startswith("refs/tags/"):
            what = "was not changed" if value else "was not deleted"
            self._refuse(name, f"{show_name(name)} {what}: {show_name(reason)}.")
            return
        aside = f"refs/heads/treadle/{short}-{value[:7]}"
        if not is_branch(aside):
            aside = f"refs/heads/treadle/{value[:7]}"
        try:
            self._real.update_ref(aside, "", value)
        except RefMoved as moved:
            if moved.value != value:
                self._refuse(name, f"{show_name(name)} was not moved: {show_name(reason)}. Its commit is {value}.")
                return
        except (LockHeld, UnsafeFile) as error:
            self._refuse(name, f"{show_name(name)} was not moved: {show_name(reason)}. Its commit is {value}: {error}")
            return
        else:
            self.changes.append(RefChange(aside, "", value))
            with suppress(UnsafeFile, OSError):
                append_lines(
                    self._real.common,
                    aside,
                    [render_line(self._copy.form.null_id, value, f"treadle: kept beside {short}")],
                )
        branch = show_name(aside.removeprefix("refs/heads/"))
        self._refuse(
            name, f"{show_name(name)} was not moved: {show_name(reason)}. The new commit is on the branch {branch}."
        )

    def _refuse(self, name: str, sentence: str) -> None:
        self._refused.add(name)
        self.rejected.append(sentence)

    # ── the stash ──

    def _take_stash(self, after: str) -> None:
        """Take the stash over as a whole: its log is the list of stashes."""
        before = self._copy.refs.get(STASH, "")
        try:
            log = read_log(self._private, STASH)
        except UnsafeFile as error:
            log = b""
            if after == before:
                self._refuse(STASH, f"The stash was not changed: {error}")
                return
        if after == before and log == self._copy.stash_log:
            return
        lines = parse_log(log, self._copy.form) or []
        values = {value for line in lines for value in (line.old, line.new)} - {self._copy.form.null_id}
        is_sound = not after or (bool(lines) and lines[-1].new == after and all(map(self._objects.has, values)))
        fault = self._find_fault(STASH, after)
        if fault or not is_sound:
            self._refuse(STASH, f"The stash was not changed: {fault or 'its list is damaged'}.")
            return
        try:
            current = read_log(self._real.common, STASH)
            if current not in (self._copy.stash_log, log):
                raise RefMoved("")
            if after:
                self._real.common.write_file(f"logs/{STASH}", log)
            self._real.update_ref(STASH, before, after)
            if not after:
                remove_log(self._real.common, STASH)
        except RefMoved as moved:
            if not after or moved.value != after:
                self._keep_aside(STASH, after if after != before else "", "the user changed the stash meanwhile")
        except (LockHeld, UnsafeFile) as error:
            self._keep_aside(STASH, after if after != before else "", str(error))
        else:
            self.changes.append(RefChange(STASH, before, after))

    # ── HEAD ──

    def take_head(self) -> None:
        """Take HEAD over, and the log of what the command did with it."""
        before = self._copy.head
        try:
            after = read_ref_file(self._private, self._copy.head_name, self._copy.form)
        except UnsafeFile as error:
            self.rejected.append(f"HEAD was not changed: {error}")
            return
        start, end = self._resolve(before), ""
        if after != before:
            if reason := self._find_head_fault(after):
                self.rejected.append(f"HEAD was not changed, it is still {show_name(before)}: {reason}.")
                return
            try:
                self._real.update_ref("HEAD", before, after)
            except (RefMoved, LockHeld, UnsafeFile) as error:
                if isinstance(error, RefMoved) and error.value == after:
                    return
                reason = "the user changed it meanwhile" if isinstance(error, RefMoved) else str(error).rstrip(".")
                self.rejected.append(f"HEAD was not changed to {show_name(after)}: {reason}.")
                return
            self.changes.append(RefChange("HEAD", before, after))
        with suppress(UnsafeFile, OSError):
            end = self._real.resolve_ref("HEAD")
            moved = {change.ref for change in self.changes}
            if end and (after != before or after.removeprefix("ref: ") in moved):
                self._append_log("HEAD", start, end)

    def _resolve(self, head: str) -> str:
        return self._copy.refs.get(head.removeprefix("ref: "), "") if head.startswith("ref: ") else head

    def _find_head_fault(self, value: str) -> str:
        if not value:
            return "it is neither a branch nor a commit"
        if not value.startswith("ref: "):
            return "" if self._objects.read_kind(value) == "commit" else f"the commit {value[:12]} is missing"
        name = value.removeprefix("ref: ")
        if not is_branch(name):
            return f"{show_name(name)} is not a branch"
        if name not in self._copy.refs and not is_plain_name(name):
            return f"a shell or a terminal could obey the name {show_name(name)}"
        if name in self._foreign:
            return f"{show_name(name)} is checked out in another worktree"
        return f"{show_name(name)} was not kept" if name in self._refused else ""
