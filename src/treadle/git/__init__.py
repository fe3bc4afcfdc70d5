"""Git repositories, read and changed as files. No module here runs git.

Start with `private_copy.py` (what a command gets) and `take_back.py` (what is taken over from it). `git_folder.py`
opens every file. `exchange_folder.py` and `received.py` are for remotes, `restore.py` is for a rewind.
"""
