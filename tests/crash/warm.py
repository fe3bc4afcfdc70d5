"""Imports for the server that forks the children, so that no child has to import them."""

from pathlib import Path

from tests.crash.paper import Paper
from tests.crash.worker import planned_agent

planned_agent(Paper(Path()))  # the first tool loads the half of pydantic that its import does not
