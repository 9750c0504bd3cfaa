"""A log in the memory of one process, for tests and for the simulator: Kafka's visible behaviour, without Kafka."""

from __future__ import annotations

from streams.log.memory.hooks import End, Hooks
from streams.log.memory.log import MemoryLog, open_memory

__all__ = ["End", "Hooks", "MemoryLog", "open_memory"]
