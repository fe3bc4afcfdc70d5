"""The program that becomes bubblewrap, with the standard streams that it was started with.

It runs by its path in a bare interpreter, so it imports nothing of treadle. It gets its settings over a socket: others
could read arguments, and whoever starts it cannot pass descriptors on.
"""

from __future__ import annotations

import marshal
import os
import socket
import sys

CONTROL, STATUS = 9, 8  # a shell can name descriptors of one digit only


def main() -> None:
    """Read the argument: the path of the socket. The program reads and writes it as descriptor 9."""
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(sys.argv[1])
        with channel.makefile("rb") as file:
            settings: dict[str, bytes] = marshal.loads(file.read(int(file.readline())))
        os.dup2(channel.fileno(), CONTROL)
        os.dup2(channel.fileno(), STATUS)
    arguments = ["--json-status-fd", str(STATUS)]
    for option in ("args", "seccomp"):
        descriptor = os.memfd_create(option, 0)
        os.write(descriptor, settings[option])
        os.lseek(descriptor, 0, os.SEEK_SET)
        arguments += [f"--{option}", str(descriptor)]
    program = os.fsdecode(settings["program"])
    os.execv(program, [program, *arguments, "--", *map(os.fsdecode, settings["command"].split(b"\0"))])


if __name__ == "__main__":
    main()
