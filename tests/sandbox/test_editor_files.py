"""Files that run or instruct when a folder is opened: no command can write them, whether they exist or not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.kit.sandbox import EVERYWHERE, Place, Run, collect, inside, needs_bubblewrap
from treadle.permissions.paths import OPENED_WITH_FOLDER, RUN_BY_GIT, explain_write_risk
from treadle.sandbox.guarded_paths import find_guarded_paths, hold_protected_paths

ATTACKS = (
    "mkdir -p {0}; echo spoiled > {0}/tasks.json",
    "echo spoiled > {0}",
    "rm -rf {0}; mkdir {0} && echo spoiled > {0}/tasks.json",
    "mv {0} away; mkdir {0} && echo spoiled > {0}/tasks.json",
    "mkdir made; echo spoiled > made/tasks.json; mv -T made {0}; mv made {0}",
    "rm -rf {0}; ln -sfn made {0}; ln -sfT made {0}",
    "echo spoiled > file; ln -f file {0}; cp file {0}; cp -r made/. {0}/",
    "ln {0}/tasks.json linked && echo spoiled > linked",
    "find . -name tasks.json -exec sh -c 'echo spoiled > $1' _ '{{}}' ';'",
    "chmod -R 777 {0}; echo spoiled >> {0}/tasks.json; truncate -s 0 {0}/tasks.json",
)


def read_tree(folder: Path) -> dict[str, str]:
    """All that exists below the names that are protected: files with their text, links with their target."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if set(name.split("/")) & {*OPENED_WITH_FOLDER, *RUN_BY_GIT}:
            found[name] = os.readlink(path) if path.is_symlink() else path.read_text() if path.is_file() else ""
    return found


@pytest.mark.parametrize("run", EVERYWHERE[:2])
async def test_a_command_cannot_create_what_is_not_there(run: Run, place: Place) -> None:
    for name in OPENED_WITH_FOLDER:
        await collect(run, place.shell("; ".join(attack.format(name) for attack in ATTACKS)))
    assert read_tree(place.workspace) == {}


@pytest.mark.parametrize("run", EVERYWHERE[:2])
@pytest.mark.parametrize("folder", ["", "sub/deep/"])
async def test_a_command_cannot_change_what_is_there_and_can_read_it(run: Run, folder: str, place: Place) -> None:
    names = [name for name in (*OPENED_WITH_FOLDER, *RUN_BY_GIT) if name != ".envrc"]
    for name in names:
        (place.workspace / folder / name).mkdir(parents=True)
        (place.workspace / folder / name / "tasks.json").write_text(f"whole {name}")
    before = read_tree(place.workspace)
    for name in names:
        ran = await collect(run, place.shell(f"cat {folder}{name}/tasks.json"))
        assert ran.output == f"whole {name}"
        await collect(run, place.shell("; ".join(attack.format(folder + name) for attack in ATTACKS)))
    assert read_tree(place.workspace).items() >= before.items()


@needs_bubblewrap
async def test_the_folder_above_cannot_be_moved_away_and_made_again(place: Place) -> None:
    (place.workspace / "sub/deep/.vscode").mkdir(parents=True)
    (place.workspace / "sub/deep/.vscode/tasks.json").write_text("whole")
    for moved in ("sub", "sub/deep"):
        code = (
            f"mv {moved} old; mkdir -p sub/deep/.vscode; echo spoiled > sub/deep/.vscode/tasks.json; touch sub/deep/x"
        )
        await inside(place.shell(code))
    assert read_tree(place.workspace)["sub/deep/.vscode/tasks.json"] == "whole"
    assert (place.workspace / "sub/deep/x").exists(), "the folder itself stays writable"


