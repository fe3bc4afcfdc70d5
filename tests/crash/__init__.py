"""Processes that are killed, frozen and started again on a real store, and checks of the store afterwards."""
