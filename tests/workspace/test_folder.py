"""Paths: whatever path a model writes and whoever swaps links meanwhile, nothing outside is read or changed."""

import ctypes
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.kit.sessions import PATIENCE
from treadle.tools.base import ToolError
from treadle.workspace import folder as folder_module
from treadle.workspace.folder import Folder, PathRefused

CANARY = "canary: this lies outside"
INSIDE = "this lies inside"


class Traps:
    """A workspace full of traps, and a folder outside it that must neither be read nor changed."""

    def __init__(self, folder: Path) -> None:
        self.workspace, self.outside = folder / "workspace", folder / "outside"
        for place in (self.workspace / "real" / "deep", self.outside):
            place.mkdir(parents=True)
        (self.outside / "secret.txt").write_text(CANARY)
        (folder / "workspace-twin").mkdir()
        (folder / "workspace-twin" / "secret.txt").write_text(CANARY)
        (self.workspace / "real" / "a.txt").write_text(INSIDE)
        (self.workspace / "in").symlink_to("real")
        (self.workspace / "out").symlink_to(self.outside)
        (self.workspace / "up").symlink_to("..")
        (self.workspace / "real" / "deep" / "out").symlink_to("../../../outside/secret.txt")
        (self.workspace / "loop").symlink_to("loop")
        (self.workspace / "proc").symlink_to("/proc/self/cwd")
        self.folder = folder

    def outside_is_untouched(self) -> bool:
        around = sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*"))
        return (
            [path for path in around if not path.startswith("workspace/") and path != "workspace"]
            == ["outside", "outside/secret.txt", "workspace-twin", "workspace-twin/secret.txt"]
            and (self.outside / "secret.txt").read_text() == CANARY
            and (self.folder / "workspace-twin" / "secret.txt").read_text() == CANARY
        )


@pytest.fixture(params=["openat2", "parts"])
def traps(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Traps:
    """Build the traps, for a system with openat2 and for one without."""
    if request.param == "parts":
        monkeypatch.setattr(folder_module, "_choose_opener", lambda: folder_module.open_by_parts)
    elif folder_module._choose_opener() is folder_module.open_by_parts:
        pytest.skip("this system has no openat2")
    return Traps(tmp_path)


NAMES = (
    *("..", ".", "", "real", "deep", "in", "out", "up", "loop", "proc", "a.txt", "secret.txt", "outside", "new"),
    *("workspace", "workspace-twin", "REAL", "~", "\0", "x" * 300, "ａ.txt", "e\u0301", "\udcff", " ", "-", "*"),
)
starts = st.sampled_from(["", "/", "//", "./", "@/"])
names = st.one_of(st.sampled_from(NAMES), st.text(max_size=6))
paths = st.builds(lambda start, some: start + "/".join(some), starts, st.lists(names, max_size=9))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(paths)
@example("new/../../outside/secret.txt")
@example("@/../outside/secret.txt")
@example("@/../workspace-twin/secret.txt")
@example("@-twin/secret.txt")
@example("up/outside/secret.txt")
@example("in/../out/secret.txt")
@example("real/deep/out")
@example("x" * 5000)
def test_no_path_reads_or_changes_anything_outside(traps: Traps, path: str) -> None:
    path = path.replace("@", str(traps.workspace), 1)
    with Folder(traps.workspace) as folder:
        for act in (folder.read, folder.find):
            with suppress(ToolError):
                held = act(path)
                assert held is None or CANARY.encode() not in held.data
        for act in (lambda: folder.write(path, b"written"), lambda: folder.remove(path)):
            with suppress(ToolError):
                act()
        assert folder.look_up("real") is not None
    assert traps.outside_is_untouched()
    (traps.workspace / "real" / "deep").mkdir(parents=True, exist_ok=True)
    (traps.workspace / "real" / "a.txt").write_text(INSIDE)


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("../outside/secret.txt", "leaves the workspace"),
        ("new/../../outside", "leaves the workspace"),
        ("/etc/passwd", "is outside the workspace"),
        ("~/.bashrc", "home folder is outside"),
        ("a\0b", "NUL"),
        ("x/" * 3000, "bytes long"),
        ("x" * 300, "too long"),
        ("a.txt/b", "no such file"),
        ("real/a.txt/b", "a file, not a folder"),
    ],
)
def test_a_refusal_names_the_path_and_says_what_is_allowed(traps: Traps, path: str, error: str) -> None:
    with Folder(traps.workspace) as folder, pytest.raises(ToolError, match=error) as raised:
        folder.read(path)
    if isinstance(raised.value, PathRefused) and "workspace" in error:
        assert "Give a path inside the workspace" in str(raised.value)


