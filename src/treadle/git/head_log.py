"""Names objects in `HEAD`'s log to which no ref will lead any more, so that people find them and git keeps them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from treadle.git.git_folder import UnsafeFile
from treadle.git.real_repository import RealRepository
from treadle.git.reflogs import REWIND_MESSAGE, append_lines, read_log, render_line


def add_to_head_log(real: RealRepository, object_ids: Iterable[str], message: str) -> None:
    """Add a line for each object that the log does not name yet, and one back to where `HEAD` is.

    Raises `UnsafeFile` when the log cannot be written.
    """
    known = b""
    with suppress(UnsafeFile):  # it is very large: then an object may be named twice
        known = read_log(real.git, "HEAD")
    here = real.resolve_ref("HEAD") or real.form.null_id
    for object_id in object_ids:
        if object_id.encode() not in known:
            lines = [render_line(here, object_id, message), render_line(object_id, here, REWIND_MESSAGE)]
            append_lines(real.git, "HEAD", lines)
