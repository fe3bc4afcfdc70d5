"""Permissions: whether a call may run. Pure; how a question reaches a person is the gate's task."""
