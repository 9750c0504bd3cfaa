"""mypy --strict and pyright accept typed user code and find exactly the planted errors: the lines marked `# E: why`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CASES = sorted((ROOT / "tests" / "typing").glob("*.py"))

Found = dict[int, str]


def run(*command: str) -> str:
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr  # 1: ran, and found something, as each case plants errors
    assert done.stdout, done.stderr
    return done.stdout


def mypy(case: Path) -> Found:
    out = run("mypy", "--strict", "--hide-error-context", "--no-error-summary", "--no-pretty", str(case))
    name = re.escape(str(case.relative_to(ROOT)))
    return {int(line): text for line, text in re.findall(rf"^{name}:(\d+): error: (.*)$", out, re.MULTILINE)}


def pyright(case: Path) -> Found:
    out = json.loads(run("pyright", "--outputjson", "--pythonpath", sys.executable, str(case)))
    assert out["summary"]["filesAnalyzed"] >= 1, out
    return {
        report["range"]["start"]["line"] + 1: report["message"]
        for report in out["generalDiagnostics"]
        if report["severity"] == "error"
    }


def planted(case: Path) -> set[int]:
    lines = case.read_text("utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if re.search(r"  # E: ", line)}


@pytest.mark.slow
@pytest.mark.parametrize("checker", [mypy, pyright])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_finds_exactly_the_planted_errors(case: Path, checker: Callable[[Path], Found]) -> None:
    found, marked = checker(case), planted(case)
    unexpected = [f"{case.name}:{line}: {found[line]}" for line in sorted(set(found) - marked)]
    missed = [f"{case.name}:{line}: not found" for line in sorted(marked - set(found))]
    assert not unexpected + missed, "\n".join(unexpected + missed)
