"""The ready-made tools as a set: complete, well described, light to import."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from treadle.history.content_store import ContentStore
from treadle.history.rewind import find_contents
from treadle.log.in_memory import InMemoryLog
from treadle.messages import Json
from treadle.tools.base import Tool, ToolInputError
from treadle.tools.builtin import build_default_tools

SAFE = {"read_file", "list_files", "search_files", "calculate", "current_time", "read_output", "todo", "ask_user"}
CHANGING = {"write_file", "edit_file", "apply_patch"}
DEPENDS = {"fetch_url", "shell"}
OUTSIDE = {"git_remote"}


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, Tool]:
    return {tool.name: tool for tool in build_default_tools(web=True, kept=tmp_path / "kept")}


def test_the_set_is_complete_and_each_has_its_class(tools: dict[str, Tool]) -> None:
    assert set(tools) == SAFE | CHANGING | DEPENDS | OUTSIDE
    for name in SAFE | CHANGING:
        arguments: dict[str, Json] = tools[name].spec.examples[0][1]
        assert tools[name].assess_safety(arguments) == ("safe" if name in SAFE else "caution"), name
    assert tools["shell"].assess_safety({"command": "sudo rm -rf /"}) == "destructive"
    assert tools["git_remote"].assess_safety({"action": "fetch"}) == "destructive", "it leaves the sandbox"
    assert tools["shell"].aliases[0] == "bash"


def test_each_has_a_description_with_an_example_a_cap_and_a_time_limit(tools: dict[str, Tool]) -> None:
    for name, tool in tools.items():
        assert len(tool.spec.description) > 20 and "Example" in tool.spec.description, name
        assert all(field.get("description") for field in tool.spec.parameters["properties"].values()), name
        assert tool.cap == 16 * 1024, name
        is_in_time = tool.timeout is not None and 0 < tool.timeout <= 660
        assert is_in_time != (name == "ask_user"), "only a person may take any time"


def test_each_takes_its_own_examples(tools: dict[str, Tool]) -> None:
    for name, tool in tools.items():
        assert tool.spec.examples, f"{name}: a small model knows a tool by its examples"
        for request, arguments in tool.spec.examples:
            parsed = tool.parse(json.dumps(arguments))
            assert request and (tool.assess_safety(parsed.arguments) == "destructive") == (name in OUTSIDE), name


def test_all_descriptions_together_stay_short(tools: dict[str, Tool]) -> None:
    size = sum(len(json.dumps([tool.spec.description, tool.spec.parameters])) for tool in tools.values())
    assert size < 16_000, "every request carries them"


def test_unwanted_tools_are_left_out() -> None:
    assert not {"ask_user", "fetch_url", "shell", "git_remote"} & {
        tool.name for tool in build_default_tools(ask=False, shell=False)
    }


WRONG_ARGUMENTS = {
    "shell": [
        ("{}", "command"),
        ('{"command": "  "}', "empty"),
        ('{"command": "ls", "stdin": "x"}', "stdin"),
        ('{"command": "ls", "timeout_s": 0}', "timeout_s"),
        ('{"command": "ls", "timeout_s": 601}', "at most 600"),
        ('{"command": "ls", "timeout_s": "long"}', "timeout_s"),
        ('{"command": "l\\u0000s"}', "NUL"),
        ('{"command": 5', "do not fit"),
    ],
    "git_remote": [(text, "do not fit") for text in ("{}", '{"action": "gc"}', '{"action": "push", "force": true}')],
    "fetch_url": [(text, "do not fit") for text in ("{}", '{"url": 5}', '{"url": "https://a.org", "x": 1}', "{")],
    "ask_user": [
        ('{"question": " "}', "the question is empty"),
        *((text, "do not fit") for text in ("", "nonsense", '{"question": 5}', '{"question": "x", "why": 1}')),
        *((text, "do not fit") for text in ("[" * 100_000, '"\ud800"')),
    ],
    "todo": [('{"items": [{"text": "x", "status": "perhaps"}]}', "status")],
    "read_output": [('{"artifact": "notes.txt"}', "artifact: String should match")],
    "read_file": [('{"file": "x"}', "The arguments of read_file do not fit")],
    "edit_file": [('{"path": "x"}', "The arguments of edit_file do not fit")],
    "apply_patch": [("{}", "The arguments of apply_patch do not fit")],
}


@pytest.mark.parametrize("name", WRONG_ARGUMENTS)
def test_wrong_arguments_are_refused_with_the_reason(tools: dict[str, Tool], name: str) -> None:
    for arguments, error in WRONG_ARGUMENTS[name]:
        with pytest.raises(ToolInputError, match=error) as raised:
            tools[name].parse(arguments)
        assert name in str(raised.value)


def test_the_timeout_of_a_command_may_be_a_number_in_quotes(tools: dict[str, Tool]) -> None:
    assert tools["shell"].parse('{"command": "ls", "timeout_s": "5"}').arguments["timeout_s"] == 5.0


def test_files_and_commands_keep_old_contents_in_one_place(tools: dict[str, Tool], tmp_path: Path) -> None:
    contents = find_contents(InMemoryLog(), list(tools.values()))
    assert isinstance(contents, ContentStore) and contents.folder == tmp_path / "kept"


def test_the_module_is_light_to_import() -> None:
    code = "import treadle.tools.builtin, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"mcp", "pydantic", "httpx2", "tree_sitter", "aiohttp"} & set(loaded)


def test_the_web_can_be_read_through_a_proxy(tmp_path: Path) -> None:
    tools = {tool.name: tool for tool in build_default_tools(web="http://proxy.example:3128", kept=tmp_path / "kept")}
    assert vars(tools["fetch_url"])["_proxy"] == "http://proxy.example:3128"
