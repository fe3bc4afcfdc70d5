"""Answers that a person gave for good: a small file in the user's data folder, never in a workspace.

A rule holds everywhere or in one workspace. No rule can allow what must be asked each time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.errors import BadInput, StoreDamaged
from treadle.events import Decision, Grant
from treadle.permissions.patterns import unpin_version

RULES_FILE = "rules.json"


class SavedRule(Struct, frozen=True, omit_defaults=True):
    """One answer: a pattern as in a grant, the workspace that it is for (empty: everywhere), and who gave it when.

    A yes to a tool that others may change holds for one version: `git__log@1f3a…` does not cover another one.
    """

    pattern: str
    decision: Decision = "allow"
    workspace: str = ""
    saved_at: float = 0.0
    by: str = ""

    @property
    def id(self) -> str:
        """Identify the rule in an address, for as long as it says the same."""
        content = "\0".join((self.pattern, self.decision, self.workspace))
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class _RulesFile(Struct, forbid_unknown_fields=True):
    rules: tuple[SavedRule, ...] = ()
    version: Literal[1] = 1


def load_all_rules(data_folder: Path) -> tuple[SavedRule, ...]:
    """Load the rules of all workspaces."""
    file = data_folder / RULES_FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=_RulesFile).rules
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.DecodeError, UnicodeError) as error:
        # To continue without the rules would allow what they forbid.
        raise StoreDamaged(
            f"The saved rules in {file} cannot be read: {error}. Fix the file, or remove it to be asked again."
        ) from None


def apply_rules(grant: Grant, rules: tuple[SavedRule, ...]) -> Grant:
    """Add saved rules to a grant: a no forbids, and a yes allows calls that need not be asked each time."""
    allowed = tuple(rule.pattern for rule in rules if rule.decision == "allow")
    denied = tuple(rule.pattern for rule in rules if rule.decision == "deny")
    return replace(grant, always=(*grant.always, *allowed), forbid=(*grant.forbid, *denied))


class RuleBook:
    """The saved rules for the sessions of a process. The file is read again when it has changed.

    Rules of the `folders` hold in every session, which may work in a worktree of one of them.
    """

    def __init__(self, data_folder: Path, folders: Sequence[Path]) -> None:
        self.data_folder = data_folder
        self._folders = frozenset(("", *map(_normalize_workspace, folders)))
        self._rules: tuple[SavedRule, ...] = ()
        self._version: tuple[int, int] | None = None

    def list_rules(self) -> tuple[SavedRule, ...]:
        """List the rules of all workspaces."""
        try:
            found = (self.data_folder / RULES_FILE).stat()
        except OSError:  # there is no file, or reading it says what is wrong
            self._rules, self._version = load_all_rules(self.data_folder), None
            return self._rules
        version = found.st_mtime_ns, found.st_ino
        if version != self._version:
            self._rules, self._version = load_all_rules(self.data_folder), version
        return self._rules

    def apply(self, grant: Grant, workspace: Path) -> Grant:
        """Add the rules that hold in a workspace to the operator's grant."""
        rules = self.list_rules()
        if not rules:
            return grant
        here = {*self._folders, _normalize_workspace(workspace)}
        return apply_rules(grant, tuple(rule for rule in rules if rule.workspace in here))


def save_rule(
    data_folder: Path, pattern: str, decision: Decision = "allow", workspace: Path | None = None, by: str = ""
) -> SavedRule:
    """Save an answer, for one workspace or everywhere. It replaces an older answer for the same pattern.

    A no holds for every version of a tool.
    """
    if not pattern.strip():
        raise BadInput("There is no rule to remember: this can only be allowed once. Nothing was saved.")
    pattern = unpin_version(pattern) if decision == "deny" else pattern
    rule = SavedRule(pattern, decision, _normalize_workspace(workspace), time.time(), by)
    key = (unpin_version(pattern), rule.workspace)
    with _lock_rules(data_folder):
        rules = load_all_rules(data_folder)
        others = (one for one in rules if (unpin_version(one.pattern), one.workspace) != key)
        _write_rules(data_folder, (*others, rule))
    return rule


def forget_rule(data_folder: Path, rule: SavedRule) -> bool:
    """Remove a rule; whether it existed."""
    with _lock_rules(data_folder):
        rules = load_all_rules(data_folder)
        _write_rules(data_folder, tuple(one for one in rules if one != rule))
    return rule in rules


def _normalize_workspace(workspace: Path | None) -> str:
    return str(workspace.expanduser().resolve()) if workspace is not None else ""


def _write_rules(data_folder: Path, rules: tuple[SavedRule, ...]) -> None:
    data = msgspec.json.format(msgspec.json.encode(_RulesFile(rules)), indent=2)
    new = data_folder / f".{RULES_FILE}.{os.getpid()}"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(data + b"\n")
        out.flush()
        os.fsync(out.fileno())
    new.replace(data_folder / RULES_FILE)


@contextlib.contextmanager
def _lock_rules(data_folder: Path) -> Generator[None]:
    """Keep other processes from changing the file: two programs may save at the same time."""
    import fcntl

    data_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(data_folder / f".{RULES_FILE}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
