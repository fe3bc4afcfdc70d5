"""The filter of system calls, read step by step by a small evaluator of the kernel's language."""

import errno
import platform
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.sandbox.seccomp import ALLOW, ERRNO, KILL, Machine, build_instructions, build_program

AUDIT: dict[Machine, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
MACHINES: list[Machine] = ["x86_64", "aarch64"]
EPERM, ENOSYS, EAFNOSUPPORT = (ERRNO | number for number in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT))


def verdict(code: bytes, arch: int, call: int, *arguments: int) -> int:
    """What the kernel would answer to a call."""
    words = [argument & (1 << 64) - 1 for argument in (*arguments, 0, 0, 0, 0, 0, 0)][:6]
    data = struct.pack("<IIQ6Q", call & 0xFFFFFFFF, arch, 0, *words)
    steps = list(struct.iter_unpack("<HBBI", code))
    at, register = 0, 0
    while True:
        kind, true, false, operand = steps[at]
        at += 1
        match kind:
            case 0x20:
                (register,) = struct.unpack_from("<I", data, operand)
            case 0x06:
                return operand
            case 0x15 | 0x25 | 0x35 | 0x45:
                test = {
                    0x15: register == operand,
                    0x25: register > operand,
                    0x35: register >= operand,
                    0x45: bool(register & operand),
                }
                at += true if test[kind] else false
            case _:
                raise AssertionError(f"an instruction that is not used here: {kind:#x}")


def ask(machine: Machine, call: int, *arguments: int, sockets: bool = True) -> int:
    return verdict(build_program(machine, sockets=sockets), AUDIT[machine], call, *arguments)


@pytest.mark.parametrize("machine", MACHINES)
def test_it_is_short_enough_for_the_kernel_and_every_jump_lands_inside(machine: Machine) -> None:
    steps = build_instructions(machine)
    assert 0 < len(steps) < 4096
    for at, step in enumerate(steps):
        if step.code & 7 == 5:
            assert at + 1 + max(step.jump_true, step.jump_false) < len(steps)
    assert steps[-1].operand == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_a_call_of_another_architecture_is_fatal(machine: Machine) -> None:
    for arch in (0x40000003, 0x40000028, *(other for name, other in AUDIT.items() if name != machine)):
        assert verdict(build_program(machine), arch, 0) == KILL


def test_the_second_set_of_numbers_of_an_intel_machine_is_fatal() -> None:
    assert ask("x86_64", 0x40000000 + 101) == KILL


@pytest.mark.parametrize(
    ("name", "x86", "arm"),
    [
        ("ptrace", 101, 117),
        ("mount", 165, 40),
        ("keyctl", 250, 219),
        ("bpf", 321, 280),
        ("unshare", 272, 97),
        ("setns", 308, 268),
        ("userfaultfd", 323, 282),
        ("perf_event_open", 298, 241),
        ("open_by_handle_at", 304, 265),
        ("init_module", 175, 105),
        ("kexec_load", 246, 104),
        ("move_mount", 429, 429),
        ("pidfd_getfd", 438, 438),
    ],
)
def test_what_only_an_escape_needs_is_refused(name: str, x86: int, arm: int) -> None:
    assert (ask("x86_64", x86), ask("aarch64", arm)) == (EPERM, EPERM), name


@pytest.mark.parametrize("call", [425, 426, 427, 435, 437, 447, 471, 5000])
def test_what_hides_its_flags_or_is_newer_than_this_list_is_answered_as_unknown(call: int) -> None:
    assert ask("x86_64", call) == ask("aarch64", call) == ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_ordinary_calls_are_allowed(machine: Machine) -> None:
    ordinary = {"x86_64": (0, 1, 3, 9, 57, 59, 60, 61, 202, 231, 262, 302), "aarch64": (57, 63, 64, 221, 222, 260)}
    assert {ask(machine, call) for call in ordinary[machine]} == {ALLOW}


