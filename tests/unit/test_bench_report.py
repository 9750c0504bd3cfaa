"""What the bench makes of figures: ratios, goals, the page. The figures here are made up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import goals, page, plot, report

ROOT = Path(__file__).resolve().parent.parent.parent


def run(values, **more):
    head = {"at": "2026-01-02T03:04:05+00:00", "machine": {"cores": 2, "load_before": 0.1}}
    options = {"scenarios": [], "quick": False, "runs": {}, "repeat": 2}
    found = {"results": report.results(values), "goals": goals.goals(values, {}), "failed": []}
    return {**head, "options": options, **found, **more}


def judged(values, sizes=()):
    return {goal["name"]: goal for goal in goals.goals(values, dict(sizes))}


def test_goals_count_only_at_their_size():
    values = {"waiting": {"filled_mb": [500.0]}, "alone": {"p50_ms": [2.0, 9.0, 2.5]}}

    full, small = judged(values, {"waiting": 100_000}), judged(values, {"waiting": 5_000})

    assert {name for name, goal in full.items() if goal["value"] is not None} == {
        "sqlite_alone_p50_ms",
        "waiting_100k_mb",
    }
    assert (full["sqlite_alone_p50_ms"]["value"], full["sqlite_alone_p50_ms"]["met"]) == (2.5, True)
    assert (small["waiting_100k_mb"]["value"], small["waiting_100k_mb"]["met"]) == (None, None)


def test_more_is_better_for_some_goals_and_less_for_others():
    found = judged({"kafka-2000": {"runs_per_s": [3_500.0], "cpu_us_per_run": [300.0]}})

    assert found["kafka_saturated_runs_per_s"]["met"] is True
    assert found["kafka_saturated_next_runs_per_s"]["met"] is False
    assert found["worker_cpu_us_per_run"]["met"] is False


def test_ratios_are_to_the_floor_of_the_same_round():
    values = {
        "floor": {"p50_ms": [1.0, 2.0], "batch_100_runs_per_s": [100.0, 10.0], "batch_1000_runs_per_s": [50.0, 40.0]},
        "saturated-16": {"runs_per_s": [10.0, 4.0], "p50_ms": [1.0, 1.0]},
        "alone": {"p50_ms": [5.0, 20.0]},
    }

    found = {entry["scenario"]: entry["metrics"] for entry in report.results(values)}

    assert found["saturated-16"]["runs_per_s"]["ratio"] == pytest.approx(0.1)
    assert found["alone"]["p50_ms"]["ratio"] == pytest.approx(1.5)
    assert "ratio" not in found["saturated-16"]["p50_ms"]
    kafka = {"kafka-floor": {"p50_ms": [2.0]}, "kafka-alone": {"p50_ms": [10.0]}}
    assert judged(kafka)["kafka_alone_to_bare_transactions"]["value"] == pytest.approx(1.25)


def test_files_are_merged_and_goals_across_them_are_judged():
    ours = run({"kafka-2000": {"runs_per_s": [1_000.0]}, "alone": {"p50_ms": [9.0]}})
    peers = run({"peer-a": {"runs_per_s": [100.0]}, "peer-b": {"runs_per_s": [250.0]}, "alone": {"p50_ms": [1.0]}})
    grown = run({}, goals=[{"name": "growth_x", "value": 0.1, "goal": 0.2, "unit": "exponent"}])

    found = {goal["name"]: goal for goal in goals.merged([ours, peers, grown])["goals"]}

    assert found["kafka_saturated_vs_best_peer"]["value"] == pytest.approx(4)
    assert found["sqlite_alone_p50_ms"]["value"] == 1.0
    assert found["growth_x"]["value"] == 0.1


def test_the_page_says_each_goal_and_why_one_is_not_met():
    text = page.page(run({"kafka-2000": {"runs_per_s": [2_000.0], "cpu_us_per_run": [200.0]}}))

    lines = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
    assert {goal.name for goal in goals.GOALS} <= set(lines)
    assert "not met" in lines["kafka_saturated_runs_per_s"]
    assert goals.reasons()["kafka_saturated_runs_per_s"] in lines["kafka_saturated_runs_per_s"]
    assert "**met**" in lines["worker_cpu_us_per_run"]
    assert goals.reasons()["worker_cpu_us_per_run"] not in text


def test_the_page_tells_of_load_and_of_what_broke():
    busy = {"cores": 2, "load_before": 7.5}
    text = page.page(run({}, machine=busy, failed=[{"scenario": "alone", "round": "1", "reason": "exit code 1"}]))

    assert "its load was 7.5 on 2 cores" in text
    assert "- `alone`: exit code 1" in text
    assert "its load was" not in page.page(run({}))


def test_reasons_are_given_for_goals_that_exist():
    assert set(goals.reasons()) <= {goal.name for goal in goals.GOALS}


def test_the_command_renders_earlier_runs(tmp_path):
    curve = {
        "curve": "runs",
        "axis": "past runs",
        "sizes": [10, 100],
        "metrics": {"us": {"values": [1.0, 1.1], "must": 0}},
    }
    (tmp_path / "a.json").write_text(json.dumps(run({"kafka-2000": {"runs_per_s": [1_234.0]}}, growth=[curve])))
    command = [sys.executable, "-m", "bench", "report", str(tmp_path / "a.json"), "--page", str(tmp_path / "page.md")]

    subprocess.run(command, cwd=ROOT, check=True, timeout=60)

    assert "1,234" in (tmp_path / "page.md").read_text()
    assert "past runs" in (tmp_path / "page.svg").read_text()
    assert plot.growth([curve]) == {"past runs": [(10, 1.0), (100, 1.1)]}
