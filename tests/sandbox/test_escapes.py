"""Attempts to get out, each run for real: it must fail in the sandbox and succeed without it.

An attempt says ESCAPED when it got what it wanted. Where the machine itself forbids one, to everybody or to this user,
it is still tried in the sandbox, and then skipped with that reason.
"""

import shutil
import socket
from collections.abc import Callable

import msgspec
import pytest
from msgspec import Struct

from tests.kit.sandbox import Place, family_exists, inside, needs_bubblewrap, on_host

pytestmark = needs_bubblewrap

Prepare = Callable[[Place], None]


def nothing(place: Place) -> None:
    """Most attempts need no more than the place itself."""


class Attempt(Struct, frozen=True):
    """A way out. `rights` marks those that not every user of every machine has even without a sandbox."""

    name: str
    code: str
    prepare: Prepare = nothing
    rights: bool = False


START = """
import ctypes, fcntl, os, signal, socket, struct, sys
E = os.environ
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(*words)
    if result < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def escaped(): os.write(1, b"ESCAPED\\n")
def has(text): "the-secret" in text and escaped()
def number(x86, arm): return x86 if os.uname().machine == "x86_64" else arm
"""


def read(path: str) -> str:
    return f"has(open({path}, errors='replace').read())"


def write(path: str) -> str:
    return f"open({path}, 'w').write('spoiled'); escaped()"


def git(place: Place) -> None:
    (place.workspace / ".git/hooks").mkdir(parents=True)
    (place.workspace / ".git/config").write_text("[core]\n")


def repositories(place: Place) -> None:
    """A repository, a submodule, a repository by another name, and settings of ours, all further down."""
    for folder in ("sub/.git/hooks", "module", "store/objects", "deep/er/.treadle"):
        (place.workspace / folder).mkdir(parents=True)
    for file in ("sub/.git/config", "module/.git", "store/HEAD", "store/config", "deep/er/.treadle/config.toml"):
        (place.workspace / file).write_text("[core]\n")


STORE = b"SQLite format 3\0" + bytes(52) + b"trdl" + bytes(28) + b"the-secret"


def store(place: Place) -> None:
    """A log of sessions that is open, as they lie in a workspace when somebody names a file there."""
    for name in ("words.db", "words.db-wal", "words.db-shm"):
        (place.workspace / name).write_bytes(STORE)


def settings(place: Place) -> None:
    (place.workspace / ".treadle").mkdir()
    (place.workspace / ".treadle/config.toml").write_text("narrow = true\n")


def links(place: Place) -> None:
    (place.workspace / "to-key").symlink_to(place.key)
    (place.workspace / "to-victim").symlink_to(place.victim)
    (place.workspace / "to-folder").symlink_to(place.outside)


def env_file(place: Place) -> None:
    (place.workspace / "app/deep").mkdir(parents=True)
    for path in (".env", ".env.local", "app/deep/.env"):
        (place.workspace / path).write_text("KEY=the-secret\n")


def env_link(place: Place) -> None:
    (place.workspace / "settings").write_text("KEY=the-secret\n")
    (place.workspace / ".env").symlink_to("settings")


READS = [
    Attempt("a key outside", read("E['OUTSIDE'] + '/key'")),
    Attempt("a key by dots", read("'../outside/key'")),
    Attempt("a key by a link in the workspace", read("'to-key'"), links),
    Attempt("a key by a linked folder", read("'to-folder/key'"), links),
    Attempt("a key by the root of a process", read("'/proc/self/root' + E['OUTSIDE'] + '/key'")),
    Attempt("a key by the root of the first process", read("'/proc/1/root' + E['OUTSIDE'] + '/key'"), rights=True),
    Attempt("the passwords of the system", "open('/etc/shadow').read(); escaped()", rights=True),
    Attempt("the names of the system's users", "'root:' in open('/etc/passwd').read() and escaped()"),
    Attempt("what lies in the user's home", "os.listdir(os.path.expanduser('~root')); escaped()", rights=True),
    Attempt("the machine's identity", "open('/etc/machine-id').read(); escaped()", rights=True),
    Attempt("the environment of another process", read("f\"/proc/{E['PID']}/environ\"")),
    Attempt("the arguments of another process", read("f\"/proc/{E['PID']}/cmdline\"")),
    Attempt("the memory of another process", "open(f\"/proc/{E['PID']}/mem\", 'rb'); escaped()"),
    Attempt(
        "the files of another process",
        "p = f\"/proc/{E['PID']}/fd/\"\nfor f in os.listdir(p):\n"
        "    if 'held' in os.readlink(p + f): has(open(p + f).read())",
    ),
    Attempt("a key by the root of another process", read("f\"/proc/{E['PID']}/root{E['OUTSIDE']}/key\"")),
    Attempt("the folder of another process", read("f\"/proc/{E['PID']}/cwd/temporary\"")),
    Attempt("another program's temporary file", read("E['TEMPORARY']")),
    Attempt("the list of temporary files", "E['ABSTRACT'] in os.listdir('/tmp') and escaped()", rights=True),
    Attempt("another program's shared memory", read("E['SHARED']")),
    Attempt("an env file", read("'.env'"), env_file),
    Attempt("an env file of another name", read("'.env.local'"), env_file),
    Attempt("an env file deep below", read("'app/deep/.env'"), env_file),
    Attempt("an env file after its folder was moved", "os.rename('app', 'b'); " + read("'b/deep/.env'"), env_file),
    Attempt("an env file behind a link", read("'.env'"), env_link),
    Attempt("an env file by a hard link", "os.link('.env', 'copy'); " + read("'copy'"), env_file),
    Attempt("the kernel's messages", "os.open('/dev/kmsg', os.O_RDONLY); escaped()", rights=True),
    Attempt("the kernel's memory", "os.open('/proc/kcore', os.O_RDONLY); escaped()", rights=True),
    Attempt("the pages of the kernel", "open('/proc/kpageflags', 'rb').read(8) and escaped()", rights=True),
    Attempt(
        "a disk by a node of one's own",
        "n = max(int(l.split()[0]) for l in open('/proc/partitions').read().splitlines()[2:])\n"
        "os.mknod('disk', 0o60600, os.makedev(n, 0)); os.open('disk', os.O_RDONLY); escaped()",
        rights=True,
    ),
]

