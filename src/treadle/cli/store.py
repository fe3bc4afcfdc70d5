"""`treadle store`: check, back up, recover, shrink and copy the store, and delete old sessions."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from treadle.app import store_care
from treadle.app.compose import open_store
from treadle.app.settings import Settings, parse_age
from treadle.cli import console
from treadle.cli.options import Parser, add_actions, add_store_options, create_parser, load_command_settings
from treadle.secrets.store_url import is_postgres_url

if TYPE_CHECKING:
    from treadle.app.store_copy import CopySummary

MAX_LEFT_OUT = 20
EXAMPLES = """\
  treadle store check
  treadle store backup ~/backups/treadle.db
  treadle store recover                     save what is still readable in a damaged store
  treadle store vacuum                      give the space of deleted sessions back
  treadle store prune --older-than 90d --keep-named --dry-run
  treadle store copy ~/.local/share/treadle/treadle.db postgresql://treadle@db/treadle
  treadle store copy postgresql://treadle@db/treadle laptop.db --session 3f2a91

A backup may be made while a server runs. `retention = "90d"` in config.toml lets `treadle serve` prune by itself."""


def parser() -> Parser:
    options = create_parser("store", "Look after the store of the sessions.", EXAMPLES)
    actions = add_actions(options, EXAMPLES)
    actions.add_parser("check", help="check the whole store for damage; exits with 1 if it finds some")
    backup = actions.add_parser("backup", help="copy the store to a file, also while others use it")
    backup.add_argument("file", metavar="FILE")
    backup.add_argument("--force", action="store_true", help="replace FILE if it exists")
    recover = actions.add_parser("recover", help="save what is still readable in a damaged store into a new one")
    recover.add_argument("--output", metavar="FILE", default="", help="default: the store's name with .recovered")
    actions.add_parser("vacuum", help="give the space of deleted sessions back to the disk")
    prune = actions.add_parser("prune", help="delete sessions that ended long ago")
    prune.add_argument("--older-than", metavar="AGE", required=True, help="such as 90d, 12h or 2w")
    prune.add_argument("--keep-named", action="store_true", help="keep the sessions that you named")
    prune.add_argument("--dry-run", action="store_true", help="only list what would be deleted")
    for action in actions.choices.values():
        add_store_options(action)
    copy = actions.add_parser("copy", help="copy sessions to another store, a file or a database; it can be repeated")
    copy.add_argument("source", metavar="FROM", help="the store to copy from: a path or a URL. It is not changed")
    copy.add_argument("target", metavar="TO", help="the store to copy to; it is created if there is none")
    copy.add_argument("--session", metavar="ID", action="append", help="only this one and its helpers; can be repeated")
    copy.add_argument("--dry-run", action="store_true", help="only compare, and say what would be copied")
    for action in actions.choices.values():
        action.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return options


def main(args: argparse.Namespace) -> int | Coroutine[Any, Any, int]:
    if args.action == "copy":
        return copy(args)
    settings = load_command_settings(args).settings
    if args.action == "prune":
        return prune(args, settings)
    command = _FileCommand(args, store_care.find_store_file(settings))
    actions = {"check": command.check, "backup": command.back_up, "recover": command.recover, "vacuum": command.vacuum}
    return actions[args.action]()


class _Output:
    """Shows the progress of an action on stderr, and its result on stdout."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._console = console.TerminalConsole(sys.stderr, ignore_errors=True)
        self._next_report = 0.0

    def report(self, text: str) -> None:
        """Show how far the action has come, now and then."""
        if time.monotonic() >= self._next_report:
            self._next_report = time.monotonic() + 0.1
            self._console.set_work_line(text)

    def end_progress(self) -> None:
        """Remove the line of the progress."""
        self._console.set_work_line("")

    def print_result(self, document: object, *lines: str) -> None:
        """Print the document with `--json`, otherwise the lines."""
        self.end_progress()
        if self._args.json:
            sys.stdout.write(msgspec.json.encode(document).decode() + "\n")
        else:
            for line in lines:
                console.print_line(line)


