"""Replay for operators: move the group back, work commands off under another name, try new code on real histories."""

from streams.ops.replay.places import Goal, read_goal, read_time
from streams.ops.replay.redrive import World, redrive
from streams.ops.replay.rewinding import Counts, RewindPlan, plan_rewind, rewind
from streams.ops.replay.shadowing import shadow, shadow_history
from streams.ops.replay.verdict import Difference, Report, Shadowed, Verdict

__all__ = [
    "Counts",
    "Difference",
    "Goal",
    "Report",
    "RewindPlan",
    "Shadowed",
    "Verdict",
    "World",
    "plan_rewind",
    "read_goal",
    "read_time",
    "redrive",
    "rewind",
    "shadow",
    "shadow_history",
]
