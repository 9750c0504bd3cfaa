"""Each mistake of the list in docs/planted-faults.md is found: by the simulator, or by a test that was there before.

A fault with seeds is planted in this process, and one of its seeds must violate an invariant that the same seed keeps
without the fault. A fault with a test is planted in a process of its own, where that test must fail; that it passes
without the fault is what the rest of the suite shows.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from streams.kernel.retry import judge
from streams.testing.sim.options import Options
from streams.testing.sim.run import simulate
from tests.sim.planted.faults import FAULTS
from tests.sim.planted.find import DOCUMENT, MARK, load, options_for, table, violations
from tests.sim.planted.in_commits import KAFKAS_FENCE
from tests.sim.planted.planting import Edit, Fault, Stale, plant, planted

ROOT = Path(__file__).resolve().parents[2]
KNOWN = load()
SECONDS_MAX = 240
SEEDS_MAX = 300
HANG_SECONDS = 20
"""A fault often shows as something that never comes."""
FIND = "python -m tests.sim.planted.find"


@cache
def without_fault(seed: int, options: Options) -> tuple[str, ...]:
    return simulate(seed, options).violations


def by_the_simulator(fault: Fault) -> Callable[[], None]:
    def test() -> None:
        known = KNOWN[fault.name]
        # Another Python or a change of the engine makes other histories of the same seeds, so more are tried.
        seeds = (*known.seeds, *range(1, SEEDS_MAX + 1))
        found = next((seed for seed in seeds if violations(fault, seed)), None)
        assert found is not None, f"neither the seeds {known.seeds} nor 1 to {SEEDS_MAX} find it: {FIND} {fault.name}"
        assert without_fault(found, options_for(fault)) == (), "the seed shows nothing about the fault"

    return pytest.mark.timeout(SECONDS_MAX)(test)


def by_a_test(fault: Fault) -> Callable[[], None]:
    def test() -> None:
        command = [sys.executable, "-m", "pytest", "-p", "tests.sim.planted.plugin", "-p", "no:cacheprovider"]
        result = subprocess.run(
            [*command, "-q", "-x", "--timeout=120", fault.test],
            cwd=ROOT,
            env={
                **os.environ,
                "STREAMS_PLANTED": fault.name,
                "STREAMS_HANG_SECONDS": str(HANG_SECONDS),
                "PYTHONPATH": str(ROOT),
            },
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX - 10,
            check=False,
        )
        assert result.returncode == pytest.ExitCode.TESTS_FAILED, result.stdout[-3_000:] + result.stderr[-1_000:]
        assert "1 failed" in result.stdout

    marks = [pytest.mark.timeout(SECONDS_MAX), pytest.mark.slow, *([pytest.mark.kafka] if fault.kafka else [])]
    made: Any = test
    for mark in marks:
        made = mark(made)
    return made


for _fault in FAULTS.values():
    globals()[f"test_planted_{_fault.name}"] = by_a_test(_fault) if _fault.test else by_the_simulator(_fault)


# -- the list ----------------------------------------------------------------------------------------------------


def test_every_fault_is_found_and_most_of_them_by_the_simulator():
    simulated = [fault.name for fault in FAULTS.values() if not fault.test]
    assert [name for name in simulated if name not in KNOWN] == []
    assert len(FAULTS) >= 25
    assert len(simulated) >= 18


def test_the_list_in_the_docs_is_this_list():
    _, _, found = DOCUMENT.read_text("utf-8").partition(MARK)
    assert found.strip() == table(KNOWN).strip(), f"write it anew: {FIND}"


def test_a_fence_that_knows_no_owners_is_enough():
    """No fault: the engine must not lean on what the memory log checks beyond a broker."""
    fence = Fault("kafkas_fence", "Only member and generation are compared, as on Kafka", (KAFKAS_FENCE,))
    assert [(seed, found) for seed in range(1, 21) if (found := violations(fence, seed))] == []


# -- planting ----------------------------------------------------------------------------------------------------


def test_a_planted_fault_is_there_and_goes_away():
    before = judge.__code__
    with planted(FAULTS["unknown_outcome_repeated"]):
        assert judge.__code__ is not before
    assert judge.__code__ is before


@pytest.mark.parametrize(
    "edit",
    [
        Edit("streams.kernel.retry", "if spec is never", "pass"),
        Edit("streams.kernel.retry", "return", "return  # as often as it stands there"),
        Edit("streams.kernel.retry", "_SECOND_US = 1_000_000", "_SECOND_US = 2_000_000"),
        Edit("streams.kernel.retry", "def judge(", "def judge_otherwise("),
    ],
    ids=["not there", "several times", "outside of functions", "a function that is not there"],
)
def test_a_fault_that_does_not_fit_the_code_is_refused(edit: Edit):
    with pytest.raises(Stale):
        plant(Fault("stale", "It fits nothing", (edit,)))


def test_what_was_planted_before_a_refusal_is_taken_out_again():
    before = judge.__code__
    good = FAULTS["unknown_outcome_repeated"].edits[0]
    with pytest.raises(Stale):
        plant(Fault("stale", "Half of it fits", (good, Edit("streams.kernel.draft", "not there", ""))))
    assert judge.__code__ is before
