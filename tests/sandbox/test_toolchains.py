"""A command finds the tools that the user's shell finds, and nothing that is beside them."""

import os
import sys
import tempfile
from pathlib import Path

import pytest

from tests.kit.sandbox import behind_landlock, inside, needs_bubblewrap, needs_landlock, on_host, plainly
from tests.kit.toolchains import LAYOUTS, SECRET, Layout, ToolHome, echo
from treadle.sandbox import bubblewrap, toolchains
from treadle.sandbox.base import Job, SandboxUnavailable
from treadle.sandbox.caches import hold_cache
from treadle.sandbox.explain import explain_job
from treadle.sandbox.shown_paths import explain_refusal
from treadle.sandbox.toolchains import find_toolchains, list_languages

PYTHON = os.path.realpath(sys.executable)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToolHome:
    return ToolHome(tmp_path, monkeypatch)


def list_mounts(home: ToolHome) -> set[str]:
    mounts = find_toolchains(home.workspace).mounts
    return {str(mount.path.relative_to(home.folder)) for mount in mounts if mount.path.is_relative_to(home.folder)}


@needs_bubblewrap
@pytest.mark.parametrize("layout", [pytest.param(layout, id=layout.name.replace(" ", "_")) for layout in LAYOUTS])
async def test_a_tool_works_and_what_is_beside_it_stays_hidden(layout: Layout, home: ToolHome) -> None:
    home.install(layout)
    reading = "; ".join(f"cat '{home.folder / name}' 2>/dev/null" for name in layout.hidden)
    assert (await on_host(home.shell(reading))).output.count(SECRET) == len(layout.hidden)
    ran = await inside(home.shell(f"{layout.command}; {reading}; true"))
    assert ran.output.removesuffix("<settings/>\n") == layout.expected, ran
    assert len(find_toolchains(home.workspace).mounts) <= 9


@needs_bubblewrap
async def test_a_manager_elsewhere_is_found_by_its_shims_on_path(home: ToolHome) -> None:
    home.write("opt/pyenv/shims/thing", f'#!/bin/sh\nexec "{home.folder}/opt/pyenv/libexec/pyenv" thing\n')
    home.write("opt/pyenv/libexec/pyenv", f'#!/bin/sh\nPATH="{home.folder}/opt/pyenv/libexec:$PATH"; pyenv-$1\n')
    home.write("opt/pyenv/libexec/pyenv-thing", echo("works"))
    home.write("opt/pyenv/notes", SECRET)
    home.set_path("opt/pyenv/shims")
    ran = await inside(home.shell(f"thing; echo $PYENV_ROOT; cat {home.folder}/opt/pyenv/notes 2>/dev/null"))
    assert ran.output == f"works\n{home.folder}/opt/pyenv\n", ran


@needs_landlock
@pytest.mark.parametrize("name", ["pyenv", "nvm", "rustup", "uv"])
async def test_a_tool_works_and_what_is_beside_it_stays_hidden_behind_landlock(name: str, home: ToolHome) -> None:
    layout = next(layout for layout in LAYOUTS if layout.name == name)
    home.install(layout)
    (home.workspace / "sub").mkdir()
    reading = "; ".join(f"cat '{home.folder / hidden}' 2>/dev/null" for hidden in layout.hidden)
    ran = await behind_landlock(home.shell(f"cd sub; {layout.command}; {reading}; true"))
    assert ran.output == layout.expected, ran


@needs_bubblewrap
@pytest.mark.parametrize("program", ["python3", "cargo", "node", "go", "java"])
async def test_the_tools_of_this_machine_work(program: str, tmp_path: Path) -> None:
    option = "version" if program == "go" else "--version"
    free = await plainly(Job(("/bin/sh", "-c", f"{program} {option} || echo missing"), tmp_path))
    if "missing" in free:
        pytest.skip(f"NOT TESTED, there is no {program} on this machine")
    ran = await inside(Job((program, option), tmp_path))
    assert ran.ended.code == 0 and ran.output == free, ran


@needs_bubblewrap
@pytest.mark.parametrize("kind", ["--symlinks", "--copies"])
async def test_a_virtual_environment_in_the_workspace_uses_the_library_of_its_python(kind: str, tmp_path: Path) -> None:
    assert await plainly(Job((PYTHON, "-I", "-m", "venv", "--without-pip", kind, ".venv"), tmp_path)) == ""
    job = Job((".venv/bin/python", "-c", "import os, sys; print(sys.base_prefix, os.__file__, sys.prefix)"), tmp_path)
    prefix, library, own = (await plainly(job)).split()
    assert own == str(tmp_path / ".venv") and Path(library).is_relative_to(prefix)
    ran = await inside(job)
    assert ran.output.split() == [prefix, library, own], ran


