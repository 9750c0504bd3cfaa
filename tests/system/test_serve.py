"""The worker as a process: it ends when it is told to, whatever its tasks do, and says what it refuses."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 30
APP = """
import time
from pathlib import Path
from streams import App, Context, TaskContext
app = App("sleepers")

@app.task
def nap(ctx: TaskContext, seconds: float) -> str:
    Path("napping").touch()
    time.sleep(seconds)
    return "rested"

@app.workflow(version=1)
async def sleep(ctx: Context, seconds: float) -> str:
    return await ctx.run(nap, seconds)
"""

pytestmark = pytest.mark.slow


class Place:
    """A folder with an app and a log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.open: list[subprocess.Popen[str]] = []
        (folder / "sleepers.py").write_text(APP)

    def environment(self) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": str(ROOT), "STREAMS_LOG": "sqlite:///s.db?session_timeout_ms=1000"}

    def streams(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "streams", *arguments],
            env=self.environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )

    def worker(self, *arguments: str) -> subprocess.Popen[str]:
        """A worker that owns its partitions."""
        self.open.append(
            subprocess.Popen(
                [sys.executable, "-m", "streams", "worker", "sleepers.py:app", *arguments],
                env=self.environment(),
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return self.open[-1]

    def nap(self, run_id: str, seconds: float) -> None:
        """Start a task and wait until it runs."""
        done = self.streams("start", "sleep", "--run-id", run_id, "--input", str(seconds))
        assert done.returncode == 0, done.stderr
        deadline = time.monotonic() + SECONDS_MAX
        while not (self.folder / "napping").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    for process in place.open:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=SECONDS_MAX)
    return process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_finishes_what_runs_and_ends_with_0(number: int, place: Place) -> None:
    worker = place.worker()
    place.nap("r-1", 0.5)
    worker.send_signal(number)
    code, out, err = ended(worker)
    assert (code, "Traceback" in err) == (0, False), err
    assert out.startswith("worker of app sleepers on sqlite:///s.db?session_timeout_ms=1000 · Ctrl-C stops it\n")
    assert err == "stopping: tasks that run may finish; once more stops at once\n"
    assert json.loads(place.streams("show", "r-1", "--json").stdout)["result"] == "rested"


def test_a_second_signal_stops_at_once(place: Place) -> None:
    worker = place.worker()
    place.nap("r-1", 60)
    worker.terminate()
    assert worker.stderr.readline().startswith("stopping")
    began = time.monotonic()
    worker.terminate()
    assert ended(worker)[0] == 128 + signal.SIGTERM
    assert time.monotonic() - began < 5


def test_a_task_that_hangs_does_not_keep_the_process(place: Place) -> None:
    """It is handed back; the next worker begins a new attempt, and nothing was used up."""
    worker = place.worker()
    place.nap("r-1", 300)
    worker.terminate()
    code, _, err = ended(worker)
    assert (code, "Traceback" in err) == (0, False), err
    (waiting,) = json.loads(place.streams("show", "r-1", "--json").stdout)["waiting"]
    assert (waiting["name"], waiting["attempt"]) == ("nap", 1)
    assert "attempt.returned" in place.streams("history", "r-1", "--json").stdout


def test_start_waits_for_the_result(place: Place) -> None:
    place.worker()
    done = place.streams("start", "sleep", "--run-id", "r-1", "--input", "0.1", "--wait", "--json")
    assert json.loads(done.stdout) == {"run_id": "r-1", "status": "completed", "result": "rested", "error": None}
    again = place.streams("start", "sleep", "--run-id", "r-1", "--input", "0.1")
    assert (again.returncode, again.stdout) == (0, "run r-1 was started before with this input; nothing changed\n")
    other = place.streams("start", "sleep", "--run-id", "r-1", "--input", "0.2")
    assert (other.returncode, other.stderr.count("\n")) == (1, 1)
    assert "INPUT_CONFLICT" in other.stderr


def test_a_strict_worker_ends_where_it_must_refuse_a_partition(place: Place) -> None:
    place.worker()
    place.nap("r-1", 0)
    place.open[0].terminate()
    assert ended(place.open[0])[0] == 0
    with closing(sqlite3.connect(place.folder / "s.db")) as db, db:
        db.execute("UPDATE topics SET id = 'made anew' WHERE name = 'sleepers.commands'")
    code, out, err = ended(place.worker("--strict"))
    assert (code, err.count("\n")) == (1, 1), err
    assert "the commands topic was deleted and created again" in err
    assert "refused" in out


def test_a_worker_tells_in_its_leases_where_it_is_found(place: Place) -> None:
    place.worker("--address", "rack-7:9000")
    place.nap("r-1", 300)
    found = json.loads(place.streams("diagnose", "r-1", "--json").stdout)["ownership"]
    assert (found["address"], found["alive"]) == ("rack-7:9000", True)
    assert " at rack-7:9000 owns it" in found["text"]


def test_a_worker_speaks_json(place: Place) -> None:
    worker = place.worker("--json")
    place.nap("r-1", 0)
    place.streams("start", "slip", "--run-id", "r-2", "--input", "0")
    worker.terminate()
    code, out, _ = ended(worker)
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, lines[0]["kind"], lines[0]["app"]) == (0, "worker", "sleepers")
    blocked = next(line for line in lines if line["kind"] == "blocked")
    assert (blocked["run_id"], blocked["code"]) == ("r-2", "WORKFLOW_UNKNOWN")
