"""`treadle sessions`: list, show, search, resume, fork, export, merge and delete the sessions of a store."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.app.compose import open_store
from treadle.cli import console
from treadle.cli.find_session import find_session, open_command_store
from treadle.cli.options import (
    Parser,
    add_actions,
    add_output_options,
    add_run_options,
    add_session_argument,
    add_store_options,
    create_parser,
    load_command_settings,
)
from treadle.errors import BadInput, Conflict
from treadle.log.base import Log, SessionQuery

if TYPE_CHECKING:
    from treadle import Run
    from treadle.cli.open_session import OpenSession

EXAMPLES = """\
  treadle sessions list --status waiting
  treadle sessions show 3f2a91
  treadle sessions show last
  treadle sessions trace last               when it worked and waited, and what took long
  treadle sessions search "connection refused"
  treadle sessions resume 3f2a91            resume unfinished work, for example after a crash
  treadle sessions continue 3f2a91          continue after a limit, with new limits
  treadle sessions retry 3f2a91             do not wait for an overloaded provider any longer
  treadle sessions fork 3f2a91 --at 40      a new session with the same history
  treadle sessions rename 3f2a91 "the red build"
  treadle sessions export 3f2a91 --form html --output talk.html
  treadle sessions export 3f2a91 | ssh other treadle sessions import -
  treadle sessions merge 3f2a91             merge the branch of its worktree into yours, and remove the worktree
  treadle sessions merge 3f2a91 --commit    first commit what the session left uncommitted
  treadle sessions merge 3f2a91 --drop      remove the worktree without a merge
  treadle sessions delete "old experiment"

