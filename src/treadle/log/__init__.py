"""Logs: base.py is the port, in_memory.py and sqlite.py implement it."""
