"""The sandbox of commands. `base.py` is the port, and `backend.py` chooses the best sandbox that works here.

Start with `plan.py` (what a command sees), then `arguments.py` (the mounts) and `bubblewrap.py` (start, follow, end).
`git_copies.py` leads to git, `proxy.py` to the network. docs/architecture.md draws the way of a command.
"""
