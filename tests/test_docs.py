"""Every example in the README and the guide is run as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from treadle.models.local import weights

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(BLOCK.findall(page.read_text("utf-8")), 1)
]


def run(path: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", str(path)], cwd=folder, capture_output=True, text=True, timeout=110, check=False
    )


@pytest.mark.parametrize("block", EXAMPLES)
def test_an_example_in_the_documentation_runs_and_says_something(block: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text((ROOT / "README.md").read_text("utf-8"), "utf-8")
    (tmp_path / "example.py").write_text(block, "utf-8")
    done = run(tmp_path / "example.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() or "print(" not in block
    assert not done.stderr


def test_there_are_examples_to_run() -> None:
    assert len(EXAMPLES) >= 8


@pytest.mark.skipif(weights.find(None) is None, reason="THE WEIGHTS OF THE EMBEDDED MODEL ARE MISSING: make weights")
def test_the_first_example_does_its_jobs_on_the_embedded_model(tmp_path: Path) -> None:
    done = run(ROOT / "examples" / "hello.py", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for result in ("-> list_files", "call Anna", "14 words", "1050", "-> write_file", "5 of 5 jobs answered"):
        assert result in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_link_inside_the_project_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
