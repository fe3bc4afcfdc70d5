"""`treadle sandbox`: run a command in the sandbox of the shell tool, explain that sandbox, and care for its caches."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Coroutine
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from treadle.app.settings import load_settings
from treadle.app.workspace_knowledge import resolve_sandbox_folders
from treadle.cli.console import escape_controls, handle_signals, print_note
from treadle.cli.options import Parser, add_actions, create_parser
from treadle.errors import BadInput
from treadle.sandbox.backend import probe, run_in_sandbox
from treadle.sandbox.base import Bounds, Job
from treadle.sandbox.caches import find_cache_folder, list_caches, remove_cache
from treadle.sandbox.explain import MountRow, explain_job
from treadle.sandbox.extra_folders import resolve_extra_folder
from treadle.sandbox.registries import expand_hosts
from treadle.sandbox.result_notes import describe_refused, list_git_notes

EXAMPLES = """\
  treadle sandbox probe
  treadle sandbox exec --workspace . -- make test
  treadle sandbox exec --workspace . --network --allow-host example.org -- curl https://example.org
  treadle sandbox exec --explain -- python3      # show what a command sees; nothing is run
  treadle sandbox caches clear

The exit code is that of the command, 124 after a timeout, or 137 after the command exceeded another limit."""


def parser() -> Parser:
    options = create_parser("sandbox", "Use the sandbox of the shell tool.", EXAMPLES)
    actions = add_actions(options, EXAMPLES)
    actions.add_parser("probe", help="show which sandbox works on this machine")
    execute = actions.add_parser("exec", help="run a command in the sandbox")
    execute.add_argument("--workspace", metavar="DIR", default=".", help="default: the current folder")
    execute.add_argument("--network", action="store_true", help="allow connections to public hosts")
    execute.add_argument("--allow-host", metavar="H", action="append", default=[], help="allow only this host")
    execute.add_argument("--read-only", metavar="DIR", action="append", default=[], help="show this folder too")
    execute.add_argument("--writable", metavar="DIR", action="append", default=[], help="let it change this folder too")
    for name in Bounds.__struct_fields__:
        default = getattr(Bounds(), name)
        option, kind = f"--{name.replace('_', '-')}", float if name == "wall_s" else int
        execute.add_argument(option, metavar="N", type=kind, default=default, help=f"default: {default:.0f}")
    execute.add_argument(
        "--explain", action="store_true", help="show what is mounted and why, and which program is found; run nothing"
    )
    caches = actions.add_parser("caches", help="show or remove what commands have downloaded, for each workspace")
    caches.add_argument("do", nargs="?", choices=("list", "clear"), default="list")
    execute.add_argument("argv", metavar="ARGV", nargs=argparse.REMAINDER, help="the command, after --")
    return options


def main(args: argparse.Namespace) -> int | Coroutine[Any, Any, int]:
    if args.action == "probe":
        found = probe()
        sys.stdout.write(f"{found.level}: {found.why or 'everything works'}\n")
        if found.hint:
            print_note(found.hint)
        return 0 if found.level != "none" else 1
    if args.action == "caches":
        return _care_for_caches(clear=args.do == "clear")
    argv = tuple(args.argv[1:] if args.argv[:1] == ["--"] else args.argv)
    folder = Path(args.workspace).expanduser().absolute()
    if not argv and not args.explain:
        raise BadInput("name a command: treadle sandbox exec --workspace DIR -- ARGV…")
    if not folder.is_dir():
        raise BadInput(f"there is no folder {folder}; --workspace must name an existing one")
    bounds = Bounds(**{name: getattr(args, name) for name in Bounds.__struct_fields__})
    settings = load_settings({"workspace": str(folder)}).settings
    own = settings.sandbox.registries
    hosts = expand_hosts(args.allow_host, own)
    shown, writable = resolve_sandbox_folders(settings)
    job = Job(
        argv,
        folder,
        network=args.network or bool(hosts),
        allow_hosts=hosts,
        bounds=bounds,
        shown_folders=(*shown, *(resolve_extra_folder(name, folder, is_writable=False) for name in args.read_only)),
        writable_folders=(*writable, *(resolve_extra_folder(name, folder, is_writable=True) for name in args.writable)),
        own_registries=own,
    )
    return _explain(job) if args.explain else _execute(job)


def _care_for_caches(*, clear: bool) -> int:
    """List all caches, or remove them."""
    caches = list_caches()
    left = [cache for cache in caches if not clear or not remove_cache(cache)]
    for cache in left:
        sys.stdout.write(f"{cache.size / (1 << 20):9.1f} MiB  {escape_controls(str(cache.workspace))}\n")
    if clear:
        rest = "; commands use the others" if left else ""
        print_note(f"removed {len(caches) - len(left)} of {len(caches)} caches{rest}")
    else:
        print_note(f"{len(caches)} cache{'s' * (len(caches) != 1)} in {find_cache_folder()}")
    return 1 if clear and left else 0


async def _explain(job: Job) -> int:
    """Show what a command would see."""
    found = probe()
    if found.level != "bubblewrap":
        raise BadInput(f"only the full sandbox can be explained, and here it does not work: {found.why} {found.hint}")
    explained = await explain_job(job)
    for (access, why, folder), rows in groupby((*explained.rows, *explained.left_out), _describe_group):
        names = ", ".join(row.path.removeprefix(folder) for row in rows)
        sys.stdout.write(f"{access:<10}{escape_controls(folder + names)}  ({escape_controls(why)})\n")
    sys.stdout.write(f"PATH      {escape_controls(explained.search_path)}\n")
    if job.argv:
        sys.stdout.write(f"program   {escape_controls(explained.program or f'{job.argv[0]}: not found')}\n")
    return 0


def _describe_group(row: MountRow) -> tuple[str, str, str]:
    """Describe what rows of one line have in common: the access, the reason and the folder."""
    return row.access, row.why, row.path[: row.path.rfind("/") + 1]


async def _execute(job: Job) -> int:
    """Run the job to its end. A signal that ends this process also ends the command and cleans up the workspace."""
    task = asyncio.current_task()
    assert task is not None
    received: list[signal.Signals] = []

    def end(number: signal.Signals) -> None:
        received.append(number)
        task.cancel()

    def write_output(data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    with handle_signals({number: partial(end, number) for number in (signal.SIGTERM, signal.SIGHUP)}):
        try:
            result = await run_in_sandbox(job, write_output)
        except asyncio.CancelledError:
            if not received:
                raise
            return 128 + received[0]
    for note in (describe_refused(result.refused_hosts), *list_git_notes(result.git)):
        if note:
            print_note(escape_controls(note))
    if result.code is not None:
        return result.code
    print_note(f"killed after {result.seconds:.1f} s: it exceeded the limit {result.reason}")
    return 124 if result.reason == "wall" else 137
