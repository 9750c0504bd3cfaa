"""What is measured, how often, and in which order: interleaved, because a shared machine drifts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bench.peer import PEERS, SECONDS_MAX, peer_named, venv

__all__ = ["NAMES", "STEPS", "Step", "needs_broker", "needs_postgres", "rounds"]


class Step(NamedTuple):
    """Measurements that share one folder, each in a process of its own."""

    name: str
    courses: tuple[str, ...]
    target: str
    runs: int
    quick_runs: int
    in_flight: int = 1
    once: bool = False
    seconds_max: float = 180.0


STEPS = (
    Step("floor", ("floor",), "", 2_000, 200),
    Step("saturated-16", ("saturated",), "sqlite", 2_000, 300, 16),
    Step("saturated-200", ("saturated",), "sqlite", 5_000, 800, 200),
    Step("saturated-1000", ("saturated",), "sqlite", 10_000, 2_000, 1_000),
    Step("alone", ("alone",), "sqlite", 300, 30),
    Step("approval", ("approval",), "sqlite", 200, 20),
    Step("fan-out", ("fan-out",), "sqlite", 50, 5),
    Step("loop", ("loop",), "sqlite", 1_000, 100),
    Step("sim", ("simulated",), "", 1_000, 100),
    Step("postgres-floor", ("postgres-floor",), "", 2_000, 200),
    Step("kafka-floor", ("kafka-floor",), "kafka", 10_000, 500),
    Step("kafka-200", ("fed",), "kafka", 10_000, 300, 200),
    Step("kafka-2000", ("fed",), "kafka", 20_000, 500, 2_000),
    Step("kafka-alone", ("alone",), "kafka", 300, 10),
    Step("kafka-restore", ("restore-checkpoints",), "kafka", 100_000, 2_000),
    Step("kafka-takeover", ("take-over",), "kafka", 600, 20),
    Step("verify-sqlite", ("fill", "verify"), "sqlite", 10_000, 300, 1_000),
    Step("verify-kafka", ("fill", "verify"), "kafka", 10_000, 100, 1_000),
    Step("rebuild-sqlite", ("fill", "rebuild"), "sqlite", 10_000, 300, 1_000),
    Step("rebuild-kafka", ("fill", "rebuild"), "kafka", 10_000, 100, 1_000),
    Step("effects-rows-sqlite", ("effects-rows",), "sqlite", 40_000, 500),
    Step("effects-rows-kafka", ("effects-rows-postgres",), "kafka", 40_000, 500),
    Step("effects-many-sqlite", ("effects-many",), "sqlite", 40_000, 500),
    Step("effects-many-kafka", ("effects-many-postgres",), "kafka", 40_000, 500),
    Step("effects-calls-sqlite", ("effects-calls",), "sqlite", 20_000, 300, 1_000),
    Step("effects-calls-kafka", ("effects-calls-postgres",), "kafka", 20_000, 300, 1_000),
    *(
        Step(f"peer-{p.name}", ("peer",), p.name, p.runs, max(20, p.runs // 20), p.in_flight, seconds_max=SECONDS_MAX)
        for p in PEERS
    ),
    Step("waiting", ("waiting", "restore"), "sqlite", 100_000, 5_000, once=True, seconds_max=600.0),
)

NAMES = tuple(
    "floor saturated alone approval fan-out loop verify rebuild effects waiting sim kafka postgres peer".split()  # noqa: SIM905
)
"""What can be asked for: the name of a step, or what stands before its number."""


def rounds(names: Sequence[str], *, quick: bool, runs: int | None, repeat: int) -> Iterator[tuple[int, Step]]:
    """The steps in order, each with its size; those that take long only once, at the end."""
    chosen = _chosen(names)
    sized = [step._replace(runs=runs or (step.quick_runs if quick else step.runs)) for step in chosen]
    for number in range(repeat):
        yield from ((number, step) for step in sized if not step.once)
    yield from ((0, step) for step in sized if step.once)


def needs_broker(names: Sequence[str]) -> bool:
    """Whether one of the steps asked for runs on Kafka."""
    return any(step.target == "kafka" for step in _chosen(names))


def needs_postgres(names: Sequence[str]) -> bool:
    """Whether one of the steps asked for has its ledger in PostgreSQL."""
    return any("postgres" in word for step in _chosen(names) for word in (step.target, *step.courses))


def _chosen(names: Sequence[str]) -> list[Step]:
    chosen = [step for step in STEPS if not names or step.name in names or step.name.partition("-")[0] in names]
    return [step for step in chosen if "peer" not in step.courses or peer_named(step.target).installed(venv())]
