"""The class of a shell command depends on its folder and on the sandbox. The classes themselves are in `tricks.txt`."""

import pytest

from treadle.permissions.shell.classify import classify_command
from treadle.permissions.shell.parse import parse_command


@pytest.mark.parametrize(
    ("command", "in_folder", "in_workspace"),
    [
        ("touch ../x && cp a ../../b", "caution", "destructive"),
        ("cat ../x; ls ../..", "safe", "caution"),
        ("echo x > ../x", "caution", "destructive"),
        ("rm -rf ../other", "caution", "destructive"),
        *(
            (command, "destructive", "destructive")
            for command in (
                *("touch ../../../x", "echo x > ../../../x", "rm -rf ../..", "cd .. && touch ../../x"),
                *("find .. -execdir touch ../../x ';'", "tar -C ../.. -xf a.tar && touch ../x", "$x; touch ../x"),
                "touch ../*",
            )
        ),
    ],
)
def test_paths_are_relative_to_the_starting_folder(command: str, in_folder: str, in_workspace: str) -> None:
    assert classify_command(parse_command(command), "/work/project", "sub/deep")[0] == in_folder
    assert classify_command(parse_command(command), "/work/project")[0] == in_workspace


def test_the_reason_names_the_dangerous_part() -> None:
    assert classify_command(parse_command("ls && git push --force"), "/w") == (
        "destructive",
        "it overwrites or deletes what others have (git push --force)",
    )


@pytest.mark.parametrize("command", ["rm -rf /tmp/x", "echo x > /var/tmp/y", "mv a /tmp", "cd /tmp && rm -rf x"])
def test_files_in_tmp_belong_to_the_command_only_inside_the_sandbox(command: str) -> None:
    assert classify_command(parse_command(command), "/work/project")[0] == "caution"
    assert classify_command(parse_command(command), "/work/project", in_sandbox=False)[0] == "destructive"


@pytest.mark.parametrize(
    ("command", "safety"),
    [
        ("make > ~/out/log", "caution"),
        ("cp a /home/me/out/a", "caution"),
        ("tee ~/out/sub/log < a", "caution"),
        ("cp a ~/out", "caution"),
        ("cp a ~/out/", "caution"),
        ("make > ~/out/../.profile", "destructive"),
        ("make > ~/outer/log", "destructive"),
        ("make > ~/out/$NAME", "destructive"),
        ("rm ~/out/a", "destructive"),
        ("make > ~/log", "destructive"),
    ],
)
def test_a_folder_that_the_user_lets_commands_write_is_not_asked_for(command: str, safety: str) -> None:
    places = ("/home/me/out", "~/out")
    assert classify_command(parse_command(command), "/work/project", writable=places)[0] == safety
    assert classify_command(parse_command(command), "/work/project")[0] == "destructive"
