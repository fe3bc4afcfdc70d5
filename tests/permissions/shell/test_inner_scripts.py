"""Which scripts of sed are known to run nothing and to write no other file. Whole commands are in `tricks.txt`."""

import pytest

from treadle.permissions.shell.inner_scripts import is_plain_sed_script


@pytest.mark.parametrize(
    "script",
    [
        *(
            "10,20p",
            "s/foo/bar/g",
            "/^$/d",
            "/^#/d; s|/usr/local|/opt|g",
            "s/([a-z]+)=([0-9]+)/\\2=\\1/",
            "3i\\import os",
        ),
        *("1,/^---$/d", "/start/,/end/{p;/end/q}", "$!N;P;D", "s,a,b,", "s/a/b/2p", "$d", "/x/!d", "y/abc/xyz/", "$="),
        *("/a/a\\\nfoo\\\nbar", "s/a\\/b/c/g", "1a hello world", ":a;N;$!ba;s/\\n/ /g", "/foo/{s/a/b/;s/c/d/}", "10q"),
        *("s#a#b#I", "2,4!d", "/a/,+3p", "0~3d", "s/x/y/\ns/z/w/", "# a comment\np"),
    ],
)
def test_ordinary_scripts_are_plain(script: str) -> None:
    assert is_plain_sed_script(script)


@pytest.mark.parametrize(
    "script",
    [
        *("e rm x", "1e", "s/a/b/e", "s/a/rm x/ge", "w out", "s/a/b/w out", "1,2e rm", "$e rm x", "/a/e ls", "p;e ls"),
        *(
            "{e ls\n}",
            "s/a/b/\ne ls",
            "/x/w f",
            "W f",
            "s/a/b/;1e ls",
            "sxaxbxe",
            "\\,a,e ls",
            "a foo\ne ls",
            "1",
            "s/a",
        ),
    ],
)
def test_scripts_that_run_or_write_something_are_not(script: str) -> None:
    assert not is_plain_sed_script(script)
