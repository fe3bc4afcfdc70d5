"""Models: the port is in base.py, one adapter a protocol beside it."""
