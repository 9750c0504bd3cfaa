"""One measurement in a process of its own, so that its memory, its heap and its threads are nobody else's.

Run as `python -m bench.child TASK` with a task as JSON; the answer is written to RESULT in the task's folder.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
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
_STOP_SECONDS = 10.0


class Failed(Exception):
    """A measurement broke or hung."""


def measure(task: Task, seconds_max: float) -> dict[str, Any]:
    """Measure in a child. Raises `Failed`; a child that hangs shows where, and is killed."""
    (task.folder / RESULT).unlink(missing_ok=True)
    sent = json.dumps({"task": [*task._replace(folder=str(task.folder))], "seconds_max": seconds_max})  # type: ignore[arg-type]
    command = [sys.executable, "-m", "bench.child", sent]
    # A session of its own, with all that it starts; and a pipe that closes when this process ends, however it does.
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, start_new_session=True) as child:
        try:
            code = child.wait(seconds_max)
        except subprocess.TimeoutExpired:
            raise Failed(f"has not ended in {seconds_max:.0f} s") from None
        finally:
            _end_group(child)
    if code != 0:
        raise Failed(f"ended with exit code {code}")
    found: dict[str, Any] = json.loads((task.folder / RESULT).read_text("utf-8"))
    return found


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """End the child and what it has started; asked first, because scripts of other engines then end their servers."""
    gently = child.poll() is None
    for number in (signal.SIGTERM, signal.SIGKILL) if gently else (signal.SIGKILL,):
        with suppress(ProcessLookupError, PermissionError):  # macOS denies it where only zombies are left
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_STOP_SECONDS)


def _end_with_the_starter() -> None:
    """Read a pipe that nobody writes into; its end is that of the process that started this one."""
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


def run_here(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the loop that a worker would use."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(work)


def _main() -> None:
    sent = json.loads(sys.argv[1])
    threading.Thread(target=_end_with_the_starter, daemon=True).start()
    faulthandler.dump_traceback_later(max(1.0, sent["seconds_max"] - _STACKS_BEFORE_SECONDS))
    course, target, folder, *sizes = sent["task"]
    task = Task(course, target, Path(folder), *sizes)
    metrics = run_here(run_course(task))
    faulthandler.cancel_dump_traceback_later()
    found = {"peak_mb": peak_mb(), "process_cpu_s": time.process_time(), **metrics}
    (task.folder / RESULT).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    _main()
