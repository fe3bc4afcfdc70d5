"""Bombs: each explodes without bounds, small enough to be harmless, and a smaller bound stops it."""

import asyncio
import math
import os
import threading
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct

from tests.kit.sandbox import PATIENCE, Place, Run, collect, needs_bubblewrap, needs_landlock, on_host, plainly, until
from treadle.errors import BadInput
from treadle.sandbox.backend import run_in_sandbox, run_on_host
from treadle.sandbox.base import Bounds, EndReason, Job
from treadle.sandbox.landlock import run_in_landlock
from treadle.sandbox.resource_usage import DiskWatch


class Bomb(Struct, frozen=True):
    """It says EXPLODED once it got what it is not to have. The reason is how it ends when held."""

    name: str
    code: str
    bounds: Bounds
    reason: EndReason = "exited"


FORKS = """
import os, sys, time
for _ in range(60):
    if os.fork() == 0: time.sleep(PAUSE); os._exit(0)
time.sleep(PAUSE); print("EXPLODED", flush=True)
"""
GRANDCHILDREN = """
import os, time
def burst(depth):
    for _ in range(4):
        if depth and os.fork() == 0:
            os.setsid(); burst(depth - 1); time.sleep(PAUSE); os._exit(0)
burst(3)
time.sleep(PAUSE); print("EXPLODED", flush=True)
"""
HEAPS = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        x = bytearray(60 << 20); time.sleep(PAUSE); os._exit(0)
time.sleep(PAUSE); print("EXPLODED", flush=True)
"""
SHARED = """
import mmap, os, time
x = mmap.mmap(-1, 200 << 20)
for at in range(0, 200 << 20, 4096): x[at] = 1
time.sleep(PAUSE); print("EXPLODED", flush=True)
"""
# Those that fill the disk do it again and again: what others free at the same moment hides one time from who looks on.
FILES = """
import os, time
for n in range(12):
    with open(f"f{n}", "wb") as f: f.write(b"x" * (8 << 20)); f.flush(); os.fsync(f.fileno())
    if n % 3 == 2: time.sleep(PAUSE / 100)
time.sleep(PAUSE); print("EXPLODED", flush=True)
"""
NAMELESS = """
import os, time
held = []
for n in range(12):
    f = open("f", "wb"); os.unlink("f"); held.append(f)
    f.write(b"x" * (8 << 20)); f.flush(); os.fsync(f.fileno())
    if n % 3 == 2: time.sleep(PAUSE / 100)
time.sleep(PAUSE); print("EXPLODED", flush=True)
"""
EMPTY = """
import time
for n in range(6000):
    open(f"f{n}", "w").close()
    if n % 1500 == 1499: time.sleep(PAUSE / 100)
time.sleep(PAUSE); print("EXPLODED", flush=True)
"""
DEEP = """
import os
for _ in range(30):
    os.mkdir("d" * 200); os.chdir("d" * 200)
