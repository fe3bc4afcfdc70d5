"""The reduced sandbox: what it stops, what it cannot, and what is done where not even that is there."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.sandbox import Place, behind_landlock, needs_landlock
from tests.sandbox.test_escapes import ATTEMPTS, START, Attempt
from treadle.sandbox import backend as run
from treadle.sandbox import bubblewrap, landlock
from treadle.sandbox.base import SandboxUnavailable

# A rule for /proc holds for all of it, and /etc is the system's own.
OPEN = {
    "the names of the system's users",
    "the arguments of another process",
    "a handle on another process",
    "the pages of the kernel",
}
STOPPED = [attempt for attempt in ATTEMPTS if attempt.name not in OPEN]


@needs_landlock
@pytest.mark.parametrize("attempt", [pytest.param(a, id=a.name.replace(" ", "_")) for a in STOPPED])
async def test_no_way_out_of_the_reduced_sandbox(attempt: Attempt, place: Place) -> None:
    attempt.prepare(place)
    held = await behind_landlock(place.python(START + attempt.code))
    assert "ESCAPED" not in held.output, f"{attempt.name}: {held}"
    assert place.key.read_text() and place.victim.read_text() == "whole"


@needs_landlock
async def test_files_in_the_folders_of_the_workspace_can_be_worked_on(place: Place) -> None:
    (place.workspace / "src").mkdir()
    (place.workspace / "note").write_text("old")
    ran = await behind_landlock(
        place.shell("cd src && echo a > a && mkdir b && mv a b/c && cat b/c && echo new > ../note && cat - > $TMPDIR/t")
    )
    assert ran.output == "a\n" and ran.ended.code == 0, ran
    assert (place.workspace / "note").read_text() == "new\n"


@needs_landlock
async def test_a_linked_repository_leads_nowhere(place: Place) -> None:
    (place.workspace / ".git").symlink_to(place.outside)
    ran = await behind_landlock(place.shell("cat .git/key; rm .git"))
    assert ran.output.count("Permission denied") == 2 and (place.workspace / ".git").is_symlink(), ran


@needs_landlock
async def test_the_private_temporary_folder_is_gone_afterwards(place: Place) -> None:
    ran = await behind_landlock(place.shell("touch $TMPDIR/x; echo $TMPDIR"))
    assert ran.output.startswith("/") and not Path(ran.output.strip()).exists()


@needs_landlock
async def test_a_missing_program_gives_127(place: Place) -> None:
    ran = await behind_landlock(place.job("no-such-program"))
    assert ran.ended.code == 127 and "No such file" in ran.output


@pytest.fixture
def _fresh_probe() -> Iterator[None]:
    run.probe.cache_clear()
    yield
    run.probe.cache_clear()


@pytest.mark.usefixtures("_fresh_probe")
async def test_without_bubblewrap_the_reduced_sandbox_is_used_and_named(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    if landlock.read_landlock_version() < landlock.OLDEST_VERSION:
        pytest.skip("NOT TESTED, this kernel has no Landlock that is new enough")
    monkeypatch.setattr(bubblewrap, "BWRAP", "/nonexistent/bwrap")
    found = run.probe()
    assert found.level == "landlock" and "not installed" in found.why and "apt-get" in found.hint and not found.network
    output: list[bytes] = []
    ended = await run.run_in_sandbox(place.shell(f"cat {place.key}; grep Seccomp: /proc/self/status"), output.append)
    assert ended.code == 0 and b"Permission denied" in b"".join(output) and b"Seccomp:\t2" in b"".join(output)


@pytest.mark.usefixtures("_fresh_probe")
async def test_with_neither_a_command_is_refused_with_the_hint(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "BWRAP", "/nonexistent/bwrap")
    monkeypatch.setattr(landlock, "read_landlock_version", lambda: 2)
    assert run.probe().level == "none"
    with pytest.raises(SandboxUnavailable, match=r"was not run.*not installed.*apt-get install bubblewrap"):
        await run.run_in_sandbox(place.job("touch", "ran"), lambda data: None)
    assert os.listdir(place.workspace) == []


@pytest.mark.usefixtures("_fresh_probe")
def test_a_bubblewrap_that_does_not_work_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(bubblewrap, "BWRAP", str(broken))
    found = run.probe()
    assert found.level != "bubblewrap" and "No permissions" in found.why
