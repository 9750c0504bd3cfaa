"""Proves a log from itself: folds the events again and compares them with everything that was derived from them."""

from streams.ops.verify.report import Divergence, NotCompared, Progress, Report
from streams.ops.verify.verify import MEMORY_BYTES_MAX, verify

__all__ = ["MEMORY_BYTES_MAX", "Divergence", "NotCompared", "Progress", "Report", "verify"]
