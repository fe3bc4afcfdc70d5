"""Tests of the command line: the real program, as a process or on a pseudo-terminal."""