@pytest.mark.parametrize(("machine", "call"), [("x86_64", 56), ("aarch64", 220)])
@given(flags=st.integers(0, (1 << 64) - 1))
def test_a_clone_is_refused_exactly_when_it_asks_for_a_namespace(machine: Machine, call: int, flags: int) -> None:
    names = 0x20000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
    assert ask(machine, call, flags) == (EPERM if flags & names else ALLOW)


@pytest.mark.parametrize(("machine", "call"), [("x86_64", 16), ("aarch64", 29)])
@given(upper=st.integers(0, (1 << 32) - 1))
def test_typing_into_a_terminal_is_refused_whatever_the_upper_bits(machine: Machine, call: int, upper: int) -> None:
    assert ask(machine, call, 0, upper << 32 | 0x5412) == EPERM
    assert ask(machine, call, 0, upper << 32 | 0x541C) == EPERM
    assert ask(machine, call, 0, upper << 32 | 0x5413) == ALLOW


@pytest.mark.parametrize(("machine", "call", "pair"), [("x86_64", 41, 53), ("aarch64", 198, 199)])
@given(family=st.integers(0, 60), protocol=st.integers(0, 30))
def test_sockets_are_of_few_families(machine: Machine, call: int, pair: int, family: int, protocol: int) -> None:
    fine = family in (1, 2, 10) or (family == 16 and protocol == 0)
    assert ask(machine, call, family, 1, protocol) == (ALLOW if fine else EAFNOSUPPORT)
    assert ask(machine, call, family, 1, protocol, sockets=False) == EAFNOSUPPORT
    assert ask(machine, pair, family, 1, protocol, sockets=False) == (ALLOW if family == 1 else EAFNOSUPPORT)


@given(mode=st.integers(0, 0o7777), flags=st.integers(0, (1 << 32) - 1))
def test_a_mode_with_a_set_id_bit_is_refused_wherever_one_is_given(mode: int, flags: int) -> None:
    wrong = bool(mode & 0o6000)
    for call in (90, 91, 85, 133):
        assert ask("x86_64", call, 7, mode) == (EPERM if wrong else ALLOW)
    for machine, call in (("x86_64", 268), ("aarch64", 53), ("x86_64", 259), ("aarch64", 33), ("x86_64", 452)):
        assert ask(machine, call, 7, 7, mode) == (EPERM if wrong else ALLOW)
    made = wrong and bool(flags & (0o100 | 0o20000000))
    assert ask("x86_64", 2, 7, flags, mode) == (EPERM if made else ALLOW)
    assert ask("x86_64", 257, 7, 7, flags, mode) == (EPERM if made else ALLOW)
    assert ask("aarch64", 56, 7, 7, flags, mode) == (EPERM if made else ALLOW)


@given(size=st.integers(0, (1 << 64) - 1))
def test_shared_memory_segments_are_small(size: int) -> None:
    for machine, call in (("x86_64", 29), ("aarch64", 194)):
        assert ask(machine, call, 0, size) == (ALLOW if size <= 1 << 20 else EPERM)


def test_the_numbers_are_those_of_this_machines_own_headers() -> None:
    from pathlib import Path

    from treadle.sandbox import seccomp

    names = {"x86_64": "x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "asm-generic/unistd.h"}
    path = Path("/usr/include", names.get(platform.machine(), "missing"))
    if not path.exists():
        pytest.skip("NOT TESTED, the kernel's headers are not installed")
    words = [line.split() for line in path.read_text().splitlines() if line.startswith("#define __NR_")]
    known = {parts[1].removeprefix("__NR_"): int(parts[2]) for parts in words if len(parts) == 3 and parts[2].isdigit()}
    column = 0 if platform.machine() == "x86_64" else 1
    listed = {**seccomp._DENIED, **seccomp._MISSING, **{name: row[0] for name, row in seccomp._MODES.items()}}
    wrong = {name: pair[column] for name, pair in listed.items() if name in known and known[name] != pair[column]}
    assert wrong == {} and len(known.keys() & listed.keys()) > 40
