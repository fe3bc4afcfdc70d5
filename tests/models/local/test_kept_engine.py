"""Engines that stay loaded between commands: real processes, a real socket, the small model's weights."""

import asyncio
import importlib.util
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from tests.kit.sessions import PATIENCE
from tests.kit.terminal import needs_sandbox
from treadle.errors import ModelError, TreadleError
from treadle.models.local import kept_process, weights
from treadle.models.local.engine_process import create_socket_folder
from treadle.models.local.local_model import LocalModel

NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The weights. The data folder is the test's own, and so are the engines."""
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("no embedded model: xllamacpp is not installed (pip install 'treadle[local]')")
    try:
        found = weights.ensure_weights(None)
    except TreadleError as error:
        pytest.skip(f"no embedded model: {error}")
    monkeypatch.setenv("TREADLE_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "data" / "models").mkdir(parents=True)
    (tmp_path / "data" / "models" / found.name).symlink_to(found)
    yield found
    kept_process.unload_kept_engines()


async def use(path: Path, seconds: float = 600, slots: int = 4) -> int:
    """Load the model as a command would, use it, and leave it. The number of the engine's process."""
    model = LocalModel(path, keep_loaded=seconds, slots=slots)
    assert (await model.load()).state == "ready"
    assert await model.detokenize([28120]) == "hello"
    assert model._engine and isinstance(model._engine._child, kept_process.KeptProcess)
    pid = model._engine._child.pid
    await model.close()
    return pid


def run_treadle(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "treadle", *words], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def wait_for_end(pid: int) -> None:
    given_up = time.monotonic() + PATIENCE
    while any(each.pid == pid for each in kept_process.list_kept_engines()) or is_running(pid):
        assert time.monotonic() < given_up
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


async def test_an_engine_serves_later_processes_until_it_is_unloaded(path: Path) -> None:
    pid = await use(path)
    assert await use(path) == pid, "the same engine"
    folder = kept_process.find_engines_folder()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    shown = run_treadle("models", "list")
    assert f"loaded: {path.name} (" in shown
    assert run_treadle("models", "unload").startswith(f"unloaded {path.resolve()} (")
    wait_for_end(pid)
    assert [each.name for each in folder.iterdir()] == ["lock"]
    assert run_treadle("models", "unload") == "nothing is loaded\n"


async def test_a_killed_engine_is_started_again(path: Path) -> None:
    pid = await use(path)
    os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)
    assert await use(path) != pid
    model = LocalModel(path, keep_loaded=600)
    await model.load()
    (engine,) = kept_process.list_kept_engines()
    os.kill(engine.pid, signal.SIGKILL)
    wait_for_end(engine.pid)
    assert (await model.load()).state == "ready", "also while it is in use"
    await model.close()


async def test_an_engine_killed_while_it_answers_is_started_again(path: Path) -> None:
    model = LocalModel(path, keep_loaded=600)
    await model.load()
    (engine,) = kept_process.list_kept_engines()
    assert model._engine
    async with aclosing(model._engine.stream_pieces("Once upon a time", {"n_predict": 4000})) as pieces:
        await anext(pieces)
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(ModelError, match="starts it again") as caught:
            [piece async for piece in pieces]
    assert caught.value.retryable
    assert await model.detokenize([28120]) == "hello", "the same command goes on"
    (other,) = kept_process.list_kept_engines()
    assert other.pid != engine.pid
    await model.close()
    assert await use(path) == other.pid, "and so does the next one"


@pytest.mark.parametrize("is_full", [False, True])
async def test_an_engine_that_was_stopped_is_not_waited_for(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_full: bool
) -> None:
    pid = await use(path)
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(kept_process, "SILENT_SECONDS", 0.2)  # not before: a busy machine may hold up an engine too
    model = LocalModel(path, keep_loaded=600)
    (folder,) = kept_process.find_engines_folder().glob("*/")
    waiting = [kept_process.KeptProcess(folder) for _ in range(65)] if is_full else []
    assert await asyncio.wait_for(model.detokenize([28120]), PATIENCE) == "hello"
    (said,) = [record.getMessage() for record in caplog.records]
    assert ("No engine can be kept loaded" if is_full else f"process {pid}) does not answer") in said
    await model.close()
    for each in waiting:
        each.release()
    if is_full:
        os.kill(pid, signal.SIGKILL)
    else:
        assert [each.pid for each in kept_process.unload_kept_engines()] == [pid]
    wait_for_end(pid)


