#!/usr/bin/env python3
"""Measure a short request to the embedded model: with a new engine, and with one that stayed loaded.

    python benchmarks/local_start.py [--times 5]

Each request is a `treadle run` in a new process and a new data folder. CPU is that of the command plus that of the
engine's process for this request. The goal for an engine that stayed loaded is less than 2 s.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from treadle.models.local.kept_process import list_kept_engines, unload_kept_engines
from treadle.models.local.weights import ensure_weights

GOAL_SECONDS = 2
REQUEST = "what is 2 plus 2"


def read_engine_cpu():
    """Return the CPU seconds that the kept engines have used so far."""
    ticks = 0
    for engine in list_kept_engines():
        fields = Path(f"/proc/{engine.pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def measure_request(folder, keep_loaded):
    """Return the CPU seconds of the command, those of the kept engine, and the time that passed."""
    env = {**os.environ, "HOME": folder, "TREADLE_KEEP_LOADED": str(keep_loaded), "TREADLE_ALLOW_ROOT": "1"}
    argv = [sys.executable, "-m", "treadle", "run", "--model", "local", REQUEST]
    engine_before, before = read_engine_cpu(), resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(argv, env=env, cwd=folder, check=True, capture_output=True, text=True)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if "4" not in done.stdout:
        sys.exit(f"the answer is wrong: {done.stdout}")
    command = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return command, read_engine_cpu() - engine_before, wall


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=5)
    times = parser.parse_args().times
    weights = ensure_weights(None)
    # The compiled modules of an installed package exist already, so they do here.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TREADLE_DATA_DIR"] = folder
        (Path(folder) / "models").mkdir()
        (Path(folder) / "models" / weights.name).symlink_to(weights.resolve())
        measure_request(folder, 0)
        rows = [("new engine, not kept", 0), ("new engine, kept", 600)]
        rows += [(f"kept engine, request {number}", 600) for number in range(1, times + 1)]
        print(f'"{REQUEST}"; goal {GOAL_SECONDS} s of CPU with a kept engine')
        print(f"{'CPU seconds':<28}{'command':>9}{'engine':>9}{'both':>9}{'wall':>9}")
        try:
            for name, keep_loaded in rows:
                command, engine, wall = measure_request(folder, keep_loaded)
                print(f"{name:<28}{command:>9.2f}{engine:>9.2f}{command + engine:>9.2f}{wall:>9.2f}")
        finally:
            unload_kept_engines()


if __name__ == "__main__":
    main()
