"""A repository at one time: its remotes, their addresses, its branches and new commits.

Nothing of the repository is run, and of its settings only those about remotes are used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from treadle.errors import BadInput
from treadle.git.commit_list import read_commits
from treadle.git.names import is_ref_name
from treadle.git.real_repository import RealRepository
from treadle.git.received import read_all_refs
from treadle.git.remote_address import RemoteAddress, Rewrite, hide_accounts, parse_address, rewrite_address
from treadle.git.repository import Repository

MAX_LISTED_COMMITS = 20
_MAX_COUNTED = 1000
_REMOTE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def parse_users_address(text: str, workspace: Path) -> RemoteAddress:
    """Check an address that is the user's own. It may be a folder outside of the workspace. Raises `BadInput`."""
    address = parse_address(text, is_configured=True)
    if address.scheme == "file":
        place = Path(address.shown).resolve()
        owner = place.stat().st_uid if place.exists() else None
        if place.is_relative_to(workspace) or owner not in (0, os.getuid()):
            raise BadInput(f"{place} is in the workspace, is missing or belongs to somebody else. It is not used.")
    return address


class OpenedRepository(Struct, frozen=True):
    """What was read of a repository. All methods raise `BadInput`."""

    workspace: Path
    places: Repository
    settings: Mapping[str, Sequence[str]]
    head: str
    refs: Mapping[str, str]
    rewrites: Sequence[Rewrite] = ()

    @property
    def branch(self) -> str:
        """The branch that is checked out; empty when there is none."""
        return self.head.removeprefix("ref: refs/heads/") if self.head.startswith("ref: refs/heads/") else ""

    def get_setting(self, name: str) -> str:
        """Get the value of a setting, empty when it is not set. The last one counts."""
        values = self.settings.get(name, ())
        return values[-1] if values else ""

    def choose_remote(self, asked: str) -> str:
        """Choose a configured remote by its name or address. By default it is `origin`, or the only one."""
        names = sorted(name[7:-4] for name in self.settings if name.startswith("remote.") and name.endswith(".url"))
        by_address = [name for name in names if self.get_setting(f"remote.{name}.url") == asked]
        default = names[0] if len(names) == 1 else "origin"
        remote = by_address[0] if by_address else asked or default
        if remote not in names:
            raise BadInput(
                f"there is no remote {hide_accounts(remote)!r}. The remotes are: {', '.join(names) or 'none'}. The "
                "user can add one with `git remote add`."
            )
        if not _REMOTE_NAME.fullmatch(remote) or not is_ref_name(f"refs/remotes/{remote}/x"):
            raise BadInput(f"the name of the remote {remote!r} cannot be used.")
        return remote

    def read_address(self, remote: str, *, is_push: bool) -> RemoteAddress:
        """Read the address of a remote from the repository's own settings, as the user's own settings rewrite it."""
        texts, own = self.settings.get(f"remote.{remote}.url", ()), self.settings.get(f"remote.{remote}.pushurl", ())
        texts = own if is_push and own else texts
        if is_push and len(texts) > 1:
            raise BadInput(f"{remote} has several addresses. Only the user can push to all of them.")
        text = rewrite_address(texts[0], self.rewrites, is_push=is_push and not own)
        return parse_users_address(text, self.workspace)

    def find_ref(self, name: str) -> str:
        """Find the branch or the tag of a name."""
        found = [ref for ref in (f"refs/heads/{name}", f"refs/tags/{name}") if ref in self.refs]
        if len(found) != 1:
            what = "both a branch and a tag" if found else "no branch and no tag with a commit"
            raise BadInput(f"{name!r} is {what} of this repository.")
        return found[0]

    def list_new_commits(self, remote: str, tip: str) -> list[str]:
        """List the commits that a remote does not have, as far as that is known here, as `ID SUBJECT`."""
        there = [value for name, value in self.refs.items() if name.startswith(f"refs/remotes/{remote}/")]
        found = read_commits(self.places, "", tip, _MAX_COUNTED + 1, known=there)
        count = len(found) - MAX_LISTED_COMMITS
        rest = [f"… and {count if len(found) <= _MAX_COUNTED else 'many'} more"] if count > 0 else []
        return [*found[:MAX_LISTED_COMMITS], *rest]


def read_repository(
    workspace: Path, places: Repository, settings: Mapping[str, Sequence[str]], rewrites: Sequence[Rewrite]
) -> OpenedRepository:
    """Read the refs of a repository. `settings` are all values of its own settings, `rewrites` are the user's."""
    with RealRepository(places) as real:
        refs = read_all_refs(real.common, real.form)
        return OpenedRepository(workspace, places, settings, real.read_ref("HEAD"), refs, rewrites)
