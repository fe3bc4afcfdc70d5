"""`read_file` and what it shows of any file."""

import os
import socket
from typing import Any

import pytest

from tests.kit.file_tools import FileTools, file_tools
from treadle.messages import ImagePart
from treadle.tools.base import ToolResult

files = file_tools
PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)


@pytest.mark.parametrize(
    ("data", "arguments", "shown"),
    [
        (b"one\ntwo", {}, "    1\tone\n    2\ttwo"),
        (
            b"one\ntwo\nthree\nfour\n",
            {"offset": 2, "limit": 2},
            "    2\ttwo\n    3\tthree\n[a: lines 2 to 3 of 4; go on with offset=4]",
        ),
        (b"one\n", {"offset": 2}, "a has only 1 lines; there is no line 2."),
        (b"", {}, "a is empty."),
        ("grüße\n".encode("utf-16"), {}, "    1\tgrüße\n[a: encoding utf-16-le]"),
        (b"\xfe\xff" + "grüße\n".encode("utf-16-be"), {}, "    1\tgrüße\n[a: encoding utf-16-be]"),
        ("grüße\n".encode("utf-8-sig"), {}, "    1\tgrüße\n[a: encoding utf-8-sig]"),
        ("grüße\n".encode("latin-1"), {}, "    1\tgrüße\n[a: encoding latin-1, which is a guess]"),
        (bytes(range(256)), {}, f"a is not text: 256 bytes, beginning with {bytes(range(16)).hex(' ')}."),
        (
            PNG + bytes(5 << 20),
            {},
            f"a is an image of {48 + (5 << 20)} bytes, and {4 << 20} is the most that can be shown.",
        ),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else str(value)[:40],
)
async def test_a_file_is_shown_by_its_content(files: FileTools, data: bytes, arguments: Any, shown: str) -> None:
    files.put("a", data)
    assert await files.call("read_file", path="a", **arguments) == shown


async def test_a_long_file_is_shown_in_parts_that_together_are_the_whole(files: FileTools) -> None:
    lines = [f"line {number} of äöü" for number in range(1, 3001)]
    files.put("long.txt", "\n".join(lines))
    seen: list[str] = []
    while len(seen) < len(lines):
        shown = await files.call("read_file", path="long.txt", offset=len(seen) + 1)
        assert len(shown.encode()) < 16 * 1024
        seen += [line.split("\t", 1)[1] for line in shown.splitlines() if "\t" in line]
    assert seen == lines


async def test_an_image_comes_as_a_part(files: FileTools) -> None:
    files.put("a.png", PNG)
    result = await files.run("read_file", path="a.png")
    assert isinstance(result, ToolResult) and isinstance(result.parts[0], ImagePart)
    assert result.parts[0].media_type == "image/png"


async def test_a_file_over_the_cap_is_refused_before_it_is_read(files: FileTools) -> None:
    with open(files.put("big.txt", ""), "wb") as file:
        file.truncate(1 << 40)
    assert "are read at once" in await files.get_error("read_file", path="big.txt")


async def test_a_wrong_name_is_answered_with_names_like_it(files: FileTools) -> None:
    files.put("src/settings.py", "")
    assert "Did you mean src/settings.py?" in await files.get_error("read_file", path="src/setings.py")


async def test_pipes_sockets_and_devices_are_not_opened(files: FileTools) -> None:
    os.mkfifo(files.workspace / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        here = os.getcwd()
        os.chdir(files.workspace)  # the path of a socket may only be short
        try:
            listening.bind("socket")
        finally:
            os.chdir(here)
        for name in ("pipe", "socket"):
            assert "not a regular file" in await files.get_error("read_file", path=name)
            assert "not a regular file" in await files.get_error("write_file", path=name, content="x")


async def test_links_and_absolute_paths_that_stay_inside_are_followed(files: FileTools) -> None:
    file = files.put("real/a.txt", "here")
    (files.workspace / "link").symlink_to("real/a.txt")
    (files.workspace / "folder").symlink_to("real")
    for path in ("link", "folder/a.txt", str(file)):
        assert await files.call("read_file", path=path) == "    1\there"


async def test_secrets_are_masked_also_behind_a_link_and_in_any_case(files: FileTools) -> None:
    for path in (".env", ".env.production", ".envrc", ".SSH/config"):
        files.put(path, "KEY=canary")
    (files.workspace / "innocent.txt").symlink_to(".env")
    for path in (".env", "./.env", ".env.production", ".envrc", ".SSH/config", "innocent.txt", "x/../.env"):
        shown = await files.get_error("read_file", path=path)
        assert "may hold secrets" in shown and "canary" not in shown
    files.put(".env.example", "KEY=")
    assert "KEY=" in await files.call("read_file", path=".env.example")  # as in the shell
