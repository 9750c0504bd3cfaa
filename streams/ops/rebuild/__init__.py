"""New checkpoints from the log alone, after the topic of the checkpoints was lost or records of it are damaged."""

from streams.ops.rebuild.report import PartitionReport, RebuildReport, Trouble
from streams.ops.rebuild.run import rebuild

__all__ = ["PartitionReport", "RebuildReport", "Trouble", "rebuild"]