class _FileCommand(_Output):
    """One action on the file of a store."""

    def __init__(self, args: argparse.Namespace, file: Path) -> None:
        super().__init__(args)
        self._file = file

    def check(self) -> int:
        found = store_care.check_store(self._file, self.report)
        about = f"{found.sessions} sessions, {found.facts} facts, {_format_size(found.bytes)}"
        if found.problems:
            summary = f"{self._file} is damaged" + (f" ({about})" if found.facts else "")
            advice = "do not write to it; restore a backup, or run `treadle store recover`"
            lines = [summary, *(f"  {problem}" for problem in found.problems), advice]
        else:
            lines = [f"{self._file} is whole: {about}, {_format_size(found.free_bytes)} of it free"]
        self.print_result({"ok": not found.problems, **msgspec.structs.asdict(found)}, *lines)
        return 1 if found.problems else 0

    def back_up(self) -> int:
        target = Path(self._args.file).expanduser().absolute()
        found = store_care.backup_store(self._file, target, self.report, replace=self._args.force)
        about = f"{found.sessions} sessions, {found.facts} facts, {_format_size(found.bytes)}; checked"
        self.print_result(found, f"{target}: {about}")
        return 0

    def recover(self) -> int:
        chosen = self._args.output or f"{self._file}.recovered"
        target = Path(chosen).expanduser().absolute()
        found = store_care.recover_store(self._file, target, self.report)
        saved = (
            f"{found.sessions} sessions, {found.facts} facts, {found.artifacts} artifacts, {found.memories} memories"
        )
        self.print_result(
            found,
            f"{target}: {saved}",
            *(f"  lost: {text}" for text in found.losses),
            f"{self._file} was not changed. `--store {target}` uses the new one",
        )
        return 0

    def vacuum(self) -> int:
        before, after = store_care.vacuum_store(self._file, self.report)
        line = f"{_format_size(before - after)} given back; {self._file} has {_format_size(after)}"
        self.print_result({"store": str(self._file), "before": before, "after": after}, line)
        return 0


async def prune(args: argparse.Namespace, settings: Settings) -> int:
    """Delete old sessions, in a store of any kind."""
    output, before = _Output(args), time.time() - parse_age(args.older_than)
    file = None if is_postgres_url(settings.store_location) else store_care.find_store_file(settings)
    size = file.stat().st_size if file is not None else 0
    async with open_store(settings, read_only=args.dry_run) as log:
        old = await store_care.find_old_sessions(log, before, keep_named=args.keep_named)
        if not args.dry_run:
            old = await store_care.prune_sessions(log, old, output.report)
    freed = 0
    if file is not None:
        if not args.dry_run:
            store_care.shrink_store(file)
        freed = max(0, size - file.stat().st_size)  # deleting has given some back already
    output.end_progress()
    rows = [[info.id[:12], console.format_time_since(info.updated_at), info.status, info.name or "–"] for info in old]
    if rows and not args.json:
        console.print_table(rows, ["session", "age", "status", "name"])
    what = f"{len(old)} sessions {'would be' if args.dry_run else 'were'} deleted"
    document = {"deleted": [info.id for info in old], "dry_run": args.dry_run, "freed": freed}
    output.print_result(document, f"{what}, {_format_size(freed)} given back" if freed else what)
    return 0


async def copy(args: argparse.Namespace) -> int:
    """Copy the sessions of one store to another one."""
    from treadle.app.store_copy import copy_store

    output = _Output(args)
    try:
        found = await copy_store(
            args.source, args.target, output.report, sessions=args.session or (), dry_run=args.dry_run
        )
    finally:
        output.end_progress()
    is_whole = not found.left_out
    output.print_result({"ok": is_whole, **msgspec.structs.asdict(found)}, *describe_copy(found))
    return 0 if is_whole else 1


def describe_copy(found: CopySummary) -> list[str]:
    """Describe what a copy did."""
    would = "would be " if found.dry_run else ""
    added = f"{found.facts} facts, {found.artifacts} artifacts, {found.memories} memories"
    lines = [
        f"{found.target}: {found.copied} sessions {would}copied, {found.extended} {would}extended, "
        f"{found.unchanged} unchanged ({added}){'' if found.dry_run else '; read again and compared'}"
    ]
    if found.went_on:
        lines.append(f"{len(found.went_on)} sessions have gone on there since they were copied; they were left alone")
    if found.lost_contents:
        lines.append(f"{found.lost_contents} old contents of files are no longer kept; a rewind cannot restore them")
    if found.approvals == "void":
        lines.append(
            f"{found.target} had sessions before, so it keeps its own secret: to allow a call that waits for an "
            "approval does not run it, and its agent may ask anew"
        )
    lines += (f"  left out: {one.id}: {one.why}" for one in found.left_out[:MAX_LEFT_OUT])
    if len(found.left_out) > MAX_LEFT_OUT:
        lines.append(f"  left out: {len(found.left_out) - MAX_LEFT_OUT} more; --json lists all")
    if not found.dry_run:
        lines.append(f"{found.source} was not changed. Go on with these sessions in only one of the two stores")
    return lines


def _format_size(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
