"""A wall clock that is wrong, for the Python processes that a test starts. Their monotonic clock stays right.

Only `time.time` and `time.time_ns` are wrong, which is what treadle asks for the time of a fact.
"""

import os
from pathlib import Path

_PATCH = """
import time
from pathlib import Path

_shift = Path(__file__).with_name("shift")
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + float(_shift.read_bytes())
time.time_ns = lambda: _time_ns() + int(float(_shift.read_bytes()) * 1e9)
"""


class ShiftedClock:
    """A clock that goes wrong by some seconds, also while processes that use it run.

    `environment` makes a Python process use it.
    """

    def __init__(self, folder: Path, seconds: float = 0.0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "shift"
        self.shift(seconds)
        (folder / "sitecustomize.py").write_text(_PATCH, "utf-8")
        paths = (str(folder), os.environ.get("PYTHONPATH", ""))
        self.environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def shift(self, seconds: float) -> None:
        """Set how many seconds it is ahead of the right time, or behind it when negative."""
        unfinished = self._file.with_name("shift.new")
        unfinished.write_text(str(seconds), "ascii")
        unfinished.replace(self._file)
