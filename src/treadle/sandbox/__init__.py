"""Sandboxes: the port is in base.py; run.py chooses a back-end and keeps to it."""
