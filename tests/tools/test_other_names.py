"""Names that other coding agents taught the models: they are renamed before the schema is checked."""

from pathlib import Path
from typing import Any

import pytest

from tests.kit.sessions import FinishedRun, build_agent, run_agent
from treadle import Answer, CallStarted, Grant, tool
from treadle.events import ApprovalRequested
from treadle.testing import call
from treadle.tools.base import Tool, ToolInputError, rename_arguments
from treadle.tools.builtin import build_default_tools

NAMES = {
    "bash": "shell",
    "Bash": "shell",
    "Read": "read_file",
    "Write": "write_file",
    "Edit": "edit_file",
    "str_replace": "edit_file",
    "LS": "list_files",
    "Glob": "list_files",
    "Grep": "search_files",
}


def get_tool(name: str) -> Tool:
    return {tool.name: tool for tool in build_default_tools()}[name]


async def run_call(folder: Path, *calls: Any, **options: Any) -> FinishedRun:
    agent, _ = build_agent(list(calls), "done", tools=build_default_tools(), **options)
    return await run_agent(agent, workspace=folder)


@pytest.mark.parametrize(
    ("name", "given", "wanted"),
    [
        ("edit_file", {"file_path": "a", "old_string": "x", "new_string": "y"}, {"path": "a", "old": "x", "new": "y"}),
        ("edit_file", {"path": "a", "old_str": "x", "new_str": "y"}, {"path": "a", "old": "x", "new": "y"}),
        (
            "edit_file",
            {"filePath": "a", "oldString": "x", "newString": "y", "replaceAll": True},
            {"path": "a", "old": "x", "new": "y", "replace_all": True},
        ),
        ("write_file", {"filename": "a", "contents": "x"}, {"path": "a", "content": "x"}),
        ("write_file", {"path": "a", "file_text": "x"}, {"path": "a", "content": "x"}),
        ("write_file", {"file": "a", "text": "x"}, {"path": "a", "content": "x"}),
        ("read_file", {"file_path": "a", "start_line": 3, "max_lines": 2}, {"path": "a", "offset": 3, "limit": 2}),
        ("read_file", {"file_path": "a", "path": "a"}, {"path": "a"}),
        ("read_file", {"end_line": 12, "path": "a", "start_line": 3}, {"offset": 3, "limit": 10}),
        ("read_file", {"path": "a", "end_line": 12}, {"offset": 1, "limit": 12}),
        ("read_file", {"path": "a", "start_line": 7, "end_line": -1}, {"offset": 7, "limit": 2000}),
        ("read_file", {"path": "a", "view_range": [3, 12]}, {"offset": 3, "limit": 10}),
        ("read_file", {"path": "a", "view_range": [3, -1]}, {"offset": 3, "limit": 2000}),
        ("shell", {"command": ["bash", "-lc", "ls | wc -l"]}, {"command": "ls | wc -l"}),
        ("shell", {"cmd": ["/bin/sh", "-c", "ls"], "timeout_ms": 500}, {"command": "ls", "timeout_s": 0.5}),
        ("shell", {"command": ["grep", "-n", "it's $HOME", "a b"]}, {"command": """grep -n 'it'"'"'s $HOME' 'a b'"""}),
        ("shell", {"cmd": "ls"}, {"command": "ls"}),
        ("shell", {"script": "ls", "timeout": 30}, {"command": "ls", "timeout_s": 30}),
        ("shell", {"command": "ls", "timeout": 120000, "description": "look"}, {"command": "ls", "timeout_s": 120}),
        ("shell", {"command": "ls", "timeout_ms": 500}, {"command": "ls", "timeout_s": 0.5}),
        ("search_files", {"query": "x", "include": "*.py"}, {"pattern": "x", "glob": "*.py"}),
        ("list_files", {"directory": "src"}, {"path": "src"}),
        ("apply_patch", {"input": "x"}, {"patch": "x"}),
    ],
)
def test_the_argument_names_of_other_agents_are_accepted(name: str, given: Any, wanted: dict[str, Any]) -> None:
    parsed = get_tool(name).parse_call(call(name, **given).arguments).arguments
    assert {field: parsed[field] for field in wanted} == wanted
    assert not (set(given) - set(get_tool(name).spec.parameters["properties"])) & set(parsed)


