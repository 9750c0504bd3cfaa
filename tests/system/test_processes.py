"""Several processes under one supervisor: whichever of them dies, the work goes on, and nobody is left behind."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.system.processes import broker_of, members, on_each_log
from tests.system.streams_process import HANG_SECONDS, Done, Streams, streams

APP = """
import os, time
from streams import App, Context, Retry, TaskContext
app = App({name!r})

@app.task
def nap(ctx: TaskContext, seconds: float) -> str:
    print("napping")
    time.sleep(seconds)
    print("awake")
    return "rested"

@app.task(retry=Retry(max_attempts=4, initial=0.01))
async def die(ctx: TaskContext) -> str:
    os._exit(9)

@app.workflow(version=1)
async def sleep(ctx: Context, seconds: float) -> str:
    return await ctx.run(nap, seconds)

@app.workflow(version=1)
async def quickly(ctx: Context, order: dict[str, str]) -> str:
    return await ctx.run(nap, 0.01)

@app.workflow(version=1)
async def fall(ctx: Context, _: int) -> str:
    return await ctx.run(die)
"""

pytestmark = pytest.mark.slow


class Place:
    """A folder with an app, and a log."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.name = f"sleepers-{uuid4().hex[:8]}"
        self.app = f"{folder / 'sleepers.py'}:app"
        (folder / "sleepers.py").write_text(APP.format(name=self.name))
        self.open: list[Streams] = []

    def run(self, *arguments: str) -> Done:
        return streams(*arguments, cwd=self.folder, STREAMS_LOG=self.url, STREAMS_APP=self.name)

    def workers(self, count: int, *arguments: str) -> Streams:
        output = self.folder / f"out-{len(self.open)}"
        given = ("--processes", str(count), "--json", *arguments)
        self.open.append(Streams(output, "worker", self.app, *given, STREAMS_LOG=self.url))
        return self.open[-1]

    def start(self, run_id: str, seconds: float, workflow: str = "sleep") -> None:
        done = self.run("start", workflow, "--run-id", run_id, "--input", str(seconds))
        assert done.code == 0, done.lines

    def status(self, run_id: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("show", run_id, "--json").out)
        return found

    def until(self, run_id: str, status: str) -> dict[str, Any]:
        deadline = time.monotonic() + HANG_SECONDS
        while (found := self.status(run_id))["status"] != status:
            assert time.monotonic() < deadline, (found, self.open[-1].lines)
            time.sleep(0.1)
        return found


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    yield from _place(tmp_path, f"sqlite:///{tmp_path}/s.db?session_timeout_ms=1000")


@pytest.fixture
def each(tmp_path: Path, broker: str) -> Iterator[Place]:
    yield from _place(tmp_path, broker)


@pytest.fixture
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    kafka = broker_of(request)
    return members(kafka) if kafka else f"sqlite:///{tmp_path}/s.db?session_timeout_ms=1000"


def _place(folder: Path, url: str) -> Iterator[Place]:
    place = Place(folder, url)
    yield place
    for process in place.open:
        for pid in pids(process).values():
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        process.__exit__(None, None, None)


def objects(process: Streams, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in process.lines if line.startswith("{")]
    return [line for line in found if line["kind"] == kind]


def pids(process: Streams) -> dict[str, int]:
    """The last process of each name."""
    return {line["process"]: line["pid"] for line in objects(process, "started")}


def alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet buried does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until_gone(found: dict[str, int]) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while any(map(alive, found.values())):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def owning(process: Streams, count: int) -> None:
    """Wait until so many of them own partitions."""
    deadline = time.monotonic() + HANG_SECONDS
    while len({line["process"] for line in objects(process, "owns") if line["partitions"]}) < count:
        assert process.process.poll() is None, process.lines
        assert time.monotonic() < deadline, process.lines
        time.sleep(0.05)


@on_each_log
def test_one_that_is_killed_is_started_again_and_its_runs_go_on(each: Place) -> None:
    workers = each.workers(2)
    owning(workers, 2)
    for number in range(4):
        each.start(f"r-{number}", 1)
    workers.until("napping")
    before = pids(workers)
    os.kill(before["w2"], signal.SIGKILL)
    (ended,) = [json.loads(workers.until('"ended"'))]
    assert (ended["process"], ended["code"]) == ("w2", -signal.SIGKILL)
    workers.until('"started"', times=3)
    assert pids(workers)["w2"] != before["w2"]
    assert pids(workers)["w1"] == before["w1"]
    for number in range(4):
        each.until(f"r-{number}", "completed")
    assert workers.stop() == 0
    until_gone(pids(workers))


@on_each_log
def test_when_the_supervisor_is_killed_its_processes_finish_and_end(each: Place) -> None:
    workers = each.workers(2)
    owning(workers, 2)
    each.start("r-1", 2)
    workers.until("napping")
    workers.process.kill()
    workers.process.wait()
    until_gone(pids(workers))
    # Its task was let finish, and that it is finished was committed.
    assert each.status("r-1")["status"] == "completed"


