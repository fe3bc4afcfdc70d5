"""`treadle sessions`: list, show, search, resume, fork, export and delete the sessions of a store."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from treadle.app.compose import is_abandoned
from treadle.cli.console import (
    escape_controls,
    format_table,
    format_time_since,
    is_terminal,
    print_line,
    print_note,
    style_text,
    terminal_width,
    wants_colour,
)
from treadle.cli.find_session import find_session, open_command_store
from treadle.cli.options import (
    Parser,
    add_actions,
    add_output_options,
    add_run_options,
    add_store_options,
    create_parser,
    load_command_settings,
)
from treadle.errors import BadInput, Conflict
from treadle.log.base import SessionInfo, SessionQuery

EXAMPLES = """\
  treadle sessions list --status waiting
  treadle sessions show 3f2a91
  treadle sessions search "connection refused"
  treadle sessions resume 3f2a91            take up what a crash left unfinished
  treadle sessions continue 3f2a91          a fresh budget after a limit
  treadle sessions fork 3f2a91 --at 40      a new session with the same past
  treadle sessions rename 3f2a91 "the red build"
  treadle sessions export 3f2a91 --form html --output talk.html
  treadle sessions export 3f2a91 | ssh other treadle sessions import -
  treadle sessions delete "old experiment"

SESSION is an id, the beginning of one, or a name."""

NARROW_COLUMNS = 72
"""Terminal width below which the list shows only the columns that identify a session."""

STATUSES = ("idle", "running", "waiting", "answered", "stopped", "failed", "cancelled")
_STYLES = {"waiting": "yellow", "unfinished": "yellow", "running": "blue", "failed": "red", "answered": "green"}


def parser() -> Parser:
    made = create_parser("sessions", "The sessions of a store.", EXAMPLES)
    kinds = add_actions(made, EXAMPLES)
    listing = kinds.add_parser("list", help="the last changed first")
    listing.add_argument("--status", choices=STATUSES)
    listing.add_argument(
        "--workspace",
        dest="folder",
        type=_make_absolute,
        default="",
        metavar="DIR",
        help="only those that work in this folder",
    )
    listing.add_argument("--limit", type=int, default=30, help="how many (default: 30)")
    listing.add_argument("--json", action="store_true", help="one JSON object a line")
    _one(kinds.add_parser("show", help="what happened, to read"))
    search = kinds.add_parser("search", help="full text, over all sessions")
    search.add_argument("words")
    search.add_argument("--limit", type=int, default=20)
    for name, about in (("resume", "go on with what is unfinished"), ("continue", "go on with a fresh budget")):
        going = _one(kinds.add_parser(name, help=about))
        going.set_defaults(name="")
        add_output_options(going)
        add_run_options(going)
    fork = _one(kinds.add_parser("fork", help="a new session with the same past"))
    fork.add_argument("--at", type=int, metavar="SEQ", help="up to this position (default: all of it)")
    rename = _one(kinds.add_parser("rename", help="give it a name"))
    rename.add_argument("name")
    export = _one(kinds.add_parser("export", help="as Markdown, HTML, or JSON lines that import again"))
    export.add_argument("--form", choices=("jsonl", "markdown", "html"), default="jsonl")
    export.add_argument("--output", metavar="FILE", default="-")
    load = kinds.add_parser("import", help="a file of JSON lines")
    load.add_argument("file", help='"-" reads stdin')
    load.add_argument("--new-id", action="store_true", help="under an id of its own, beside the one that is there")
    load.add_argument("--trust", action="store_true", help="take over answers in it that allow more than one call")
    delete = _one(kinds.add_parser("delete", help="for good"))
    delete.add_argument("--yes", action="store_true", help="do not ask")
    for name, one in kinds.choices.items():
        if name not in ("resume", "continue"):
            add_store_options(one)
    return made


def _one(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("session", metavar="SESSION", help="an id, the beginning of one, or a name")
    return parser


def _make_absolute(folder: str) -> str:
    return str(Path(folder).expanduser().absolute())


def main(args: argparse.Namespace) -> int:
    actions = {
        "list": _list,
        "show": _show,
        "search": _search,
        "resume": _resume,
        "continue": _resume,
        "fork": _fork,
        "rename": _rename,
        "export": _export,
        "import": _import,
        "delete": _delete,
    }
    return asyncio.run(actions[args.action](args))


async def _list(args: argparse.Namespace) -> int:
    if args.limit < 1:
        raise BadInput("--limit must be at least 1")
    async with open_command_store(args) as log:
        query = SessionQuery(status=args.status, workspace=args.folder, limit=min(args.limit, 200))
        found: list[SessionInfo] = []
        while True:
            page = await log.list_sessions(query)
            found += page.sessions
            if not page.cursor or len(found) >= args.limit:
                break
            query = SessionQuery(status=args.status, workspace=args.folder, limit=query.limit, cursor=page.cursor)
    more = len(found) > args.limit or bool(page.cursor)
    _print(found[: args.limit], as_json=args.json)
    if more and not args.json:
        print_note(f"and more; --limit {args.limit * 4} shows them")
    return 0


def _print(found: list[SessionInfo], *, as_json: bool) -> None:
    if as_json:
        import msgspec

        sys.stdout.write("".join(msgspec.json.encode(info).decode() + "\n" for info in found))
        return
    if not found:
        print_note("no sessions here")
        return
    room = terminal_width() if is_terminal(sys.stdout) else 0
    heads = ["status", "session", "age", "turns", "cost", "workspace", "name"]
    rows = [
        [
            describe_status(info),
            info.id[:12],
            format_time_since(info.updated_at),
            str(info.turns),
            f"${info.cost:.2f}" if info.cost >= 0.005 else "–",
            _short(info.workspace),
            info.name or "–",
        ]
        for info in found
    ]
    if 0 < room < NARROW_COLUMNS:
        heads, *rows = [[*row[:3], row[-1]] for row in (heads, *rows)]
    colour = wants_colour(sys.stdout)
    for number, line in enumerate(format_table(rows, heads, room)):
        word = line.split(" ", 1)[0]
        style = "bold" if not number else _STYLES.get(word, "")
        rest = line[len(word) :]
        sys.stdout.write((style_text(word, style, colour) + rest if style else line) + "\n")


def describe_status(info: SessionInfo) -> str:
    """Describe the status for the user. A session that no process runs any more is unfinished, not running."""
    return "unfinished" if is_abandoned(info) else info.status


def _short(folder: str) -> str:
    home = str(Path.home())
    folder = f"~{folder[len(home) :]}" if folder == home or folder.startswith(f"{home}/") else folder
    return folder if len(folder) <= 32 else f"…{folder[-31:]}"


async def _show(args: argparse.Namespace) -> int:
    from treadle.cli.console import TerminalConsole
    from treadle.cli.screen import Screen

    async with open_command_store(args) as log:
        info = await find_session(log, args.session)
        print_line(f"{info.name or 'session'} · {info.id} · {describe_status(info)} · {info.workspace}")
        screen = Screen(TerminalConsole(sys.stdout))
        for fact in await log.read(info.id):
            screen.handle_event(fact)
        screen.console.set_status("")
    return 0


async def _search(args: argparse.Namespace) -> int:
    async with open_command_store(args) as log:
        hits = await log.search(args.words, args.limit)
        rows: list[list[str]] = []
        for hit in hits:
            info = await log.get_info(hit.session_id)
            rows.append([hit.session_id[:12], str(hit.seq), info.name or "–", hit.snippet])
    if not rows:
        print_note("nothing was found")
        return 0
    for line in format_table(
        rows, ["session", "seq", "name", "text"], terminal_width() if is_terminal(sys.stdout) else 0
    ):
        print_line(line)
    return 0


async def _resume(args: argparse.Namespace) -> int:
    from treadle.cli.drive import drive_run

    loaded = load_command_settings(args)
    if args.action == "resume":
        return await drive_run(args, loaded, lambda opened: opened.session.resume())
    return await drive_run(args, loaded, lambda opened: opened.session.continue_(opened.settings.build_limits()))


async def _fork(args: argparse.Namespace) -> int:
    from treadle.cli.open_session import open_stored_session

    async with open_stored_session(args, args.session) as (session, _):
        print_line((await session.fork(args.at)).id)
    return 0


async def _rename(args: argparse.Namespace) -> int:
    from treadle.cli.open_session import open_stored_session

    if not args.name.strip():
        raise BadInput("the name is empty; nothing was changed")
    async with open_stored_session(args, args.session) as (session, _):
        await session.rename(args.name)
    return 0


async def _export(args: argparse.Namespace) -> int:
    from treadle.export.transcript import render_transcript

    async with open_command_store(args) as log:
        info = await find_session(log, args.session)
        data = await render_transcript(log, info.id, args.form)
    _put(data, args.output)
    return 0


def _put(data: bytes, output: str) -> None:
    if output == "-":
        sys.stdout.buffer.write(data)
        return
    try:
        Path(output).expanduser().write_bytes(data)
    except OSError as error:
        raise BadInput(f"{output} cannot be written: {error.strerror}") from None
    print_note(f"{len(data)} bytes to {output}")


def _read_input(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).expanduser().read_bytes()
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}") from None


async def _import(args: argparse.Namespace) -> int:
    from treadle.export.transcript import import_session, parse_json_lines
    from treadle.session import generate_session_id

    carried = parse_json_lines(_read_input(args.file))
    if carried.yeses and not args.trust:
        patterns = ", ".join(dict.fromkeys(carried.yeses))
        raise BadInput(f"this session holds answers that allow more than one call: {patterns}; --trust keeps them")
    async with open_command_store(args) as log:
        try:
            session_id = await import_session(log, carried, generate_session_id() if args.new_id else "")
        except Conflict as error:
            raise Conflict(f"{error}; --new-id imports it beside that one") from None
    print_line(session_id)
    print_note(f"{len(carried.facts)} facts; it works in {escape_controls(carried.first.workspace or '(no folder)')}")
    return 0


async def _delete(args: argparse.Namespace) -> int:
    async with open_command_store(args) as log:
        info = await find_session(log, args.session)
        if not args.yes:
            if not is_terminal(sys.stdin):
                raise BadInput("nobody can be asked here; --yes deletes without asking. Nothing was deleted")
            sys.stderr.write(escape_controls(f"delete {info.id[:12]} {info.name!r} with its {info.seq} facts? [y/N] "))
            sys.stderr.flush()
            if (await asyncio.to_thread(sys.stdin.readline)).strip().lower() not in ("y", "yes"):
                print_note("nothing was deleted")
                return 1
        await log.delete(info.id)
        children = [one.id[:12] async for one in log.iterate_sessions(SessionQuery(parent=info.id))]
    print_note(f"deleted {info.id[:12]}" + (f"; its forks stay: {', '.join(children)}" if children else ""))
    return 0
