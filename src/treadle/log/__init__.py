"""Logs: the port is in base.py; memory.py and sqlite.py keep to it."""
