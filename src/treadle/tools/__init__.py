"""Tools: the port is in base.py; function.py makes one of a plain function."""
