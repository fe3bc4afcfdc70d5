"""Packs and loose objects: what git packed is read, and hostile packs end in a refusal."""

import os
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from hashlib import sha1
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.git.place import Command, Place
from treadle.git import take_back
from treadle.git.git_folder import GitFolder, UnsafeFile
from treadle.git.object_format import SHA1
from treadle.git.object_store import ObjectStore
from treadle.git.pack_file import DamagedObject, WorkLimit, apply_delta


def test_every_object_that_git_packed_is_read(place: Place) -> None:
    text = [f"line {number}" for number in range(400)]
    chooser = random.Random(2)
    for number in range(40):
        text[chooser.randrange(400)] = f"changed {number}"
        place.commit(f"n{number}", **{"big.txt": "\n".join(text), f"f{number}.txt": str(number)})
    place.git("tag", "-a", "-m", "t", "v1")
    place.git("gc", "-q")
    lines = place.git("cat-file", "--batch-all-objects", "--batch-check").splitlines()
    assert "chain length = 1" in place.git("verify-pack", "-v", *map(str, place.git_dir.glob("objects/pack/*.idx")))
    with ObjectStore(place.git_dir / "objects", SHA1) as store:
        assert sorted(store.list_ids(10_000)) == [line.split()[0] for line in lines]
        for line in lines:
            object_id, kind, size = line.split()
            found = store.read(object_id)
            assert found and (found.kind, len(found.data)) == (kind, int(size)) and store.read_kind(object_id) == kind
            assert SHA1.hash_object(found.kind, found.data) == object_id and store.has(object_id)
        assert not store.has("1" * 40) and store.read("1" * 40) is None and store.read_kind("1" * 40) == ""


@given(st.binary(max_size=60), st.binary(max_size=40))
def test_a_random_delta_is_applied_or_refused(base: bytes, delta: bytes) -> None:
    try:
        assert len(apply_delta(base, delta, 1000, WorkLimit(1 << 20))) <= 1000
    except DamagedObject:
        return


def encode_entry(kind: int, data: bytes, middle: bytes = b"", size: int | None = None) -> bytes:
    left = len(data) if size is None else size
    head = bytearray([(kind << 4) | (left & 15)])
    left >>= 4
    while left:
        head[-1] |= 0x80
        head.append(left & 0x7F)
        left >>= 7
    return bytes(head) + middle + zlib.compress(data)


def encode_distance(value: int) -> bytes:
    found = [value & 0x7F]
    while value := value >> 7:
        value -= 1
        found.append(0x80 | (value & 0x7F))
    return bytes(reversed(found))


def encode_delta(size: int) -> bytes:
    """A delta that copies its whole base, which is shorter than 128 bytes."""
    return bytes([size, size, 0x90, size])


def put_pack(command: Command, entries: list[tuple[str, int]], body: bytes) -> None:
    """Write a pack with an index that names the objects at these offsets."""
    pack = b"PACK" + struct.pack(">II", 2, len(entries)) + body
    entries = sorted(entries)
    fan_out = [sum(int(object_id[:2], 16) <= byte for object_id, _ in entries) for byte in range(256)]
    index = b"\xfftOc" + struct.pack(">I", 2) + struct.pack(">256I", *fan_out)
    index += b"".join(bytes.fromhex(object_id) for object_id, _ in entries) + bytes(4 * len(entries))
    index += b"".join(struct.pack(">I", offset) for _, offset in entries) + bytes(40)
    folder = command.folder / "objects/pack"
    (folder / "pack-1.pack").write_bytes(pack + sha1(pack).digest())
    (folder / "pack-1.idx").write_bytes(index)


BLOB = sha1(b"blob 5\0hello").hexdigest()


def end(place: Place, command: Command) -> tuple[str, ...]:
    report = command.end()
    place.check()
    return report.rejected if report else ()


def is_stored(place: Place, object_id: str) -> bool:
    return (place.git_dir / "objects" / object_id[:2] / object_id[2:]).exists()


def test_a_small_pack_made_by_hand_is_read(place: Place) -> None:
    command = place.start_command()
    base = encode_entry(3, b"hello")
    delta = encode_entry(6, bytes([5, 10, 0x90, 5, 0x90, 5]), encode_distance(len(base)))
    double = sha1(b"blob 10\0hellohello").hexdigest()
    put_pack(command, [(BLOB, 12), (double, 12 + len(base))], base + delta)
    assert end(place, command) == () and place.git("cat-file", "-p", double) == "hellohello"
    assert is_stored(place, BLOB)


def test_a_chain_of_deltas_that_is_too_long_is_refused(place: Place) -> None:
    command = place.start_command()
    body, last = encode_entry(3, b"hello"), 12
    for _ in range(5000):
        offset = 12 + len(body)
        body += encode_entry(6, encode_delta(5), encode_distance(offset - last))
        last = offset
    put_pack(command, [(BLOB, last)], body)
    assert "chain of deltas is too long" in end(place, command)[0]
    assert not is_stored(place, BLOB)


