"""Permissions: whether a call may run. Pure. How a question reaches a person is the gate's task."""
