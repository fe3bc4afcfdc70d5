"""Carries out a plan: git talks to the remote in a folder of ours, and what it brought is taken over afterwards.

A repository of the workspace is only read and changed as files. Work trees are checked out in the sandbox.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ParamSpec, TypeVar

from msgspec import Struct

from treadle.errors import TreadleError
from treadle.git.exchange_folder import REMOTE, create_exchange
from treadle.git.git_folder import GitFolder
from treadle.git.names import is_ref_name, show_name
from treadle.git.object_format import SHA1, ObjectFormat
from treadle.git.real_repository import RealRepository
from treadle.git.received import (
    MAX_SHALLOW_BYTES,
    NewRepository,
    create_clone,
    find_ref_moves,
    note_pushed,
    read_all_refs,
    set_upstream,
    take_over_fetched,
)
from treadle.git.repository import Repository
from treadle.sandbox.base import CommandResult, Job, Sandbox, SandboxUnavailable
from treadle.sandbox.host_git import RemoteCommand, run_host_git
from treadle.sandbox.private_folder import hold_private_folder
from treadle.sandbox.process import finish_despite_cancel
from treadle.tools.base import ToolError
from treadle.tools.git_plan import RemotePlan
from treadle.workspace.worker_threads import run_in_thread

P = ParamSpec("P")
R = TypeVar("R")

_PUSHED = re.compile(r"^([ +*=!-])\t[^\t]*:(\S+)\t(.*)$", re.MULTILINE)
_DEFAULT_BRANCH = re.compile(r"^ref: (refs/heads/\S+)\tHEAD$", re.MULTILINE)
_REMOTE_HEAD = re.compile(r"^[0-9a-f]{40,64}\tHEAD$", re.MULTILINE)
_MAX_TEXT = 6000
_MAX_LISTED = 40
_BROKEN_OFF = re.compile(r"hung up|disconnect|RPC failed|reset by peer|Broken pipe|early EOF|Empty reply")
_FLAGS = {"*": "new", "=": "was there already", "!": "rejected", "+": "replaced"}
_HINTS = (
    (
        r"could not read (Username|Password)|Authentication failed|prompts disabled|Permission denied \(",
        "The user's credentials did not work for {host}, or there are none. The user can try git in a terminal.",
    ),
    (r"Host key verification failed", "ssh does not know {host} yet. The user can connect once in a terminal."),
    (r"Could not resolve host|Name or service not known|unable to look up", "The host {host} was not found."),
    (r"returned error: 30\d|redirect", "{host} redirects to another address. Redirects are not followed."),
    (
        r"non-fast-forward|fetch first|stale info",
        "The remote has commits that are missing here. Fetch them first, then merge or rebase. To replace them after "
        "the fetch, use force_with_lease.",
    ),
)


class Transfer(Struct, frozen=True):
    """How a transfer ended: lines for the model, and whether it did what was asked."""

    lines: list[str]
    ok: bool = True


class RemoteTransfer:
    """One exchange with a remote."""

    def __init__(self, plan: RemotePlan, workspace: Path, sandbox: Sandbox) -> None:
        self._plan, self._arguments = plan, plan.shown
        self._workspace, self._sandbox = workspace.resolve(), sandbox

    async def run(self) -> Transfer:
        """Carry out the plan; raises `ToolError` when it cannot be begun."""
        try:
            with hold_private_folder() as folder:
                if self._plan.repository is None:
                    return await self._clone(folder / "git")
                if self._arguments["action"] == "push":
                    return await self._push(folder / "git", self._plan.repository)
                return await self._fetch(folder / "git", self._plan.repository)
        except ToolError:
            raise
        except TreadleError as error:
            raise ToolError(str(error)) from None
        except OSError as error:
            raise ToolError(f"The exchange failed ({error.strerror}: {error.filename}).") from None

    async def _push(self, git_dir: Path, places: Repository) -> Transfer:
        plan, arguments = self._plan, self._arguments
        await run_in_thread(_prepare, git_dir, plan, places, ())
        specs = [f"{value}:{ref}" for ref, value in plan.pushed.items()]
        lease = [f"--force-with-lease=refs/heads/{arguments['branch']}:{plan.lease}"] if plan.lease else []
        result, text = await self._run_git(git_dir, ("push", "--porcelain", "--no-verify", *lease, REMOTE, *specs))
        told = {ref: (flag, summary) for flag, ref, summary in _PUSHED.findall(text)}
        lines = [f"{_shorten(ref)} {summary} ({_FLAGS.get(flag, 'ok')})" for ref, (flag, summary) in told.items()]
        done = {ref: value for ref, value in plan.pushed.items() if ref in told and told[ref][0] != "!"}
        notes = await _finish_in_thread(note_pushed, places, arguments["remote"], done) if done else []
        if result.code != 0:
            head = f"Not everything was pushed to {plan.address.shown}." if done else "Nothing was pushed."
            if not told and (result.code is None or _BROKEN_OFF.search(text)):
                head = f"It is not known whether {plan.address.shown} took the push. Fetch before you repeat it."
            elif len(done) == len(plan.pushed):
                head = f"Pushed to {plan.address.shown}, but git reported an error:"
            return Transfer([head, *lines, *notes, *self._explain(result, text)], ok=False)
        if arguments.get("set_upstream"):
            names = arguments["branch"], arguments["remote"]
            notes.append(await _finish_in_thread(set_upstream, places, *names, plan.upstream))
        return Transfer([f"Pushed to {plan.address.shown}:", *lines, *notes, *_list_remote_lines(text)])

    async def _fetch(self, git_dir: Path, places: Repository) -> Transfer:
        plan, arguments, remote = self._plan, self._arguments, self._arguments["remote"]
        branch = arguments.get("branch") or "*"
        tops = (f"refs/remotes/{remote}/", "refs/tags/")
        form, shallow = await run_in_thread(_prepare, git_dir, plan, places, (*tops, "refs/heads/"))
        before = await run_in_thread(_read_exchange, git_dir, form)
        options = [f"--{name}" for name in ("tags", "prune") if arguments.get(name)]
        spec = f"+refs/heads/{branch}:refs/remotes/{remote}/{branch}"
        result, text = await self._run_git(git_dir, ("fetch", "--no-write-fetch-head", *options, REMOTE, spec))
        keeps_tags = "would clobber existing tag" in text  # git reports that as a failure, but has fetched the rest
        if result.code != 0 and not keeps_tags:
            return Transfer([f"Nothing was fetched from {plan.address.shown}.", *self._explain(result, text)], ok=False)
        after = await run_in_thread(_read_exchange, git_dir, form)
        moves = find_ref_moves(before.refs, after.refs, tops)
        new_shallow = after.shallow if after.shallow != shallow else None
        notes = await _finish_in_thread(take_over_fetched, places, git_dir, moves, new_shallow)
        lines = [_describe_move(ref, *values) for ref, values in list(moves.items())[:_MAX_LISTED]]
        more = [f"… and {len(moves) - _MAX_LISTED} more"] if len(moves) > _MAX_LISTED else []
        head = f"Fetched from {plan.address.shown}:" if lines else f"Nothing is new at {plan.address.shown}."
        kept = ["A tag that is different there was kept as it is here."] if keeps_tags else []
        fetched = [head, *lines, *more, *kept, *notes, *_list_remote_lines(text)]
        return await self._merge(fetched) if plan.merge_ref else Transfer(fetched)

    async def _merge(self, fetched: list[str]) -> Transfer:
        """Move the branch forward in the sandbox, or rebase it. A merge of two histories is left to the model."""
        command = ("rebase",) if self._arguments.get("rebase") else ("merge", "--ff-only")
        folder = self._arguments.get("folder", "")
        code, text = await self._run_in_sandbox(("git", *command, self._plan.merge_ref), folder)
        if code == 0:
            return Transfer([*fetched, text])
        short = _shorten(self._plan.merge_ref)
        hint = f"git {command[0]} did not succeed. Go on with `git merge {short}` or `git rebase {short}` in the shell."
        return Transfer([*fetched, text, hint], ok=False)

    async def _clone(self, git_dir: Path) -> Transfer:
        plan, arguments = self._plan, self._arguments
        create_exchange(git_dir, plan.address.text, SHA1, objects=None, refs={})
        result, text = await self._run_git(git_dir, ("ls-remote", "--symref", REMOTE, "HEAD"))
        default = _DEFAULT_BRANCH.search(text)
        branch = arguments.get("branch") or (default[1].removeprefix("refs/heads/") if default else "main")
        if not is_ref_name(f"refs/heads/{branch}"):
            raise ToolError(f"Nothing was cloned: the remote's branch {show_name(branch)!r} cannot be used.")
        if result.code == 0 and ("branch" in arguments or _REMOTE_HEAD.search(text)):
            depth = arguments.get("depth", 0)
            wanted, options = (branch, (f"--depth={depth}", "--no-tags")) if depth else ("*", ())
            spec = f"+refs/heads/{wanted}:refs/remotes/origin/{wanted}"
            result, text = await self._run_git(git_dir, ("fetch", "--no-write-fetch-head", *options, REMOTE, spec))
        if result.code != 0:
            return Transfer([f"{plan.address.shown} was not cloned.", *self._explain(result, text)], ok=False)
        if "branch" in arguments and f"refs/remotes/origin/{branch}" not in _read_exchange(git_dir, SHA1).refs:
            raise ToolError(f"Nothing was cloned: the remote has no branch {branch!r}.")
        folder = arguments["folder"]
        new = NewRepository(self._workspace, folder, arguments["url"], branch)
        commit = await _finish_in_thread(create_clone, new, git_dir)
        lines = [f"Cloned {plan.address.shown} into {folder}."]
        return await self._check_out(lines, folder, branch, commit)

    async def _check_out(self, lines: list[str], folder: str, branch: str, commit: str) -> Transfer:
        """Check a new repository out in the sandbox: its files may name programs that git runs for them."""
        if not commit:
            return Transfer([*lines, "It has no commit yet."])
        code, text = await self._run_in_sandbox(("git", "reset", "--quiet", "--hard"), folder)
        if code != 0:
            hint = f"Its files were not checked out. Run `git reset --hard` in {folder}."
            return Transfer([*lines, text, hint], ok=False)
        lines.append(f"{branch} is checked out at {commit[:10]}.")
        if (self._workspace / folder / ".gitmodules").is_file():
            lines.append("It has submodules. They were not cloned.")
        return Transfer(lines)

    async def _run_git(self, git_dir: Path, arguments: Sequence[str]) -> tuple[CommandResult, str]:
        places, address = self._plan.repository, self._plan.address
        near = places.work_tree if places else self._workspace
        pieces: list[bytes] = []
        command = RemoteCommand(tuple(arguments), git_dir, near, self._workspace, address.scheme)
        result = await run_host_git(command, pieces.append)
        return result, address.remove_secrets(b"".join(pieces).decode(errors="replace"))

    async def _run_in_sandbox(self, argv: tuple[str, ...], folder: str) -> tuple[int | None, str]:
        pieces: list[bytes] = []
        job = Job(argv, self._workspace, cwd="" if folder == "." else folder)
        try:
            result = await self._sandbox.run_in_sandbox(job, pieces.append)
        except SandboxUnavailable as error:
            return None, str(error)
        rejected = [sentence for report in result.git for sentence in report.rejected]
        text = "\n".join([b"".join(pieces).decode(errors="replace").strip(), *rejected])
        return result.code, text[-_MAX_TEXT:]

    def _explain(self, result: CommandResult, text: str) -> list[str]:
        """Explain why git failed: its own words, and what they mean."""
        host = self._plan.address.host or "this machine"
        hints = [hint.format(host=host) for pattern, hint in _HINTS if re.search(pattern, text, re.IGNORECASE)]
        if result.reason == "wall":
            hints.append(f"{host} did not answer in time.")
        elif result.code is None:
            hints.append(f"It was stopped, because it used too much ({result.reason}).")
        said = [line for line in text.splitlines() if line.strip() and not _PUSHED.match(line)]
        kept = [line for line in said if not line.startswith(("To ", "Done"))]
        return ["\n".join(kept)[-_MAX_TEXT:], *hints]


async def _finish_in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function that changes a repository. A cancellation waits for its end."""
    results: list[R] = []

    async def work() -> None:
        results.append(await run_in_thread(function, *args, **kwargs))

    await finish_despite_cancel(work())
    return results[0]


