"""The simulator: thousands of seeds hold every invariant, one seed is one history, and a failing one is told."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from streams.runtime.turn import Turn
from streams.testing.sim import world
from streams.testing.sim.__main__ import main
from streams.testing.sim.faults import (
    CONSEQUENCES,
    EVICTED,
    KINDS,
    OF_SUBSCRIBERS,
    Fault,
    Faults,
    draw_faults,
    faults_of,
)
from streams.testing.sim.invariants import check
from streams.testing.sim.many import run_seeds
from streams.testing.sim.minimise import minimise, reduced, tell
from streams.testing.sim.run import simulate
from streams.testing.sim.world import Options

SEEDS = int(os.environ.get("STREAMS_SIM_SEEDS", "1600"))
ROOT = Path(__file__).resolve().parents[2]
SMALL = Options(workers=2, partitions=2, runs=6, seconds=3.0)


def corpus() -> list[tuple[int, Options, str]]:
    """Seed, the sizes that differ from the usual ones, and the reason."""
    found = []
    for line in Path(__file__).with_name("corpus.txt").read_text("utf-8").splitlines():
        seed, *words = line.split()
        if seed == "#":
            continue
        sizes = dict(word.split("=") for word in words if "=" in word)
        numbers = {name: float(value) if name == "seconds" else int(value) for name, value in sizes.items()}
        found.append((int(seed), Options(**numbers), " ".join(words[len(sizes) :])))
    return found


def told(failed, options: Options | None = None) -> str:
    return "\n".join(tell(minimise(failed, options or Options(), check), check))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_seeds_hold_every_invariant_and_every_kind_of_fault_has_hit_something():
    summary = run_seeds(range(1, SEEDS + 1))
    assert not summary.failed, f"{len(summary.failed)} seeds failed; the first one:\n{told(summary.failed[0])}"
    assert summary.runs == 20 * SEEDS
    if SEEDS >= 300:
        assert summary.unstruck == [], "nothing is proven of faults that hit nothing"


@pytest.mark.parametrize(("seed", "options", "why"), corpus(), ids=[f"{seed}: {why[:70]}" for seed, _, why in corpus()])
def test_a_seed_that_has_once_shown_something(seed: int, options: Options, why: str):
    result = simulate(seed, options)
    assert not result.violations, told(result, options)


def test_the_corpus_meets_every_kind_of_fault():
    hits = sum((simulate(seed, options).hits for seed, options, _ in corpus()), Counter())
    assert [kind for kind in (*KINDS, *CONSEQUENCES, *OF_SUBSCRIBERS) if not hits[kind]] == []


def test_one_seed_is_one_history():
    first, second = simulate(11), simulate(11)
    assert first.digest == second.digest
    assert first.struck == second.struck
    assert first.hits == second.hits
    assert first.digest != simulate(12).digest


def test_one_seed_is_one_history_in_any_process():
    program = "from streams.testing.sim.run import simulate\nfor s in (21, 22, 23): print(simulate(s).digest)"
    here = [simulate(seed).digest for seed in (21, 22, 23)]
    for hash_seed in ("0", "4711"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split() == here
        assert done.stderr == ""


def test_one_seed_is_one_history_wherever_the_code_lies(tmp_path):
    """A traceback among the events would name the folder, and its length would move checkpoints."""
    for name in ("streams", "schemas"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    program = "from streams.testing.sim.run import simulate\nfor s in (1, 2, 3): print(simulate(s).digest)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [simulate(seed).digest for seed in (1, 2, 3)]


def test_a_history_without_faults():
    result = simulate(31, only=())
    assert result.struck == ()
    assert result.violations == ()


def test_faults_keep_their_numbers_whichever_are_let_through():
    numbers = [fault.number for fault in simulate(32).struck]
    assert len(numbers) >= 3
    some = numbers[1:]
    assert {fault.number for fault in simulate(32, only=some).struck} <= set(some)


def test_what_is_drawn_covers_every_kind():
    import random

    drawn = [draw_faults(random.Random(seed), workers=3, seconds=5.0) for seed in range(300)]
    assert {fault.kind for faults in drawn for fault in faults} == set(KINDS)
    assert all(fault.at <= 5.0 and fault.slot < 3 for faults in drawn for fault in faults)


def test_a_fault_lies_in_wait_for_its_occasion():
    fault = Fault(1, "freeze in a commit", 0.0, 0, 2, 1.0, "written")
    faults = Faults([fault])
    faults.arm(fault)
    assert faults.due(1, "freeze in a commit", detail="written") is None, "it is for another worker"
    assert faults.due(0, "freeze in a commit", detail="begun") is None, "it is for another stage"
    assert faults.due(0, "freeze in a commit", detail="written") is None, "it is for the second occasion"
    assert faults.due(0, "freeze in a commit", detail="written") == fault
    assert faults.due(0, "freeze in a commit", detail="written") is None, "it strikes once"


def test_only_coroutines_that_the_bound_drives_out_count_as_evicted(monkeypatch):
    """Runs that were just restored, or whose turn was aborted, have no coroutine either."""
    seed = next(seed for seed in range(1, 20) if simulate(seed).hits[EVICTED])
    settings_of = world.settings_of
    monkeypatch.setattr(world, "settings_of", lambda *args: replace(settings_of(*args), live_runs_max=4_000))
    assert simulate(seed).hits[EVICTED] == 0


def test_reducing_finds_the_few_that_matter():
    tried = []

    def fails(some) -> bool:
        tried.append(tuple(some))
        return {3, 17} <= set(some)

    assert reduced(range(1, 20), fails, 200) == (3, 17)
    assert len(tried) < 60
    assert reduced(range(9), lambda some: True, 200) == ()


def broken(monkeypatch) -> None:
    """Effects are sometimes forgotten where a turn is done again: a mistake for the tests below."""
    take = Turn.take

    def forgetful(self, items, *, stopped=None):
        taken = take(self, items, stopped=stopped)
        if self.engine.owner.endswith(".2"):
            self.records[:] = [record for record in self.records if ".effects." not in record.topic]
            self.owners[:] = self.owners[: len(self.records)]
        return taken

    monkeypatch.setattr(Turn, "take", forgetful)


def test_a_mistake_is_found_and_its_story_is_short(monkeypatch):
    broken(monkeypatch)
    failed = next(result for result in (simulate(seed, SMALL) for seed in range(1, 60)) if result.violations)
    minimal = minimise(failed, SMALL, check)
    assert minimal.result.violations
    assert len(minimal.faults) <= 2, "one worker has to be replaced, and nothing else has to happen"
    assert len(minimal.options.only_runs) <= 2
    story = "\n".join(tell(minimal, check))
    assert "starts" in story
    assert "violated" in story
    assert "!!" in story, "the fault stands out"
    again = re.search(r"again: python -m streams.testing.sim (.*)", story)[1].split()
    monkeypatch.undo()
    assert main(again) == 0
    broken(monkeypatch)
    assert main(again) == 1


def test_the_command_line_tells_of_failed_seeds(monkeypatch, capsys):
    broken(monkeypatch)
    small = ["--workers", "2", "--partitions", "2", "--runs", "4", "--seconds", "3", "--jobs", "1"]
    assert main(["--seeds", "1-12", *small]) == 1
    out = capsys.readouterr().out
    assert "the story of seed" in out
    assert re.search(r"[1-9]\d* of 12 seeds failed", out)
    assert "python -m streams.testing.sim --seed" in out


def test_the_command_line_tells_a_story_and_a_summary(capsys):
    assert main(["--seed", "3", "--story", "--runs", "3", "--only-faults", "none"]) == 0
    out = capsys.readouterr().out
    assert "w1.1    starts" in out
    assert "run.started" in out
    assert re.search(r"client  sends (\w+-\d+) \[\d\]@\d+: start \1/start", out), "Avro is told in words"
    assert "FAULT" not in out
    assert main(["--seeds", "2", "--runs", "3", "--jobs", "1"]) == 0
    assert "2 seeds, 6 runs" in capsys.readouterr().out


def test_many_processes_give_what_one_gives():
    seeds = range(1, 9)
    alone, shared = run_seeds(seeds, SMALL, jobs=1), run_seeds(seeds, SMALL, jobs=2)
    assert alone.hits == shared.hits
    assert (alone.seeds, alone.runs, alone.failed) == (shared.seeds, shared.runs, shared.failed)


def test_a_run_that_never_ends_is_told(monkeypatch):
    """A worker that takes no outcomes lives for ever; the liveness phase notices."""
    from streams.runtime.dispatch import Dispatcher

    monkeypatch.setattr(Dispatcher, "_report", lambda self, attempt, outcome: None)
    result = simulate(1, Options(workers=1, partitions=1, runs=3, seconds=1.0))
    assert any("have not come to their end" in violation for violation in result.violations)


@pytest.mark.parametrize(
    "wrong",
    [
        "--seed x",
        "--seeds 1-x",
        "--seed 1 --seeds 2",
        "--partitions 1",
        "--seeds 0",
        "--seeds 9-3",
        "--seeds 2 --jobs 0",
        "--seeds 2 --only-faults 3",
        "--seeds 2 --story",
        "--seed 4 --only-faults 77",
        "--seed 4 --only-faults 1,,2",
        "--seed 4 --only-runs 20",
        "--seed 4 --seconds nan",
        "--seed 4 --subscribers -1",
        "--seed 4 --seconds inf",
    ],
)
def test_wrong_usage_ends_with_2_and_proves_nothing(wrong, capsys):
    with pytest.raises(SystemExit) as ended:
        main(wrong.split())
    assert ended.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_ctrl_c_ends_with_130_and_without_a_traceback(monkeypatch, capsys):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("streams.testing.sim.__main__.run_seeds", interrupted)
    assert main(["--seeds", "2"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_fault_that_hit_nothing_and_shifts_something_stays_in_the_story():
    """The last one drawn, after all that struck: without it this check is content."""
    last = len(faults_of(5, workers=SMALL.workers, seconds=SMALL.seconds))

    async def look(world) -> list[str]:
        return ["it is there"] if last in {fault.number for fault in world.faults.all} else []

    failed = simulate(5, SMALL, check=look)
    failed = failed._replace(struck=tuple(fault for fault in failed.struck if fault.number < last))
    minimal = minimise(failed, SMALL, look)
    assert minimal.faults == (last,)
    assert any("it is there" in line for line in tell(minimal, look))


def test_simulated_workers_can_be_watched_from_inside():
    """The world that a check is given is alive, and shows what workloads and invariants build on."""
    seen = []

    async def look(world) -> list[str]:
        seen.append((len(world.workers), len(world.plans), bool(world.sent), world.calm, bool(world.outside.calls)))
        served = sorted(number for process in world.processes for number in process.owns)
        return [] if served == list(range(world.partitions)) else [f"only {served} are served"]

    result = simulate(41, check=look)
    assert result.violations == ()
    assert seen == [(3, 20, True, True, True)]


def test_the_document_tells_of_every_fault():
    text = (ROOT / "docs" / "simulator.md").read_text("utf-8")
    table = re.findall(r"^\| ([a-z][^|]*?) \|", text.split("## Faults")[1].split("## What must hold")[0], re.MULTILINE)
    assert table[1:] == [*KINDS, *OF_SUBSCRIBERS], "the table has the faults in the order of the code"