async def test_a_changed_model_file_or_version_gets_a_new_engine(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy.gguf"
    shutil.copyfile(path, copy)
    first = await use(copy)
    os.utime(copy, (1, 1))
    second = await use(copy)
    assert second != first
    wait_for_end(first)
    newer = tmp_path / "llama_child.py"
    shutil.copyfile(kept_process.CHILD, newer)
    monkeypatch.setattr(kept_process, "CHILD", newer)
    assert await use(copy) != second
    wait_for_end(second)


@pytest.mark.parametrize("problem", ["others may write", "not writable", "a link"])
async def test_an_unsafe_or_missing_folder_means_an_engine_of_its_own(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, problem: str
) -> None:
    folder = kept_process.find_engines_folder()
    match problem:
        case "others may write":
            folder.mkdir()
            folder.chmod(0o777)
        case "a link":
            (tmp_path / "elsewhere").mkdir()
            folder.symlink_to(tmp_path / "elsewhere")
        case _:
            monkeypatch.setenv("TREADLE_DATA_DIR", "/proc/nothing")
    model = LocalModel(path, keep_loaded=600)
    assert await model.detokenize([28120]) == "hello"
    assert kept_process.list_kept_engines() == []
    assert "No engine can be kept loaded" in caplog.text
    await model.close()


async def test_an_engine_ends_when_nobody_uses_it_or_another_one_starts(path: Path) -> None:
    pid = await use(path, seconds=0.1)
    wait_for_end(pid)
    pid = await use(path)
    await use(path, slots=2)
    wait_for_end(pid)
    (other,) = kept_process.list_kept_engines()
    assert other.pid != pid


async def test_a_file_that_is_no_model_leaves_no_engine(path: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but no more")
    with pytest.raises(ModelError, match=r"broken\.gguf"):
        await LocalModel(broken, keep_loaded=600).load()
    assert kept_process.list_kept_engines() == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
async def test_another_user_gets_no_key_and_no_answer(path: Path) -> None:
    await use(path)
    (folder,) = kept_process.find_engines_folder().glob("*/")
    folder.chmod(0o755)  # the modes of files are one protection, and this is about the other one
    for each in folder.glob("*.sock"):
        each.chmod(0o777)
    pid = os.fork()
    if not pid:
        try:
            os.chdir(folder)
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            with socket.socket(socket.AF_UNIX) as lease, socket.socket(socket.AF_UNIX) as engine:
                lease.connect("lease.sock")
                lease.settimeout(PATIENCE)
                try:
                    lease.sendall(b"600\n")  # the engine may have hung up already
                    key = lease.recv(64)
                except ConnectionError:
                    key = b""
                engine.connect("engine.sock")
                engine.settimeout(PATIENCE)
                engine.sendall(b"GET /props HTTP/1.1\r\nHost: engine\r\nAuthorization: Bearer wrong\r\n\r\n")
                os._exit(0 if key == b"" and b" 401 " in engine.recv(64) else 1)
        finally:
            os._exit(2)
    _, status = await asyncio.to_thread(os.waitpid, pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@needs_sandbox
async def test_a_sandboxed_command_does_not_see_the_engine(path: Path) -> None:
    await use(path)
    (lease,) = kept_process.find_engines_folder().glob("*/lease.sock")
    assert "No such file" in run_treadle("sandbox", "exec", "--", "ls", str(lease))


def test_the_socket_of_an_engine_fits_its_address_wherever_temporary_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("t" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = create_socket_folder()
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{folder}/engine.sock")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    finally:
        shutil.rmtree(folder)
