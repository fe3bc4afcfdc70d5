"""Folders besides the workspace: which can be named, what a command may do there, and what stays protected."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.kit.sandbox import SECRET, Place, Run, collect, inside, needs_bubblewrap, needs_landlock
from treadle.errors import BadInput
from treadle.sandbox import landlock
from treadle.sandbox.backend import run_in_sandbox
from treadle.sandbox.base import Bounds, Job
from treadle.sandbox.extra_folders import resolve_extra_folder

SANDBOXES = [
    pytest.param(run_in_sandbox, id="bubblewrap", marks=needs_bubblewrap),
    pytest.param(landlock.run_in_landlock, id="landlock", marks=needs_landlock),
]


@pytest.fixture
def data(place: Place) -> Path:
    """A folder with a repository, an env file and data."""
    folder = place.workspace.parent / "data"
    for name in (".git/hooks", "sub/.git", "sub/.vscode", "plain"):
        (folder / name).mkdir(parents=True)
    (folder / ".git/config").write_text(f"[core]\n\tx = {SECRET}\n")
    (folder / "sub/.git/config").write_text(f"[core]\n\tx = {SECRET}\n")
    (folder / ".env").write_text(SECRET)
    (folder / "sub/.env.local").write_text(SECRET)
    (folder / "rows.csv").write_text("one,two\n")
    return folder


def build_job(place: Place, code: str, *, shown: tuple[Path, ...] = (), writable: tuple[Path, ...] = ()) -> Job:
    return Job(("/bin/sh", "-c", code), place.workspace, shown_folders=shown, writable_folders=writable)


@pytest.mark.parametrize("run", SANDBOXES)
async def test_a_shown_folder_can_be_read_and_not_changed(place: Place, data: Path, run: Run) -> None:
    code = f"cat {data}/rows.csv; echo x > {data}/new || echo kept; cat {data}/.env {data}/sub/.env.local"
    ran = await collect(run, build_job(place, code, shown=(data,)))
    assert "one,two" in ran.output and "kept" in ran.output and SECRET not in ran.output, ran
    assert not (data / "new").exists()


@needs_bubblewrap
async def test_without_a_grant_the_folder_is_not_there(place: Place, data: Path) -> None:
    ran = await inside(build_job(place, f"ls {data}"))
    assert "rows.csv" not in ran.output and ran.ended.code != 0


@needs_bubblewrap
async def test_a_folder_in_the_home_is_found_there_too(
    place: Place, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(data.parent))
    ran = await inside(build_job(place, "cat ~/data/rows.csv; ls ~; ls ~/data/plain", shown=(data, data / "plain")))
    assert ran.output == "one,two\ndata\n" and ran.ended.code == 0, ran


@needs_bubblewrap
async def test_a_writable_folder_can_be_changed(place: Place, data: Path) -> None:
    ran = await inside(
        build_job(place, f"cd {data} && echo x > new && mkdir deep && mv rows.csv deep", writable=(data,))
    )
    assert ran.ended.code == 0 and (data / "new").exists() and (data / "deep/rows.csv").exists(), ran


@needs_bubblewrap
@pytest.mark.parametrize(
    "attack",
    [
        "echo evil > .git/config",
        "echo evil > .git/hooks/pre-commit",
        "echo evil > sub/.git/config",
        "mv sub old && cp -r old sub && echo evil > sub/.git/config",
        "mv .git old; mkdir .git; echo evil > .git/config",
        "echo evil > .envrc",
        "mkdir -p .vscode && echo evil > .vscode/tasks.json",
        "echo evil > sub/.vscode/tasks.json",
        "mkdir -p .treadle && echo evil > .treadle/config.toml",
        "cat .git/config sub/.git/config > taken",
        "cat .env sub/.env.local > taken; mv .env taken2; cat taken2 >> taken",
    ],
)
async def test_what_is_protected_in_a_workspace_is_protected_there_too(place: Place, data: Path, attack: str) -> None:
    before = read_tree(data)
    ran = await inside(build_job(place, f"cd {data}; {attack}", writable=(data,)))
    after = {path: text for path, text in read_tree(data).items() if path.name not in ("taken", "taken2")}
    assert after == before, ran
    taken = data / "taken"
    assert not taken.exists() or SECRET not in taken.read_text()
    assert not (data / ".vscode").exists() and not (data / ".treadle").exists()


def read_tree(folder: Path) -> dict[Path, str]:
    return {path: path.read_text() for path in folder.rglob("*") if path.is_file()}


@needs_bubblewrap
async def test_a_folder_is_what_its_own_entry_says_and_not_that_of_one_around_it(place: Place, data: Path) -> None:
    (data / "sub/out").mkdir()
    code = (
        f"cd {data}; echo x > plain/new; echo x > sub/out/new; echo x > sub/new; echo x > new; echo x > sub/.git/config"
    )
    await inside(build_job(place, code, shown=(data / "plain", data / "sub"), writable=(data / "sub/out", data)))
    assert (data / "sub/out/new").exists() and (data / "new").exists()
    assert not (data / "plain/new").exists() and not (data / "sub/new").exists()
    assert (data / "sub/.git/config").read_text().startswith("[core]")


@needs_bubblewrap
async def test_growth_of_a_writable_folder_counts(place: Place, data: Path) -> None:
    code = f"while true; do head -c 1000000 /dev/zero >> {data}/big; done"
    job = Job(("/bin/sh", "-c", code), place.workspace, writable_folders=(data,), bounds=Bounds(disk_mb=20, wall_s=50))
    assert (await inside(job)).ended.reason == "disk"


@needs_bubblewrap
async def test_a_folder_that_became_a_link_is_not_shown(place: Place, data: Path) -> None:
    data.rename(data.with_name("old"))
    data.symlink_to(place.outside)
    with pytest.raises(BadInput, match="Nothing was run"):
        await inside(build_job(place, f"cat {data}/key", shown=(data,)))
    above = place.workspace.parent / "above"
    above.mkdir()
    (above / "in").symlink_to(place.workspace.parent / "old")
    with pytest.raises(BadInput, match="a link took its place"):
        await inside(build_job(place, "true", shown=(above / "in" / "plain",)))


@needs_bubblewrap
async def test_commands_share_a_writable_folder_at_the_same_time(place: Place, data: Path) -> None:
    jobs = [build_job(place, f"echo {number} > {data}/file{number}", writable=(data,)) for number in range(4)]
    ran = await asyncio.gather(*map(inside, jobs))
    assert all(one.ended.code == 0 for one in ran) and len([*data.glob("file*")]) == 4


# --- which folders


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    for name in (
        "datasets",
        "work",
        "bin",
        ".ssh/sub",
        ".cache/models",
        ".config/treadle",
        ".local/share/treadle",
        "k/.aws",
    ):
        (home / name).mkdir(parents=True)
    for name in [name for name in os.environ if name.startswith(("TREADLE_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    (home / "link").symlink_to(home / ".ssh")
    (home / "file").write_text("")
    return home


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("~", "more than one project"),
        ("~/..", "more than one project"),
        ("/", "more than one project"),
        ("/etc", "belongs to the system"),
        ("/proc/self", "belongs to the system"),
        ("~/.ssh", "hidden folders"),
        ("~/.ssh/sub", "hidden folders"),
        ("~/link", "hidden folders"),
        ("~/link/sub", "hidden folders"),
        ("~/.local/share", "holds files of treadle"),
        ("~/.config/treadle", "holds files of treadle"),
        ("~/k", "may be keys"),
        ("~/work", "the workspace is in it"),
        ("~/work/project", "the workspace is in it"),
        ("~/work/project/sub", "in the workspace"),
        ("~/missing", "Name an existing folder"),
        ("~/file", "not a folder"),
        ("datasets", "absolute"),
        ("", "absolute"),
        ("/x\0y", "cannot be used"),
        ("~nobody-of-this-name/x", "cannot be used"),
    ],
)
@pytest.mark.parametrize("is_writable", [False, True])
def test_some_folders_are_never_given_to_commands(home: Path, named: str, why: str, is_writable: bool) -> None:
    workspace = home / "work" / "project"
    (workspace / "sub").mkdir(parents=True)
    with pytest.raises(BadInput, match=why):
        resolve_extra_folder(named, workspace, is_writable=is_writable)


def test_folders_that_run_outside_are_not_writable(home: Path) -> None:
    for named in ("~/bin", "~/.cache/models", "/usr/share"):
        assert resolve_extra_folder(named, home / "work", is_writable=False)
        with pytest.raises(BadInput):
            resolve_extra_folder(named, home / "work", is_writable=True)


@pytest.mark.parametrize(
    "named", ["repo/.git", "repo/.git/hooks", "repo/.vscode", "bare", "bare/hooks", "tools/bin", "tools"]
)
def test_a_folder_that_programs_run_is_not_writable(home: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    for made in ("repo/.git/hooks", "repo/.vscode", "bare/hooks", "bare/objects", "tools/bin"):
        (home / made).mkdir(parents=True)
    (home / "bare/HEAD").write_text("ref: refs/heads/main\n")
    monkeypatch.setenv("PATH", f"{home}/tools/bin:/usr/bin")
    assert resolve_extra_folder(str(home / named), home / "work", is_writable=False)
    with pytest.raises(BadInput, match="run what is in it"):
        resolve_extra_folder(str(home / named), home / "work", is_writable=True)
    assert resolve_extra_folder(str(home / "datasets"), home / "work", is_writable=True)


def test_a_folder_is_resolved_to_its_real_path(home: Path) -> None:
    (home / "shortcut").symlink_to(home / "datasets")
    for is_writable in (False, True):
        found = resolve_extra_folder("~/shortcut", home / "work", is_writable=is_writable)
        assert found == home.resolve() / "datasets"
