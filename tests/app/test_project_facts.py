"""What /init writes: the commands and the layout of a project, the same each time."""

import os
from pathlib import Path

import pytest

from tests.knowledge.workspaces import write_file
from treadle.app.project_facts import describe_project, write_agents_file
from treadle.errors import BadInput
from treadle.knowledge.file_knowledge import read_instructions


def test_the_text_names_the_commands_and_the_layout(tmp_path: Path) -> None:
    write_file(tmp_path, "Makefile", "VERSION := 1\ntest: build\n\tpytest\nbuild:\n\ttrue\nother:\n\ttrue\n")
    write_file(tmp_path, "pyproject.toml", '[project]\nname = "looms"\ndescription = "Weaves.\\n## X"\n[tool.ruff]\n')
    write_file(tmp_path, "uv.lock", "")
    write_file(tmp_path, "package.json", '{"scripts": {"test": "vitest", "evil`": "x"}}')
    write_file(tmp_path, "src/a.py", "")
    write_file(tmp_path, "src/deep/b.py", "")
    write_file(tmp_path, "node_modules/x/index.js", "")
    write_file(tmp_path, "README.md", "")
    text = describe_project(tmp_path)
    assert text == (
        "# looms\n\nWeaves. ## X\n\n## Commands\n\n- build: `make build`\n- test: `make test`\n- test: `npm run test`\n"
        "- lint: `uv run ruff check .`\n\n## Layout\n\n- `src/`: 2 files, mostly `.py`\n- `README.md`\n\n"
        "## Conventions\n\n- add what a newcomer must know and cannot see in the code\n"
    )
    write_agents_file(tmp_path, text, replace=False)
    texts, agents, problems = read_instructions(tmp_path)
    assert texts == [("AGENTS.md", text.strip())] and agents == [] and problems == []


def test_an_existing_file_stays_unless_it_may_be_replaced(tmp_path: Path) -> None:
    write_file(tmp_path, "AGENTS.md", "mine")
    with pytest.raises(BadInput, match="exists; it was not changed"):
        write_agents_file(tmp_path, "theirs", replace=False)
    assert (tmp_path / "AGENTS.md").read_text() == "mine"
    write_agents_file(tmp_path, "theirs", replace=True)
    assert (tmp_path / "AGENTS.md").read_text() == "theirs"


def test_broken_and_linked_manifests_are_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "bare"
    write_file(tmp_path, "secret.toml", '[project]\nname = "secret"\n')
    write_file(folder, "package.json", "[1")
    write_file(folder, "Cargo.toml", "not toml")
    (folder / "pyproject.toml").symlink_to(tmp_path / "secret.toml")
    (folder / "loop").symlink_to(folder)
    assert describe_project(folder).startswith("# bare\n\n## Commands\n\n- build: `cargo build`")


@pytest.mark.timeout(15)  # a slow expression takes a minute
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", "[tool.x]\nday = 2026-01-01\n"),
        ("pyproject.toml", "a = " + "[" * 20_000),
        ("pyproject.toml", f"a = {'1' * 5000}"),
        ("Makefile", "a" + " " * 60_000),
    ],
)
def test_hostile_manifests_neither_stop_nor_delay_the_text(tmp_path: Path, name: str, text: str) -> None:
    write_file(tmp_path, name, text)
    assert "none was found" in describe_project(tmp_path)


def test_a_link_in_place_of_the_unfinished_file_is_not_followed(tmp_path: Path) -> None:
    outside, work = tmp_path / "outside", tmp_path / "work"
    work.mkdir()
    (work / f".AGENTS.md.{os.getpid()}.partial").symlink_to(outside)
    write_agents_file(work, "text", replace=False)
    assert (work / "AGENTS.md").read_text() == "text" and not outside.exists()


def test_claude_md_is_read_where_there_is_no_agents_md(tmp_path: Path) -> None:
    write_file(tmp_path, "CLAUDE.md", "use tabs")
    assert read_instructions(tmp_path)[0] == [("CLAUDE.md", "use tabs")]
    write_file(tmp_path, "AGENTS.md", "use spaces")
    assert read_instructions(tmp_path)[0] == [("AGENTS.md", "use spaces")]
