"""The bench itself: that it measures, ends, and says what it found. No time is judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import child, peer, report
from bench.plan import NAMES, STEPS, rounds
from bench.pure import Pure
from bench.scenarios import COURSES, Task

ROOT = Path(__file__).resolve().parent.parent.parent


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)


def test_a_tiny_run_gives_a_table_and_json(tmp_path):
    out = tmp_path / "found.json"

    done = bench("floor", "saturated-16", "--quick", "--runs", "20", "--json", str(out))

    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    metrics = {entry["scenario"]: entry["metrics"] for entry in found["results"]}
    assert metrics["saturated-16"]["runs_per_s"]["median"] > 0
    assert metrics["saturated-16"]["runs_per_s"]["ratio"] > 0
    assert metrics["floor"]["commits_per_s"]["values"]
    assert {goal["name"]: goal["value"] for goal in found["goals"]} == dict.fromkeys(
        [goal.name for goal in report.GOALS]
    )
    assert found["options"]["quick"]
    assert found["failed"] == []
    assert "runs_per_s" in done.stdout


@pytest.mark.slow
def test_every_scenario_ends_by_itself(tmp_path):
    out = tmp_path / "found.json"

    done = bench("alone", "approval", "fan-out", "loop", "waiting", "--quick", "--runs", "5", "--json", str(out))

    assert done.returncode == 0, done.stderr
    metrics = {entry["scenario"]: entry["metrics"] for entry in json.loads(out.read_text())["results"]}
    assert set(metrics) == {"alone", "approval", "fan-out", "loop", "waiting"}
    assert {"filled_mb", "restored_mb", "restore_s"} <= set(metrics["waiting"])


@pytest.mark.kafka
@pytest.mark.slow
def test_a_log_is_verified_on_both_logs(tmp_path):
    out = tmp_path / "found.json"

    done = bench("verify", "--quick", "--runs", "20", "--json", str(out))

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

    done = bench("rebuild", "--quick", "--runs", "20", "--json", str(out))

    assert done.returncode == 0, done.stderr
    metrics = {entry["scenario"]: entry["metrics"] for entry in json.loads(out.read_text())["results"]}
    for name in ("rebuild-sqlite", "rebuild-kafka"):
        assert (metrics[name]["events"]["median"], metrics[name]["written"]["median"]) == (160, 20)


@pytest.mark.kafka
@pytest.mark.slow
def test_every_scenario_on_kafka_ends_by_itself(tmp_path):
    out = tmp_path / "found.json"

    done = bench("kafka", "--quick", "--runs", "20", "--json", str(out))

    assert done.returncode == 0, done.stderr
    metrics = {entry["scenario"]: entry["metrics"] for entry in json.loads(out.read_text())["results"]}
    assert set(metrics) == {step.name for step in STEPS if step.name.startswith("kafka")}
    assert metrics["kafka-2000"]["broker_cpu_us_per_run"]["median"] > 0
    assert metrics["kafka-alone"]["p50_ms"]["ratio"] > 0


@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.slow
def test_effects_are_measured_on_both_pairs(tmp_path):
    out = tmp_path / "found.json"

    done = bench("effects", "--quick", "--runs", "60", "--json", str(out))

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
    done = bench("quick")

    assert done.returncode == 2
    assert "there is no scenario 'quick'" in done.stderr.splitlines()[-1]


def test_what_hangs_is_ended_and_told(tmp_path):
    with pytest.raises(child.Failed, match="has not ended in 1 s"):
        child.measure(Task("alone", "sqlite", tmp_path, 1_000_000), 1)


def test_what_breaks_is_told(tmp_path):
    with pytest.raises(child.Failed, match="exit code 1"):
        child.measure(Task("alone", "sqlite", tmp_path / "missing", 1), 60)


def test_rounds_are_interleaved_and_the_long_one_comes_once_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setenv(peer.ENVIRONMENT, str(tmp_path))  # no peer is installed there
    order = [step.name for _, step in rounds([], quick=True, runs=None, repeat=2)]

    ours = [step.name for step in STEPS if not step.once and step.courses != ("peer",)]
    assert order == ours * 2 + ["waiting"]
    assert {step.name.partition("-")[0] for step in STEPS} == {name.partition("-")[0] for name in NAMES}
    assert {course for step in STEPS for course in step.courses} == set(COURSES)


def test_goals_count_only_at_their_size():
    values = {"waiting": {"filled_mb": [500.0]}, "alone": {"p50_ms": [4.0, 9.0, 5.0]}}

    def figures(size):
        return {goal["name"]: goal["value"] for goal in report.goals(values, {"waiting": size})}

    others = dict.fromkeys(goal.name for goal in report.GOALS)
    assert figures(100_000) == {**others, "sqlite_alone_p50_ms": 5.0, "waiting_100k_mb": 500.0}
    assert figures(5_000)["waiting_100k_mb"] is None


def test_ratios_are_to_the_floor_of_the_same_round():
    values = {
        "floor": {"p50_ms": [1.0, 2.0], "batch_100_runs_per_s": [100.0, 10.0], "batch_1000_runs_per_s": [50.0, 40.0]},
        "saturated-16": {"runs_per_s": [10.0, 4.0], "p50_ms": [1.0, 1.0]},
        "alone": {"p50_ms": [5.0, 20.0]},
    }

    found = {entry["scenario"]: entry["metrics"] for entry in report.results(values)}

    kafka = {"kafka-floor": {"p50_ms": [2.0]}, "kafka-alone": {"p50_ms": [10.0]}}
    (alone,) = [goal for goal in report.goals(kafka, {}) if goal["name"] == "kafka_alone_to_bare_transactions"]
    assert alone["value"] == pytest.approx(1.25)
    assert found["saturated-16"]["runs_per_s"]["ratio"] == pytest.approx(0.1)
    assert found["alone"]["p50_ms"]["ratio"] == pytest.approx(1.5)
    assert "ratio" not in found["saturated-16"]["p50_ms"]


def test_the_pure_course_brings_its_runs_to_an_end():
    pure = Pure()
    events = pure.runs("run", 3, 2)
    pure.fold(events)
    assert len(events) == 24
    assert set(pure.seconds) == {"commands", "decide", "encode", "checkpoint", "values", "decode again", "fold again"}