def test_a_delta_on_itself_is_refused(place: Place) -> None:
    command = place.start_command()
    put_pack(command, [(BLOB, 12)], encode_entry(7, encode_delta(5), bytes.fromhex(BLOB)))
    assert "chain of deltas is too long" in end(place, command)[0]


@pytest.mark.parametrize(
    ("body", "offset"),
    [
        (encode_entry(3, b"hello"), 5000),
        (encode_entry(3, b"hello"), 1),
        (encode_entry(3, b"hello"), 0x80000005),
        (encode_entry(3, b"jello"), 12),
        (encode_entry(3, b"hello", size=4), 12),
        (encode_entry(3, b"hello", size=1 << 40), 12),
        (encode_entry(5, b"hello"), 12),
        (encode_entry(3, b"hello")[:-6], 12),
        (encode_entry(6, encode_delta(5), encode_distance(5000)), 12),
        (encode_entry(7, encode_delta(5), bytes(20)), 12),
        (b"\xff" * 40, 12),
        (b"", 12),
    ],
)
def test_a_damaged_pack_is_refused(place: Place, body: bytes, offset: int) -> None:
    command = place.start_command()
    put_pack(command, [(BLOB, offset)], body)
    assert BLOB[:12] in end(place, command)[0] and not is_stored(place, BLOB)


def test_deltas_that_grow_are_bounded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(take_back, "_WORK_BYTES", 1 << 20)
    command = place.start_command()
    base = encode_entry(3, bytes(60_000))
    size = 60_000 * 1000
    number = bytes([0xE0, 0xD4, 0x03])
    big = bytes([0x80 | (size & 0x7F), 0x80 | (size >> 7 & 0x7F), 0x80 | (size >> 14 & 0x7F), size >> 21])
    delta = number + big + bytes([0xB0, 0x60, 0xEA]) * 1000
    put_pack(command, [(BLOB, 12 + len(base))], base + encode_entry(6, delta, encode_distance(len(base))))
    assert "more work than is allowed" in end(place, command)[0]


@pytest.mark.parametrize("data", [b"", b"\xfftOc\0\0\0\2", b"\xfftOc\0\0\0\2" + b"\xff" * 1024, bytes(2000)])
def test_a_damaged_index_of_a_pack_is_passed_over(place: Place, data: bytes) -> None:
    command = place.start_command()
    put_pack(command, [(BLOB, 12)], encode_entry(3, b"hello"))
    (command.folder / "objects/pack/pack-1.idx").write_bytes(data)
    assert end(place, command) == ()


def test_a_link_in_the_place_of_a_pack_is_not_followed(place: Place, tmp_path: Path) -> None:
    command = place.start_command()
    put_pack(command, [(BLOB, 12)], encode_entry(3, b"hello"))
    pack = command.folder / "objects/pack/pack-1.pack"
    pack.rename(tmp_path / "elsewhere")
    pack.symlink_to(tmp_path / "elsewhere")
    assert end(place, command) == () and not is_stored(place, BLOB)


def test_a_delta_of_very_many_small_steps_is_bounded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(take_back, "_WORK_BYTES", 10 << 20)
    command = place.start_command()
    base, steps = encode_entry(3, b"hello"), 100_000
    delta = bytes([5, 0x80 | (steps & 0x7F), 0x80 | (steps >> 7 & 0x7F), steps >> 14]) + b"\x90\1" * steps
    many = sha1(b"blob %d\0" % steps + b"h" * steps).hexdigest()
    put_pack(command, [(many, 12 + len(base))], base + encode_entry(6, delta, encode_distance(len(base))))
    assert "more work than is allowed" in end(place, command)[0]


def test_the_indexes_of_packs_take_little_memory_however_large_their_files_are(place: Place) -> None:
    command = place.start_command()
    put_pack(command, [], b"")
    index = command.folder / "objects/pack/pack-1.idx"
    os.truncate(index, 40 << 20)
    for number in range(2, 300):
        for ending in ("idx", "pack"):
            (index.parent / f"pack-{number}.{ending}").hardlink_to(index.with_suffix(f".{ending}"))
    with ObjectStore(command.folder / "objects", SHA1, is_hostile=True) as store:
        tracemalloc.start()
        assert store.list_ids(10) == []
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
        tracemalloc.stop()
    command.git("commit", "-q", "--allow-empty", "-m", "x", check=False)
    assert end(place, command) == ()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_only_regular_files_are_read(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "odd")
    with GitFolder(tmp_path) as folder, pytest.raises(UnsafeFile, match="not a regular file"):
        folder.read_file("odd", 10)
