"""The index as git writes it and as we write it: each side reads the other's."""

import hashlib
import struct
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.git.place import Place
from tests.kit.host_git import GIT_ENVIRONMENT, run_git
from treadle.git.index_file import (
    ASSUME_VALID,
    SKIP_WORKTREE,
    DamagedIndex,
    Entries,
    EntryState,
    is_plain_index,
    list_gitlinks,
    parse_index,
    render_index,
)
from treadle.git.object_format import SHA1, SHA256

parts = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=12)
paths = st.lists(parts, min_size=1, max_size=4).map("/".join).map(str.encode)
modes = st.sampled_from([0o100644, 0o100755, 0o120000, 0o160000])
ids = st.binary(min_size=20, max_size=20).filter(any)
states = st.builds(
    EntryState, st.binary(min_size=36, max_size=36), st.sampled_from([0, ASSUME_VALID, SKIP_WORKTREE, 0xC000])
)


def is_fit(path: bytes) -> bool:
    """Whether git reads the path from an index without a complaint."""
    return not any(part.lower().startswith((b".", b"git")) for part in path.split(b"/"))


@st.composite
def indexes(draw: st.DrawFn) -> Entries:
    entries: Entries = {}
    for path in draw(st.sets(paths.filter(is_fit), max_size=8)):
        stages = draw(st.sampled_from([(0,), (1, 2, 3), (2, 3)]))
        for stage in stages:
            entries[path, stage, draw(modes), draw(ids), draw(st.booleans()) and not stage] = draw(states)
    return entries


def list_stages(folder: Path, index: Path) -> list[bytes]:
    done = subprocess.run(
        ["git", "ls-files", "--stage", "-z"],
        cwd=folder,
        env={**GIT_ENVIRONMENT, "GIT_INDEX_FILE": str(index)},
        capture_output=True,
        check=True,
    )
    return done.stdout.split(b"\0")[:-1]


@given(indexes())
def test_what_is_written_is_read_back(entries: Entries) -> None:
    assert parse_index(render_index(entries, SHA1), SHA1) == entries


@given(indexes())
@settings(max_examples=25)
def test_git_reads_what_is_written(entries: Entries) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_git(folder, "init", "-q", ".")
        (folder / "index").write_bytes(render_index(entries, SHA1))
        expected = [
            b"%06o %s %d\t%s" % (mode, object_id.hex().encode(), stage, path)
            for path, stage, mode, object_id, _ in sorted(entries)
        ]
        assert list_stages(folder, folder / "index") == expected


@given(
    st.sets(paths.filter(is_fit), max_size=12), st.sampled_from(["2", "3", "4"]), st.sampled_from(["sha1", "sha256"])
)
@settings(max_examples=25)
def test_what_git_writes_is_read(names: set[bytes], version: str, form: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, size = Path(name), 40 if form == "sha1" else 64
        run_git(folder, "init", "-q", f"--object-format={form}", ".")
        lines = b"".join(b"100644 %s 0\t%s\0" % (b"7" * size, path) for path in names)
        subprocess.run(
            ["git", "update-index", "-z", "--index-version", version, "--index-info"],
            cwd=folder,
            env=GIT_ENVIRONMENT,
            input=lines,
            check=True,
        )
        if not names:
            return
        entries = parse_index((folder / ".git/index").read_bytes(), SHA1 if form == "sha1" else SHA256)
        found = [b"%06o %s %d\t%s" % (mode, oid.hex().encode(), stage, path) for path, stage, mode, oid, _ in entries]
        assert found == list_stages(folder, folder / ".git/index")


@given(indexes(), st.data())
def test_damaged_bytes_are_refused_or_read_but_nothing_else_happens(entries: Entries, data: st.DataObject) -> None:
    raw = bytearray(render_index(entries, SHA1)[:-20])
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))] if data.draw(st.booleans()) else raw)
    damaged = cut + hashlib.sha1(cut).digest()
    try:
        found = parse_index(damaged, SHA1)
    except DamagedIndex:
        return
    assert parse_index(render_index(found, SHA1), SHA1) == found


def test_a_wrong_checksum_is_refused_and_none_is_accepted(place: Place) -> None:
    data = (place.git_dir / "index").read_bytes()
    assert len(parse_index(data[:-20] + bytes(20), SHA1)) == 2
    with pytest.raises(DamagedIndex, match="checksum"):
        parse_index(data[:-1] + bytes([data[-1] ^ 1]), SHA1)


@pytest.mark.parametrize("data", [b"", b"DIRC", b"DIRC" + struct.pack(">II", 2, 1 << 31) + bytes(20), bytes(100)])
def test_what_is_no_index_is_refused(data: bytes) -> None:
    with pytest.raises(DamagedIndex):
        parse_index(data, SHA1)


def test_an_index_that_is_split_is_seen_without_reading_its_entries(place: Place) -> None:
    place.commit("names that mislead", link="1", sdir="2", symlink="3")
    index = place.git_dir / "index"
    assert is_plain_index(index.read_bytes(), SHA1)
    place.git("update-index", "--split-index")
    assert not is_plain_index(index.read_bytes(), SHA1)
    with pytest.raises(DamagedIndex):
        parse_index(index.read_bytes(), SHA1)


def test_submodules_in_an_index_are_listed(place: Place) -> None:
    assert list_gitlinks((place.git_dir / "index").read_bytes()) == []
    head = place.git("rev-parse", "HEAD")
    place.git("update-index", "--add", "--cacheinfo", f"160000,{head},libs/inner")
    assert list_gitlinks((place.git_dir / "index").read_bytes()) == ["libs/inner"]
