"""The hook that fails a run of CI which has not met a real broker and a real PostgreSQL."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"
PYPROJECT = """
[tool.pytest.ini_options]
testpaths = ["tests"]
markers = ["kafka: a broker", "postgres: a database"]
"""
PLAIN = "def test_plain(): pass\n"
KAFKA = "import pytest\n@pytest.mark.kafka\ndef test_kafka(): pass\n"
POSTGRES = "import pytest\n@pytest.mark.postgres\ndef test_postgres(): pass\n"
REAL = KAFKA + POSTGRES
SKIPPED = "import pytest\n@pytest.mark.kafka\ndef test_real(): raise pytest.skip.Exception('no broker')\n"
FAILING = "import pytest\n@pytest.mark.kafka\ndef test_real(): raise ValueError\n"


def run(folder: Path, tests: str, *arguments: str, ci: bool = True) -> tuple[int, str]:
    (folder / "tests").mkdir()
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "tests" / "conftest.py").write_text(
        CONFTEST.read_text().replace('["tests.broker", "tests.postgres"]', "[]")
    )
    (folder / "tests" / "test_some.py").write_text(tests)
    environment = {name: value for name, value in os.environ.items() if name != "STREAMS_SKIPS_FAIL"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env=environment | ({"STREAMS_SKIPS_FAIL": "1"} if ci else {}),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("tests", "missing"),
    [(PLAIN, {"broker", "PostgreSQL"}), (PLAIN + KAFKA, {"PostgreSQL"}), (PLAIN + POSTGRES, {"broker"})],
)
def test_a_whole_run_without_any_real_service_fails(tests: str, missing: set[str], tmp_path: Path) -> None:
    code, told = run(tmp_path, tests)
    assert code == 1
    found = {service for service in ("broker", "PostgreSQL") if f"no test on a real {service} has passed" in told}
    assert found == missing


def test_a_whole_run_with_both_passes(tmp_path: Path) -> None:
    assert run(tmp_path, PLAIN + REAL)[0] == 0


@pytest.mark.parametrize("tests", [SKIPPED, FAILING])
def test_one_that_was_skipped_or_failed_does_not_count(tests: str, tmp_path: Path) -> None:
    code, told = run(tmp_path, PLAIN + tests)
    assert code == 1
    assert "no test on a real broker has passed" in told


@pytest.mark.parametrize("arguments", [["tests/test_some.py"], ["-k", "plain"], ["-m", "not kafka"]])
def test_who_chooses_tests_gets_those(arguments: list[str], tmp_path: Path) -> None:
    assert run(tmp_path, PLAIN + REAL, *arguments)[0] == 0


def test_a_developer_without_network_may_skip(tmp_path: Path) -> None:
    assert run(tmp_path, PLAIN + SKIPPED, ci=False)[0] == 0
    (tmp_path / "again").mkdir()
    code, told = run(tmp_path / "again", PLAIN + SKIPPED)
    assert code == 1
    assert "not run for want of a service" in told
