"""Imports for the server that forks the children, so that no child has to import them."""

from pathlib import Path

from tests.crash.notes import Notes
from tests.crash.worker import build_planned_agent

build_planned_agent(Notes(Path()))  # the first tool loads the half of pydantic that its import does not
