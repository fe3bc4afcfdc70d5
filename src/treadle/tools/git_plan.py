"""What an exchange with a remote would do exactly: which address, which branches, which commits. It changes nothing.

The plan is made before a person is asked, and again before it is carried out. Only an equal plan is carried out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from treadle.errors import TreadleError
from treadle.git.names import is_ref_name
from treadle.git.opened_repository import MAX_LISTED_COMMITS, OpenedRepository, parse_users_address, read_repository
from treadle.git.remote_address import RemoteAddress, Rewrite, list_rewrites, parse_address, rewrite_address
from treadle.git.repository import Repository
from treadle.messages import Json
from treadle.sandbox.git_settings import NO_REPOSITORY, Setting, SettingsUnreadable, read_settings
from treadle.sandbox.repositories import find_nearest_repository
from treadle.tools.base import ToolInputError
from treadle.workspace.folder import Folder, PathRefused

RemoteAction = Literal["push", "fetch", "pull", "clone"]

_MAX_TAGS = 100
_MAX_DEPTH = 1_000_000


class RemoteRequest(Struct, frozen=True):
    """What a model asks for. Empty: the default of git."""

    action: RemoteAction
    remote: str = ""
    branch: str = ""
    url: str = ""
    folder: str = ""
    tags: bool = False
    prune: bool = False
    rebase: bool = False
    set_upstream: bool = False
    force_with_lease: bool = False
    depth: int = 0


class RemotePlan(Struct, frozen=True):
    """What would be done. `shown` are all arguments as a person sees them; the rest is what carries them out.

    `pushed` are the refs to send, with their objects. `lease` is the commit that a forced push replaces. `upstream`
    are the remote and the ref that the pushed branch follows. `merge_ref` is the remote's branch that a pull merges.
    """

    shown: dict[str, Json]
    why: str
    address: RemoteAddress
    repository: Repository | None = None
    pushed: Mapping[str, str] = {}
    lease: str = ""
    upstream: tuple[str, str] = ("", "")
    merge_ref: str = ""


def make_plan(request: RemoteRequest, workspace: Path) -> RemotePlan:
    """Make the plan; raises `ToolInputError` when the request cannot be carried out."""
    try:
        if request.action == "clone":
            return plan_clone(request, workspace)
        workspace = workspace.resolve()
        found = find_nearest_repository(workspace, request.folder)
        settings: dict[str, list[str]] = {}
        for setting in found.settings:
            if setting.is_own:
                settings.setdefault(setting.key, []).append(setting.value)
        opened = read_repository(workspace, found.repository, settings, _list_user_rewrites(found.settings))
        return plan_push(request, opened) if request.action == "push" else plan_fetch(request, opened)
    except ToolInputError:
        raise
    except (TreadleError, SettingsUnreadable) as error:
        raise ToolInputError(f"git_remote: {error}") from None
    except OSError as error:
        raise ToolInputError(f"git_remote: the repository cannot be read: {error.strerror}.") from None


def plan_push(request: RemoteRequest, opened: OpenedRepository) -> RemotePlan:
    """Plan a push: which commits go to which address."""
    branch = request.branch
    if branch == "HEAD" or (not branch and not request.tags):
        branch = opened.branch
        if not branch:
            raise ToolInputError("git_remote: no branch is checked out. Name the branch to push.")
    own = f"branch.{branch or opened.branch}"
    default = opened.get_setting(f"{own}.pushremote") or opened.get_setting("remote.pushdefault")
    remote = opened.choose_remote(request.remote or default or opened.get_setting(f"{own}.remote"))
    address = opened.read_address(remote, is_push=True)
    tags = {name: value for name, value in opened.refs.items() if name.startswith("refs/tags/")}
    if request.tags and not 0 < len(tags) <= _MAX_TAGS:
        raise ToolInputError(f"git_remote: there are {len(tags)} tags, and 1 to {_MAX_TAGS} can be pushed at once.")
    ref = opened.find_ref(branch) if branch else ""
    pushed = ({ref: opened.refs[ref]} if ref else {}) | (tags if request.tags else {})
    known = opened.refs.get(f"refs/remotes/{remote}/{branch}", "") if ref.startswith("refs/heads/") else ""
    if request.force_with_lease and not known:
        raise ToolInputError(
            f"git_remote: it is not known which commit {branch or 'a branch'} has at {remote}, so it cannot be "
            "replaced safely. Name one branch, and fetch first."
        )
    what = " and ".join(filter(None, (branch, "all tags" if request.tags else "")))
    forced = ", replacing commits" if request.force_with_lease else ""
    shown: dict[str, Json] = {"operation": f"push {what} to {address.shown}{forced}", "action": "push"}
    shown |= _show_target(address, remote, opened.places)
    if ref:
        shown |= {"branch": branch, "commit": pushed[ref]}
    if known:
        shown["known_there"] = known
    if ref.startswith("refs/heads/"):
        shown["commits"] = opened.list_new_commits(remote, pushed[ref])
    if request.tags:
        shown |= {
            "tags": True,
            "tag_objects": [f"{name.removeprefix('refs/tags/')} {tags[name]}" for name in sorted(tags)],
        }
    shown |= dict.fromkeys(("set_upstream",) if request.set_upstream and ref.startswith("refs/heads/") else (), True)
    shown |= dict.fromkeys(("force_with_lease",) if request.force_with_lease else (), True)
    more = " and replaces commits that others may have" if request.force_with_lease else ""
    count = len(shown.get("commits", ()))
    sent = f" ({count} commits)" if 1 < count <= MAX_LISTED_COMMITS else ""
    why = f"it sends {what}{sent} to {_describe_place(address)}{more}"
    lease = known if request.force_with_lease else ""
    upstream = (opened.get_setting(f"{own}.remote"), opened.get_setting(f"{own}.merge"))
    return RemotePlan(shown, _add_warning(why, address), address, opened.places, pushed, lease, upstream)


def plan_fetch(request: RemoteRequest, opened: OpenedRepository) -> RemotePlan:
    """Plan a fetch or a pull."""
    own = f"branch.{opened.branch}"
    remote = opened.choose_remote(request.remote or opened.get_setting(f"{own}.remote"))
    address = opened.read_address(remote, is_push=False)
    branch = request.branch
    if request.action == "pull":
        upstream = opened.get_setting(f"{own}.merge").removeprefix("refs/heads/")
        branch = branch or (upstream if opened.get_setting(f"{own}.remote") == remote else "")
        if not opened.branch or not branch:
            raise ToolInputError("git_remote: this branch follows none of the remote. Name the branch to pull.")
    if branch and not is_ref_name(f"refs/heads/{branch}"):
        raise ToolInputError(f"git_remote: {branch!r} is no name of a branch.")
    what = f"{branch} from" if branch else "all branches from"
    shown: dict[str, Json] = {"operation": f"{request.action} {what} {address.shown}", "action": request.action}
    shown |= _show_target(address, remote, opened.places)
    if branch:
        shown["branch"] = branch
    asked = {"tags": request.tags, "prune": request.prune, "rebase": request.rebase and request.action == "pull"}
    shown |= {name: True for name, is_asked in asked.items() if is_asked}
    why = f"it fetches {what} {_describe_place(address)}"
    merged = f"refs/remotes/{remote}/{branch}" if request.action == "pull" else ""
    return RemotePlan(shown, _add_warning(why, address), address, opened.places, merge_ref=merged)


def plan_clone(request: RemoteRequest, workspace: Path) -> RemotePlan:
    """Plan a clone: from which address, into which folder."""
    if not request.url:
        raise ToolInputError("git_remote: name the url to clone.")
    parse_address(request.url)  # what a model may name is less than what the user's own settings may make of it
    rewrites = _list_user_rewrites(read_settings(NO_REPOSITORY, NO_REPOSITORY))
    address = parse_users_address(rewrite_address(request.url, rewrites), workspace.resolve())
    if request.branch and not is_ref_name(f"refs/heads/{request.branch}"):
        raise ToolInputError(f"git_remote: {request.branch!r} is no name of a branch.")
    if not 0 <= request.depth <= _MAX_DEPTH:
        raise ToolInputError(f"git_remote: depth is 0 to {_MAX_DEPTH}.")
    folder = _choose_clone_folder(request, address, workspace)
    shown: dict[str, Json] = {
        "operation": f"clone {address.shown} into {folder}",
        "action": "clone",
        "host": address.host or "this machine",
        "url": request.url,
        "folder": folder,
    }
    shown |= {"branch": request.branch} if request.branch else {}
    shown |= {"depth": request.depth} if request.depth else {}
    return RemotePlan(shown, _add_warning(f"it fetches a repository from {_describe_place(address)}", address), address)


def _list_user_rewrites(settings: Sequence[Setting]) -> tuple[Rewrite, ...]:
    return list_rewrites((one.key, one.value) for one in settings if not one.is_own)


def _choose_clone_folder(request: RemoteRequest, address: RemoteAddress, workspace: Path) -> str:
    """Choose the folder of a clone, and check that nothing is there."""
    last = re.split(r"[/:]", address.shown.rstrip("/").removesuffix(".git"))[-1]
    with Folder(workspace) as opened:
        try:
            folder = opened.resolve_path(request.folder or last)
            if folder != ".":
                opened.resolve_writable(folder)
        except PathRefused as error:
            raise ToolInputError(f"git_remote: {error}") from None
        parts = folder.split("/")
        for above in ("/".join(parts[:count]) for count in range(1, len(parts))):
            if opened.look_up(above) not in (None, "folder"):
                raise ToolInputError(f"git_remote: {above} is no folder, so nothing can be cloned into {folder}.")
        kind = opened.look_up(folder)
        if kind not in (None, "folder") or (kind == "folder" and opened.list_names(folder)):
            raise ToolInputError(f"git_remote: {folder} is there already and is not an empty folder. Name another one.")
    return folder


def _show_target(address: RemoteAddress, remote: str, places: Repository) -> dict[str, Json]:
    where: dict[str, Json] = {"host": address.host or "this machine", "remote": remote}
    return where | ({"folder": places.name} if places.name else {})


def _describe_place(address: RemoteAddress) -> str:
    return f"{address.host or 'a folder of this machine'} with the user's own credentials"


def _add_warning(why: str, address: RemoteAddress) -> str:
    return f"{why}; {address.warning}" if address.warning else why
