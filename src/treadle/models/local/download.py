"""Downloads one model file over HTTP into a part file, which the next call continues, and checks its digest.

It neither decides where the file goes nor locks anything: `weights.py` does.
"""

from __future__ import annotations

import hashlib
import http.client
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO

from treadle.errors import ModelError, NotFound
from treadle.models.local.llama_process import Progress
from treadle.models.local.model_table import PullableModel

MAGIC = b"GGUF"
BLOCK_BYTES = 1 << 20
STALL_SECONDS = 60.0


def download_model(model: PullableModel, part: Path, progress: Progress) -> None:
    """Bring the file of a model into `part`. As long as an attempt brings new bytes, another one follows it."""
    while not model.size or count_bytes(part) != model.size:
        before = count_bytes(part)
        try:
            fetch_rest(model, part, progress)
            break
        except urllib.error.HTTPError as error:
            answer = str(error.reason).partition("\n")[0].rstrip(".")  # for a redirect in a circle it has two lines
            reason = f"{model.file} could not be fetched: the server answers {error.code} {answer}."
            error.close()
            if error.code in (404, 410):
                raise NotFound(f"{reason} Check the address, or look for a newer treadle.") from None
            raise ModelError(f"{reason} {_describe_part(part)}", kind="network") from None
        except (OSError, ValueError, http.client.HTTPException) as error:  # ValueError: a redirect to no address
            if count_bytes(part) > before:
                continue
            reason = getattr(error, "reason", error)
            message = f"{model.file} could not be fetched: {reason}. {_describe_part(part)}"
            raise ModelError(message, kind="network") from error
    try:
        check_digest(model, part, progress)
    finally:
        _mark_file(part).unlink(missing_ok=True)


def check_digest(model: PullableModel, file: Path, progress: Progress) -> None:
    """Compare the SHA-256 of a file with the model's, if it has one. A wrong file is deleted."""
    if not model.sha256:
        return
    size = count_bytes(file)
    found = compute_sha256(file, lambda done: progress(f"checking {model.file}", done, size))
    if found != model.sha256:
        file.unlink()
        raise ModelError(
            f"{model.file} has the SHA-256 {found}, not {model.sha256}; it was deleted. "
            "The publisher or somebody on the way changed it. Pull it again; if that does not help, do not use it."
        )


def compute_sha256(file: Path, report: Callable[[int], None] = lambda done: None) -> str:
    """The SHA-256 of a file. `report` gets the number of bytes that were read."""
    digest, done = hashlib.sha256(), 0
    with file.open("rb") as stream:
        while block := stream.read(BLOCK_BYTES):
            digest.update(block)
            done += len(block)
            report(done)
    return digest.hexdigest()


def count_bytes(file: Path) -> int:
    """The size of a file, or 0 if there is none."""
    return file.stat().st_size if file.exists() else 0


def read_version(part: Path) -> str:
    """The version of the server's file that the part has, or nothing if it is unknown."""
    mark = _mark_file(part)
    return mark.read_text() if count_bytes(part) and mark.exists() else ""


class SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to https, and to http only from http."""

    def http_error_302(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage
    ) -> object:
        fp.close()  # first: the new address may be no address, and the body may have no end
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        scheme = newurl.partition(":")[0].lower()
        if scheme not in ("https", req.type):
            raise urllib.error.URLError(f"the server redirects from {req.type} to {scheme}, which is not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _mark_file(part: Path) -> Path:
    """The file that says which version of the server's file the part has."""
    return part.with_suffix(".mark")


def _describe_part(part: Path) -> str:
    return "The part that arrived is kept; pull it again to go on." if count_bytes(part) else "Nothing was kept."


def fetch_rest(model: PullableModel, part: Path, progress: Progress) -> None:
    """Fetch what is missing in `part`, if the server can resume and still has the same version; else all of it."""
    had = count_bytes(part)
    with open_rest(model, part) as response:
        done = had if response.status == 206 else 0
        if done and not response.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
            raise OSError("the server sent another part of the file than the missing one")
        version = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
        if done and version != read_version(part):  # a weak version cannot be asked for with If-Range
            part.unlink()
            raise OSError("the file on the server has changed since the download began")
        total = done + (response.length or 0)
        if model.size and total not in (done, model.size):
            raise ModelError(f"{model.file} has {total} bytes on the server, not {model.size}: it was replaced there.")
        total = model.size or total
        check_space(part, total - done, model.file)
        if not done:
            part.write_bytes(b"")  # before the mark: an older part must never go with a newer mark
            _mark_file(part).write_text(version)
        phase = f"downloading {model.file}" + (" again, from the start" if had and not done else "")
        with part.open("ab") as file:
            while block := response.read1(BLOCK_BYTES):
                if not done and not MAGIC.startswith(block[: len(MAGIC)]):
                    part.unlink()
                    raise ModelError(f"{model.file}: what the server sent is not a GGUF file; it was not kept.")
                file.write(block)
                file.flush()
                done += len(block)
                progress(phase, done, max(total, done))
    if done < total:
        raise OSError(f"the connection broke off after {done} of {total} bytes")


def open_rest(model: PullableModel, part: Path) -> http.client.HTTPResponse:
    """Ask for the part that is missing. Without a version or a digest, nothing would show that the file has changed."""
    had, version = count_bytes(part), read_version(part)
    request = urllib.request.Request(model.url, headers={"Accept-Encoding": "identity"})
    if had and (version or model.sha256):
        request.add_header("Range", f"bytes={had}-")
    if version and not version.startswith("W/"):
        request.add_header("If-Range", version)
    try:
        return urllib.request.build_opener(SafeRedirects).open(request, timeout=STALL_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        error.close()
        part.unlink()  # The server has no more than the part, so the download cannot go on from here.
        return open_rest(model, part)


def check_space(part: Path, needed: int, name: str) -> None:
    """Refuse a download that does not fit on the disk."""
    free = shutil.disk_usage(part.parent).free
    if needed > free:
        raise ModelError(
            f"{name} needs {needed // 10**6} MB more, and {part.parent} has {free // 10**6} MB free. "
            "Free some space, or name another folder in TREADLE_DATA_DIR; what arrived so far is kept.",
            kind="bad_request",
        )
