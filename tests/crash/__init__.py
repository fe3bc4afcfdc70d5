"""Processes that are killed, frozen and started again on a real store, and what must hold afterwards."""