def test_a_workspace_that_is_itself_a_link_works(traps: Traps) -> None:
    link = traps.folder.parent / f"{traps.folder.name}-link"
    link.symlink_to(traps.workspace)
    with Folder(link) as folder:
        assert folder.read("real/a.txt").data == INSIDE.encode()
        assert folder.read(f"{link}/real/a.txt").path == "real/a.txt"
        assert folder.read(f"{traps.workspace}/real/a.txt").path == "real/a.txt"
    link.unlink()


def test_a_workspace_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PathRefused, match="cannot be opened: No such file"):
        Folder(tmp_path / "none")


class Swapper(threading.Thread):
    """Swaps `spot` between a folder and a link to the outside, as fast as possible."""

    def __init__(self, traps: Traps) -> None:
        super().__init__(daemon=True)
        self.stop, self.swaps = threading.Event(), 0
        spot, link = traps.workspace / "spot", traps.workspace / ".link"
        spot.mkdir()
        (spot / "secret.txt").write_text(INSIDE)
        link.symlink_to(traps.outside)
        current_folder, exchange = -100, 2
        self.arguments = (current_folder, os.fsencode(spot), current_folder, os.fsencode(link), exchange)

    def run(self) -> None:
        exchange = ctypes.CDLL(None, use_errno=True).renameat2
        while not self.stop.is_set():
            assert exchange(*self.arguments) == 0
            self.swaps += 1

    def end(self) -> None:
        self.stop.set()
        self.join()


@pytest.fixture
def swapper(traps: Traps) -> Iterator[Swapper]:
    thread = Swapper(traps)
    thread.start()
    yield thread
    thread.end()


def test_a_folder_swapped_for_a_link_during_the_call_leads_nowhere(traps: Traps, swapper: Swapper) -> None:
    seen: Counter[str] = Counter()
    until = time.monotonic() + PATIENCE
    with Folder(traps.workspace) as folder:
        while time.monotonic() < until and (swapper.swaps < 2000 or len(seen) < 4):
            try:
                assert folder.read("spot/secret.txt").data in (INSIDE.encode(), b"written")
                seen["read"] += 1
                folder.write("spot/secret.txt", b"written")
                seen["written"] += 1
                folder.write("spot/new/file.txt", b"written")
                folder.remove("spot/new/file.txt")
                seen["removed"] += 1
            except ToolError:
                seen["refused"] += 1
    swapper.end()
    assert len(seen) == 4, seen
    assert traps.outside_is_untouched()


def test_the_swapping_would_fool_a_check_of_the_resolved_path(traps: Traps, swapper: Swapper) -> None:
    """This is the control: a usual check lets the path through, so the test above proves something."""
    path, fooled, until = traps.workspace / "spot" / "secret.txt", False, time.monotonic() + PATIENCE
    while not fooled and time.monotonic() < until:
        with suppress(OSError):
            fooled = os.path.realpath(path).startswith(f"{traps.workspace}/") and path.read_text() == CANARY
    assert fooled


def test_every_descriptor_is_closed_again(traps: Traps) -> None:
    paths = ("real/a.txt", "in/a.txt", "out/secret.txt", "loop", "real", "none", "../x", ".env", "real/a.txt/b")
    before = len(os.listdir("/proc/self/fd"))
    for path in paths * 20:
        with Folder(traps.workspace) as folder:
            for act in (folder.read, folder.find, folder.look_up, folder.remove, lambda one: folder.write(one, b"")):
                try:
                    act(path)
                except ToolError:
                    continue
    assert len(os.listdir("/proc/self/fd")) < before + 20  # one of ours would be there twenty times; others come and go
    shutil.rmtree(traps.workspace)


def test_the_names_of_a_folder_that_cannot_be_read_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(opened: int) -> list[str]:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "listdir", fail)
    with Folder(tmp_path) as folder:
        assert folder.list_names(".") == folder.list_names("missing") == []
