"""Three workers, a broker, thousands of runs, and faults at random; then the topics alone prove that all is right.

`STREAMS_CHAOS_SECONDS` is how long faults go on (by default so long that the whole test takes about two minutes);
`STREAMS_CHAOS_SEED` repeats a choice of runs and faults. Their timing is the machine's, so a seed makes a failure
likely again and not certain.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from streams.dev import Kafka
from streams.log.kafka import open_kafka
from streams.ops.verify import Report, verify
from streams.wire.topics import topics_of
from tests.chaos.checker import Found, check
from tests.chaos.dump import read_topics, write_dump
from tests.chaos.faults import FAULTS, TARGETS, Crew
from tests.chaos.load import Load
from tests.chaos.model import KINDS
from tests.chaos.outside import payments, read_calls
from tests.chaos.outside_checker import check_outside

WORKERS = 3
PARTITIONS = 12
RUNS = 2_000
"""A slow machine starts runs for longer, so that it has as many."""
SECONDS = float(os.environ.get("STREAMS_CHAOS_SECONDS") or 50)
STUCK_SECONDS = 240.0
"""A guard against hangs: so long without one new event, while something is still to come."""
SETTINGS = {
    "partitions": PARTITIONS,
    # Small and often, so that checkpoints, tails and rebuilt coroutines are on every path of a take-over.
    "checkpoint_bytes_min": 1_500,
    "sweep_seconds": 4.0,
    "checkpoint_age_seconds": 3.0,
    "live_runs_max": 100,
    "stop_seconds": 0.3,
    "turn_bytes_max": 30_000,  # so that turns are full now and then
}
WEIGHTS = {"worker killed": 6, "worker frozen": 3, "worker stopped": 2, "broker killed": 1, "broker restarted": 1}

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(SECONDS * 3 + 1_200)]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Print through the capture: the seed is wanted of a run that passes, too."""

    def out(text: str) -> None:
        with capsys.disabled():
            print(text, flush=True)  # noqa: T201 - it is meant for the terminal

    return out


def test_chaos(own_kafka: Kafka, tmp_path: Path, say: Callable[[str], None]) -> None:
    seed = int(os.environ.get("STREAMS_CHAOS_SEED") or secrets.randbits(32))
    say(f"\nchaos: STREAMS_CHAOS_SEED={seed}, faults for {SECONDS:g} s")
    topics = topics_of("chaos", ["mails", "parcels"])
    rng = random.Random(seed)
    crew = Crew(own_kafka, tmp_path, WORKERS, SETTINGS, rng)
    load = Load(own_kafka.bootstrap, topics, PARTITIONS, seed)
    try:
        _wait_for_topics(own_kafka.bootstrap, topics.settings())
        load.begin()
        _faults(crew, load, rng)
        _calm_down(crew, load)
        crew.stop(120)
    finally:
        load.end()
        crew.end()
    began = time.monotonic()
    dump = read_topics(own_kafka.bootstrap, topics, PARTITIONS)
    found = check(dump, load.accepted, load.plans)
    wrong = [*crew.wrong, *found.wrong]
    wrong += check_outside(found, read_calls(tmp_path / "outside"), payments(tmp_path / "outside"), load.plans)
    report = asyncio.run(_verify(own_kafka))
    wrong += [f"streams verify: {found.kind} of run {found.run_id!r}: {found}" for found in report.divergences]
    wrong += _unlike(report, found)
    wrong += [f"no fault of this kind has hit: {fault} with {target}" for fault, target in crew.missing]
    say(_story(crew, load, found, time.monotonic() - began))
    say(f"chaos: streams verify took {report.seconds:.1f} s in {report.passes} passes")
    if wrong:
        write_dump(dump, tmp_path / "topics")
        pytest.fail(
            f"STREAMS_CHAOS_SEED={seed}: {len(wrong)} violations, the first of each kind:\n  "
            + "\n  ".join(_first_of_each(wrong))
            + f"\nthe topics as text: {tmp_path / 'topics'}; the broker's folder: {own_kafka.folder}; "
            f"the workers' logs: {tmp_path}/worker-*.log",
            pytrace=False,
        )
    assert {plan.kind for plan in load.plans.values()} == set(KINDS)
    assert found.epochs > PARTITIONS, "no partition has changed its owner"