@pytest.mark.parametrize(
    "arguments",
    ['{"path": "a", "file_path": "b"}', '{"file_path": "a", "filename": "b"}', '{"file_path": 1}', "[", "[1]"],
)
def test_arguments_that_contradict_each_other_or_are_malformed_are_refused(arguments: str) -> None:
    with pytest.raises(ToolInputError, match=r"read_file"):
        get_tool("read_file").parse_call(arguments)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("read_file", {"path": "a", "start_line": 9, "end_line": 3}),
        ("read_file", {"path": "a", "end_line": "x"}),
        ("read_file", {"path": "a", "limit": 3, "end_line": 9}),
        ("read_file", {"path": "a", "view_range": [9, 3]}),
        ("read_file", {"path": "a", "view_range": 3}),
        ("shell", {"command": []}),
        ("shell", {"command": ["ls", 3]}),
        ("shell", {"command": "ls", "cmd": ["rm", "a"]}),
    ],
)
def test_values_that_cannot_be_read_are_refused(name: str, given: Any) -> None:
    with pytest.raises(ToolInputError, match=name):
        get_tool(name).parse_call(call(name, **given).arguments)


async def test_a_command_as_a_list_is_authorized_shown_and_run_as_one_command(tmp_path: Path) -> None:
    asked: list[ApprovalRequested] = []

    async def allow(question: Any) -> Answer:
        asked.append(question)
        return Answer()

    remove = call("shell", id="s", command=["bash", "-lc", "echo kept > b"])
    run = await run_call(tmp_path, remove, gate=allow, grant=Grant(ask=("shell(echo*)",)))
    [question], [started] = asked, run.select(CallStarted)
    assert question.arguments["command"] == started.arguments["command"] == "echo kept > b"
    assert run.results["s"].status == "ok" and (tmp_path / "b").read_text() == "kept\n"


def test_a_name_that_the_schema_has_is_never_renamed() -> None:
    @tool(argument_aliases={"text": "content", "title": "name"})
    def post(text: str, content: str = "", name: str = "") -> str:
        """Post something."""
        return text

    assert post.parse_call('{"text": "x", "title": "t"}').arguments == {"text": "x", "content": "", "name": "t"}
    assert rename_arguments('{"a": 1}', {"a": "b"}, post.spec.parameters) == '{"b":1}'


async def test_the_names_are_those_of_the_tool_where_a_call_is_shown_approved_and_recorded(tmp_path: Path) -> None:
    asked: list[ApprovalRequested] = []

    async def allow(question: Any) -> Answer:
        asked.append(question)
        return Answer()

    write = call("Write", id="w", file_path="a.txt", contents="one\n")
    run = await run_call(tmp_path, write, gate=allow, grant=Grant(ask=("write_file(*.txt)",)))
    assert (tmp_path / "a.txt").read_text() == "one\n"
    [question], [started] = asked, run.select(CallStarted)
    for fact in (question, started):
        assert (fact.tool, fact.arguments) == ("write_file", {"path": "a.txt", "content": "one\n"})


async def test_a_rule_about_a_path_holds_whatever_the_argument_is_called(tmp_path: Path) -> None:
    write = call("write_file", id="w", file_path="secret/a.txt", text="x")
    run = await run_call(tmp_path, write, grant=Grant(forbid=("write_file(secret/**)",)))
    assert run.results["w"].status == "denied" and not (tmp_path / "secret").exists()


@pytest.mark.parametrize(("alias", "name"), NAMES.items())
def test_the_tool_names_of_other_agents_are_accepted_and_not_offered(alias: str, name: str) -> None:
    assert alias in get_tool(name).aliases
    assert alias not in {tool.name for tool in build_default_tools()}


async def test_an_alias_never_hides_a_tool_that_has_this_name() -> None:
    @tool(safety="safe")
    def read(book: str) -> str:
        """Read a book."""
        return f"read {book}"

    agent, _ = build_agent(call("read", id="r", book="Emma"), "done", tools=[*build_default_tools(), read])
    assert (await run_agent(agent)).results["r"].output == "read Emma"
