"""Tests that run for minutes or hours: `make soak`."""
