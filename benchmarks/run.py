"""Print the benchmarks of the kernel and the models as tables: `python benchmarks/run.py [NAME…] [--reps N]`.

Each measurement runs in its own process. The processes take turns, and the least CPU time counts. Compare ratios
within one run. Figures of different runs depend on the machine and its load.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
IMPORT_CPU = (
    "import resource as r; c = lambda: sum(r.getrusage(r.RUSAGE_SELF)[:2]); b = c(); import {name}; e = c();"
    "print('{{\"cpu_s\": %f}}' % (e - b))"
)


@dataclass(frozen=True)
class Row:
    """One line of the table: the subject, the figure and the goal."""

    what: str
    figure: str
    goal: str
    met: bool


@contextmanager
def start_fake_model() -> Iterator[str]:
    """Start a model on loopback that answers at once, and yield its port."""
    command = [sys.executable, str(HERE / "fake_model.py"), "--until-eof"]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None and server.stdin is not None
    try:
        yield server.stdout.readline().split()[1]
    finally:
        server.stdin.close()
        server.wait(10)


def measure(*command: str) -> dict[str, float]:
    # An installation has compiled modules. Without them, an import would include the compilation.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def find_least(results: list[dict[str, float]], key: str = "cpu_s") -> float:
    return min(result[key] for result in results)


def measure_kernel(reps: int) -> Iterator[Row]:
    names = ("step", "step_thread", "step_short", "step_memory", "history", "history_bare", "opening", "memory")
    results: dict[str, list[dict[str, float]]] = {name: [] for name in (*names, "floor", "import")}
    with start_fake_model() as port:
        for _ in range(reps):
            results["floor"].append(measure(str(HERE / "floor.py"), port, "steps-50", "1", "10"))
            for name in names:
                results[name].append(measure(str(HERE / "kernel.py"), name))
            results["import"].append(measure("-c", IMPORT_CPU.format(name="treadle.runtime, treadle.tools.function")))
    floor = find_least(results["floor"]) / 51
    yield Row("floor: one step by hand over aiohttp", f"{floor * 1e3:.3f} ms", "", True)
    for name, what, goal in (
        ("step", "one durable step, async tool, SQLite", 0.6),
        ("step_thread", "one durable step, plain function in a thread, SQLite", None),
        ("step_short", "one durable step, plain function that proved to be short, SQLite", None),
        ("step_memory", "one step, async tool, log in memory", None),
    ):
        ratio = find_least(results[name]) / floor
        figure = f"{find_least(results[name]) * 1e3:.3f} ms = {ratio:.2f} × the floor"
        yield Row(what, figure, f"≤ {goal} ×" if goal else "", goal is None or ratio <= goal)
    growth = find_least(results["step"], "last") / find_least(results["step"], "first")
    yield Row("step 2 000 against step 20", f"{growth:.2f} ×", "≤ 1.3 ×", growth <= 1.3)
    for name, what in (("history", "with instructions"), ("history_bare", "without instructions")):
        steps = [find_least(results[name], key) * 1e3 for key in ("step_100", "step_1000", "step_5000")]
        figure = ", ".join(f"{step:.3f}" for step in steps) + " ms"
        yield Row(f"step 100, 1 000, 5 000, {what}", figure, "≤ 1.5 × step 100", steps[2] <= 1.5 * steps[0])
    opening = find_least(results["opening"])
    yield Row("open and fold 100 000 facts", f"{opening:.2f} s", "< 1 s", opening < 1)
    parked, active = find_least(results["memory"], "parked_bytes"), find_least(results["memory"], "active_bytes")
    yield Row("memory of a session that is done or waits", f"{parked / 1e3:.1f} kB", "0", parked < 1000)
    yield Row("memory of an active session", f"{active / 1e3:.1f} kB", "≤ 100 kB", active <= 100_000)
    imports = find_least(results["import"])
    yield Row("import of what an agent needs, without a model", f"{imports * 1e3:.0f} ms", "< 100 ms", imports < 0.1)


def measure_models(reps: int) -> Iterator[Row]:
    """Compare treadle and its SQLite log with the loop by hand, on the same fake model over a real socket."""
    scenarios = (
        ("tool loop, 50 steps", "steps-50", 1, 8, 51, 1.75),
        ("tool loop, 200 steps", "steps-200", 1, 3, 201, 1.2),
        ("streaming, 2 000 tokens in a burst", "steps-0-tok-2000", 1, 8, 2000, 1.3),
        ("streaming, 2 000 tokens, one each millisecond", "steps-0-tok-2000-delay-1ms", 1, 2, 2000, 1.3),
        ("200 sessions at once, 5 steps each", "steps-5-tok-50-delay-5ms", 200, 2, 200, 1.8),
    )
    names = {"aiohttp": "aiohttp", "chat": "treadle, treadle.models.catalog, treadle.models.chat_completions, aiohttp"}
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    with start_fake_model() as port:
        for _ in range(reps):
            for _, model, at_once, rounds, _, _ in scenarios:
                for program in ("floor.py", "run_treadle.py"):
                    command = (str(HERE / program), port, model, str(at_once), str(rounds))
                    found.setdefault((program, model), []).append(measure(*command))
            for name, modules in names.items():
                found.setdefault(("import", name), []).append(measure("-c", IMPORT_CPU.format(name=modules)))
    for what, model, _, _, parts, goal in scenarios:
        floor, ours = (find_least(found[program, model]) / parts for program in ("floor.py", "run_treadle.py"))
        unit, scale = ("µs", 1e6) if ours < 1e-4 else ("ms", 1e3)
        figure = f"{ours * scale:.2f} {unit} = {ours / floor:.2f} × the floor's {floor * scale:.2f}"
        yield Row(what, figure, f"≤ {goal} ×", ours / floor <= goal)
    grown = find_least(found["run_treadle.py", "steps-5-tok-50-delay-5ms"], "rss_bytes") / 1e3
    yield Row("memory a session, 200 at once", f"{grown:.0f} kB", "≤ 50 kB", grown <= 50)
    ours, alone = find_least(found["import", "chat"]), find_least(found["import", "aiohttp"])
    figure = f"{ours * 1e3:.0f} ms = {ours / alone:.2f} × aiohttp alone"
    yield Row("import of all that a chat model needs", figure, "≤ 1.3 ×", ours / alone <= 1.3)


SUITES = {"kernel": measure_kernel, "models": measure_models}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], help="which to run; all without a name")
    parser.add_argument("--reps", type=int, default=3, help="processes a measurement")
    options = parser.parse_args()
    for name in options.suites or SUITES:
        print(f"\n{name} (CPU time, least of {options.reps} processes)\n")
        print("| what | figure | goal | |\n|---|---|---|---|", flush=True)
        for row in SUITES[name](options.reps):
            mark = "" if not row.goal else "met" if row.met else "MISSED"
            print(f"| {row.what} | {row.figure} | {row.goal} | {mark} |", flush=True)


if __name__ == "__main__":
    main()
