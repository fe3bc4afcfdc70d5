"""Dialects: pure translations of our events into other programs' wire formats. No I/O, no clock, no engine."""
