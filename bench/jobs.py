"""What the measured runs do; the same jobs for every target, so that figures compare."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Any

__all__ = ["FAN", "SLOW_SECONDS", "STEPS", "Job", "page", "step_result", "turn_times", "waiting_state"]

STEPS = 3
FAN = 100
SLOW_SECONDS = 1.0
_NOTE = "x" * 120


class Job(StrEnum):
    """The kinds of runs. A target tells which of them it can do."""

    ORDER = "order"
    """Three steps in sequence, each returning about 210 bytes; the result is those of the steps."""
    APPROVAL = "approval"
    """The same, with a question before the third step."""
    WAITING = "waiting"
    """A question at once, and 500 bytes of state."""
    FAN_OUT = "fan-out"
    """A hundred steps at once."""
    LOOP = "loop"
    """A graph that comes back to its first node until it has had its turns, with 1 KB of new state and a question in
    each."""
    SLOW = "slow"
    """As `order`, with a step in the middle that takes a second of waiting."""
    PURE = "pure"
    """As `order`, where each step may begin before the one before is durable."""


turn_times: list[float] = []
"""When each turn of a loop began, in this process: shows whether late turns cost more than early ones."""


def step_result(step: str, order_id: str) -> dict[str, Any]:
    """About 210 bytes of JSON, as in the scripts of the peers."""
    return {"step": step, "order_id": order_id, "status": "ok", "amount": 1999, "note": _NOTE}


def waiting_state(run_id: str) -> dict[str, Any]:
    """500 bytes of JSON."""
    return {"order_id": run_id, "note": "x" * (474 - len(run_id))}


def page(turn: int) -> str:
    """1 KB of text; notes the time."""
    turn_times.append(time.perf_counter())
    return f"turn {turn} ".ljust(1024, ".")
