"""The bench itself: that it measures, ends, and ends what it started. No time is judged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import bench.__main__
import bench.broker
from bench import child, goals, peer
from bench.plan import NAMES, STEPS, rounds
from bench.pure import Pure
from bench.scenarios import COURSES, Task
from streams.dev import StackFailed

ROOT = Path(__file__).resolve().parent.parent.parent


def run_bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


def test_a_tiny_run_gives_a_table_and_json(tmp_path):
    out = tmp_path / "found.json"

    done = run_bench("floor", "saturated-16", "--quick", "--runs", "20", "--json", str(out))

    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    metrics = {entry["scenario"]: entry["metrics"] for entry in found["results"]}
    assert metrics["saturated-16"]["runs_per_s"]["median"] > 0
    assert metrics["saturated-16"]["runs_per_s"]["ratio"] > 0
    assert metrics["floor"]["commits_per_s"]["values"]
    assert {goal["name"]: goal["value"] for goal in found["goals"]} == dict.fromkeys(
        [goal.name for goal in goals.GOALS]
    )
    assert found["options"]["quick"]
    assert found["failed"] == []
    assert "runs_per_s" in done.stdout


@pytest.mark.slow
def test_every_scenario_ends_by_itself(tmp_path):
    out = tmp_path / "found.json"

    done = run_bench("alone", "approval", "fan-out", "loop", "waiting", "--quick", "--runs", "5", "--json", str(out))

    assert done.returncode == 0, done.stderr
    metrics = {entry["scenario"]: entry["metrics"] for entry in json.loads(out.read_text())["results"]}
    assert set(metrics) == {"alone", "approval", "fan-out", "loop", "waiting"}
    assert {"filled_mb", "restored_mb", "restore_s"} <= set(metrics["waiting"])


@pytest.mark.kafka
@pytest.mark.slow
def test_a_log_is_verified_on_both_logs(tmp_path):
    out = tmp_path / "found.json"

    done = run_bench("verify", "--quick", "--runs", "20", "--json", str(out))

    assert done.returncode == 0, done.stderr
    metrics = {entry["scenario"]: entry["metrics"] for entry in json.loads(out.read_text())["results"]}
    assert {name: metric["events"]["median"] for name, metric in metrics.items()} == {
        "verify-sqlite": 160,
        "verify-kafka": 160,
    }


@pytest.mark.kafka
@pytest.mark.slow
def test_checkpoints_are_rebuilt_on_both_logs(tmp_path):
    out = tmp_path / "found.json"

    done = run_bench("rebuild", "--quick", "--runs", "20", "--json", str(out))

    assert done.returncode == 0, done.stderr
    metrics = {entry["scenario"]: entry["metrics"] for entry in json.loads(out.read_text())["results"]}
    for name in ("rebuild-sqlite", "rebuild-kafka"):
        assert (metrics[name]["events"]["median"], metrics[name]["written"]["median"]) == (160, 20)


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_scenario_on_kafka_ends_by_itself(tmp_path):
    out = tmp_path / "found.json"

    done = run_bench("kafka", "--quick", "--runs", "20", "--json", str(out))

    assert done.returncode == 0, done.stderr
    metrics = {entry["scenario"]: entry["metrics"] for entry in json.loads(out.read_text())["results"]}
    assert set(metrics) == {step.name for step in STEPS if step.name.startswith("kafka")}
    assert metrics["kafka-2000"]["events_bytes_per_run"]["median"] > 500
    assert metrics["kafka-2000"]["broker_cpu_us_per_run"]["median"] > 0
    assert metrics["kafka-alone"]["p50_ms"]["ratio"] > 0


@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.slow
def test_effects_are_measured_on_both_pairs(tmp_path):
    out = tmp_path / "found.json"

    done = run_bench("effects", "--quick", "--runs", "60", "--json", str(out))

    assert done.returncode == 0, done.stderr
    metrics = {entry["scenario"]: entry["metrics"] for entry in json.loads(out.read_text())["results"]}
    assert set(metrics) == {step.name for step in STEPS if step.name.startswith("effects")}
    for pair in ("sqlite", "kafka"):
        rows, calls = metrics[f"effects-rows-{pair}"], metrics[f"effects-calls-{pair}"]
        assert all(rows[name]["median"] > 0 for name in ("rows_per_s", "known_per_s", "rows_to_bare"))
        many = metrics[f"effects-many-{pair}"]
        assert all(many[f"rows_to_{name}"]["median"] > 0 for name in ("bare_many", "bare_rows"))
        assert 1 <= calls["calls_most_in_flight"]["median"] <= 60


def test_an_unknown_scenario_is_one_line_and_exit_2():
    done = run_bench("quick")

    assert done.returncode == 2
    assert "there is no scenario 'quick'" in done.stderr.splitlines()[-1]


def test_what_hangs_is_ended_and_told(tmp_path):
    with pytest.raises(child.Failed, match="has not ended in 1 s"):
        child.measure(Task("alone", "sqlite", tmp_path, 1_000_000), 1)


def test_what_breaks_is_told(tmp_path):
    with pytest.raises(child.Failed, match="exit code 1"):
        child.measure(Task("alone", "sqlite", tmp_path / "missing", 1), 60)


def test_rounds_are_interleaved_and_what_takes_long_comes_once_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setenv(peer.ENVIRONMENT, str(tmp_path))  # no peer is installed there
    order = [step.name for _, step in rounds([], quick=True, runs=None, repeat=2)]

    ours = [step for step in STEPS if step.courses != ("peer",)]
    often, once = [[step.name for step in ours if step.once is kind] for kind in (False, True)]
    assert order == often * 2 + once
    assert {step.name.partition("-")[0] for step in STEPS} == {name.partition("-")[0] for name in NAMES}
    assert {course for step in STEPS for course in step.courses} == set(COURSES)


def children(pid):
    found = subprocess.run(["/bin/ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = {int(line.split()[0]): int(line.split()[1]) for line in found.splitlines()}
    below, new = set(), {pid}
    while new:
        below |= new
        new = {one for one, parent in parents.items() if parent in new} - below
    return below - {pid}


def alive(pid):
    state = subprocess.run(
        ["/bin/ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout
    return bool(state.strip()) and not state.startswith("Z")


def test_the_pure_course_brings_its_runs_to_an_end():
    pure = Pure()
    events = pure.runs("run", 3, 2)
    pure.fold(events)
    assert len(events) == 24
    assert set(pure.seconds) == {"commands", "decide", "encode", "checkpoint", "values", "decode again", "fold again"}


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whoever_ends_it_ends_all_that_it_started(tmp_path, number):
    command = [sys.executable, "-m", "bench", "kafka-scale-2", "--json", str(tmp_path / "found.json")]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, start_new_session=True
    ) as running:
        deadline = time.monotonic() + 60
        while len(started := children(running.pid)) < 5 and time.monotonic() < deadline:
            time.sleep(0.2)  # the broker, the measurement, two workers and the feeder
        assert len(started) >= 5
        running.send_signal(number)
        code = running.wait(60)
        _, said = running.communicate()

    while any(map(alive, started)) and time.monotonic() < deadline + 60:
        time.sleep(0.1)
    assert [pid for pid in started if alive(pid)] == []
    if number != signal.SIGKILL:
        assert code == 130
        assert b"ending what was started" in said
        assert b"Traceback" not in said
        assert [*tmp_path.iterdir()] == []


def test_a_server_that_does_not_start_is_one_line(monkeypatch, capsys):
    def broken(*_, **__):
        raise StackFailed("PostgreSQL did not start")

    monkeypatch.setattr(bench.broker, "start_postgres", broken)
    monkeypatch.setattr(bench.__main__, "_end_on_signals", lambda: None)  # pytest has its own
    monkeypatch.setattr(bench.__main__.plan, "needs_broker", lambda _: False)

    assert bench.__main__.main(["effects-many-kafka", "--quick"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "bench: PostgreSQL did not start"
