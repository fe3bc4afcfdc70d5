"""Brings the list of stashes back to an earlier one. The log of `refs/stash` is that list, the ref its newest entry."""

from __future__ import annotations

from treadle.git.git_folder import LockHeld, UnsafeFile
from treadle.git.head_log import add_to_head_log
from treadle.git.object_format import ObjectFormat
from treadle.git.real_repository import RealRepository, RefMoved
from treadle.git.reflogs import parse_log, read_log, remove_log
from treadle.git.refs import STASH
from treadle.git.repository import Repository


def list_stashes(log: bytes, form: ObjectFormat) -> list[str]:
    """List the commits of the stashes in a log, the newest first. A damaged log has none."""
    return [line.new for line in reversed(parse_log(log, form) or [])]


def restore_stash(repository: Repository, before: bytes, after: bytes) -> str:
    """Bring the list of stashes from one log (`after`) back to another (`before`), and say why if it stays.

    `HEAD`'s log names the stashes that leave the list, so that none is lost.
    """
    with RealRepository(repository) as real, real.hold():
        old, new = list_stashes(before, real.form), list_stashes(after, real.form)
        if list_stashes(read_log(real.common, STASH), real.form) != new:
            return "The stash was not changed: somebody else changed it meanwhile."
        if bool(before) != bool(old) or not all(map(real.objects.has, old)):
            return "The stash was not changed: a commit of it is missing."
        try:
            add_to_head_log(real, (stash for stash in new if stash not in old), "treadle: a stash before a rewind")
            if old:
                real.common.write_file(f"logs/{STASH}", before)
            real.update_ref(STASH, new[0] if new else "", old[0] if old else "")
            if not old:
                remove_log(real.common, STASH)
        except (RefMoved, LockHeld, UnsafeFile) as error:
            reason = "somebody else changed it meanwhile." if isinstance(error, RefMoved) else str(error)
            return f"The stash was not changed: {reason}"
    return ""
