"""Compare the file tools with `rg` and `cat` on a tree of 50 000 small files in a temporary folder.

The CPU time includes child processes. Print one JSON line: ratios, seconds, and milliseconds per file.
"""

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from treadle.history.content_store import ContentStore
from treadle.history.snapshot import Snapshot
from treadle.tools.base import ToolContext
from treadle.tools.builtin import build_file_tools
from treadle.tools.files.ripgrep import find_ripgrep

FOLDERS, FILES, READ, REPEATS = 500, 100, 300, 5
NEEDLE = "needle in folder 7"


def build_tree(root: Path) -> list[Path]:
    """Build the tree. Each file has about a kilobyte, and a hundred of them contain the needle."""
    made: list[Path] = []
    for folder in range(FOLDERS):
        place = root / f"package{folder % 20}" / f"folder{folder}"
        place.mkdir(parents=True)
        for number in range(FILES):
            path = place / f"module{number}.py"
            lines = [f"def function_{line}(x): return x * {folder} + {number} + {line}" for line in range(18)]
            path.write_text("\n".join([*lines, f"# {'needle' if folder == 7 else 'hay'} in folder {folder}", ""]))
            made.append(path)
    return made


def read_cpu() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


async def measure(work: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """Return the least CPU and wall time of several rounds, after one round to warm up."""
    await work()
    goes: list[tuple[float, float]] = []
    for _ in range(REPEATS):
        used, began = read_cpu(), time.perf_counter()
        await work()
        goes.append((read_cpu() - used, time.perf_counter() - began))
    return min(used for used, _ in goes), min(wall for _, wall in goes)


async def run_program(*words: str) -> None:
    process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    await process.wait()


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root, kept = Path(folder) / "workspace", ContentStore(Path(folder) / "kept")
        paths = build_tree(root)
        tools = {tool.name: tool for tool in build_file_tools(kept)}
        context = ToolContext("session", "call", root)

        async def call(name: str, **arguments: object) -> object:
            tool = tools[name]
            return await tool.run(tool.parse(json.dumps(arguments)), context)

        async def read_some() -> None:
            for path in paths[:: len(paths) // READ][:READ]:
                await call("read_file", path=str(path))

        async def cat_some() -> None:
            for path in paths[:: len(paths) // READ][:READ]:
                await run_program("cat", str(path))

        async def take_snapshots() -> None:
            await asyncio.to_thread(lambda: Snapshot(kept, root).find_changes())

        found = str(await call("search_files", pattern=NEEDLE))
        assert found.count(NEEDLE) == FILES, found
        rows = {
            "search_files": await measure(lambda: call("search_files", pattern=NEEDLE)),
            "rg": await measure(lambda: run_program(find_ripgrep(), "--no-config", "--hidden", NEEDLE, str(root))),
            "list_files": await measure(lambda: call("list_files")),
            "rg --files": await measure(lambda: run_program(find_ripgrep(), "--no-config", "--files", str(root))),
            f"read_file x {READ}": await measure(read_some),
            f"cat x {READ}": await measure(cat_some),
            "snapshot before and after": await measure(take_snapshots),
        }
        kept.close()
    for name, (used, wall) in rows.items():
        print(f"{name:28} {used * 1000:8.1f} ms CPU {wall * 1000:8.1f} ms wall", file=sys.stderr)
    ratios = {
        "search_files_to_rg": rows["search_files"][0] / rows["rg"][0],
        "list_files_to_rg": rows["list_files"][0] / rows["rg --files"][0],
        "read_file_to_cat": rows[f"read_file x {READ}"][0] / rows[f"cat x {READ}"][0],
        "read_file_ms": rows[f"read_file x {READ}"][0] / READ * 1000,
        "snapshot_s": rows["snapshot before and after"][0],
    }
    print(json.dumps({name: round(value, 3) for name, value in ratios.items()}))


if __name__ == "__main__":
    asyncio.run(main())
