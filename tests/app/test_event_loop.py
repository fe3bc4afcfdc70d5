"""The event loop of the programs, with and without the extra `fast`."""

import asyncio
import subprocess
import sys

import pytest

from treadle.app.event_loop import run_in_fast_loop
from treadle.engine.cancel_scope import CancelScope
from treadle.log.postgres import PostgresLog
from treadle.sandbox.process import WallTimer


async def name_loop() -> str:
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


def test_uvloop_is_used_where_it_is_installed() -> None:
    pytest.importorskip("uvloop")
    assert run_in_fast_loop(name_loop()) == "uvloop"


def test_asyncio_is_used_where_uvloop_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert run_in_fast_loop(name_loop()) == "asyncio"


def test_the_library_and_short_commands_do_not_load_uvloop() -> None:
    code = "import sys; from treadle.cli.main import main; main(['--help']); import treadle.runtime; "
    code += "print('uvloop' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.endswith("False\n")


def test_timers_of_no_time_work_in_the_fast_loop() -> None:
    """uvloop gives another kind of handle for them, which does not know its time."""
    pytest.importorskip("uvloop")

    async def set_timers_again() -> str:
        scope, timer = CancelScope(), WallTimer(0.0)
        for seconds in (0.0, 10.0):
            with scope.limit_to(seconds):
                pass
        scope.close()
        timer.start(lambda: None)
        with timer.pause():
            pass
        timer.cancel()
        async with PostgresLog("postgresql://nobody@127.0.0.1:1/none") as log:
            for seconds in (0.0, 10.0):
                log._wakeups.schedule(seconds)  # pyright: ignore
        return "done"

    assert run_in_fast_loop(set_timers_again()) == "done"
