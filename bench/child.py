"""One measurement in a process of its own, so that its memory, its heap and its threads are nobody else's.

Run as `python -m bench.child TASK` with a task as JSON; the answer is written to RESULT in the task's folder.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from bench.loop import new_loop
from bench.measure import peak_mb
from bench.scenarios import Task, run_course

__all__ = ["Failed", "measure", "run_here"]

T = TypeVar("T")

RESULT = "result.json"
ROOT = Path(__file__).resolve().parent.parent
_STACKS_BEFORE_SECONDS = 5.0


class Failed(Exception):
    """A measurement broke or hung."""


def measure(task: Task, seconds_max: float) -> dict[str, Any]:
    """Measure in a child. Raises `Failed`; a child that hangs shows where, and is killed."""
    (task.folder / RESULT).unlink(missing_ok=True)
    sent = json.dumps({"task": [*task._replace(folder=str(task.folder))], "seconds_max": seconds_max})  # type: ignore[arg-type]
    command = [sys.executable, "-m", "bench.child", sent]
    try:
        done = subprocess.run(command, cwd=ROOT, timeout=seconds_max, check=False)
    except subprocess.TimeoutExpired:
        raise Failed(f"has not ended in {seconds_max:.0f} s") from None
    if done.returncode != 0:
        raise Failed(f"ended with exit code {done.returncode}")
    found: dict[str, Any] = json.loads((task.folder / RESULT).read_text("utf-8"))
    return found


def run_here(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the loop that a worker would use."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(work)


def _main() -> None:
    sent = json.loads(sys.argv[1])
    faulthandler.dump_traceback_later(max(1.0, sent["seconds_max"] - _STACKS_BEFORE_SECONDS))
    course, target, folder, runs, in_flight = sent["task"]
    task = Task(course, target, Path(folder), runs, in_flight)
    metrics = run_here(run_course(task))
    faulthandler.cancel_dump_traceback_later()
    (task.folder / RESULT).write_text(json.dumps({"peak_mb": peak_mb(), **metrics}), encoding="utf-8")


if __name__ == "__main__":
    _main()
