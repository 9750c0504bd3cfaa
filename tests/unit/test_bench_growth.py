"""Growth curves and what is planned from them, on fixed data; and that a small curve is measured for real."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import capacity, growth
from bench.growth_courses import COURSES

ROOT = Path(__file__).resolve().parent.parent.parent
MEASURED = capacity.Inputs(500.0, 200.0, 4_000.0, 8.0, 50_000.0, 4_000.0, 1_000.0)


def bench(*arguments):
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0, -0.5])
def test_the_exponent_of_a_power_is_its_power(power):
    sizes = [10, 100, 3_000]

    assert growth.exponent(sizes, [7 * size**power for size in sizes]) == pytest.approx(power)


def test_a_curve_has_the_exponent_of_the_whole_and_of_its_end():
    curve = growth.Curve("steps", "steps", (), (), {"cpu": 0})
    values = {10: {"cpu": [100.0, 90.0, 110.0]}, 100: {"cpu": [100.0]}, 1_000: {"cpu": [1_000.0], "odd": [1.0]}}

    found = growth.growth(curve, values)

    assert found["sizes"] == [10, 100, 1_000]
    assert set(found["metrics"]) == {"cpu"}
    cpu = found["metrics"]["cpu"]
    assert cpu["values"] == [100.0, 100.0, 1_000.0]
    assert (cpu["exponent"], cpu["last_exponent"], cpu["must"]) == (pytest.approx(0.5), pytest.approx(1.0), 0)
    assert growth.goals([found]) == [
        {"name": "growth_steps_cpu", "value": 0.5, "goal": growth.TOLERANCE, "unit": "exponent"}
    ]
    assert "steps" in growth.table([found])


def test_one_point_has_no_exponent():
    found = growth.growth(growth.Curve("steps", "steps", (), (), {"cpu": 0}), {10: {"cpu": [1.0]}})

    assert "exponent" not in found["metrics"]["cpu"]
    assert growth.goals([found]) == []


def test_every_curve_is_measured_by_a_course():
    assert [curve.name for curve in growth.CURVES] == list(COURSES)
    assert all(4 <= len(curve.sizes) <= 6 for curve in growth.CURVES)


def test_an_unknown_curve_is_one_line_and_exit_2():
    done = bench("growth", "height")

    assert done.returncode == 2
    assert "there is no curve 'height'" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_small_curve_is_measured(tmp_path):
    out = tmp_path / "growth.json"

    done = bench("growth", "steps", "state-size", "--quick", "--json", str(out))

    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    state, steps = found["growth"]
    assert (steps["sizes"], state["sizes"]) == ([10, 100], [100, 10_000])
    assert all(value > 0 for value in steps["metrics"]["cpu_us_per_step"]["values"])
    assert {goal["name"] for goal in found["goals"]} == {
        "growth_steps_cpu_us_per_step",
        "growth_state_size_cpu_us_per_turn",
    }
    assert found["results"][0]["scenario"] == "growth-state-size-100"
    assert found["failed"] == []


@pytest.mark.slow
def test_a_blocked_run_breaks_its_point_and_not_the_curve(tmp_path, monkeypatch):
    curve = growth.CURVES[4]._replace(seconds_max=60.0)

    found = growth._point(curve, 5_000, "sqlite", tmp_path)  # the values of so many steps are over the limit

    assert found == "ended with exit code 1"
    assert list(tmp_path.iterdir()) == []


def results(**scenarios):
    return {
        "results": [
            {"scenario": name, "metrics": {key: {"median": value} for key, value in metrics.items()}}
            for name, metrics in scenarios.items()
        ]
    }


def test_inputs_come_from_several_files_and_from_the_largest_point():
    whole = results(
        **{
            "kafka-2000": {"cpu_us_per_run": 1.0, "broker_cpu_us_per_run": 2.0, "kafka_bytes_per_run": 3.0},
            "kafka-floor": {"p50_ms": 4.0},
            "kafka-restore": {"restored_per_s": 5.0},
        }
    )
    curves = results(
        **{
            "growth-waiting-runs-1000": {"bytes_per_waiting_run": 9.0},
            "growth-waiting-runs-30000": {"bytes_per_waiting_run": 6.0},
            "growth-past-runs-10": {"bytes_per_past_run": 7.0},
        }
    )

    assert capacity.inputs([whole, curves]) == capacity.Inputs(1, 2, 3, 4, 5, 6, 7)
    with pytest.raises(capacity.Unmeasured, match="`python -m bench growth waiting-runs` gives it"):
        capacity.inputs([whole])


def test_a_plan_is_arithmetic():
    plan = capacity.planned(MEASURED, capacity.Wishes(12_000, busy_share=0.5, kept_seconds=100, waiting_seconds=50))

    assert plan.value("workers") == 12
    assert plan.value("partitions") == 48
    assert plan.value("broker_cores") == pytest.approx(14.4)
    assert plan.value("disk_writes") == pytest.approx(144)
    assert plan.value("brokers") == 3
    assert plan.value("network") == pytest.approx(1.536)
    assert plan.value("kept_runs") == 1_200_000
    assert plan.value("waiting_runs") == pytest.approx(60_000)
    assert plan.value("memory") == pytest.approx(1.44)
    assert plan.value("restart") == pytest.approx(1_260_000 / 12 / 50_000)


def test_a_hundredfold_rate_takes_a_hundredfold_of_everything_that_a_run_takes():
    small, large = (capacity.planned(MEASURED, capacity.Wishes(rate)) for rate in (12_000, 1_200_000))

    for name in ("workers", "partitions", "disk_writes", "network", "history", "memory", "group_commits"):
        assert large.value(name) == pytest.approx(100 * small.value(name))
    for name in ("partition_share", "memory_each", "restart"):
        assert large.value(name) == pytest.approx(small.value(name))


def test_a_missing_figure_is_one_line_and_exit_1(tmp_path):
    (tmp_path / "empty.json").write_text('{"results": []}')

    done = bench("capacity", str(tmp_path / "empty.json"))

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "no file has cpu_us_per_run of kafka-2000; `python -m bench kafka-2000` gives it\n"


def test_the_tables_are_written_between_the_marks_of_a_document(tmp_path):
    found = {source.scenario.replace("*", "1"): {} for source in capacity.SOURCES.values()}
    for source in capacity.SOURCES.values():
        found[source.scenario.replace("*", "1")][source.metric] = 7.0
    del found["kafka-2000"]["kafka_bytes_per_run"]
    (tmp_path / "found.json").write_text(json.dumps(results(**found)))
    page = tmp_path / "page.md"
    page.write_text(f"before\n{capacity.BEGIN}\nold\n{capacity.END}\nafter\n")

    for _ in range(2):
        done = bench("capacity", str(tmp_path / "found.json"), "--into", str(page))
        assert done.returncode == 0, done.stderr

    written = page.read_text()
    assert written.startswith("before\n")
    assert written.endswith("\nafter\n")
    assert "old" not in written
    assert written.count("### 10,000 runs/s") == written.count("### 1,000,000 runs/s") == 1
    assert "| run_bytes | 3,000 |" in written


def test_the_page_about_capacity_has_its_marks():
    page = (ROOT / "docs" / "capacity.md").read_text()

    assert page.count(capacity.BEGIN) == page.count(capacity.END) == 1
    assert "### 1,000,000 runs/s" in page
