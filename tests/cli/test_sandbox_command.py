"""`treadle sandbox`: what it explains, and how it cares for caches."""

import shutil
from pathlib import Path

from tests.kit.shell import needs_bubblewrap
from tests.kit.terminal import Place


def write_tool(place: Place, name: str) -> Path:
    path = place.home / name
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\necho found\n")
    path.chmod(0o755)
    place.env["PATH"] = f"{path.parent}:{place.env['PATH']}"
    return path


@needs_bubblewrap
async def test_explain_shows_what_is_mounted_and_why_and_runs_nothing(place: Place) -> None:
    tool = write_tool(place, ".nvm/versions/node/v99/bin/our-node")
    left_out = write_tool(place, ".ssh/bin/other")
    done = await place.run("sandbox", "exec", "--explain", "--", "our-node", ">", "ran")
    lines = done.out.splitlines()
    assert done.code == 0 and list(place.work.iterdir()) == []
    assert f"read      {place.home / '.nvm/versions'}  (nvm)" in lines
    assert any(line.startswith(f"read      {place.work}/.treadle, .claude, .codex, ") for line in lines), "one line"
    assert f"write     {place.work}  (the workspace)" in lines
    assert f"not shown {left_out.parent}  (keys may be in it)" in lines
    assert lines[-1] == f"program   {tool}"
    assert next(line for line in lines if line.startswith("PATH ")).startswith(f"PATH      {tool.parent}:")
    done = await place.run("sandbox", "exec", "--explain", "--", "no-such-program")
    assert done.out.endswith("program   no-such-program: not found\n")
    assert "program" not in (await place.run("sandbox", "exec", "--explain")).out
    ran = await place.run("sandbox", "exec", "--", "our-node")
    assert ran.out == "found\n"


@needs_bubblewrap
async def test_a_command_sees_the_folders_of_the_settings(place: Place) -> None:
    (place.home / "datasets").mkdir()
    (place.home / "datasets/one.csv").write_text("1,2\n")
    config = place.home / ".config/treadle/config.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text('[sandbox]\nread_only = ["~/datasets"]\n')
    place.env["TREADLE_CONFIG"] = str(config)
    assert (await place.run("sandbox", "exec", "--", "cat", str(place.home / "datasets/one.csv"))).out == "1,2\n"
    assert f"read      {place.home / 'datasets'}  (" in (await place.run("sandbox", "exec", "--explain")).out


@needs_bubblewrap
async def test_caches_are_listed_and_cleared(place: Place) -> None:
    assert (await place.run("sandbox", "caches")).err.startswith("0 caches")
    keep = await place.run("sandbox", "exec", "--", "sh", "-c", "head -c 3000000 /dev/urandom > ~/.cache/x")
    assert keep.code == 0
    listed = await place.run("sandbox", "caches", "list")
    assert listed.out.split() == ["2.9", "MiB", str(place.work)]
    cleared = await place.run("sandbox", "caches", "clear")
    assert cleared.code == 0 and "removed 1 of 1" in cleared.err
    assert (await place.run("sandbox", "caches")).out == ""


async def test_doctor_names_tools_and_what_is_left_out(place: Place) -> None:
    write_tool(place, ".cargo/bin/cargo")
    done = await place.run("doctor")
    (line,) = (line for line in done.out.splitlines() if line[2:].startswith("tools"))
    assert "Rust" in line and "cargo" in line and "do not see" not in line
    left_out = write_tool(place, ".aws/bin/other")
    assert f"commands do not see {left_out.parent} (keys may be in it)" in (await place.run("doctor")).out


@needs_bubblewrap
async def test_what_was_refused_is_told_after_the_command(place: Place) -> None:
    code = "git init -q; git config x.y z; curl -s https://site.invalid; exit 3"
    done = await place.run("sandbox", "exec", "--network", "--", "sh", "-c", code)
    assert done.code == 3 and "Not kept in .git: config" in done.err, done
    assert "site.invalid:443 was not reached: It has no address." in done.err or not shutil.which("curl")


async def test_doctor_names_a_folder_that_cannot_be_given(place: Place) -> None:
    file = place.home / ".config/treadle/config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('[sandbox]\nread_only = ["~/no-such-folder"]\n')
    place.env["TREADLE_CONFIG"] = str(file)
    done = await place.run("doctor")
    (line,) = (line for line in done.out.splitlines() if line[2:].startswith("folders"))
    assert done.code == 1 and "'~/no-such-folder' cannot be used" in line, done
