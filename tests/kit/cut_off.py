"""Does some work in a child process that is killed before one of its changes to the file system."""

import os
from collections.abc import Callable

KILLED = 9


def do_until(work: Callable[[], object], count: int) -> int:
    """Do some work in a child that ends at once before it changes a name or syncs a file for the `count`-th time."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = count

    def end_in_time(change: Callable[..., object]) -> Callable[..., object]:
        def changed(*arguments: object, **options: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                os._exit(KILLED)
            return change(*arguments, **options)

        return changed

    for name in ("fsync", "link", "mkdir", "rename", "rmdir", "symlink", "unlink"):
        setattr(os, name, end_in_time(getattr(os, name)))
    try:
        work()
    finally:
        os._exit(0)