WRITES = [
    Attempt("a file outside", write("E['OUTSIDE'] + '/victim'")),
    Attempt("a new file outside", write("E['OUTSIDE'] + '/new'")),
    Attempt("a file by dots", write("'../outside/victim'")),
    Attempt("a file by new folders and dots", "os.mkdir('a'); " + write("'a/../../outside/victim'")),
    Attempt("a file by a link in the workspace", write("'to-victim'"), links),
    Attempt("a file by a link of one's own", "os.symlink(E['OUTSIDE'], 'way'); " + write("'way/victim'")),
    Attempt("a hard link to a key", "os.link(E['OUTSIDE'] + '/key', 'copy'); escaped()"),
    Attempt("a file moved in from outside", "os.rename(E['OUTSIDE'] + '/key', 'key'); escaped()"),
    Attempt("a file moved out", "open('x', 'w'); os.rename('x', E['OUTSIDE'] + '/x'); escaped()"),
    Attempt("the workspace itself moved", "os.rename(E['WORKSPACE'], E['WORKSPACE'] + '2'); escaped()"),
    Attempt("a folder that is shown read-only", write("E['TOOLS'] + '/tool'")),
    Attempt(
        "the system's programs",
        "open('/usr/treadle-test', 'w'); escaped(); os.unlink('/usr/treadle-test')",
        rights=True,
    ),
    Attempt("a hook in a repository", write("'.git/hooks/pre-commit'"), git),
    Attempt("a repository's settings", write("'.git/config'"), git),
    Attempt("a repository moved away", "os.rename('.git', 'old'); os.mkdir('.git'); " + write("'.git/config'"), git),
    Attempt("a repository removed", "import shutil; shutil.rmtree('.git'); escaped()", git),
    Attempt("a repository replaced by a link", "os.rename('.git', 'old'); os.symlink('old', '.git'); escaped()", git),
    Attempt(
        "a missing repository as a file",
        "os.path.isdir('.git') and os.rmdir('.git'); open('.git', 'w').write('gitdir: x'); escaped()",
    ),
    Attempt("a hook in a repository further down", write("'sub/.git/hooks/pre-commit'"), repositories),
    Attempt(
        "a repository further down, moved with its folder",
        "os.rename('sub', 'moved'); " + write("'moved/.git/config'"),
        repositories,
    ),
    Attempt("a repository further down, moved away", "os.rename('sub/.git', 'old'); escaped()", repositories),
    Attempt("a submodule pointed elsewhere", write("'module/.git'"), repositories),
    Attempt("a submodule exchanged", "os.unlink('module/.git'); escaped()", repositories),
    Attempt("a repository by another name", write("'store/config'"), repositories),
    Attempt("our settings further down", write("'deep/er/.treadle/config.toml'"), repositories),
    Attempt("the log, with an approval in it", "open('words.db', 'r+b').write(b'yes'); escaped()", store),
    Attempt("the log's newest facts", write("'words.db-wal'"), store),
    Attempt("the log exchanged", "os.rename('words.db', 'old'); escaped()", store),
    Attempt("the log read", "has(open('words.db', 'rb').read().decode('latin-1'))", store),
    Attempt("our settings", write("'.treadle/config.toml'"), settings),
    Attempt(
        "our settings where there are none",
        "os.makedirs('.treadle', exist_ok=True); " + write("'.treadle/config.toml'"),
    ),
    Attempt(
        "what the kernel runs for a crash",
        "p = '/proc/sys/kernel/core_pattern'; t = open(p).read(); open(p, 'w').write(t); escaped()",
        rights=True,
    ),
    Attempt(
        "a setting of the kernel",
        "p = '/proc/sys/vm/swappiness'; t = open(p).read(); open(p, 'w').write(t); escaped()",
        rights=True,
    ),
    Attempt("a set-id program", "open('p', 'w'); os.chmod('p', 0o4755); escaped()"),
    Attempt("a program made set-id", "os.open('p', os.O_CREAT | os.O_WRONLY, 0o4755); escaped()"),
    Attempt("a set-id node", "os.mknod('p', 0o104755); escaped()"),
]

