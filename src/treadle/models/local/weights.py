"""Fetches model weights and keeps them: the small model's out of a wheel, others by name, path or URL.

pip fetches the wheel without its dependencies, with its own settings for index, proxy and certificates. A file gets
its name only when it is complete and checked.
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import zipfile
from collections.abc import Generator
from pathlib import Path

from treadle.errors import BadInput, ModelError, NotFound
from treadle.models.local.download import BLOCK_BYTES, MAGIC, check_digest, compute_sha256, download_model
from treadle.models.local.load_progress import Progress
from treadle.models.local.model_table import EMBEDDED, MODELS, PullableModel, find_model, find_model_of_file
from treadle.permissions.paths import find_data_folder

SMALL = EMBEDDED.file
WHEEL = EMBEDDED.package
WHEEL_SIZE = 92_871_040
_FILE_NAME = re.compile(r"\w[\w.+ -]{0,180}\.gguf")
SHA256 = EMBEDDED.sha256


def _ignore_progress(message: str, done: float, total: float) -> None:
    pass


def find_models_dir() -> Path:
    """The folder of the weights."""
    return find_data_folder() / "models"


def list_installed() -> list[Path]:
    """The weights in the models folder."""
    return sorted(find_models_dir().glob("*.gguf"))


def name_installed(file: Path) -> str:
    """The model name of weights in the models folder, such as `local:qwen3-4b` or `local:mine.gguf`."""
    known = next((model.name for model in MODELS if model.file == file.name), file.name)
    return "local" if known == EMBEDDED.name else f"local:{known}"


def find_weights(path: str | Path | None) -> Path | None:
    """The file of a model, or None when there is none. None and `smollm2-135m` stand for the small model.

    Others are a path, or a name: of a file in the models folder, with or without its suffix, or of the model table.
    """
    known = EMBEDDED if path is None else find_model(str(path))
    if known is EMBEDDED:
        kept = find_models_dir() / SMALL
        return kept if _is_complete(kept, SHA256) else None
    path = Path(path or "")
    names = (path.name, f"{path.name}.gguf", known.file if known else path.name)
    kept = [find_models_dir() / name for name in names] if path.parent == Path() else []
    return next((file for file in (path.expanduser(), *kept) if file.is_file()), None)


def describe_missing_model(path: str | Path) -> str:
    """Say that a model is not on this machine, and how to get it."""
    if known := find_model(str(path)):
        return f"The model {known.name} is not on this machine. Run: treadle models pull {known.name}"
    return (
        f"There is no model file {path}, nor one of that name in {find_models_dir()}. Give the path of a GGUF file, "
        "or a name that `treadle models pull` lists."
    )


def ensure_weights(
    path: str | Path | None, progress: Progress | None = None, stop: threading.Event | None = None
) -> Path:
    """The file of a model. The small one is fetched if it is missing. Any other must exist."""
    if (found := find_weights(path)) is not None:
        return found
    if path is None or find_model(str(path)) is EMBEDDED:
        return _fetch_small(progress or _ignore_progress, stop or threading.Event())
    raise NotFound(describe_missing_model(path))


def pull_weights(source: str, progress: Progress | None = None, sha256: str = "") -> Path:
    """Bring weights into the models folder: a model of the table, or the URL or path of a GGUF file.

    `local` is the small model. With `sha256`, a file that has another digest is refused.
    """
    progress = progress or _ignore_progress
    known = EMBEDDED if source == "local" else find_model(source)
    if known and sha256 not in ("", known.sha256):
        raise BadInput(f"The SHA-256 of {known.name} is {known.sha256}, not {sha256}. Leave out --sha256.")
    if known is EMBEDDED:
        names = {"fetch": f"downloading {SMALL}", "check": f"checking {SMALL}"}
        return ensure_weights(None, lambda phase, done, total: progress(names.get(phase, phase), done, total))
    if known:
        return _download(known, progress)
    if source.lower().startswith(("http://", "https://")):
        return _download(_read_address(source, sha256), progress)
    path = Path(source).expanduser()
    if not path.is_file():
        near = difflib.get_close_matches(source, [each.name for each in MODELS], 3)
        advice = f"Did you mean {' or '.join(near)}?" if near else "`treadle models pull` lists the names."
        raise NotFound(f"{source} is neither a model of the table, nor a file, nor an http(s) address. {advice}")
    model = PullableModel(path.name, 0, 0, "", sha256, file=path.name)
    kept = find_models_dir() / path.name
    if kept.exists() and kept.samefile(path):
        return kept
    with _lock_models_folder(progress), _open_staging_folder() as folder:
        copy = folder / path.name
        try:
            os.link(path.resolve(), copy)
        except OSError:
            shutil.copyfile(path, copy)
        check_digest(model, copy, progress)
        return _install(copy, kept)


def _read_address(address: str, sha256: str) -> PullableModel:
    """The model at an address. A file that is named like one of the table must be that one."""
    try:
        name = urllib.parse.unquote(urllib.parse.urlsplit(address).path).rpartition("/")[2]
    except ValueError as error:
        raise BadInput(f"{address} is not an address: {error}.") from None
    if not _FILE_NAME.fullmatch(name):
        raise BadInput(
            f"The address of a model file must end in .gguf, and {name or address} does not or is no plain file name."
        )
    known = find_model_of_file(name)
    if known and sha256 not in ("", known.sha256):
        raise BadInput(f"{name} is the file of {known.name}, and its SHA-256 is {known.sha256}. Rename the other file.")
    return PullableModel(name, 0, 0, "", known.sha256 if known else sha256, address, file=name)


def _is_complete(path: Path, sha256: str) -> bool:
    """Whether a file has this digest. The file is read once, and again only after it has changed."""
    stamp = path.with_suffix(".sha256")
    try:
        found = path.stat()
        mark = f"{sha256} {found.st_size} {found.st_mtime_ns}"
        if stamp.exists() and stamp.read_text() == mark:
            return True
        if compute_sha256(path) != sha256:
            return False
    except OSError:
        return False
    with contextlib.suppress(OSError):
        stamp.write_text(mark)
    return True


def _fetch_small(progress: Progress, stop: threading.Event) -> Path:
    kept = find_models_dir() / SMALL
    with _lock_models_folder(progress), _open_staging_folder() as folder:
        if _is_complete(kept, SHA256):
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
        digest = compute_sha256(copy) if copy.exists() else "(none)"
        progress("check", 1, 1)
        if digest != SHA256:
            raise ModelError(
                f"The model in {WHEEL} has the SHA-256 {digest}, not {SHA256}; it was not kept. {_build_advice()}"
            )
        _install(copy, kept)
        _is_complete(kept, SHA256)
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


def _download(model: PullableModel, progress: Progress) -> Path:
    kept = find_models_dir() / model.file
    with _lock_models_folder(progress):
        if kept.exists() and (not model.sha256 or _is_complete(kept, model.sha256)):
            if not model.sha256:
                progress(f"{model.file} is here already; to fetch it again, delete it first", 0, 0)
            return kept
        part = find_models_dir() / f".{model.file}.part"
        download_model(model, part, progress)
        return _install(part, kept)


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