async def _verify(kafka: Kafka) -> Report:
    """What users have to prove their log; in several passes, for that is the harder way."""
    log = await open_kafka(kafka.url)
    try:
        return await verify(log, "chaos", memory_bytes_max=300_000)
    finally:
        await log.close()


def _unlike(report: Report, found: Found) -> list[str]:
    """Both have looked at the same log."""
    runs = len({event.identity for *_, event in found.events if event.seq is not None})
    effects = sum(map(len, found.effects.values()))
    seen = (report.runs, report.events, report.effects)
    return (
        []
        if seen == (runs, len(found.events), effects)
        else [f"streams verify has seen other runs, events, effects: {seen}"]
    )


def _first_of_each(wrong: list[str]) -> list[str]:
    """At most three of a kind: one cause often has hundreds of consequences."""
    kinds: Counter[str] = Counter()
    chosen = []
    for line in wrong:
        kind = " ".join(word for word in line.split() if word.isalpha())[:40]
        kinds[kind] += 1
        if kinds[kind] <= 3:
            chosen.append(line)
    return chosen[:40]


def _wait_for_topics(bootstrap: str, names: Any) -> None:
    """The workers create them."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deadline = time.monotonic() + 120
    while not set(names) <= set(admin.list_topics(timeout=30).topics):
        assert time.monotonic() < deadline, "no worker has created the topics"
        time.sleep(0.1)


def _faults(crew: Crew, load: Load, rng: random.Random) -> None:
    """Faults at random for the given time; longer while a kind has not hit."""
    end = time.monotonic() + SECONDS
    hard_end = end + SECONDS + 300
    while time.monotonic() < end or (crew.missing and time.monotonic() < hard_end):
        rest = time.monotonic() + rng.uniform(0.2, 3.0)
        while time.monotonic() < rest:
            _raise_failure(load)
            crew.tend()
            time.sleep(0.05)
        able = [fault for fault in FAULTS if crew.may(fault)]
        wanted = [(fault, target) for fault, target in crew.missing if fault in able]
        if wanted and rng.random() < 0.8:
            # An open transaction first: a task is nearly always running too, so one fault can hit both.
            first = [one for one in wanted if one[1] == TARGETS[0]]
            crew.strike(*rng.choice(first if first and rng.random() < 0.8 else wanted))
        elif able:
            (fault,) = rng.choices(able, [WEIGHTS[fault] for fault in able])
            crew.strike(fault, rng.choice(TARGETS))
    crew.heal()


def _calm_down(crew: Crew, load: Load) -> None:
    """Wait until all that was begun has ended. What stands still for long is left for the checker to tell of."""
    seen, since = -1, time.monotonic()
    while not load.quiet and time.monotonic() - since < STUCK_SECONDS:
        _raise_failure(load)
        crew.tend()
        load.starting = load.starting and len(load.plans) < RUNS
        if load.events != seen:
            seen, since = load.events, time.monotonic()
        time.sleep(0.1)


def _raise_failure(load: Load) -> None:
    if load.failure is not None:
        raise load.failure


def _story(crew: Crew, load: Load, found: Found, seconds: float) -> str:
    lines = [
        f"{fault} {crew.done[fault]} times ({', '.join(f'{target} {crew.hits[fault, target]}' for target in TARGETS)})"
        for fault in FAULTS
    ]
    runs = sum(1 for run in found.runs.values() if run.workflow)
    effects = sum(map(len, found.effects.values()))
    moved = Counter(event.type for *_, event in found.events)
    lines += [
        f"faults while a commit was on its way: {crew.in_the_end}",
        f"{runs} runs, {len(found.events)} events, {effects} effects, {found.epochs} epochs",
        f"{len(load.accepted)} commands accepted, {load.unacknowledged} not, rejected: {dict(found.rejected)}",
        f"{moved['run.owned']} runs taken over; attempts: {moved['attempt.failed']} failed, "  # noqa: ISC004 - one line
        f"{moved['attempt.returned']} handed back; checked in {seconds:.0f} s",
    ]
    return "\n".join(f"chaos: {line}" for line in lines)