class _ExchangeState(Struct, frozen=True):
    refs: dict[str, str]
    shallow: bytes


def _prepare(git_dir: Path, plan: RemotePlan, places: Repository, tops: tuple[str, ...]) -> tuple[ObjectFormat, bytes]:
    """Create the exchange folder of a repository, with its refs below `tops`."""
    with RealRepository(places) as real:
        refs = {name: value for name, value in read_all_refs(real.common, real.form).items() if name.startswith(tops)}
        shallow = real.common.read_file("shallow", MAX_SHALLOW_BYTES) or b""
        objects = places.common_dir / "objects"
        create_exchange(
            git_dir, plan.address.text, real.form, objects=objects, refs=refs if tops else {}, shallow=shallow
        )
        return real.form, shallow


def _read_exchange(git_dir: Path, form: ObjectFormat) -> _ExchangeState:
    with GitFolder(git_dir) as folder:
        return _ExchangeState(read_all_refs(folder, form), folder.read_file("shallow", MAX_SHALLOW_BYTES) or b"")


def _describe_move(ref: str, before: str, after: str) -> str:
    if not after:
        return f"{_shorten(ref)} was deleted there"
    return f"{_shorten(ref)} {before[:10]}..{after[:10]}" if before else f"{_shorten(ref)} {after[:10]} (new)"


def _list_remote_lines(text: str) -> list[str]:
    """List what the server said. Others wrote it."""
    said = [line for line in text.splitlines() if line.startswith("remote: ") and line.removeprefix("remote: ").strip()]
    return ["The server said:", *said[:_MAX_LISTED]] if said else []


def _shorten(ref: str) -> str:
    name = show_name(ref)
    return next((name.removeprefix(top) for top in ("refs/heads/", "refs/remotes/") if name.startswith(top)), name)
