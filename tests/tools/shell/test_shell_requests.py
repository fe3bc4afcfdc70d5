"""What a command of the shell tool asks for: hosts while it runs, folders before, and what the model reads."""

from pathlib import Path
from typing import Any

import pytest

from tests.kit.shell import Terminal, needs_bubblewrap
from treadle.messages import Json
from treadle.sandbox import backend as sandbox
from treadle.sandbox.registries import REGISTRY_HOSTS, expand_hosts
from treadle.tools.base import PermissionAnswer, ToolError
from treadle.tools.builtin import build_default_tools
from treadle.tools.shell import Shell

FETCH = (
    "python3 -c 'import sys, urllib.request as u\n"
    'try: u.urlopen(sys.argv[1], timeout=60)\nexcept Exception as e: print("FAILED", e)\' http://{host}/'
)


class AskingTerminal(Terminal):
    """A terminal whose requests are answered by a list of rules."""

    def __init__(self, workspace: Path, allowed: tuple[str, ...] = (), **options: Any) -> None:
        super().__init__(workspace, **options)
        self.asked: list[tuple[str, dict[str, Json], str]] = []

        async def request(tool: str, arguments: dict[str, Json], why: str) -> PermissionAnswer:
            self.asked.append((tool, arguments, why))
            is_allowed = f"{tool}({next(iter(arguments.values()))})" in allowed
            return PermissionAnswer(is_allowed, "Ada allowed it." if is_allowed else "Ada said no.")

        self.services.request_permission = request  # type: ignore[method-assign]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "workspace").mkdir()
    return tmp_path / "workspace"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.csv").write_text("one,two\n")
    return tmp_path / "data"


@needs_bubblewrap
async def test_a_host_is_asked_for_with_the_command_and_a_no_is_in_the_result(workspace: Path) -> None:
    terminal, command = AskingTerminal(workspace), FETCH.format(host="site.test:8443")
    text = await terminal.read(command)
    ((tool, arguments, why),) = terminal.asked
    assert (tool, arguments) == ("network", {"host": "site.test", "port": 8443, "command": command})
    assert why.endswith("wants site.test:8443") and why.startswith("`python3 -c") and "\n" not in why
    assert "FAILED HTTP Error 403" in text and "[site.test:8443 was not reached: Ada said no.]" in text


@needs_bubblewrap
async def test_a_private_host_is_not_asked_for_and_the_result_says_so(workspace: Path) -> None:
    terminal = AskingTerminal(workspace)
    text = await terminal.read(FETCH.format(host="169.254.169.254"))
    assert terminal.asked == []
    assert "169.254.169.254:80 was not reached: It is not a public host." in text


@needs_bubblewrap
async def test_a_command_that_uses_no_network_asks_nothing(workspace: Path) -> None:
    terminal = AskingTerminal(workspace)
    assert await terminal.read("echo hello") == "hello"
    assert terminal.asked == []


async def test_with_full_access_nothing_is_asked(workspace: Path, data: Path) -> None:
    terminal = AskingTerminal(workspace, tier="full")
    assert "one,two" in await terminal.read(f"cat {data}/rows.csv; env | grep -i _proxy", read_folders=[str(data)])
    assert terminal.asked == []


@needs_bubblewrap
async def test_a_folder_that_is_allowed_can_be_read(workspace: Path, data: Path) -> None:
    (workspace / "link").symlink_to(data)
    terminal = AskingTerminal(workspace, (f"read_folder({data.resolve()})",))
    text = await terminal.read(f"cat {data}/rows.csv; echo x > {data}/new", read_folders=[str(workspace / "link")])
    assert "one,two" in text and not (data / "new").exists()
    ((tool, arguments, why),) = terminal.asked
    assert (tool, arguments["path"], arguments["command"]) == (
        "read_folder",
        str(data.resolve()),
        f"cat {data}/rows.csv; echo x > {data}/new",
    )
    assert why == f"`{arguments['command']}` wants to read {data.resolve()}"


@needs_bubblewrap
async def test_a_folder_that_is_allowed_can_be_changed(workspace: Path, data: Path) -> None:
    terminal = AskingTerminal(workspace, (f"write_folder({data.resolve()})",))
    await terminal.read(f"echo x > {data}/new", write_folders=[str(data)], read_folders=[str(data)])
    assert (data / "new").read_text() == "x\n"
    assert [tool for tool, *_ in terminal.asked] == ["write_folder"]


async def test_a_command_whose_folder_is_denied_does_not_run(workspace: Path, data: Path) -> None:
    terminal = AskingTerminal(workspace)
    with pytest.raises(ToolError, match=r"Not run: it may not read .* Ada said no"):
        await terminal.run("touch ran", read_folders=[str(data)])
    assert not (workspace / "ran").exists()


@pytest.mark.parametrize("named", ["~/.ssh", "~", "/", "/etc", "data", "/nowhere/at/all", "."])
async def test_some_folders_are_refused_without_a_question(workspace: Path, named: str) -> None:
    terminal = AskingTerminal(workspace)
    with pytest.raises(ToolError, match="Not run"):
        await terminal.run("touch ran", read_folders=[named])
    assert terminal.asked == [] and not (workspace / "ran").exists()


@needs_bubblewrap
async def test_a_granted_folder_is_not_asked_for(workspace: Path, data: Path) -> None:
    shell = Shell(sandbox)
    shell.shown_folders = (data.resolve(),)
    terminal = AskingTerminal(workspace, tool=shell)
    assert await terminal.read(f"cat {data}/rows.csv", read_folders=[str(data)]) == "one,two"
    assert terminal.asked == []


@needs_bubblewrap
async def test_a_command_that_only_reads_changes_no_granted_folder(workspace: Path, data: Path) -> None:
    """The classification says that `cat` is safe, so it gets the folder read-only like the workspace."""
    shell = Shell(sandbox)
    shell.writable_folders = (data.resolve(),)
    terminal = AskingTerminal(workspace, tool=shell)
    assert "one,two" in await terminal.read(f"cat {data}/rows.csv")
    await terminal.read(f"touch {data}/new")
    assert (data / "new").exists()


def test_empty_folders_are_no_part_of_the_arguments() -> None:
    parsed = Shell(sandbox).parse('{"command": "ls", "read_folders": [], "write_folders": []}')
    assert set(parsed.arguments) == {"command", "timeout_s"}


def test_the_registries_are_hosts_to_read_from() -> None:
    assert expand_hosts(("registries", "example.org")) == (*REGISTRY_HOSTS, "example.org")
    assert not [host for host in REGISTRY_HOSTS if "upload" in host or "*" in host]
    shell = next(tool for tool in build_default_tools(network=["registries"]) if tool.name == "shell")
    assert "reaches only the package registries" in shell.spec.description
    assert "reaches only public hosts" in Shell(sandbox, network=True).spec.description
    assert shell.list_traits("sandbox") >= {"way_out", "registries"}
    mixed = next(tool for tool in build_default_tools(network=["registries", "example.org"]) if tool.name == "shell")
    assert "registries" not in mixed.list_traits("sandbox")