@needs_bubblewrap
async def test_the_active_virtual_environment_is_used_with_its_python(home: ToolHome) -> None:
    home.write("runtimes/3.99/bin/python3", echo("base"))
    home.write("envs/a/bin/python: ~/runtimes/3.99/bin/python3")
    home.write("envs/a/pyvenv.cfg", "home = ~/runtimes/3.99/bin\n", mode=0o644)
    home.write("envs/a/pip.conf", SECRET, mode=0o644)
    home.write("envs/b/bin/python", echo("copy"))
    home.write("envs/b/pyvenv.cfg", "home = ~/runtimes/3.99/bin\n", mode=0o644)
    for name, expected in (("a", "base"), ("b", "copy")):
        home.set_path(f"envs/{name}/bin")
        home.set_variable("VIRTUAL_ENV", str(home.folder / "envs" / name))
        ran = await inside(home.shell('python; cat "$VIRTUAL_ENV/pip.conf" 2>/dev/null; true'))
        assert ran.output == f"{expected}\n", ran
        assert list_mounts(home) == {f"envs/{name}", "runtimes/3.99"}


@needs_bubblewrap
async def test_the_users_order_of_the_search_path_is_kept(home: ToolHome) -> None:
    home.write("late/bin/env", echo("mine"))
    home.set_variable("PATH", f"/usr/bin:/bin:{home.folder}/late/bin")
    ran = await inside(home.shell("command -v env; echo $PATH"))
    found, path = ran.output.splitlines()
    assert found == "/usr/bin/env" and path.startswith(f"/usr/bin:/bin:{home.folder}/late/bin:"), ran


async def test_folders_that_hold_more_than_tools_are_never_mounted(home: ToolHome) -> None:
    for name in (".ssh/bin/x", ".config/x/bin/y", ".aws/x", "private/bin/x"):
        home.write(name, echo("x"))
    home.set_path("", ".", "..", ".ssh/bin", ".config/x/bin", ".aws")
    for variable in (
        "VIRTUAL_ENV",
        "CARGO_HOME",
        "PYENV_ROOT",
        "GOROOT",
        "JAVA_HOME",
        "NVM_DIR",
        "UV_PYTHON_INSTALL_DIR",
    ):
        home.set_variable(variable, str(home.folder))
    home.write("pyvenv.cfg", "home = /\n")
    home.write("bin/java", echo("x"))
    home.write("versions/x", "x")
    assert list_mounts(home) == set()
    left_out = {str(one.path): one.why for one in find_toolchains(home.workspace).left_out}
    assert left_out[str(home.folder)] == "it holds more than one tool"
    assert left_out[str(home.folder / ".ssh/bin")] == "keys may be in it"
    for variable in ("VIRTUAL_ENV", "PYENV_ROOT", "UV_PYTHON_INSTALL_DIR"):
        home.set_variable(variable, "/")
        home.set_variable(variable, "relative")
    assert list_mounts(home) == set()


@pytest.mark.parametrize("path", ["/", "/opt", "/etc/x", "/proc/1", "/dev/shm", "/home"])
def test_folders_of_the_system_are_refused(path: str) -> None:
    assert explain_refusal(Path(path))


def test_the_prefix_of_a_repository_is_not_shown(home: ToolHome) -> None:
    home.write("dotfiles/bin/x", echo("x"))
    home.write("dotfiles/.git/config", "x")
    home.write("dotfiles/secrets", SECRET)
    home.set_path("dotfiles/bin")
    assert list_mounts(home) == {"dotfiles/bin"}


def test_treadles_own_folders_are_not_shown(home: ToolHome, monkeypatch: pytest.MonkeyPatch) -> None:
    home.write("data/treadle/bin/x", echo("x"))
    monkeypatch.setenv("TREADLE_DATA_DIR", str(home.folder / "data/treadle"))
    home.set_path("data/treadle/bin")
    assert list_mounts(home) == set()