@on_each_log
def test_a_stop_under_load_loses_nothing(each: Place) -> None:
    lines = "".join(json.dumps({"id": f"r-{number}"}) + "\n" for number in range(300))
    (each.folder / "runs.jsonl").write_text(lines)
    workers = each.workers(2)
    owning(workers, 2)
    done = each.run("start", "quickly", "--from", "runs.jsonl", "--id-field", "id")
    assert done.code == 0, done.lines
    assert workers.stop() == 0, workers.lines
    until_gone(pids(workers))
    assert not [line for line in workers.lines if "Traceback" in line]
    again = each.workers(2)
    deadline = time.monotonic() + HANG_SECONDS
    while True:
        runs = [json.loads(line) for line in each.run("runs", "--json").out.splitlines()]
        if len(runs) == 300 and all(run["status"] == "completed" for run in runs):
            break
        assert time.monotonic() < deadline, again.lines
        time.sleep(0.3)
    assert again.stop() == 0


def test_a_second_signal_ends_them_all_at_once(place: Place) -> None:
    workers = place.workers(2)
    owning(workers, 2)
    place.start("r-1", 60)
    workers.until("napping")
    workers.process.send_signal(signal.SIGINT)
    workers.until("stopping: tasks that run may finish; once more stops at once")
    workers.process.send_signal(signal.SIGINT)
    assert workers.gone() == 128 + signal.SIGINT
    until_gone(pids(workers))
    assert place.status("r-1")["status"] == "running"


def test_what_is_wrong_with_the_app_is_said_once(place: Place) -> None:
    (place.folder / "sleepers.py").write_text("import nowhere_at_all\n")
    done = place.run("worker", place.app, "--processes", "3")
    assert done.code == 2
    assert sum("nowhere_at_all" in line for line in done.lines) == 1, done.lines
    assert "w2" not in done.out


def test_one_that_dies_again_and_again_waits_longer_each_time(place: Place) -> None:
    """And the task that kills its process uses up its attempts."""
    workers = place.workers(1)
    owning(workers, 1)
    place.start("r-1", 0, "fall")
    found = place.until("r-1", "failed")
    assert found["error"]["code"] == "RETRIES_EXHAUSTED"
    ends = objects(workers, "ended")
    assert [line["code"] for line in ends] == [9, 9, 9, 9]
    assert [line["again_in"] for line in ends] == [0, 0.5, 1, 2]
    assert workers.stop() == 0
    (status,) = objects(workers, "status")
    assert (status["process"], status["restarts"]) == ("w1", 4)


def test_what_each_of_them_does_is_told_when_asked(place: Place) -> None:
    workers = place.workers(2)
    owning(workers, 2)
    workers.process.send_signal(signal.SIGUSR1)
    workers.until('"status"', times=2)
    told = objects(workers, "status")
    assert {line["process"]: line["pid"] for line in told} == pids(workers)
    assert all(line["restarts"] == 0 for line in told)
    assert workers.stop() == 0
    assert all("process" in json.loads(line) for line in workers.lines if line.startswith("{"))


def test_more_processes_than_partitions_are_remarked_on(place: Place) -> None:
    assert place.run("topics", "create", place.app, "--partitions", "1").code == 0
    workers = place.workers(2)
    note = json.loads(workers.until("the app has 1 partitions"))
    assert "1 of the 2 processes" in note["text"]
    workers.until('"started"', times=2)
    assert workers.stop() == 0


def test_a_strict_one_ends_them_all_with_1(place: Place) -> None:
    assert place.run("topics", "create", place.app).code == 0
    workers = place.workers(1)
    place.start("r-1", 0)
    place.until("r-1", "completed")
    assert workers.stop() == 0
    with closing(sqlite3.connect(place.folder / "s.db")) as db, db:
        db.execute("UPDATE topics SET id = 'made anew' WHERE name LIKE '%.commands'")
    workers = place.workers(2, "--strict")
    assert workers.gone() == 1
    until_gone(pids(workers))
    assert workers.saying("the commands topic was deleted and created again")


@pytest.mark.parametrize(
    ("arguments", "url", "words"),
    [
        (("--processes", "2"), "memory:", "lives inside one process"),
        (("--processes", "0"), "sqlite:///s.db", "is no number of processes"),
        (("--processes", "many"), "sqlite:///s.db", "is no number of processes"),
    ],
)
def test_what_cannot_be_is_refused(place: Place, arguments: tuple[str, ...], url: str, words: str) -> None:
    place.url = url
    done = place.run("worker", place.app, *arguments)
    assert (done.code, len(done.lines)) == (2, 1), done.lines
    assert words in done.lines[0]