"""
CLOSED = """
import os
os.mkdir("d"); os.chmod("d", 0o300); os.chdir("d")
"""
SMALL = Bounds(wall_s=120)
NAME = f"treadle-bomb-{os.getpid()}"

BOMBS = [
    Bomb("processes", FORKS, Bounds(wall_s=120, processes=30), "processes"),
    Bomb("processes that leave their group", GRANDCHILDREN, Bounds(wall_s=120, processes=40), "processes"),
    Bomb("memory", "x = bytearray(300 << 20); print('EXPLODED')", Bounds(wall_s=120, memory_mb=150)),
    Bomb("memory in many processes", HEAPS, Bounds(wall_s=120, memory_mb=150), "memory"),
    Bomb("memory that is shared", SHARED, Bounds(wall_s=120, memory_mb=100), "memory"),
    Bomb("a file", "open('f', 'wb').write(b'x' * (32 << 20)); print('EXPLODED')", Bounds(wall_s=120, file_mb=4)),
    Bomb("files", FILES, Bounds(wall_s=120, disk_mb=20), "disk"),
    Bomb("files without a name", NAMELESS, Bounds(wall_s=120, disk_mb=20), "disk"),
    Bomb("files too deep to be looked at", DEEP + FILES, Bounds(wall_s=120, disk_mb=20), "disk"),
    Bomb("files in a folder that cannot be listed", CLOSED + FILES, Bounds(wall_s=120, disk_mb=20), "disk"),
    Bomb("empty files", EMPTY, Bounds(wall_s=120, disk_mb=4), "disk"),
    Bomb(
        "descriptors",
        "x = [open('/dev/null') for _ in range(300)]; print('EXPLODED')",
        Bounds(wall_s=120, open_files=100),
    ),
    Bomb("output", "print('x' * (8 << 20)); print('EXPLODED')", Bounds(wall_s=120, output_bytes=1 << 20), "output"),
    Bomb("time", "import time; time.sleep(PAUSE); print('EXPLODED')", Bounds(wall_s=0.7), "wall"),
]
PRIVATE = [
    Bomb(
        "the temporary folder",
        f"open('/tmp/{NAME}', 'wb').write(b'x' * (16 << 20)); print('EXPLODED')",
        Bounds(wall_s=120, tmp_mb=8),
    ),
    Bomb(
        "the shared memory folder",
        f"open('/dev/shm/{NAME}', 'wb').write(b'x' * (16 << 20)); print('EXPLODED')",
        Bounds(wall_s=120, tmp_mb=8),
    ),
    Bomb("the root folder", f"import os; os.mkdir('/var/{NAME}'); os.rmdir('/var/{NAME}'); print('EXPLODED')", SMALL),
    Bomb(
        "the device folder",
        f"import os; open('/dev/{NAME}', 'wb').write(b'x'); os.unlink('/dev/{NAME}'); print('EXPLODED')",
        SMALL,
    ),
]


def build_job(place: Place, bomb: Bomb, pause: float = 200) -> Job:
    """A bomb that is held does not wait for its pause to end, so that may be long."""
    return place.python(f"PAUSE = {pause}\n{bomb.code}", bounds=bomb.bounds)


def list_bombs(run: Run, *marks: pytest.MarkDecorator, bombs: list[Bomb]) -> list[object]:
    return [pytest.param(run, bomb, id=f"{run.__name__}-{bomb.name.replace(' ', '_')}", marks=marks) for bomb in bombs]


@pytest.mark.parametrize(
    ("run", "bomb"),
    [
        *list_bombs(run_in_sandbox, needs_bubblewrap, bombs=[*BOMBS, *PRIVATE]),
        *list_bombs(run_in_landlock, needs_landlock, bombs=[bomb for bomb in BOMBS if "file" not in bomb.name]),
        *list_bombs(run_on_host, bombs=BOMBS),
    ],
)
async def test_a_bomb_is_held_by_its_bound(run: Run, bomb: Bomb, place: Place) -> None:
    held = await collect(run, build_job(place, bomb))
    assert "EXPLODED" not in held.output and held.ended.reason == bomb.reason, held
    assert held.ended.output_bytes <= bomb.bounds.output_bytes


@pytest.mark.parametrize("bomb", [*BOMBS, *PRIVATE], ids=lambda bomb: bomb.name.replace(" ", "_"))
async def test_a_bomb_explodes_where_nothing_holds_it(bomb: Bomb, place: Place) -> None:
    if bomb in PRIVATE[2:] and os.getuid() != 0:
        pytest.skip(f"NOT TESTED, {bomb.name}: only root may write there")
    assert "EXPLODED" in await plainly(build_job(place, bomb, pause=0.1))
    for folder in ("/tmp", "/dev/shm"):
        Path(folder, NAME).unlink(missing_ok=True)


async def test_what_others_write_to_the_same_disk_is_not_held_against_a_command(place: Place) -> None:
    began, written = place.workspace / "began", place.workspace / "written"
    code = (
        f"import os, time\nopen('began', 'w')\nwhile not os.path.exists('{written}'): time.sleep(0.01)\ntime.sleep(0.5)"
    )
    running = asyncio.ensure_future(on_host(place.python(code, bounds=Bounds(disk_mb=20))))
    await until(began.exists)
    with (place.outside / "large").open("wb") as large:
        large.write(b"x" * (60 << 20))
        large.flush()
        os.fsync(large.fileno())
    written.touch()
    assert (await running).ended.reason == "exited"


async def test_memory_is_looked_at_while_a_large_workspace_is_looked_through(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking, done = place.workspace / "looking", threading.Event()

    def looks_for_long(*_: object) -> bool:
        looking.touch()
        done.wait(PATIENCE)
        return False

    monkeypatch.setattr(DiskWatch, "is_suspicious", lambda _: True)
    monkeypatch.setattr(DiskWatch, "is_over_limit", looks_for_long)
    code = f"PAUSE = 200\nimport os\nwhile not os.path.exists('looking'): pass\n{SHARED}"
    held = await on_host(place.python(code, bounds=Bounds(wall_s=30, memory_mb=100)))
    done.set()
    assert held.ended.reason == "memory"


@pytest.mark.parametrize("run", [run_in_sandbox, run_on_host])
@pytest.mark.parametrize("name", Bounds.__struct_fields__)
async def test_a_bound_that_cannot_be_held_is_refused_by_its_name(run: Run, name: str, place: Place) -> None:
    values = (0, -1, math.nan) if name == "wall_s" else (0, -1, 1 << 50, 1 << 64)
    for value in values:
        bounds = msgspec.structs.replace(Bounds(), **{name: value})
        with pytest.raises(BadInput, match=name):
            await collect(run, place.shell("echo ran > ran", bounds=bounds))
    assert not (place.workspace / "ran").exists()
