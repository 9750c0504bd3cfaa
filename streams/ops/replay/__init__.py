"""Replay for operators: move the group back, work commands off under another name, try new code on real histories."""

from streams.ops.replay.redrive import World, redrive
from streams.ops.replay.shadowing import shadow, shadow_history
from streams.ops.replay.verdict import Difference, Report, Shadowed, Verdict

__all__ = ["Difference", "Report", "Shadowed", "Verdict", "World", "redrive", "shadow", "shadow_history"]