def test_a_workspace_chooses_no_mount(home: ToolHome) -> None:
    home.write("secret-place/bin/python", echo("x"))
    for name in ("code/project/.venv/bin/python: ~/secret-place/bin/python", "code/project/tool: ~/secret-place/bin"):
        home.write(name)
    home.write("code/project/.venv/pyvenv.cfg", "home = ~/secret-place/bin\n")
    home.write("bin/python: ~/code/project/.venv/bin/python")
    home.set_path("code/project/.venv/bin", "code/project/tool", "bin")
    home.set_variable("VIRTUAL_ENV", str(home.workspace / ".venv"))
    assert list_mounts(home) == {"bin"}
    tools = find_toolchains(home.workspace)
    assert tools.variables["VIRTUAL_ENV"] == str(home.workspace / ".venv")
    assert f"{home.workspace}/.venv/bin" in tools.path


def test_a_workspace_chooses_no_mount_for_another_workspace(home: ToolHome) -> None:
    other = home.folder / "code/other"
    home.write("secret-place/bin/python", echo("x"))
    home.write("code/other/run: ~/secret-place/bin/python")
    home.write("bin/run: ~/code/other/run")
    home.set_path("bin")
    assert list_mounts(home) == {"bin", "secret-place"}, "the control: the link is the user's own"
    with hold_cache(other):  # an agent has worked there
        assert list_mounts(home) == {"bin"}


def test_a_link_chooses_programs_only(home: ToolHome) -> None:
    home.write("keys/private", SECRET, mode=0o600)
    home.write("bin/x: ~/keys/private")
    home.write("bin/folder: ~/keys")
    home.write("bin/around: around")
    home.set_path("bin")
    assert list_mounts(home) == {"bin"}


def test_a_folder_with_many_other_files_shows_its_programs_one_by_one(home: ToolHome) -> None:
    for number in range(30):
        home.write(f"bin/note{number}", SECRET, mode=0o644)
    home.write("bin/run", echo("x"))
    home.set_path("bin")
    assert list_mounts(home) == {"bin/run"}
    for number in range(30):
        home.write(f"bin/run{number}", echo("x"))
    assert list_mounts(home) == set()
    (left_out,) = find_toolchains(home.workspace).left_out
    assert left_out == toolchains.Mount(home.folder / "bin", "it has 30 files that are no programs")


def test_a_folder_of_many_programs_is_one_mount(home: ToolHome) -> None:
    for number in range(500):
        home.write(f"bin/run{number}", echo("x"))
    home.set_path("bin")
    assert list_mounts(home) == {"bin"}


def test_what_others_can_change_is_left_out(home: ToolHome) -> None:
    home.write("shared/bin/x", echo("x"))
    home.write("secret-place/bin/y", echo("y"))
    home.write("shared/bin/y: ~/secret-place/bin/y")
    (home.folder / "shared/bin").chmod(0o777)
    home.set_path("shared/bin")
    assert list_mounts(home) == set()
    if os.getuid() == 0:
        (home.folder / "shared/bin").chmod(0o755)
        os.chown(home.folder / "shared/bin", 4711, 4711)
        assert list_mounts(home) == {"shared/bin"}, "not the prefix, and not where its links lead"


def test_entries_that_are_no_folders_are_ignored(home: ToolHome) -> None:
    home.write("file", echo("x"))
    home.set_path("file", "missing")
    home.set_variable("PATH", f"{os.environ['PATH']}::relative/bin:.")
    tools = find_toolchains(home.workspace)
    assert list_mounts(home) == set() and not {"", ".", "relative/bin"} & set(tools.path)


@needs_bubblewrap
async def test_a_folder_that_cannot_be_read_stops_no_command(home: ToolHome, monkeypatch: pytest.MonkeyPatch) -> None:
    home.write(".nvm/versions/node/v9/bin/node", echo("node"))
    home.write("closed/bin/x", echo("x"))
    home.write("bin/with\nnew line", echo("x"))
    os.mkfifo(home.folder / "bin/pipe")
    (home.folder / os.fsdecode(b"odd\xff/bin")).mkdir(parents=True)
    home.set_path("closed/bin", ".nvm/versions/node/v9/bin", os.fsdecode(b"odd\xff/bin"), "bin")
    scan = os.scandir

    def refuse(folder: str) -> object:
        if "closed" in str(folder):
            raise PermissionError(13, "Permission denied")
        return scan(folder)

    monkeypatch.setattr(toolchains.os, "scandir", refuse)
    (left_out,) = find_toolchains(home.workspace).left_out
    assert left_out == toolchains.Mount(home.folder / "closed/bin", "it cannot be read: Permission denied")
    monkeypatch.undo()
    home.set_variable("HOME", str(home.folder))
    home.set_path(".nvm/versions/node/v9/bin", os.fsdecode(b"odd\xff/bin"), "bin")
    assert (await inside(home.shell("node; 'with\nnew line'"))).output == "node\nx\n"
    assert await explain_job(home.shell("true"))


