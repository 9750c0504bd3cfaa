"""The pytest plugin in test runs of its own, as a user has them: pytest alone, and no plugin for asyncio."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

USER = """
from streams import App, Context, Retry, TaskContext

app = App("shop")

@app.task(retry=Retry(max_attempts=ATTEMPTS))
async def price(ctx: TaskContext, sku: str) -> int:
    return len(sku)

@app.workflow(version=1)
async def sell(ctx: Context, sku: str) -> int:
    return await ctx.run(price, sku)

async def scenario(s):
    assert await s.result(await s.start(sell, "lamp")) == 4

def test_sell(crash_everywhere):
    report = crash_everywhere(app, scenario)
    assert report.positions
"""


def run(folder: Path, attempts: int, *options: str) -> tuple[int, str]:
    (folder / "test_shop.py").write_text(USER.replace("ATTEMPTS", str(attempts)), "utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "streams.testing.plugin", "-p", "no:cacheprovider", *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "200"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_good_workflow_passes(tmp_path: Path):
    code, told = run(tmp_path, 5)
    assert (code, "1 passed" in told) == (0, True), told


def test_each_point_that_fails_is_named(tmp_path: Path):
    code, told = run(tmp_path, 1)
    assert code == 1
    assert "SUBFAILED[task.started/price:1] test_shop.py::test_sell" in told
    assert "the status: without a crash completed; with it failed (RETRIES_EXHAUSTED" in told
    assert "SUBFAILED[turn.input:1]" not in told
    assert "Traceback" not in told


def test_one_point_is_repeated(tmp_path: Path):
    code, told = run(tmp_path, 1, "--crash-only", "task.started/price:1")
    assert code == 1
    assert told.count("SUBFAILED[") == 1, told
    assert run(tmp_path, 1, "--crash-only=turn.input:1", "--crash-only=turn.taken:1")[0] == 0


def test_points_are_sampled(tmp_path: Path):
    code, told = run(tmp_path, 5, "--crash-points-max=3", "-k", "sell")
    assert code == 0, told


def test_without_subtests_the_report_is_the_failure(tmp_path: Path):
    code, told = run(tmp_path, 1, "-p", "no:subtests")
    assert code == 1
    assert "Failed: sell: a crash at each of " in told
    assert "task.started/price:1" in told
    assert "[only='" in told


def test_it_is_an_entry_point_and_loads_nothing_by_itself():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"streams": "streams.testing.plugin"}
    program = (
        "import sys, {}; print(*sorted({{'pytest', 'fastavro', 'streams.runtime', 'asyncio'}} & set(sys.modules)))"
    )
    for module, loaded in (("streams.testing", []), ("streams.testing.plugin, pytest", ["pytest"])):
        done = subprocess.run(
            [sys.executable, "-c", program.format(module)], cwd=ROOT, capture_output=True, text=True, check=False
        )
        found = [name for name in done.stdout.split() if name != "asyncio"]
        assert (done.returncode, found) == (0, loaded), done.stderr