@needs_bubblewrap
async def test_a_link_is_put_back_and_its_target_is_protected(place: Place) -> None:
    (place.workspace / "shared").mkdir()
    (place.workspace / "shared/settings.json").write_text("whole")
    (place.workspace / ".claude").symlink_to("shared")
    (place.workspace / ".vscode").symlink_to(place.outside)
    (place.workspace / ".mcp.json").symlink_to("nowhere")
    code = "for n in .claude .vscode .mcp.json; do rm -f $n; mkdir $n; echo x > $n/settings.json; done; cat .claude/*"
    ran = await inside(place.shell(f"echo spoiled > shared/settings.json; cat .claude/settings.json; {code}"))
    assert "whole" in ran.output and "Read-only" in ran.output
    links = {name: os.readlink(place.workspace / name) for name in (".claude", ".vscode", ".mcp.json")}
    assert links == {".claude": "shared", ".vscode": str(place.outside), ".mcp.json": "nowhere"}
    assert (place.workspace / "shared/settings.json").read_text() == "whole"
    assert sorted(os.listdir(place.outside)) == ["key", "victim"]


@needs_bubblewrap
@pytest.mark.parametrize("close", ["chmod 000 .vscode/x .vscode", 'python3 -c "$DEEP"'], ids=["closed", "deep"])
async def test_a_link_is_put_back_whatever_a_command_has_put_there(close: str, place: Place) -> None:
    (place.workspace / ".vscode").symlink_to("shared")
    deep = "import os; os.chdir('.vscode'); [(os.mkdir('d'), os.chdir('d')) for _ in range(3000)]"
    code = f"rm .vscode; mkdir -p .vscode/x; echo spoiled > .vscode/tasks.json; touch .vscode/x/y; {close}"
    await inside(place.shell(f'DEEP="{deep}"; {code}'))
    assert os.readlink(place.workspace / ".vscode") == "shared"
    assert os.listdir(place.workspace) == [".vscode"]


def test_a_link_that_a_killed_process_left_replaced_is_put_back_by_the_next(tmp_path: Path) -> None:
    (tmp_path / ".vscode").symlink_to("shared")
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom treadle.sandbox.guarded_paths import hold_protected_paths\n"
        "link = Path(sys.argv[1], '.vscode')\n"
        "with hold_protected_paths(link.parent, names=['.vscode']):\n"
        "    link.unlink(); link.mkdir(); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, tmp_path]).returncode == -9
    assert (tmp_path / ".vscode").is_dir()
    with hold_protected_paths(tmp_path, names=[".vscode"]):
        pass
    assert os.readlink(tmp_path / ".vscode") == "shared"


@needs_bubblewrap
async def test_placeholders_are_gone_afterwards_and_a_command_that_only_reads_sees_none(place: Place) -> None:
    seen = await inside(replace(place.shell("ls -A"), writable=False))
    assert seen.output.split() == [".git", ".treadle"]
    await inside(place.shell("touch made"))
    assert os.listdir(place.workspace) == ["made"]


def test_placeholders_stay_for_a_command_of_another_process_that_still_runs(tmp_path: Path) -> None:
    with hold_protected_paths(tmp_path, names=OPENED_WITH_FOLDER):
        with hold_protected_paths(tmp_path, names=OPENED_WITH_FOLDER):
            pass
        assert sorted(os.listdir(tmp_path)) == sorted(OPENED_WITH_FOLDER)
    assert os.listdir(tmp_path) == []


def test_env_files_in_the_folder_of_an_editor_are_still_found(tmp_path: Path) -> None:
    (tmp_path / ".devcontainer").mkdir()
    (tmp_path / ".devcontainer/.env").touch()
    assert find_guarded_paths(tmp_path).env_files == (tmp_path / ".devcontainer/.env",)


@pytest.mark.parametrize("name", [*OPENED_WITH_FOLDER, *RUN_BY_GIT, ".continue", ".kiro", ".windsurf"])
def test_a_file_tool_asks_for_each_change_of_what_instructs(name: str) -> None:
    for path in (f"{name}/x", f"sub/{name}/x", f"{name.upper()}/x"):
        assert "tells agents, editors or build services" in explain_write_risk(path)