SOCKETS = [
    Attempt("a port of the host", "socket.create_connection(('127.0.0.1', int(E['TCP'])), 3); escaped()"),
    Attempt(
        "a port of the host by its other loopback",
        "socket.create_connection(('::1', int(E['SIX'])), 3); escaped()",
        rights=True,
    ),
    Attempt("a port of the host by any address", "socket.create_connection(('0.0.0.0', int(E['TCP'])), 3); escaped()"),
    Attempt(
        "a port of the host by a mapped address",
        "socket.create_connection(('::ffff:127.0.0.1', int(E['TCP'])), 3); escaped()",
        rights=True,
    ),
    Attempt(
        "a datagram to the host",
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('127.0.0.1', int(E['UDP'])))\n"
        "s.send(b'x'); s.settimeout(0.2)\ntry: s.recv(1)\nexcept TimeoutError: escaped()",
    ),
    Attempt("an abstract socket", "socket.socket(socket.AF_UNIX).connect('\\0' + E['ABSTRACT']); escaped()"),
    Attempt("a socket by its path", "socket.socket(socket.AF_UNIX).connect(E['UNIX']); escaped()"),
    Attempt("raw packets", "socket.socket(socket.AF_PACKET, socket.SOCK_RAW); escaped()", rights=True),
    Attempt("raw internet packets", "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); escaped()", rights=True),
    Attempt("the kernel's events", "socket.socket(16, socket.SOCK_RAW, 15); escaped()"),
    Attempt("the kernel's generic channel", "socket.socket(16, socket.SOCK_RAW, 16); escaped()"),
]

KERNEL = [
    Attempt("tracing another process", "libc.ptrace(0x4206, int(E['PID']), 0, 0) == 0 and escaped()"),
    Attempt("being traced", "libc.ptrace(0, 0, 0, 0) == 0 and escaped()"),
    Attempt(
        "reading another process",
        "b = ctypes.create_string_buffer(8); p = os.getpid()\n"
        "v = struct.pack('@PN', ctypes.addressof(b), 8)\n"
        "call(number(310, 270), p, v, 1, v, 1, 0) == 8 and escaped()",
    ),
    Attempt("taking another's descriptor", "call(438, os.pidfd_open(int(E['PID'])), 1, 0); escaped()"),
    Attempt("a signal to another process", "os.kill(int(E['PID']), 0); escaped()"),
    Attempt("a handle on another process", "os.pidfd_open(int(E['PID'])); escaped()"),
    Attempt("comparing processes", "call(number(312, 272), os.getpid(), os.getpid(), 0, 1, 1) >= 0 and escaped()"),
    Attempt(
        "a key in the kernel's keyring", "call(number(248, 217), b'user', b'treadle-test', b'x', 1, -1); escaped()"
    ),
    Attempt("reading the keyring", "call(number(250, 219), 0, -3, 1); escaped()"),
    Attempt("io_uring", "b = ctypes.create_string_buffer(120); call(425, 4, b); escaped()"),
    Attempt(
        "a program in the kernel",
        "b = struct.pack('IIIII', 2, 4, 4, 1, 0) + bytes(100); call(number(321, 280), 0, b, 72); escaped()",
        rights=True,
    ),
    Attempt(
        "performance events",
        "b = struct.pack('IIQ', 1, 112, 0) + bytes(96); call(number(298, 241), b, 0, -1, -1, 0); escaped()",
        rights=True,
    ),
    Attempt("faults handled by itself", "call(number(323, 282), 1); escaped()"),
    Attempt("watching all files", "call(number(300, 262), 0, 0); escaped()", rights=True),
    Attempt("a user namespace", "call(number(272, 97), 0x10000000); escaped()"),
    Attempt("a mount namespace", "call(number(272, 97), 0x20000); escaped()", rights=True),
    Attempt(
        "a user namespace by clone",
        "p = call(number(56, 220), 0x10000000 | 17, 0, 0, 0, 0)\nif p == 0: os._exit(0)\nos.waitpid(p, 0); escaped()",
    ),
    Attempt(
        "a user namespace by clone3",
        "b = struct.pack('QQQQQQQQ', 0x10000000, 0, 0, 0, 17, 0, 0, 0); p = call(435, b, 64)\n"
        "if p == 0: os._exit(0)\nos.waitpid(p, 0); escaped()",
    ),
    Attempt(
        "entering a namespace", "call(number(308, 268), os.open('/proc/self/ns/uts', 0), 0); escaped()", rights=True
    ),
    Attempt(
        "a mount",
        "os.mkdir('m'); libc.mount(b'n', b'm', b'tmpfs', 0, None) == 0 and (libc.umount2(b'm', 2), escaped())",
        rights=True,
    ),
    Attempt("a mount by the new calls", "call(430, b'tmpfs', 0); escaped()", rights=True),
    Attempt("another root", "os.chroot('.'); escaped()", rights=True),
    Attempt(
        "files by their handles",
        "h = struct.pack('Ii', 128, 0) + bytes(128); b = ctypes.create_string_buffer(h); m = ctypes.c_int()\n"
        "call(number(303, 264), -100, b'.', b, ctypes.byref(m), 0); escaped()",
    ),
    Attempt("the machine's name", "socket.sethostname(socket.gethostname()); escaped()", rights=True),
    Attempt("the kernel's log", "call(number(103, 116), 10, 0, 0) >= 0 and escaped()", rights=True),
    Attempt("memory that nobody counts", "call(number(319, 279), b'x', 0); escaped()"),
    Attempt(
        "shared memory that nobody counts",
        "i = call(number(29, 194), 0, 64 << 20, 0o1600); libc.shmctl(i, 0, None); escaped()",
    ),
    Attempt("a call of another architecture", "call(0x40000000 + 39); escaped()", rights=True),
]

