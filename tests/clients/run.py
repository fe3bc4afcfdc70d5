"""Installs the client programs in `.clients`, runs each against a real server, and prints a table.

`python -m tests.clients.run [WORD…]` runs the programs whose name has one of the words, or all of them.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.clients.programs import HERE, PROGRAMS, Place, Program
from tests.kit.obedient_provider import ObedientProvider
from tests.kit.serve_process import start_server

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".clients"
SECONDS = 180.0


def install() -> tuple[Path, Path]:
    """Install the locked packages, unless they are there. Returns the Python and the folder of the node packages."""
    FOLDER.mkdir(exist_ok=True)
    python, stamp = FOLDER / "venv" / "bin" / "python", FOLDER / "installed.txt"
    locks = [HERE / name for name in ("requirements.txt", "package.json", "package-lock.json")]
    wanted = "".join(lock.read_text("utf-8") for lock in locks)
    if not stamp.is_file() or stamp.read_text("utf-8") != wanted:
        uv = str(ROOT / ".venv" / "bin" / "uv")
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(FOLDER / "venv")], check=True)
        subprocess.run([uv, "pip", "install", "--quiet", "--python", str(python), "-r", str(locks[0])], check=True)
        for lock in locks[1:]:
            shutil.copy(lock, FOLDER)
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"], check=True, cwd=FOLDER)
        stamp.write_text(wanted, "utf-8")
    return python, FOLDER / "node_modules"


async def run_program(program: Program, place: Place) -> str:
    """Run one program. Returns what is wrong, or an empty string."""
    command, environment = program.build(place)
    kept = {name: os.environ[name] for name in ("LANG", "SSL_CERT_FILE") if name in os.environ}
    path = f"{place.node_modules / '.bin'}:{os.environ['PATH']}"
    own = {"PATH": path, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # otherwise litellm asks another machine for prices
    own |= {"TREADLE_URL": place.address, "TREADLE_TOKEN": place.token, "HOME": str(place.folder), "TERM": "dumb"}
    running = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**kept, **own, **environment},
        cwd=place.folder,
    )
    try:
        output, _ = await asyncio.wait_for(running.communicate(), SECONDS)
    except TimeoutError:
        running.kill()
        await running.wait()
        return f"no end after {SECONDS:g} s"
    text = output.decode("utf-8", "replace")
    (place.folder / "output.txt").write_text(text, "utf-8")
    if running.returncode:
        return f"exit {running.returncode}: {text.strip()[-1500:]}"
    if not re.search(program.expected, text, re.MULTILINE):
        return f"{program.expected!r} is missing in: {text.strip()[-1500:]}"
    return ""


async def main(words: list[str]) -> int:
    """Run the programs, print the table and return the exit code."""
    chosen = [program for program in PROGRAMS if not words or any(word in program.name for word in words)]
    if not chosen:
        raise SystemExit(f"no program has one of these words in its name: {' '.join(words)}")
    python, node_modules = install()
    home = FOLDER / "home"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    failures: dict[str, str] = {}
    async with ObedientProvider() as provider, start_server(home, provider) as (address, token):
        for program in chosen:
            folder = home / re.sub(r"\W+", "-", program.name)
            folder.mkdir()
            began, refused = time.monotonic(), len(provider.rejected)
            wrong = await run_program(program, Place(python, node_modules, address, token, folder))
            wrong = wrong or "; ".join(provider.rejected[refused:])
            if wrong:
                failures[program.name] = wrong
            mark = "FAILED" if wrong else "passed"
            print(f"{mark}  {program.name:38} {program.about}  ({time.monotonic() - began:.1f} s)", flush=True)
    for name, wrong in failures.items():
        print(f"\n{name}: {wrong}")
    print(f"\n{len(chosen) - len(failures)} of {len(chosen)} programs passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
