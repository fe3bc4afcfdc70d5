"""Write every recorded session as JSON, with its state at each position, to test what a page computes from facts.

Usage: `python -m tests.kit.write_recordings FOLDER`.
"""

import asyncio
import sys
from pathlib import Path

import msgspec

from tests.kit.recorded_sessions import record_all
from treadle.dialects.state_view import build_state_view
from treadle.engine.fold import apply
from treadle.engine.state import State
from treadle.events import AnyFact


def render_recording(facts: list[AnyFact]) -> bytes:
    """Render the facts of a session and its state after each of them."""
    state, states = State(), list[bytes]()
    for fact in facts:
        apply(state, fact)
        states.append(msgspec.json.encode(build_state_view(state)))
    return msgspec.json.encode({"facts": facts, "states": [msgspec.Raw(view) for view in states]})


async def write_recordings(folder: Path) -> list[Path]:
    """Write a file for each recorded session."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name, facts in (await record_all()).items():
        path = folder / f"{name}.json"
        path.write_bytes(render_recording(facts))
        written.append(path)
    return written


if __name__ == "__main__":
    print(len(asyncio.run(write_recordings(Path(sys.argv[1])))), "recordings written")
