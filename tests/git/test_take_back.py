"""Ordinary work of a command in a private copy, taken back into the real repository. git itself is the judge."""

from tests.git.place import Place


def test_a_command_that_does_nothing_gives_no_report(place: Place) -> None:
    command = place.start_command()
    command.git("status")
    command.git("log", "--oneline")
    assert command.end() is None


def test_a_commit_is_taken_over(place: Place) -> None:
    before = place.git("rev-parse", "HEAD")
    place.write(**{"a.txt": "2\n"})
    report = place.run_gits("commit -qam two")
    after = place.git("rev-parse", "HEAD")
    assert [(change.ref, change.before, change.after) for change in report.changes] == [
        ("refs/heads/main", before, after)
    ]
    assert report.commits == (f"{after[:7]} two",) and report.rejected == ()
    assert place.subjects() == ["two", "one"] and place.status() == []
    assert place.git("log", "-g", "--format=%gs", "-1") == "commit: two"
    assert place.git("log", "-g", "--format=%gs", "-1", "main") == "commit: two"


def test_what_is_staged_is_taken_over(place: Place) -> None:
    place.write(**{"new.txt": "x", "a.txt": "3\n"})
    report = place.run_gits("add -A", "rm -q --cached b.txt")
    assert report.changes == () and report.rejected == () and report.index_before
    assert place.status() == ["M  a.txt", "D  b.txt", "A  new.txt", "?? b.txt"]


def test_a_second_commit_amends_the_first(place: Place) -> None:
    place.write(**{"a.txt": "2\n"})
    place.run_gits("commit -qam two")
    place.run_gits("commit -q --amend -m better")
    assert place.subjects() == ["better", "one"] and place.status() == []


def test_branches_are_made_switched_and_deleted(place: Place) -> None:
    report = place.run_gits("switch -qc topic/x", "commit -q --allow-empty -m t", "branch old", "tag light")
    assert {change.ref for change in report.changes} == {
        "refs/heads/topic/x",
        "refs/heads/old",
        "refs/tags/light",
        "HEAD",
    }
    assert place.git("branch", "--show-current") == "topic/x" and place.subjects() == ["t", "one"]
    report = place.run_gits("switch -q main", "branch -D topic/x old")
    assert place.git("branch", "--format=%(refname:short)") == "main"
    assert not (place.git_dir / "logs/refs/heads/topic").exists()
    assert place.git("log", "-g", "--format=%gs", "-1") == "checkout: moving from topic/x to main"


def test_stashes_are_pushed_popped_and_dropped(place: Place) -> None:
    for number in ("2", "3"):
        place.write(**{"a.txt": number})
        place.run_gits(f"stash push -q -m s{number}")
    assert place.git("stash", "list", "--format=%gs") == "On main: s3\nOn main: s2" and place.status() == []
    report = place.run_gits("stash drop -q stash@{1}")
    assert place.git("stash", "list", "--format=%gs") == "On main: s3"
    report = place.run_gits("stash pop -q")
    assert [(change.ref, change.after) for change in report.changes] == [("refs/stash", "")]
    assert place.git("stash", "list") == "" and (place.top / "a.txt").read_text() == "3"
