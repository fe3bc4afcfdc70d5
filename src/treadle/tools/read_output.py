"""`read_output`: parts of an output that was too large for the model, by line numbers or by a pattern."""

from __future__ import annotations

from collections.abc import Sequence
from tempfile import TemporaryFile
from typing import Annotated

from pydantic import Field

from treadle.tools.base import DEFAULT_CAP, ToolContext, ToolError, ToolInputError
from treadle.tools.files.ripgrep import run_ripgrep
from treadle.tools.function import tool
from treadle.workspace.worker_threads import run_in_thread

ArtifactId = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
"""An id as the log makes them. Small models try file names, which are refused."""

MAX_LINE_CHARACTERS = 2000
"""A longer line is folded, so that each part of it has a number and can be asked for."""

MAX_LINES = 2000
_MAX_SHOWN_BYTES = DEFAULT_CAP - 1024
_EXAMPLE_ID = "9f86d081884c7d659a2feaa0c55ad015"
_TIMEOUT = 30.0


@tool(
    safety="safe",
    timeout=_TIMEOUT,
    examples=[
        (f"Show me the rest of output {_EXAMPLE_ID}", {"artifact": _EXAMPLE_ID}),
        (f"Read the artifact {_EXAMPLE_ID}", {"artifact": _EXAMPLE_ID}),
    ],
)
async def read_output(
    artifact: ArtifactId, context: ToolContext, offset: int = 1, limit: int = 200, pattern: str = ""
) -> str:
    """Read output that was cut because it was long, by the artifact id that the cut names.

    Example: {"artifact": "9f86…", "pattern": "error|failed"} shows the lines that match, with their numbers;
    then {"artifact": "9f86…", "offset": 1200, "limit": 40} shows what stands around one of them.

    Args:
        artifact: the id that was given where the output was cut
        offset: the first line to show, from 1
        limit: how many lines to show at most
        pattern: a regular expression; only lines that match it are shown
    """
    if offset < 1 or not 1 <= limit <= MAX_LINES:
        raise ToolInputError(f"read_output: offset starts at 1, and limit is 1 to {MAX_LINES}.")
    lines = fold_lines((await context.services.read_artifact(artifact)).decode("utf-8", "replace"))
    if pattern:
        numbers = [number for number in await find_matching_lines(lines, pattern) if number >= offset]
        summary = f"{len(numbers)} of {len(lines)} lines match"
    else:
        numbers, summary = range(offset, len(lines) + 1), f"{len(lines)} lines"
    if not numbers:
        return f"Nothing to show: the output has {summary}" + (f" from line {offset} on." if offset > 1 else ".")
    shown, space = list[str](), _MAX_SHOWN_BYTES
    for number in numbers[:limit]:
        line = f"{number}: {lines[number - 1]}"
        space -= len(line.encode()) + 1
        if shown and space < 0:
            break
        shown.append(line)
    more = f" Go on with offset={numbers[len(shown)]}." if len(shown) < len(numbers) else ""
    return "\n".join([*shown, f"[{summary}.{more}]"])


def fold_lines(text: str) -> list[str]:
    """Split a text into lines, none longer than `MAX_LINE_CHARACTERS`."""
    return [
        line[start : start + MAX_LINE_CHARACTERS]
        for line in text.removesuffix("\n").split("\n")
        for start in range(0, max(len(line), 1), MAX_LINE_CHARACTERS)
    ]


async def find_matching_lines(lines: Sequence[str], pattern: str) -> list[int]:
    """Return the numbers of the lines that match. ripgrep takes linear time, whatever pattern a model writes."""
    numbers: set[int] = set()

    def take(line: bytes) -> bool:
        numbers.add(int(line.partition(b":")[0]))
        return True

    flags = ("--no-filename", "--line-number", "--text", "--only-matching", "--replace=", f"--regexp={pattern}")
    with TemporaryFile() as file:
        await run_in_thread(file.write, "\n".join(lines).encode("utf-8", "replace"))
        file.flush()
        result = await run_ripgrep(flags, file.fileno(), take, 2 * _TIMEOUT)  # the limit of the call comes first
    if result.code not in (0, 1):
        raise ToolError(f"The pattern cannot be used: {result.error}")
    return sorted(numbers)
