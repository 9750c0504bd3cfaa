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
    processes: int = 1


STEPS = (
    Step("floor", ("floor",), "", 2_000, 100),
    Step("saturated-16", ("saturated",), "sqlite", 2_000, 100, 16),
    Step("saturated-200", ("saturated",), "sqlite", 4_000, 200, 200),
    Step("saturated-2000", ("saturated",), "sqlite", 10_000, 500, 2_000),
    Step("alone", ("alone",), "sqlite", 300, 20),
    Step("approval", ("approval",), "sqlite", 200, 10),
    Step("fan-out", ("fan-out",), "sqlite", 50, 2),
    Step("loop", ("loop",), "sqlite", 1_000, 20),
    Step("mixed", ("mixed",), "sqlite", 6_000, 200, 200),
    Step("postgres-floor", ("postgres-floor",), "", 2_000, 100),
    Step("kafka-floor", ("kafka-floor",), "kafka", 10_000, 200),
    Step("kafka-16", ("fed",), "kafka", 2_000, 100, 16),
    Step("kafka-200", ("fed",), "kafka", 8_000, 200, 200),
    Step("kafka-2000", ("fed",), "kafka", 20_000, 300, 2_000),
    Step("kafka-alone", ("alone",), "kafka", 300, 10),
    Step("kafka-pipelined", ("alone-pure",), "kafka", 300, 10),
    Step("kafka-approval", ("approval",), "kafka", 200, 5),
    Step("kafka-fan-out", ("fan-out",), "kafka", 50, 2),
    Step("kafka-loop", ("loop",), "kafka", 1_000, 10),
    Step("kafka-mixed", ("mixed",), "kafka", 6_000, 200, 200),
    *(
        Step(f"peer-{p.name}", ("peer",), p.name, p.runs, max(20, p.runs // 20), p.in_flight, seconds_max=SECONDS_MAX)
        for p in PEERS
    ),
    Step("sim", ("simulated",), "", 1_000, 40, once=True),
    Step("kafka-scale-1", ("scaled",), "kafka", 20_000, 200, 2_000, once=True, processes=1),
    Step("kafka-scale-2", ("scaled",), "kafka", 20_000, 200, 2_000, once=True, processes=2),
    Step("kafka-scale-4", ("scaled",), "kafka", 20_000, 200, 2_000, once=True, processes=4),
    Step("kafka-restore", ("restore-checkpoints",), "kafka", 100_000, 1_000, once=True),
    Step("kafka-restart", ("restart",), "kafka", 100_000, 1_000, once=True),
    Step("kafka-takeover", ("take-over",), "kafka", 600, 20, once=True),
    Step("verify-sqlite", ("fill", "verify"), "sqlite", 10_000, 100, 1_000, once=True),
    Step("verify-kafka", ("fill", "verify"), "kafka", 10_000, 100, 1_000, once=True),
    Step("rebuild-sqlite", ("fill", "rebuild"), "sqlite", 10_000, 100, 1_000, once=True),
    Step("rebuild-kafka", ("fill", "rebuild"), "kafka", 10_000, 100, 1_000, once=True),
    Step("effects-rows-sqlite", ("effects-rows",), "sqlite", 20_000, 200, once=True),
    Step("effects-rows-kafka", ("effects-rows-postgres",), "kafka", 20_000, 200, once=True),
    Step("effects-many-sqlite", ("effects-many",), "sqlite", 20_000, 200, once=True),
    Step("effects-many-kafka", ("effects-many-postgres",), "kafka", 20_000, 200, once=True),
    Step("effects-calls-sqlite", ("effects-calls",), "sqlite", 10_000, 100, 1_000, once=True),
    Step("effects-calls-kafka", ("effects-calls-postgres",), "kafka", 10_000, 100, 1_000, once=True),
    Step("waiting", ("waiting", "restore"), "sqlite", 100_000, 1_000, once=True, seconds_max=600.0),
)

NAMES = tuple(
    "floor saturated alone approval fan-out loop mixed verify rebuild effects waiting sim kafka postgres peer".split()  # noqa: SIM905
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
