"""Model files come over a real socket: cut, slow, changed, moved and wrong ones, and two processes at once."""

import gc
import hashlib
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from functools import partial
from http.client import HTTPMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request

import pytest

from treadle.errors import BadInput, ModelError, NotFound
from treadle.models.local import model_table, weights
from treadle.models.local.download import SafeRedirects
from treadle.models.local.model_table import EMBEDDED, MODELS, PullableModel

MODEL = b"GGUF" + bytes(range(256)) * 4000
SHA256 = hashlib.sha256(MODEL).hexdigest()
OTHER = b"GGUF" + b"another version" * 70_000


class FileServer(ThreadingHTTPServer):
    """Serves `content` under /models/NAME. `cuts` are the ends of the next replies; after them replies are whole."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.version = MODEL, '"v1"'
        self.has_ranges, self.status, self.moved_to = True, 200, ""
        self.cuts: list[int] = []
        self.asked: list[str | None] = []
        self.hold: threading.Event | None = None
        self.sent = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/models/big.gguf"

    @property
    def unlisted(self) -> str:
        """The address of a file whose name is not in the table."""
        return self.address.replace("big", "mine")


class Handler(BaseHTTPRequestHandler):
    server: FileServer

    def do_GET(self) -> None:
        server = self.server
        if self.path.startswith("/moved/"):
            self.send_response(302)
            self.send_header("Location", server.moved_to or self.path.replace("/moved/", "/models/"))
            self.end_headers()
            return
        asked = self.headers.get("Range")
        server.asked.append(asked)
        same = self.headers.get("If-Range") in (None, server.version)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and same and server.has_ranges else 0
        if server.status != 200 or start >= len(server.content):
            self.send_error(416 if server.status == 200 else server.status)
            return
        end = server.cuts.pop(0) if server.cuts else len(server.content)
        self.send_response(206 if start else 200)
        if server.version:
            self.send_header("ETag", server.version)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}")
        self.send_header("Content-Length", str(len(server.content) - start))
        self.end_headers()
        self.wfile.write(server.content[start:end])
        if server.hold:
            self.wfile.flush()
            server.sent.set()
            server.hold.wait()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("TREADLE_DATA_DIR", str(tmp_path / "data"))
    with FileServer() as server:
        row = PullableModel("big", len(MODEL), 0, "MIT", SHA256, server.address, file="big.gguf")
        monkeypatch.setattr(model_table, "MODELS", (EMBEDDED, row))
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        if server.hold:
            server.hold.set()
        server.shutdown()
        thread.join()


def list_models_folder() -> list[str]:
    return sorted(path.name for path in weights.find_models_dir().iterdir())


def test_a_model_of_the_table_is_downloaded_checked_and_found_by_its_name(server: FileServer) -> None:
    reported: list[tuple[str, float, float]] = []
    with pytest.raises(NotFound, match="treadle models pull big"):
        weights.ensure_weights("big")
    path = weights.pull_weights("Big", lambda *progress: reported.append(progress))
    assert (
        path == weights.find_models_dir() / "big.gguf" == weights.find_weights("big") == weights.ensure_weights("big")
    )
    assert path.read_bytes() == MODEL and list_models_folder() == [".lock", "big.gguf"]
    assert list(dict.fromkeys(message for message, _, _ in reported)) == ["downloading big.gguf", "checking big.gguf"]
    for phase in ("downloading big.gguf", "checking big.gguf"):
        steps = [done for message, done, _ in reported if message == phase]
        assert steps == sorted(steps) and steps[-1] == len(MODEL)
    assert weights.pull_weights("big") == path and len(server.asked) == 1


def test_a_cut_download_goes_on_by_itself_as_long_as_bytes_arrive(server: FileServer) -> None:
    server.cuts = [5000, 90_000]
    assert weights.pull_weights(server.address).read_bytes() == MODEL
    assert server.asked == [None, "bytes=5000-", "bytes=90000-"]


def test_a_download_that_brings_nothing_more_stops_and_the_next_pull_goes_on(server: FileServer) -> None:
    server.cuts = [5000, 5000]
    with pytest.raises(ModelError, match=r"broke off after 5000 of 1024004 bytes\. The part .* pull it again"):
        weights.pull_weights("big")
    assert weights.list_installed() == []
    assert weights.pull_weights("big").read_bytes() == MODEL
    assert server.asked == [None, "bytes=5000-", "bytes=5000-"]


def test_a_server_that_cannot_resume_sends_all_again_under_another_phase(server: FileServer) -> None:
    server.has_ranges, server.cuts = False, [5000]
    phases: dict[str, None] = {}
    assert weights.pull_weights("big", lambda message, *_: phases.update({message: None})).read_bytes() == MODEL
    assert list(phases) == ["downloading big.gguf", "downloading big.gguf again, from the start", "checking big.gguf"]


def test_a_server_that_cannot_resume_and_always_breaks_off_is_not_asked_for_ever(server: FileServer) -> None:
    server.has_ranges, server.cuts = False, [5000] * 9
    with pytest.raises(ModelError, match="broke off"):
        weights.pull_weights("big")
    assert len(server.asked) == 2


def test_a_file_that_changed_between_two_parts_is_fetched_anew(server: FileServer) -> None:
    server.cuts = [5000, 5000]
    with pytest.raises(ModelError, match="broke off"):
        weights.pull_weights(server.unlisted)
    server.content, server.version = OTHER, '"v2"'
    assert weights.pull_weights(server.unlisted).read_bytes() == OTHER


def test_without_a_version_or_a_digest_a_part_is_not_trusted(server: FileServer) -> None:
    server.version, server.cuts = "", [5000, 5000]
    with pytest.raises(ModelError, match="broke off"):
        weights.pull_weights(server.unlisted)
    assert server.asked == [None, None]
    assert weights.pull_weights(server.unlisted, sha256=SHA256).read_bytes() == MODEL
    assert server.asked[2:] == ["bytes=5000-"]


@pytest.mark.parametrize("content", [OTHER, MODEL[:-1] + b"!"], ids=["another size", "another byte"])
def test_a_file_with_another_digest_is_refused_and_deleted(server: FileServer, content: bytes) -> None:
    server.content = content
    with pytest.raises(ModelError, match=r"replaced there|has the SHA-256 \w+, not .* it was deleted"):
        weights.pull_weights("big")
    assert list_models_folder() == [".lock"]
    with pytest.raises(ModelError, match="it was deleted"):
        weights.pull_weights(server.address, sha256=SHA256)
    assert list_models_folder() == [".lock"]


def test_a_wrong_file_of_the_right_name_is_replaced(server: FileServer) -> None:
    weights.find_models_dir().mkdir(parents=True)
    (weights.find_models_dir() / "big.gguf").write_bytes(OTHER)
    assert weights.pull_weights("big").read_bytes() == MODEL


def test_a_complete_part_of_a_known_size_is_checked_and_not_downloaded_again(server: FileServer) -> None:
    weights.find_models_dir().mkdir(parents=True)
    (weights.find_models_dir() / ".big.gguf.part").write_bytes(MODEL)  # killed between its last byte and its name
    assert weights.pull_weights("big").read_bytes() == MODEL and server.asked == []


def test_a_complete_part_of_an_unknown_size_is_downloaded_again(server: FileServer) -> None:
    weights.find_models_dir().mkdir(parents=True)
    (weights.find_models_dir() / ".big.gguf.part").write_bytes(MODEL)
    (weights.find_models_dir() / ".big.gguf.mark").write_text('"v1"')
    assert weights.pull_weights(server.address).read_bytes() == MODEL
    assert server.asked == [f"bytes={len(MODEL)}-", None]
    assert list_models_folder() == [".lock", "big.gguf"]


def test_a_redirect_is_followed_with_the_range(server: FileServer) -> None:
    server.cuts = [5000]
    assert weights.pull_weights(server.address.replace("/models/", "/moved/")).read_bytes() == MODEL
    assert server.asked == [None, "bytes=5000-"]


@pytest.mark.parametrize("place", ["ftp://127.0.0.1/a.gguf", "file:///etc/hosts"])
def test_a_redirect_to_another_scheme_is_refused(server: FileServer, place: str) -> None:
    server.moved_to = place
    with pytest.raises(ModelError, match=r"big\.gguf could not be fetched"):
        weights.pull_weights(server.address.replace("/models/", "/moved/"))


@pytest.mark.parametrize("place", ["http://[::1/a.gguf", "http://127.0.0.1:port/a.gguf", "ftp://127.0.0.1/a.gguf"])
def test_the_connection_of_a_refused_redirect_is_closed(server: FileServer, place: str) -> None:
    server.moved_to = place
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with pytest.raises(ModelError, match=r"big\.gguf could not be fetched"):
            weights.pull_weights(server.address.replace("/models/", "/moved/"))
        gc.collect()
    assert [str(each.message) for each in found] == []


def test_a_redirect_never_leaves_https() -> None:
    request = Request("https://a.example/big.gguf")
    follow = partial(SafeRedirects().redirect_request, request, BytesIO(), 302, "Found", HTTPMessage())
    with pytest.raises(URLError, match="from https to http"):
        follow("http://a.example/big.gguf")
    assert follow("https://b.example/big.gguf")


def test_a_changed_file_with_a_weak_version_is_fetched_anew(server: FileServer) -> None:
    server.version, server.cuts = 'W/"v1"', [5000, 5000]
    with pytest.raises(ModelError, match="broke off"):
        weights.pull_weights(server.unlisted)
    server.content, server.version = OTHER, 'W/"v2"'
    with pytest.raises(ModelError, match="has changed since the download began"):
        weights.pull_weights(server.unlisted)
    assert weights.pull_weights(server.unlisted).read_bytes() == OTHER


@pytest.mark.parametrize(("status", "error"), [(404, NotFound), (403, ModelError), (500, ModelError)])
def test_an_error_of_the_server_is_named(server: FileServer, status: int, error: type[Exception]) -> None:
    server.status = status
    with pytest.raises(error, match=f"the server answers {status} "):
        weights.pull_weights("big")


def test_a_server_that_stops_sending_is_given_up(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.models.local.download.STALL_SECONDS", 0.05)
    server.cuts, server.hold = [5000, 5000], threading.Event()
    with pytest.raises(ModelError, match=r"timed out\. The part that arrived is kept"):
        weights.pull_weights("big")


def test_a_full_disk_is_seen_before_the_download(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr("treadle.models.local.download.shutil.disk_usage", lambda path: usage)
    with pytest.raises(ModelError, match=r"needs 1 MB more, .* has 0 MB free"):
        weights.pull_weights("big")
    assert list_models_folder() == [".lock"]


def test_a_page_that_is_not_a_model_is_refused(server: FileServer) -> None:
    server.content = b"<html>not found</html>"
    with pytest.raises(ModelError, match="not a GGUF file"):
        weights.pull_weights(server.address)
    assert weights.list_installed() == []
    with pytest.raises(BadInput, match=r"end in \.gguf"):
        weights.pull_weights(server.address.removesuffix(".gguf"))


def test_a_wrong_name_or_digest_says_what_is_right(server: FileServer) -> None:
    with pytest.raises(NotFound, match=r"Did you mean qwen3-4b"):
        weights.pull_weights("qwen3-4")
    with pytest.raises(BadInput, match=f"The SHA-256 of big is {SHA256}"):
        weights.pull_weights("big", sha256="0" * 64)


def test_a_file_named_like_one_of_the_table_must_be_that_one(server: FileServer) -> None:
    with pytest.raises(BadInput, match=r"big\.gguf is the file of big, and its SHA-256 is .* Rename the other file"):
        weights.pull_weights(server.address, sha256="0" * 64)
    server.content = OTHER
    with pytest.raises(ModelError, match="it was deleted"):
        weights.pull_weights(server.address)


def test_a_file_that_is_here_already_is_kept_and_named(server: FileServer) -> None:
    path = weights.pull_weights(server.unlisted)
    server.content = OTHER
    said: list[str] = []
    assert weights.pull_weights(server.unlisted, lambda message, *_: said.append(message)) == path
    assert said == ["mine.gguf is here already; to fetch it again, delete it first"]
    assert path.read_bytes() == MODEL


@pytest.mark.parametrize(
    "name", ["%00.gguf", "a%0ab.gguf", "a%1b[31m.gguf", "n" * 300 + ".gguf", "-x.gguf", "..gguf", ".gguf", "..", ""]
)
def test_an_address_without_a_plain_file_name_is_refused(server: FileServer, name: str) -> None:
    with pytest.raises(BadInput, match="must end in"):
        weights.pull_weights(server.address.replace("big.gguf", name))
    with pytest.raises(BadInput, match="is not an address"):
        weights.pull_weights("http://[bad/x.gguf")
    assert server.asked == []


def test_folders_in_an_encoded_name_are_dropped(server: FileServer) -> None:
    path = weights.pull_weights(server.address.replace("big.gguf", "..%2f..%2fmine.gguf"))
    assert path == weights.find_models_dir() / "mine.gguf"


def test_a_killed_pull_is_continued_and_a_second_one_waits_for_the_first(server: FileServer) -> None:
    server.cuts, server.hold = [500_000], threading.Event()
    code = f"from treadle.models.local import weights; weights.pull_weights({server.address!r})"
    first = subprocess.Popen([sys.executable, "-c", code])
    server.sent.wait()
    part = weights.find_models_dir() / ".big.gguf.part"
    while not part.exists() or part.stat().st_size < 500_000:
        assert first.poll() is None
    waiting = threading.Event()

    def pull() -> None:
        weights.pull_weights(server.address, lambda message, *_: "waiting" in message and waiting.set())

    second = threading.Thread(target=pull)
    second.start()
    waiting.wait()
    first.send_signal(signal.SIGKILL)
    first.wait()
    second.join()
    assert (weights.find_models_dir() / "big.gguf").read_bytes() == MODEL
    assert server.asked == [None, "bytes=500000-"]


def test_the_table_is_well_formed() -> None:
    assert len({model.name for model in MODELS}) == len({model.file for model in MODELS}) == len(MODELS)
    for model in MODELS:
        assert len(bytes.fromhex(model.sha256)) == 32 and model.memory > model.size > 0 and model.about
        assert model.file.endswith(".gguf") and (model.url.startswith("https://") or model.package)
        assert model.licence in ("Apache-2.0", "MIT") and model.name == model.name.lower()