SESSION is an id, the start of an id, a name, or `last` for the session that was changed last."""

ACTIONS = {
    "list": "list the sessions, the last changed first",
    "show": "show what happened in a session",
    "trace": "show when a session worked and waited, as a timeline",
    "search": "search the text of all sessions",
    "resume": "resume unfinished work",
    "continue": "continue with new limits",
    "retry": "ask the model again now, instead of waiting for its provider",
    "fork": "create a new session with the same history",
    "rename": "name a session",
    "export": "export as Markdown, HTML, or JSON lines for import",
    "import": "import a session from JSON lines",
    "merge": "merge, keep or drop the worktree of a session",
    "delete": "delete a session permanently",
}
STATUSES = ("idle", "running", "waiting", "answered", "stopped", "failed", "cancelled")


def parser() -> Parser:
    options = create_parser("sessions", "Manage the sessions of a store.", EXAMPLES)
    actions = add_actions(options, EXAMPLES)
    for name, about in ACTIONS.items():
        action = actions.add_parser(name, help=about)
        if name not in ("list", "search", "import"):
            add_session_argument(action)
    listing, trace, export, load = (actions.choices[name] for name in ("list", "trace", "export", "import"))
    listing.add_argument("--status", choices=STATUSES)
    listing.add_argument("--workspace", dest="folder", metavar="DIR", help="only sessions that work in this folder")
    listing.add_argument("--limit", type=int, default=30, help="how many (default: 30)")
    listing.add_argument("--json", action="store_true", help="one JSON object per line")
    trace.add_argument("--limit", type=int, default=100, help="how many of the last steps (default: 100)")
    trace.add_argument("--json", action="store_true", help="one JSON object per line, for every step")
    actions.choices["search"].add_argument("words")
    actions.choices["search"].add_argument("--limit", type=int, default=20)
    actions.choices["fork"].add_argument("--at", type=int, metavar="SEQ", help="up to this position (default: the end)")
    actions.choices["rename"].add_argument("name")
    export.add_argument("--form", choices=("jsonl", "markdown", "html"), default="jsonl")
    export.add_argument("--output", metavar="FILE", default="-")
    load.add_argument("file", help='"-" reads stdin')
    load.add_argument("--new-id", action="store_true", help="import under a new id, if the id exists already")
    load.add_argument("--workspace", metavar="DIR", help="the folder that it works in (default: the current one)")
    load.add_argument("--agent", metavar="NAME", help="the agent that goes on with it")
    merge = actions.choices["merge"]
    how = merge.add_mutually_exclusive_group()
    how.add_argument("--keep", dest="end", action="store_const", const="keep", help="merge, and keep the worktree")
    how.add_argument("--drop", dest="end", action="store_const", const="drop", help="remove it without a merge")
    merge.set_defaults(end="merge")
    merge.add_argument("--commit", action="store_true", help="first commit what is changed in the worktree")
    for name in ("merge", "delete"):
        actions.choices[name].add_argument("--yes", action="store_true", help="do not ask")
    for name, action in actions.choices.items():
        if name in ("resume", "continue"):
            action.set_defaults(name="", worktree_name=None)
            add_output_options(action)
            add_run_options(action)
        else:
            add_store_options(action)
    return options


async def main(args: argparse.Namespace) -> int:
    if args.action in ("resume", "continue"):
        from treadle.cli.drive import drive_run

        def begin(opened: OpenSession) -> Run:
            session = opened.session
            return session.resume() if args.action == "resume" else session.continue_(opened.settings.build_limits())

        return await drive_run(args, load_command_settings(args), begin)
    if args.action in ("fork", "rename", "retry"):
        from treadle.cli.open_session import open_stored_session

        if args.action == "rename" and not args.name.strip():
            raise BadInput("the name is empty; nothing was changed")
        async with open_stored_session(args, args.session) as (session, info):
            if args.action == "fork":
                console.print_line((await session.fork(args.at)).id)
            elif args.action == "retry":
                await session.retry_now()
                console.print_note(
                    f"the process that runs it asks again now; if none does: treadle sessions resume {info.id[:12]}"
                )
            else:
                await session.rename(args.name)
        return 0
    if args.action == "import":
        return await _import_session(args)
    actions = {
        "list": _list_sessions,
        "show": _show_session,
        "trace": _trace_session,
        "search": _search_sessions,
        "export": _export_session,
        "merge": _merge_worktree,
        "delete": _delete_session,
    }
    is_reading = args.action in ("list", "show", "trace", "search", "export")
    async with open_command_store(args, read_only=is_reading) as log:
        return await actions[args.action](args, log)


async def _list_sessions(args: argparse.Namespace, log: Log) -> int:
    from treadle.cli.session_list import collect_sessions, print_sessions

    if args.limit < 1:
        raise BadInput("--limit must be at least 1")
    folder = str(Path(args.folder).expanduser().absolute()) if args.folder else ""
    found, has_more = await collect_sessions(log, SessionQuery(status=args.status, workspace=folder), args.limit)
    if args.json:
        import msgspec

        sys.stdout.write("".join(msgspec.json.encode(info).decode() + "\n" for info in found))
    elif not found:
        console.print_note("no sessions were found")
    else:
        print_sessions(found, load_command_settings(args).settings)
        if has_more:
            console.print_note(f"there are more; --limit {args.limit * 4} shows more of them")
    return 0


async def _show_session(args: argparse.Namespace, log: Log) -> int:
    from treadle.cli.screen import Screen
    from treadle.cli.session_list import describe_status

    info = await find_session(log, args.session)
    console.print_line(f"{info.name or 'session'} · {info.id} · {describe_status(info)} · {info.workspace}")
    screen = Screen(console.TerminalConsole(sys.stdout))
    for fact in await log.read(info.id):
        screen.handle_event(fact)
    screen.console.set_work_line("")
    return 0


async def _trace_session(args: argparse.Namespace, log: Log) -> int:
    from treadle.cli.session_trace import print_trace

    if args.limit < 1:
        raise BadInput("--limit must be at least 1")
    await print_trace(log, await find_session(log, args.session), args.limit, as_json=args.json)
    return 0


async def _search_sessions(args: argparse.Namespace, log: Log) -> int:
    rows: list[list[str]] = []
    progress = console.TerminalConsole(sys.stderr)
    left = sys.maxsize
    while (hits := await log.search(args.words, args.limit)).unindexed and hits.unindexed < left:
        left = hits.unindexed
        progress.set_work_line(
            f"indexing for the first search: {hits.unindexed} facts to go (Ctrl-C keeps what is done)"
        )
    progress.set_work_line("")
    if hits.unindexed:
        console.print_note(f"{hits.unindexed} facts are not indexed yet, because another process writes; try again")
    for hit in hits:
        info = await log.get_info(hit.session_id)
        rows.append([hit.session_id[:12], str(hit.seq), info.name or "–", hit.snippet])
    if rows:
        console.print_table(rows, ["session", "seq", "name", "text"])
    else:
        console.print_note("nothing was found")
    return 0


async def _export_session(args: argparse.Namespace, log: Log) -> int:
    from treadle.export.transcript import render_transcript

    info = await find_session(log, args.session)
    data = await render_transcript(log, info.id, args.form)
    if args.output == "-":
        sys.stdout.buffer.write(data)
        return 0
    try:
        Path(args.output).expanduser().write_bytes(data)
    except OSError as error:
        raise BadInput(f"{args.output} cannot be written: {error.strerror}") from None
    console.print_note(f"{len(data)} bytes written to {args.output}")
    return 0


async def _import_session(args: argparse.Namespace) -> int:
    from treadle.cli.open_session import DEFAULT_AGENT
    from treadle.events import AgentConfig, SessionCreated
    from treadle.export.import_session import import_session, parse_json_lines
    from treadle.session import generate_session_id

    try:
        data = sys.stdin.buffer.read() if args.file == "-" else Path(args.file).expanduser().read_bytes()
    except OSError as error:
        raise BadInput(f"{args.file} cannot be read: {error.strerror}") from None
    imported = parse_json_lines(data)
    settings = load_command_settings(args).settings
    created = SessionCreated(
        session_id=generate_session_id() if args.new_id else "",
        agent=AgentConfig(name=settings.agent or DEFAULT_AGENT),
        workspace=str(settings.folder),
        limits=settings.build_limits(),
    )
    try:
        async with open_store(settings) as log:
            session_id = await import_session(log, imported, created)
    except Conflict as error:
        raise Conflict(f"{error}; --new-id imports it under a new id") from None
    console.print_line(session_id)
    folder = console.escape_controls(created.workspace)
    console.print_note(
        f"{len(imported.facts)} facts imported. The session works in {folder} as the agent {created.agent.name}. "
        "Approvals, settings and unfinished work of the file were not taken over"
    )
    return 0


async def _merge_worktree(args: argparse.Namespace, log: Log) -> int:
    from treadle.app.session_worktree import end_worktree, inspect_session_worktree

    info = await find_session(log, args.session)
    if args.end == "drop" and not args.yes:
        worktree, state = await inspect_session_worktree(log, info.id)
        changed = f" and {len(state.changes.files)} uncommitted changes" if state.changes.files else ""
        ignored = _describe_ignored(state.changes.ignored)
        question = f"remove {worktree.folder} and the branch {worktree.branch}{changed}{ignored} without a merge?"
        if not await _confirm(question, "--yes drops it without asking. Nothing was changed"):
            console.print_note("nothing was changed")
            return 1
    ended = await end_worktree(log, info.id, args.end, commit=args.commit)
    worktree, commits = ended.worktree, ", ".join(ended.commits)
    if args.end == "drop":
        ways = " and ".join(f"`git branch NAME {commit}`" for commit in ended.commits)
        restore = f"; {ways} restores it" if ways else ""
        console.print_note(f"removed {worktree.folder} and the branch {worktree.branch}{restore}")
        return 0
    console.print_line(ended.output)
    ignored = _describe_ignored(ended.ignored)
    removed = "" if args.end == "keep" else f"; the worktree {worktree.folder} and its branch are removed{ignored}"
    console.print_note(f"merged {worktree.branch} ({commits[:12]}) into {worktree.repository}{removed}")
    return 0


def _describe_ignored(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f", with what git ignores ({', '.join(names[:3])}{more})" if names else ""


async def _confirm(question: str, advice: str) -> bool:
    if not console.is_terminal(sys.stdin):
        raise BadInput(f"there is no terminal to ask on; {advice}")
    return await console.confirm(question)


async def _delete_session(args: argparse.Namespace, log: Log) -> int:
    from treadle.app.session_worktree import read_worktree

    info = await find_session(log, args.session)
    if not args.yes:
        question = f"delete {info.id[:12]} {info.name!r} with its {info.seq} facts?"
        if not await _confirm(question, "--yes deletes without asking. Nothing was deleted"):
            console.print_note("nothing was deleted")
            return 1
    worktree = read_worktree(await log.read(info.id))
    await log.delete(info.id)
    forks = [one.id[:12] async for one in log.iterate_sessions(SessionQuery(parent=info.id))]
    console.print_note(f"deleted {info.id[:12]}" + (f"; its forks are kept: {', '.join(forks)}" if forks else ""))
    if worktree is not None:
        remove = f"git worktree remove {worktree.folder}"
        console.print_note(f"its branch {worktree.branch} and {worktree.folder} are kept; to remove it: {remove}")
    return 0
