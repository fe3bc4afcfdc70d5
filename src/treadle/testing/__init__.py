"""What users test their own agents with: a scripted model, a stepping clock, crash points, recordings. Public."""

from __future__ import annotations

from treadle.testing.clock import SteppingClock
from treadle.testing.crash import CrashPoint, crash_points
from treadle.testing.recording import record, replay
from treadle.testing.scripted import ScriptedModel, call, say

__all__ = ["CrashPoint", "ScriptedModel", "SteppingClock", "call", "crash_points", "record", "replay", "say"]