def test_the_result_is_kept_until_something_changes(home: ToolHome) -> None:
    home.write(".local/bin/a", echo("a"))
    home.set_path(".local/bin")
    first = find_toolchains(home.workspace)
    assert find_toolchains(home.workspace) is first
    home.write(".pyenv/versions/1/bin/python", echo("x"))
    home.set_path(".local/bin", ".pyenv/versions/1/bin")
    assert list_mounts(home) == {".local/bin", ".pyenv/versions"}
    home.write(".pyenv/versions/1/pip.conf", SECRET, mode=0o644)
    assert find_toolchains(home.workspace).masked == (home.folder / ".pyenv/versions/1/pip.conf",)
    home.write("opt/x/bin/y", echo("y"))
    home.write(".local/bin/y: ~/opt/x/bin/y")
    assert list_mounts(home) == {".local/bin", ".pyenv/versions", "opt/x"}


@needs_bubblewrap
async def test_a_folder_that_is_exchanged_before_the_mount_is_noticed(
    home: ToolHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.write("opt/x/bin/y", echo("y"))
    home.write("secret-place/key", SECRET)
    home.set_path("opt/x/bin")
    find_toolchains(home.workspace)
    build = bubblewrap.build_arguments

    def exchange(plan: bubblewrap.BubblewrapPlan, **options: bool) -> list[str]:
        (home.folder / "opt/x").rename(home.folder / "opt/old")
        (home.folder / "opt/x").symlink_to("../secret-place")
        return build(plan, **options)

    monkeypatch.setattr(bubblewrap, "build_arguments", exchange)
    with pytest.raises(SandboxUnavailable, match="was exchanged meanwhile"):
        await inside(home.shell(f"cat {home.folder}/opt/x/key"))


@needs_bubblewrap
async def test_a_workspace_in_var_tmp_is_at_its_own_path() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        ran = await inside(Job(("/bin/sh", "-c", "pwd -P; echo x > file; echo y > /var/tmp/y; ls -d /tmp/*"), folder))
        assert ran.output.startswith(f"{folder}\n") and "/tmp/y" not in ran.output.split(), ran
        assert (folder / "file").read_text() == "x\n"
        assert not Path("/var/tmp/y").exists()


def test_languages_are_those_that_commands_find(home: ToolHome) -> None:
    before = list_languages()
    home.write(".nvm/versions/node/v9/bin/node", echo("x"))
    home.write(".cargo/bin/cargo", echo("x"))
    home.write(".ssh/bin/go", echo("x"))
    home.set_path(".nvm/versions/node/v9/bin", ".cargo/bin", ".ssh/bin")
    assert set(list_languages()) == {*before, "Node", "Rust"} and list(list_languages()) == sorted(list_languages())


@needs_bubblewrap
async def test_an_explanation_lists_every_mount_and_its_reason(home: ToolHome) -> None:
    home.install(LAYOUTS[0])
    explained = await explain_job(home.shell("true"))
    rows = {row.path: (row.access, row.why) for row in explained.rows}
    assert rows[str(home.folder / ".pyenv/versions")] == ("read", "pyenv")
    assert rows[str(home.folder / ".pyenv/versions/3.98/pip.conf")][0] == "hidden"
    assert rows[str(home.workspace)] == ("write", "the workspace") and rows["/usr"] == ("read", "system")
    assert rows["/tmp/home/.cache"] == ("write", "the cache of this workspace, kept")
    assert rows[str(home.workspace / ".git")] == ("write", "a private copy") and all(why for _, why in rows.values())
    assert explained.search_path.startswith(f"{home.folder}/.pyenv/shims:")
    assert (await explain_job(Job(("python3",), home.workspace))).program == str(home.folder / ".pyenv/shims/python3")
    assert (await explain_job(Job(("no-such-program",), home.workspace))).program == ""
    ran = await inside(home.shell("awk '{print $5}' /proc/self/mountinfo"))
    mounted = {path for path in ran.output.split() if not path.startswith(("/dev/", "/proc")) and path != "/"}
    assert mounted <= {*rows, "/dev"}, "what is mounted is explained"
