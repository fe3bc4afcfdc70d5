"""`read_file` and what it shows of any file."""

import os
import socket

import pytest

from tests.kit.file_tools import FileTools, file_tools
from treadle.messages import ImagePart
from treadle.tools.base import ToolResult

files = file_tools
PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)


async def test_lines_are_numbered_from_the_offset(files: FileTools) -> None:
    files.put("a.txt", "one\ntwo\nthree\nfour\n")
    shown = await files.call("read_file", path="a.txt", offset=2, limit=2)
    assert shown == "    2\ttwo\n    3\tthree\n[a.txt: lines 2 to 3 of 4; go on with offset=4]"


async def test_a_whole_file_is_shown_without_a_word_more(files: FileTools) -> None:
    files.put("a.txt", "one\ntwo")
    assert await files.call("read_file", path="a.txt") == "    1\tone\n    2\ttwo"


async def test_a_long_file_is_shown_in_parts_that_together_are_the_whole(files: FileTools) -> None:
    lines = [f"line {number} of äöü" for number in range(1, 3001)]
    files.put("long.txt", "\n".join(lines))
    seen: list[str] = []
    while len(seen) < len(lines):
        shown = await files.call("read_file", path="long.txt", offset=len(seen) + 1)
        assert len(shown.encode()) < 16 * 1024
        seen += [line.split("\t", 1)[1] for line in shown.splitlines() if "\t" in line]
    assert seen == lines


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        ("grüße\n".encode("utf-16"), "utf-16-le"),
        (b"\xfe\xff" + "grüße\n".encode("utf-16-be"), "utf-16-be"),
        ("grüße\n".encode("utf-8-sig"), "utf-8-sig"),
        ("grüße\n".encode("latin-1"), "latin-1"),
    ],
)
async def test_text_in_any_usual_encoding_is_read_and_the_encoding_is_said(
    files: FileTools, data: bytes, encoding: str
) -> None:
    files.put("a.txt", data)
    shown = await files.call("read_file", path="a.txt")
    assert "\tgrüße" in shown and f"encoding {encoding}" in shown


async def test_what_is_not_text_is_described_and_not_dumped(files: FileTools) -> None:
    files.put("a.bin", bytes(range(256)))
    assert await files.call("read_file", path="a.bin") == (
        "a.bin is not text: 256 bytes, beginning with 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f."
    )


async def test_an_image_comes_as_a_part(files: FileTools) -> None:
    files.put("a.png", PNG)
    shown = await files.run("read_file", path="a.png")
    assert isinstance(shown, ToolResult) and isinstance(shown.parts[0], ImagePart)
    assert shown.parts[0].media_type == "image/png"


async def test_an_image_over_the_cap_is_only_described(files: FileTools) -> None:
    files.put("a.png", PNG + bytes(5 * 1024 * 1024))
    assert "is the most that can be shown" in await files.call("read_file", path="a.png")


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


async def test_a_link_that_stays_inside_is_followed_for_reading(files: FileTools) -> None:
    files.put("real/a.txt", "here")
    (files.workspace / "link").symlink_to("real/a.txt")
    (files.workspace / "folder").symlink_to("real")
    assert "here" in await files.call("read_file", path="link")
    assert "here" in await files.call("read_file", path="folder/a.txt")


async def test_an_absolute_path_in_the_workspace_is_taken(files: FileTools) -> None:
    file = files.put("a.txt", "here")
    assert "here" in await files.call("read_file", path=str(file))


async def test_secrets_are_masked_also_behind_a_link_and_in_any_case(files: FileTools) -> None:
    files.put(".env", "KEY=canary")
    files.put(".env.production", "KEY=canary")
    files.put(".envrc", "export KEY=canary")
    files.put(".SSH/config", "canary")
    (files.workspace / "innocent.txt").symlink_to(".env")
    for path in (".env", "./.env", ".env.production", ".envrc", ".SSH/config", "innocent.txt", "x/../.env"):
        shown = await files.get_error("read_file", path=path)
        assert "may hold secrets" in shown and "canary" not in shown
    files.put(".env.example", "KEY=")
    assert "KEY=" in await files.call("read_file", path=".env.example")  # as in the shell


async def test_a_granted_secret_is_shown(files: FileTools) -> None:
    files.put(".env.test", "KEY=")
    granting = FileTools(files.workspace.parent, granted=[".env.test"])
    assert "KEY=" in await granting.call("read_file", path=".env.test")
    assert "may hold secrets" in await granting.get_error("read_file", path=".env")
    granting.kept.close()
