#!/usr/bin/env python3
"""Measure the command line: CPU of `treadle --help`, of a list from 10 000 sessions, and of drawing an answer.

    python benchmarks/cli.py [--sessions 10000] [--times 15]

Each command runs in a new process. CPU is user and system time, the best of several runs. The floor is an
interpreter that does nothing. The goal is less than 50 ms for help, and less than 150 ms for a list.

An answer of 1 000 tokens (4 characters each) is drawn in this process. `feed` parses the text and draws finished
blocks. `redraw at 25 Hz` also draws the open block as often as a terminal does when a model writes 100 tokens a
second. `redraw after every token` is the worst case.
"""

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GOALS = "goals: help 50 ms, a list 150 ms of CPU"

ANSWER = """## What is wrong

The count of tokens is **wrong** for Japanese, because `count()` splits the text at spaces. Two callers use it, and
both of them show the gauge of the *context* to the user, who then compacts too late.

- `cli/status.py` shows it
- `server/usage.py` sends it to the [page](https://example.org/usage)

| source | used for | off by |
|---|---|---:|
| provider's usage | every finished turn | 0 % |
| estimate | unknown models | 8 % |

```python
def count(text: str, model: str = "local") -> int:
    if not text:
        return 0  # some models say 1
    return len(tokenizer(model).encode(text))
```

"""


def measure_command(argv, env, times):
    """Return the least CPU and wall time of a command in milliseconds."""
    cpu = wall = float("inf")
    for _ in range(times):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(argv, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        after, ended = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        cpu, wall = min(cpu, used * 1e3), min(wall, (ended - began) * 1e3)
    return cpu, wall


async def fill_store(path, sessions):
    from treadle.events import (
        AgentConfig,
        MessageReceived,
        ModelReplied,
        RunFinished,
        RunStarted,
        SessionCreated,
        SessionRenamed,
        TurnStarted,
    )
    from treadle.log.sqlite import SqliteLog
    from treadle.messages import TextPart, Usage

    log = SqliteLog(path)
    for number in range(sessions):
        await log.create(
            f"{number:032x}",
            [
                SessionCreated(
                    session_id=f"{number:032x}", agent=AgentConfig(), workspace=f"/home/ada/project{number % 40}"
                ),
                SessionRenamed(name=f"Look into problem {number}", by="auto"),
                MessageReceived(id="m", parts=(TextPart("Why is the build red, and since when?"),)),
                RunStarted(run_id="run_1", limits=SessionCreated(session_id="x").limits),
                TurnStarted(turn=1, messages=("m",)),
                ModelReplied(text="Since Monday, because of a missing lock file.", usage=Usage(900, 40)),
                RunFinished(run_id="run_1", reason="answered", answer="Since Monday.", turns=1),
            ],
        )
    await log.close()


def measure_drawing(text, every):
    """Return the CPU in ms for 1 000 tokens. The open block is drawn after `every` tokens, or never with 0."""
    from treadle.cli.draw.glyphs import Theme
    from treadle.cli.draw.markdown_stream import MarkdownStream

    stream = MarkdownStream(Theme(has_colour=True, has_style=True), 80)
    began = time.process_time()
    for number, start in enumerate(range(0, len(text), 4)):
        stream.feed(text[start : start + 4])
        if every and number % every == 0:
            stream.draw_open()
    stream.end()
    return (time.process_time() - began) * 1e3 * 1000 / (len(text) / 4)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--times", type=int, default=15)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store.db"
        asyncio.run(fill_store(store, args.sessions))
        env = {**os.environ, "HOME": folder, "XDG_CONFIG_HOME": folder, "XDG_DATA_HOME": folder}
        treadle = [sys.executable, "-m", "treadle"]
        rows = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "treadle --help": [*treadle, "--help"],
            "treadle run --help": [*treadle, "run", "--help"],
            "treadle sessions list": [*treadle, "sessions", "list", "--store", str(store)],
            "the same, --limit 200": [*treadle, "sessions", "list", "--store", str(store), "--limit", "200"],
            "the same, --status failed": [*treadle, "sessions", "list", "--store", str(store), "--status", "failed"],
            "treadle sessions search": [*treadle, "sessions", "search", "monday lock", "--store", str(store)],
        }
        print(f"{args.sessions} sessions in the store; {GOALS}")
        print(f"{'command':<28}{'CPU ms':>9}{'wall ms':>9}")
        for name, argv in rows.items():
            cpu, wall = measure_command(argv, env, args.times)
            print(f"{name:<28}{cpu:>9.0f}{wall:>9.0f}")
    text = ANSWER * 10
    measure_drawing(text, 1)  # the lexers are loaded once
    print("drawing 1000 tokens")
    for name, every in (("feed", 0), ("redraw at 25 Hz", 4), ("redraw after every token", 1)):
        print(f"{name:<28}{min(measure_drawing(text, every) for _ in range(args.times)):>9.0f}")


if __name__ == "__main__":
    main()
