"""What a person said yes or no to for good: a small file in the user's data folder, never in a workspace.

A rule holds everywhere, or in one workspace. Nothing here can allow what must be asked for each time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
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
    """One answer: a pattern as in a grant, and the workspace it is for (empty: everywhere).

    A yes to a tool that others may change is for its version: `git__log@1f3a…` does not hold for another one.
    """

    pattern: str
    decision: Decision = "allow"
    workspace: str = ""


class _Kept(Struct, forbid_unknown_fields=True):
    rules: tuple[SavedRule, ...] = ()
    version: Literal[1] = 1


def load_rules(data_folder: Path, workspace: Path | None = None) -> tuple[SavedRule, ...]:
    """The rules that hold in a workspace; all that hold everywhere without one."""
    here = str(_real(workspace)) if workspace is not None else ""
    return tuple(rule for rule in _read(data_folder / RULES_FILE) if rule.workspace in ("", here))


def load_all_rules(data_folder: Path) -> tuple[SavedRule, ...]:
    """Every rule, of whatever workspace."""
    return _read(data_folder / RULES_FILE)


def apply_rules(grant: Grant, rules: tuple[SavedRule, ...]) -> Grant:
    """A grant with what was said for good: a no forbids, a yes is for what may be remembered at all."""
    yes = tuple(rule.pattern for rule in rules if rule.decision == "allow")
    no = tuple(rule.pattern for rule in rules if rule.decision == "deny")
    return replace(grant, always=(*grant.always, *yes), forbid=(*grant.forbid, *no))


def save_rule(
    data_folder: Path, pattern: str, decision: Decision = "allow", workspace: Path | None = None
) -> SavedRule:
    """Remember an answer for good, in one workspace or everywhere; what was said of the same pattern is replaced.

    A no holds for every version of a tool.
    """
    if not pattern.strip():
        raise BadInput("There is no rule to remember: this can only be allowed once. Nothing was saved.")
    pattern = unpin_version(pattern) if decision == "deny" else pattern
    rule = SavedRule(pattern, decision, str(_real(workspace)) if workspace is not None else "")
    same = (unpin_version(pattern), rule.workspace)
    with _locked(data_folder) as file:
        others = (one for one in _read(file) if (unpin_version(one.pattern), one.workspace) != same)
        _write(file, (*others, rule))
    return rule


def forget_rule(data_folder: Path, rule: SavedRule) -> bool:
    """Take an answer back; whether there was one."""
    with _locked(data_folder) as file:
        rules = _read(file)
        _write(file, tuple(one for one in rules if one != rule))
    return rule in rules


def _real(path: Path) -> Path:
    return path.expanduser().resolve()


def _read(file: Path) -> tuple[SavedRule, ...]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Kept).rules
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.DecodeError, UnicodeError) as error:
        # Going on without them would forget what was forbidden.
        raise StoreDamaged(
            f"{file}, the remembered permissions, cannot be read: {error}. Mend it, or remove it to be asked again."
        ) from None


def _write(file: Path, rules: tuple[SavedRule, ...]) -> None:
    data = msgspec.json.format(msgspec.json.encode(_Kept(rules)), indent=2)
    new = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(data + b"\n")
        out.flush()
        os.fsync(out.fileno())
    new.replace(file)


@contextlib.contextmanager
def _locked(data_folder: Path) -> Generator[Path]:
    """The file, with nobody else changing it: two programs may save at once."""
    import fcntl

    data_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(data_folder / f".{RULES_FILE}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield data_folder / RULES_FILE
    finally:
        os.close(descriptor)
