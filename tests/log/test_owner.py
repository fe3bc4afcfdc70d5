"""Names of owners: they show whether a process of this machine is gone."""

import subprocess
import sys

from treadle.log.owner import is_gone, make_owner_name


def test_every_owner_has_a_name_of_its_own_and_this_process_is_not_gone() -> None:
    assert make_owner_name() != make_owner_name()
    assert not is_gone(make_owner_name())


def start_owner() -> tuple[subprocess.Popen[str], str]:
    code = "from treadle.log.owner import make_owner_name; print(make_owner_name(), flush=True); input()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_a_process_is_gone_when_it_was_killed_even_before_anyone_waited_for_it() -> None:
    process, owner = start_owner()
    assert not is_gone(owner)
    process.kill()
    assert process.stdout is not None
    assert process.stdout.read() == ""  # closed: the process has ended
    while not is_gone(owner):  # the kernel may still be taking it down
        pass
    process.communicate()
    assert is_gone(owner)


def test_a_process_is_gone_when_another_has_its_number() -> None:
    host, place, pid, started, random = make_owner_name().split(":")
    assert is_gone(f"{host}:{place}:{pid}:{int(started) - 1}:{random}")


def test_nothing_is_known_of_a_process_elsewhere() -> None:
    host, place, _, started, random = make_owner_name().split(":")
    free = "4194305"  # above the largest pid Linux gives out
    assert is_gone(f"{host}:{place}:{free}:{started}:{random}")
    assert not is_gone(f"other:{place}:{free}:{started}:{random}")
    assert not is_gone(f"{host}:other:{free}:{started}:{random}")


def test_a_name_of_another_form_is_never_gone() -> None:
    for owner in ("", "me", "a:b:c:d:e", "a:b:0:d:e", ":::::::"):
        assert not is_gone(owner)