TYPING = """
import pty, termios
parent, child = os.openpty()
if os.fork() == 0:
    os.setsid()
    fcntl.ioctl(child, termios.TIOCSCTTY, 0)
    try:
        call(number(16, 29), child, {request}, b"x")
        escaped()
    except OSError: pass
    os._exit(0)
os.wait()
"""
TERMINAL = [
    Attempt("typing into a terminal", TYPING.format(request="0x5412"), rights=True),
    Attempt("typing with bits that the kernel ignores", TYPING.format(request="0x5412 | 1 << 32"), rights=True),
]

ATTEMPTS = [
    *READS,
    *WRITES,
    *SOCKETS,
    *(msgspec.structs.replace(attempt, rights=True) for attempt in KERNEL),
    *TERMINAL,
]


@pytest.mark.parametrize("attempt", [pytest.param(attempt, id=attempt.name.replace(" ", "_")) for attempt in ATTEMPTS])
async def test_no_way_out(attempt: Attempt, place: Place) -> None:
    attempt.prepare(place)
    held = await inside(place.python(START + attempt.code))
    assert "ESCAPED" not in held.output, f"{attempt.name}: {held}"
    assert held.ended.reason in ("exited", "signalled"), held
    assert place.key.read_text() and place.victim.read_text() == "whole", f"{attempt.name}: spoiled what is outside"
    shutil.rmtree(place.workspace)
    place.workspace.mkdir()
    attempt.prepare(place)
    free = await on_host(place.python(START + attempt.code))
    if attempt.rights and "ESCAPED" not in free.output:
        pytest.skip(
            f"PROVES LITTLE HERE, {attempt.name}: this machine forbids it without a sandbox too ({free.output[-80:]})"
        )
    assert "ESCAPED" in free.output, f"{attempt.name} proves nothing, it fails without a sandbox too: {free}"


def test_there_are_enough_attempts_and_each_has_a_name() -> None:
    assert len({attempt.name for attempt in ATTEMPTS}) == len(ATTEMPTS) >= 90


FAMILIES = ["AF_ALG", "AF_VSOCK", "AF_TIPC", "AF_RDS", "AF_CAN", "AF_BLUETOOTH", "AF_QIPCRTR"]


@pytest.mark.parametrize("name", FAMILIES)
async def test_no_socket_of_a_family_that_nobody_needs(name: str, place: Place) -> None:
    family = getattr(socket, name, None)
    kind = next((kind for kind in (1, 2, 3, 5) if family and family_exists(family, kind, 0)), None)
    if family is None or kind is None:
        pytest.skip(f"NOT TESTED, this kernel makes no sockets of {name}")
    code = START + f"socket.socket({int(family)}, {kind}, 0); escaped()"
    assert "ESCAPED" in (await on_host(place.python(code))).output
    held = await inside(place.python(code))
    assert "ESCAPED" not in held.output and "Address family not supported" in held.output
