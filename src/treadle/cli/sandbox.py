"""`treadle sandbox exec`: run a command in the same sandbox as the shell tool."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from functools import partial
from pathlib import Path

from treadle.cli.console import handle_signals, print_note
from treadle.cli.options import Parser, add_actions, create_parser
from treadle.errors import BadInput
from treadle.sandbox.backend import probe, run_in_sandbox
from treadle.sandbox.base import Bounds, Job

EXAMPLES = """\
  treadle sandbox probe
  treadle sandbox exec --workspace . -- make test
  treadle sandbox exec --workspace . --network --allow-host example.org -- curl https://example.org

The command's exit code is passed on; 124 when its time was up, 137 when it went over another bound."""


def parser() -> Parser:
    made = create_parser("sandbox", "The sandbox of the shell tool.", EXAMPLES)
    kinds = add_actions(made, EXAMPLES)
    kinds.add_parser("probe", help="which sandbox works on this machine")
    run = kinds.add_parser("exec", help="run a command as the shell tool would")
    usual = Bounds()
    run.add_argument("--workspace", metavar="DIR", default=".")
    run.add_argument("--network", action="store_true", help="public hosts can be reached")
    run.add_argument("--allow-host", metavar="H", action="append", default=[], help="only these; may be repeated")
    for name in Bounds.__struct_fields__:
        kind = float if name == "wall_s" else int
        most = getattr(usual, name)
        run.add_argument(
            f"--{name.replace('_', '-')}", metavar="N", type=kind, default=most, help=f"default: {most:.0f}"
        )
    run.add_argument("argv", metavar="ARGV", nargs=argparse.REMAINDER, help="the command, after --")
    return made


def main(args: argparse.Namespace) -> int:
    if args.action == "probe":
        found = probe()
        sys.stdout.write(f"{found.level}: {found.why or 'everything works'}\n")
        if found.hint:
            print_note(found.hint)
        return 0 if found.level != "none" else 1
    argv = tuple(args.argv[1:] if args.argv[:1] == ["--"] else args.argv)
    folder = Path(args.workspace).expanduser().absolute()
    if not argv:
        raise BadInput("which command? treadle sandbox exec --workspace DIR -- ARGV…")
    if not folder.is_dir():
        raise BadInput(f"there is no folder {folder}; --workspace wants one that exists")
    bounds = Bounds(**{name: getattr(args, name) for name in Bounds.__struct_fields__})
    hosts = tuple(args.allow_host)
    job = Job(argv, folder, network=args.network or bool(hosts), allow_hosts=hosts, bounds=bounds)
    return asyncio.run(_run(job))


async def _run(job: Job) -> int:
    """Run the job to its end. A signal that ends this process also ends the command and cleans up the workspace."""
    mine = asyncio.current_task()
    assert mine is not None
    came: list[signal.Signals] = []

    def end(number: signal.Signals) -> None:
        came.append(number)
        mine.cancel()

    with handle_signals({number: partial(end, number) for number in (signal.SIGTERM, signal.SIGHUP)}):
        try:
            ended = await run_in_sandbox(job, _put)
            if ended.code is not None:
                return ended.code
            print_note(f"killed after {ended.seconds:.1f} s: it went over its bound of {ended.reason}")
            return 124 if ended.reason == "wall" else 137
        except asyncio.CancelledError:
            if not came:
                raise
            return 128 + came[0]


def _put(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
