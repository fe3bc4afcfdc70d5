"""The private cache of a workspace: what is kept in it, who sees it, and when it is removed."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.kit.sandbox import PATIENCE, inside, needs_bubblewrap
from treadle.sandbox import caches
from treadle.sandbox.base import Bounds, Job
from treadle.sandbox.caches import hold_cache, list_cached_workspaces, list_caches, remove_cache, trim_caches

PYTHON = os.path.realpath(sys.executable)


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(caches, "find_data_folder", lambda: tmp_path / "data")
    return tmp_path / "data"


def fill(workspace: Path, size: int, used: float) -> Path:
    """Make a cache as an earlier command left it."""
    workspace.mkdir(exist_ok=True)
    with hold_cache(workspace) as folder:
        (folder / "file").write_bytes(os.urandom(size))
    os.utime(folder.with_suffix(".lock"), (used, used))
    return folder


@needs_bubblewrap
async def test_what_package_managers_download_is_kept_for_the_next_command(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    write = "for name in XDG_CACHE_HOME CARGO_HOME GOPATH npm_config_cache PYTHONUSERBASE GRADLE_USER_HOME; do "
    write += 'mkdir -p "${!name}"; echo $name > "${!name}/mine"; done; echo note > ~/note'
    ran = await inside(Job(("/bin/bash", "-c", write), tmp_path / "work"))
    assert ran.ended.code == 0, ran
    read = write.replace("mkdir -p", "true").replace('echo $name > "${!name}/mine"', 'cat "${!name}/mine"')
    ran = await inside(Job(("/bin/bash", "-c", read.replace("echo note >", "cat")), tmp_path / "work", writable=False))
    assert ran.output.split("\n")[0] == "XDG_CACHE_HOME" and "GRADLE_USER_HOME" in ran.output, ran
    assert "No such file" in ran.output, "the rest of the home is new"
    (tmp_path / "other").mkdir()
    ran = await inside(Job(("/bin/sh", "-c", "ls -A ~/.cache"), tmp_path / "other"))
    assert ran.output == ""


@needs_bubblewrap
async def test_pip_and_npm_use_the_private_cache(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    for command in (f"{PYTHON} -m pip cache dir", "npm config get cache"):
        ran = await inside(Job(("/bin/sh", "-c", command), tmp_path / "work"))
        if ran.ended.code:
            pytest.skip(f"NOT TESTED, {command} does not work on this machine")
        assert ran.output.startswith("/tmp/home/.cache/"), ran


@needs_bubblewrap
async def test_what_pip_installs_for_the_user_is_there_for_the_next_command(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with zipfile.ZipFile(work / "hello_there-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("hello_there.py", "def main(): print('hello')\n")
        wheel.writestr("hello_there-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: hello-there\nVersion: 1\n")
        wheel.writestr(
            "hello_there-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(
            "hello_there-1.dist-info/entry_points.txt", "[console_scripts]\nhello-there = hello_there:main\n"
        )
        wheel.writestr("hello_there-1.dist-info/RECORD", "")
    options = "--user --no-index --find-links . --break-system-packages"
    ran = await inside(Job(("/bin/sh", "-c", f"{PYTHON} -m pip install -q {options} hello-there"), work))
    if "No module named pip" in ran.output:
        pytest.skip("NOT TESTED, this Python has no pip")
    assert (await inside(Job(("hello-there",), work))).output == "hello\n", ran
    assert not (Path.home() / ".local/bin/hello-there").exists()


@needs_bubblewrap
async def test_a_program_in_the_cache_replaces_no_other(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    plant = "d=$CARGO_HOME/bin; mkdir -p $d; printf '#!/bin/sh\\necho planted\\n' > $d/ls; chmod +x $d/ls"
    await inside(Job(("/bin/sh", "-c", plant), work))
    assert "planted" not in (await inside(Job(("ls",), work))).output
    assert (await inside(Job(("/bin/sh", "-c", "$CARGO_HOME/bin/ls"), work))).output == "planted\n"


@needs_bubblewrap
async def test_the_cache_counts_for_the_growth_of_the_disk(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    code = "i=0; while :; do head -c 4000000 /dev/urandom > ~/.cache/$i; i=$((i+1)); done"
    ran = await inside(Job(("/bin/sh", "-c", code), tmp_path / "work", bounds=Bounds(disk_mb=20, wall_s=PATIENCE)))
    assert ran.ended.reason == "disk"


@needs_bubblewrap
async def test_a_command_runs_where_no_cache_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(caches, "find_data_folder", lambda: tmp_path / "file")
    (tmp_path / "work").mkdir()
    ran = await inside(
        Job(("/bin/sh", "-c", "mkdir -p ~/.cache && echo x > ~/.cache/x && cat ~/.cache/x"), tmp_path / "work")
    )
    assert ran.output == "x\n"


def test_the_least_recently_used_caches_are_dropped(tmp_path: Path) -> None:
    folders = [fill(tmp_path / name, 300_000, used) for name, used in (("b", 2e9), ("a", 1e9), ("c", 3e9))]
    assert [cache.workspace.name for cache in list_caches()] == ["a", "b", "c"]
    trim_caches(700_000)
    assert [folder.exists() for folder in folders] == [True, False, True]
    assert tmp_path / "a" in list_cached_workspaces(), "that an agent worked there stays known"
    trim_caches(0, every=3600)
    assert folders[0].exists(), "it was done just now"
    trim_caches(0)
    assert list_caches() == []


def test_a_cache_in_use_is_not_dropped(tmp_path: Path) -> None:
    folder = fill(tmp_path / "a", 1000, 1e9)
    with hold_cache(tmp_path / "a"):
        trim_caches(0)
        assert folder.exists() and not remove_cache(list_caches()[0])
    trim_caches(0)
    assert not folder.exists()
    with hold_cache(tmp_path / "a") as again:
        assert again == folder and list(again.iterdir()) == []


def test_the_cache_of_a_workspace_that_is_gone_is_dropped(tmp_path: Path) -> None:
    folder = fill(tmp_path / "a", 1000, 1e9)
    recent = fill(tmp_path / "b", 1000, 4e9)
    for name in ("a", "b"):
        (tmp_path / name).rmdir()
    trim_caches()
    assert not folder.exists() and recent.exists() and list_cached_workspaces() == (tmp_path / "b",)


def test_a_cache_that_resists_is_removed(tmp_path: Path) -> None:
    folder = fill(tmp_path / "a", 1000, 1e9)
    (folder / "go/mod").mkdir(parents=True)
    (folder / "go/mod/x.go").touch()
    (folder / "go/mod").chmod(0o500)
    (folder / "link").symlink_to(tmp_path / "a")
    deep = f"import os\nos.chdir({str(folder)!r})\nfor _ in range(3000): os.mkdir('d' * 50); os.chdir('d' * 50)\n"
    subprocess.run([sys.executable, "-c", deep], check=True)
    (cache,) = list_caches()
    assert cache.size > caches.MAX_BYTES, "what cannot be measured counts as too much"
    trim_caches()
    assert not folder.exists() and (tmp_path / "a").exists()


def test_nobody_else_can_open_the_caches(tmp_path: Path) -> None:
    with hold_cache(tmp_path / "a") as folder:
        assert folder.stat().st_mode & 0o077 == 0 and folder.parent.stat().st_mode & 0o077 == 0


def test_a_cache_that_cannot_be_measured_takes_no_room_from_others(tmp_path: Path) -> None:
    others = [fill(tmp_path / name, 300_000, used) for name, used in (("a", 1e9), ("b", 2e9))]
    hostile = fill(tmp_path / "c", 1000, 3e9)
    deep = f"import os\nos.chdir({str(hostile)!r})\nfor _ in range(100): os.mkdir('d' * 50); os.chdir('d' * 50)\n"
    subprocess.run([sys.executable, "-c", deep], check=True)
    with hold_cache(tmp_path / "c"):
        trim_caches()
        assert all(folder.exists() for folder in others) and hostile.exists(), "it is in use"
    trim_caches()
    assert all(folder.exists() for folder in others) and not hostile.exists()
