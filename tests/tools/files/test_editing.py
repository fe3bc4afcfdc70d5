"""`edit_file` replaces text that is in the file to the letter, and explains why other text is not found."""

import pytest

from tests.kit.file_tools import FileTools, file_tools

files = file_tools


async def edit(files: FileTools, old: str, new: str, **options: bool) -> str:
    return await files.call("edit_file", path="a.txt", old=old, new=new, **options)


async def fail_to_edit(files: FileTools, old: str, new: str = "new") -> str:
    """Make an edit that must fail and change nothing. Return its error."""
    before = (files.workspace / "a.txt").read_bytes()
    error = await files.get_error("edit_file", path="a.txt", old=old, new=new)
    assert (files.workspace / "a.txt").read_bytes() == before
    return error


async def test_one_place_is_replaced_and_shown_as_a_diff(files: FileTools) -> None:
    file = files.put("a.txt", "one\ntwo\nthree\n")
    shown = await edit(files, "two", "2")
    assert shown.startswith("Edited a.txt.\n--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three")
    assert file.read_text() == "one\n2\nthree\n"


async def test_text_that_stands_twice_needs_more_around_it_or_replace_all(files: FileTools) -> None:
    file = files.put("a.txt", "x = 1\ny\nx = 1\n")
    assert "2 places (lines 1, 3)" in await fail_to_edit(files, "x = 1")
    assert "in 2 places" in await edit(files, "x = 1", "x = 2", replace_all=True)
    assert file.read_text() == "x = 2\ny\nx = 2\n"


@pytest.mark.parametrize(
    ("data", "old", "new", "after"),
    [
        (b"one\r\ntwo\r\n", "one\ntwo", "1\n2", b"1\r\n2\r\n"),
        (b"one\r\ntwo\nthree", "two\nthree", "2\n3", b"one\r\n2\n3"),
        (b"one\r\ntwo\nthree", "one\ntwo", "1\n2", b"1\r\n2\nthree"),
        (b"no end", "end", "newline", b"no newline"),
        ("grün\n".encode("utf-16"), "grün", "größe", "größe\n".encode("utf-16")),
        ("grün\n".encode("utf-8-sig"), "grün", "rot", "rot\n".encode("utf-8-sig")),
        ("grün\n".encode("latin-1"), "grün", "größe", "größe\n".encode("latin-1")),
    ],
)
async def test_line_ends_encoding_and_the_last_line_stay_as_they_are(
    files: FileTools, data: bytes, old: str, new: str, after: bytes
) -> None:
    file = files.put("a.txt", data)
    await edit(files, old, new)
    assert file.read_bytes() == after


@pytest.mark.parametrize(
    ("old", "reason"),
    [
        ("    return  x", "spaces inside of lines differ"),
        ("def f( ):", "spaces inside of lines differ. The closest place is line 1"),
        ("def f():\n  return x", "the indentation differs"),
        ("def f():   \n    return x", "spaces at the ends of lines differ"),
        ("say(“hi”)", "quotes or dashes differ"),
        ("DEF F():", "upper and lower case differ"),
        ("    1\tdef f():\n    2\t    return x", "line numbers"),
        ("    retrun x", "closest place is line 2:\n    2\t    return x"),
    ],
)
async def test_a_near_miss_says_where_and_why(files: FileTools, old: str, reason: str) -> None:
    files.put("a.txt", 'def f():\n    return x\nsay("hi")\n')
    assert reason in await fail_to_edit(files, old)


@pytest.mark.parametrize(
    ("content", "old", "new", "error"),
    [
        (b"one\ntwo\n", "completely different words", "new", "nor anything like it"),
        (b"one", "", "new", "old is empty"),
        (b"one", "one", "one", "the same"),
        ("grün\n".encode("latin-1"), "grün", "√", "latin-1, which cannot hold '√'"),
        (bytes(8), "a", "b", "not text"),
    ],
)
async def test_an_edit_that_cannot_be_made_is_refused(
    files: FileTools, content: bytes, old: str, new: str, error: str
) -> None:
    files.put("a.txt", content)
    assert error in await fail_to_edit(files, old, new)


async def test_a_file_that_is_not_there_cannot_be_edited(files: FileTools) -> None:
    assert "write_file makes a new one" in await files.get_error("edit_file", path="none.txt", old="a", new="b")
