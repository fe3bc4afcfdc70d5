"""The output of the interactive terminal. Several changes of the screen can go out as one write."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from prompt_toolkit.output.vt100 import Vt100_Output

from treadle.cli.console import BEGIN_UPDATE, END_UPDATE


class HeldOutput(Vt100_Output):
    """It never asks the terminal where the cursor is: the area is drawn from where it is."""

    _is_held = False

    def flush(self) -> None:
        if not self._is_held:
            super().flush()

    @contextmanager
    def hold(self) -> Generator[None]:
        """Write everything at the end of the block, at once."""
        self.write_raw(BEGIN_UPDATE)
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            self.write_raw(END_UPDATE)
            self.flush()
