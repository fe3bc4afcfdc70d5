"""Our runtime folder: the /etc that commands see, an empty file that hides others, and a lock for each workspace.

It is created when it is missing, and the system removes it at the next boot.
"""

from __future__ import annotations

import os
import shutil
import stat
from functools import lru_cache
from pathlib import Path

from treadle.sandbox.base import SandboxUnavailable

# What programs need in /etc. No passwords, no keys, no addresses, no names of this machine.
ETC_PATTERNS = (
    "R",
    "alternatives",
    "ca-certificates",
    "crypto-policies",
    "debian_version",
    "dotnet",
    "fonts",
    "java*",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "localtime",
    "lsb-release",
    "magic",
    "maven/logging",
    "maven/m2.conf",
    "mime.types",
    "os-release",
    "php",
    "pki/ca-trust",
    "pki/java",
    "pki/tls/cert.pem",
    "pki/tls/certs",
    "protocols",
    "python3*",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "timezone",
)
_SECRET_ENDINGS = (".key", ".p12", ".pfx")


def make_runtime_folder() -> Path:
    """Return the folder that all processes of this user share and nobody else can open. Create it if needed."""
    uid = os.getuid()
    parent = Path(f"/run/user/{uid}")
    folder = parent / "treadle" if _is_private(parent) else Path(f"/tmp/treadle-{uid}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if not _is_private(folder):
        raise SandboxUnavailable(
            f"{folder} belongs to somebody else or is open to others, so no sandbox can be prepared in it. Nothing was "
            "run. Remove it, then try again."
        )
    return folder


def make_empty_file(suffix: str = "") -> Path:
    """Return an empty file that nobody can write. It is mounted over files to hide them.

    Programs that read XML fail without an element, so there it is an empty one.
    """
    return make_file("empty.xml", b"<settings/>\n") if suffix == ".xml" else make_file("empty", b"")


def make_file(name: str, data: bytes) -> Path:
    """Return a file of this name that nobody can write. One name always has the same data."""
    path = make_runtime_folder() / name
    if not path.exists():
        building = path.with_name(f"{name}.{os.getpid()}.{os.urandom(4).hex()}")
        building.write_bytes(data)
        building.chmod(0o444)
        building.rename(path)
    return path


def prepare_etc(uid: int, gid: int) -> Path:
    """Return the /etc that commands see. It is built once, and again when the system's own has changed."""
    ready = make_runtime_folder() / f"etc-{uid}-{_hash_etc()}"
    if ready.is_dir():
        return ready
    building = make_runtime_folder() / f"{ready.name}.{os.getpid()}.{os.urandom(4).hex()}"
    try:
        building.mkdir(mode=0o755)
        for pattern in ETC_PATTERNS:
            for source in Path("/etc").glob(pattern):
                _copy_public(source, building / source.relative_to("/etc"))
        files = {
            "passwd": f"user:x:{uid}:{gid}:user:/tmp/home:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
            "group": f"user:x:{gid}:\nnogroup:x:65534:\n",
            "hosts": "127.0.0.1 localhost\n::1 localhost\n",
            "host.conf": "multi on\n",
            "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
            "resolv.conf": "",
            "hostname": "sandbox\n",
        }
        for name, text in files.items():
            (building / name).write_text(text, encoding="utf-8")
        building.rename(ready)
    except OSError:
        shutil.rmtree(building, ignore_errors=True)
        if not ready.is_dir():  # else another process was first
            raise
    return ready


def _is_private(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


@lru_cache(maxsize=1)
def _hash_etc() -> str:
    import hashlib

    etc = Path("/etc")
    found = [
        (str(path), path.stat().st_mtime_ns)
        for pattern in ETC_PATTERNS
        for path in sorted(etc.glob(pattern))
        if path.exists()
    ]
    return hashlib.blake2b(repr(found).encode(), digest_size=8).hexdigest()


def _copy_public(source: Path, target: Path) -> None:
    """Copy what anybody may read. A link stays a link: it leads to what the command sees there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        if not target.is_symlink():
            target.symlink_to(source.readlink())
    elif source.is_dir():
        target.mkdir(exist_ok=True)
        for entry in source.iterdir():
            _copy_public(entry, target / entry.name)
    elif source.is_file() and source.stat().st_mode & stat.S_IROTH and not source.name.endswith(_SECRET_ENDINGS):
        shutil.copyfile(source, target)
        target.chmod(0o644)
