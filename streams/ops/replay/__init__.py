"""Replay for operators: move the group back, work commands off under another name, try new code on real histories."""

from streams.ops.replay.copying import COPIED_FROM, Copied, CopyInterrupted
from streams.ops.replay.places import Goal, read_goal, read_time
from streams.ops.replay.redrive import World, redrive
from streams.ops.replay.reprocessing import Reprocessed, Wanted, reprocess
from streams.ops.replay.results import Outcome, Results, compare_results
from streams.ops.replay.rewinding import Counts, RewindPlan, plan_rewind, rewind
from streams.ops.replay.shadowing import shadow, shadow_history
from streams.ops.replay.verdict import Difference, Report, Shadowed, Verdict

__all__ = [
    "COPIED_FROM",
    "Copied",
    "CopyInterrupted",
    "Counts",
    "Difference",
    "Goal",
    "Outcome",
    "Report",
    "Reprocessed",
    "Results",
    "RewindPlan",
    "Shadowed",
    "Verdict",
    "Wanted",
    "World",
    "compare_results",
    "plan_rewind",
    "read_goal",
    "read_time",
    "redrive",
    "reprocess",
    "rewind",
    "shadow",
    "shadow_history",
]
