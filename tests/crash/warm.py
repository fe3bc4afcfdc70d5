"""Imported by the server that children are forked from: all that a child would otherwise import itself."""

from pathlib import Path

from tests.crash.paper import Paper
from tests.crash.worker import planned_agent

planned_agent(Paper(Path()))  # the first tool loads the half of pydantic that its import does not
