"""What people do in a shell all day must still work in the sandbox."""

import sys
from pathlib import Path

import pytest

from tests.kit.sandbox import PYTHON, Place, inside, needs_bubblewrap, plainly
from treadle.sandbox.base import Job

pytestmark = needs_bubblewrap

WORK = {
    "files are written and read": ("echo hello > a && cat a && test -s a", "hello"),
    "pipes": ("printf 'b\\na\\n' | sort | head -n 1", "a"),
    "here documents": ("cat <<END\nfrom $((1 + 1)) lines\nEND", "from 2 lines"),
    "folders, links and modes": ("mkdir -p d/e && ln -s d l && cd l/e && touch x && chmod 755 x && ls -l", "rwxr-xr-x"),
    "a named pipe in the temporary folder": ("mkfifo /tmp/p && (echo through > /tmp/p &) && cat /tmp/p", "through"),
    "archives": ("mkdir t && echo packed > t/f && tar czf t.tgz t && rm -r t && tar xzf t.tgz && cat t/f", "packed"),
    "make": ("printf 'all:\\n\\t@echo built\\n' > Makefile && make", "built"),
    "background jobs": ("(sleep 0.05; echo later) & echo now; wait", "later"),
    "error output": ("echo wrong >&2", "wrong"),
    "awk, sed and grep": ("echo abc | sed s/b/B/ | awk '{print $1}' | grep -o B", "B"),
    "a home of its own": ("echo note > ~/.note && cat ~/.note && test -w /tmp", "note"),
    "edits in place": ("echo one > f && sed -i s/one/two/ f && cat f", "two"),
    "find and xargs": ("mkdir q && touch q/x && find . -name x | xargs ls", "q/x"),
    "shared memory of Python": (
        f"{PYTHON} -c 'from multiprocessing import Pool\nwith Pool(2) as pool: print(sum(pool.map(abs, [-1, -2])))'",
        "3",
    ),
    "a server and its client on their own loopback": (
        f"{PYTHON} -c \"import socket; s = socket.create_server(('127.0.0.1', 0)); "
        "c = socket.create_connection(s.getsockname()); print('met')\"",
        "met",
    ),
    "a compiler": ("printf 'int main(){return 7;}' > c.c && cc c.c -o c.out; ./c.out; echo $?", "7"),
    "node": ("node -e 'console.log(6 * 7)'", "42"),
    "java": ("java -version", "version"),
    "maven": ("mvn -v", "Apache Maven"),
    "the name of the system": ("cat /etc/os-release", "NAME="),
    "a terminal of its own": (f"{PYTHON} -c \"import pty; print(pty.spawn(['true']))\"", "0"),
}
NEEDED = {"make": "make", "a compiler": "cc", "node": "node", "java": "java", "maven": "mvn"}


@pytest.mark.parametrize("name", [pytest.param(name, id=name.replace(" ", "_")) for name in WORK])
async def test_it_works(name: str, place: Place) -> None:
    program = NEEDED.get(name)
    if program and not Path("/usr/bin", program).exists():
        pytest.skip(f"NOT TESTED, {program} is not among the system's programs")
    code, expected = WORK[name]
    ran = await inside(place.shell(code))
    assert expected in ran.output and ran.ended.code == 0, ran


async def test_git_shows_the_state_of_a_repository(place: Place) -> None:
    for line in ("init -q", "-c user.name=a -c user.email=a@example.org commit -q --allow-empty -m first"):
        assert await plainly(Job(("git", *line.split()), place.workspace)) == ""
    (place.workspace / "new.txt").write_text("new")
    ran = await inside(place.shell("git status --short && git log --oneline && git diff"))
    assert "?? new.txt" in ran.output and "first" in ran.output and ran.ended.code == 0, ran


async def test_the_python_that_runs_us_can_be_used_and_not_changed(place: Place) -> None:
    ran = await inside(place.job(sys.executable, "-c", "import msgspec, sys; print(sys.prefix)"))
    assert ran.ended.code == 0 and sys.prefix in ran.output, ran
    ran = await inside(place.shell(f"touch {sys.prefix}/x"))
    assert ran.ended.code != 0, ran


async def test_a_folder_can_be_shown_read_only(place: Place) -> None:
    (place.tools / "tool").write_text("#!/bin/sh\necho used\n")
    (place.tools / "tool").chmod(0o755)
    ran = await inside(place.shell('"$TOOLS/tool"'))
    assert ran.output == "used\n"


async def test_env_files_are_empty_unless_they_are_granted(place: Place) -> None:
    (place.workspace / ".env").write_text("KEY=value")
    (place.workspace / ".env.example").write_text("KEY=")
    job = place.shell("cat .env .env.example")
    assert (await inside(job)).output == "KEY="
    granted = Job(job.argv, job.workspace, show_env_files=True)
    assert (await inside(granted)).output == "KEY=valueKEY="
    assert (place.workspace / ".env").read_text() == "KEY=value"


async def test_the_working_folder_is_kept_to_the_workspace(place: Place) -> None:
    (place.workspace / "sub").mkdir()
    ran = await inside(Job(("pwd",), place.workspace, cwd="sub"))
    assert ran.output == f"{place.workspace}/sub\n"


async def test_the_result_has_the_exit_code_and_the_signal(place: Place) -> None:
    assert (await inside(place.shell("exit 7"))).ended.code == 7
    ended = (await inside(place.shell("kill -SEGV $$"))).ended
    assert (ended.reason, ended.signal, ended.code) == ("signalled", 11, 139)


async def test_a_missing_program_gives_127(place: Place) -> None:
    ran = await inside(place.job("no-such-program"))
    assert ran.ended.code == 127 and "not found" in ran.output
