"""Public tools to test your own agents: a scripted model, a stepping clock, crash points, recordings."""

from __future__ import annotations

from treadle.testing.crash_points import CrashPoint, crash_points
from treadle.testing.recording import record, replay
from treadle.testing.scripted_model import ScriptedModel, call, say
from treadle.testing.stepping_clock import SteppingClock

__all__ = ["CrashPoint", "ScriptedModel", "SteppingClock", "call", "crash_points", "record", "replay", "say"]
