"""What is explored: the scenarios in which the model must hold, and the steps that are taken out of it."""

from __future__ import annotations

from typing import NamedTuple

from tests.model.explore import System
from tests.model.protocol import system
from tests.model.rules import Rules
from tests.model.state import State, budget


class Scenario(NamedTuple):
    """Bounds: so many workers, partitions, commands (each with its run) and faults of each kind."""

    faults: dict[str, int]
    runs: tuple[int, ...] = (0, 0)
    workers: int = 2
    partitions: int = 1
    owned: bool = True
    """Begin with a first worker that runs all partitions; else with none that has acquired any."""
    checkpoints: bool = False
    overlap: bool = False
    records_first: bool = False

    def system(self, without: tuple[str, ...] = ()) -> System[State]:
        rules = Rules(
            runs=self.runs,
            checkpoints=self.checkpoints,
            overlap=self.overlap,
            records_first=self.records_first,
        )
        return system(
            rules.without(without),
            workers=self.workers,
            partitions=self.partitions,
            left=budget(**self.faults),
            owned=self.owned,
        )


SCENARIOS = {
    "first": Scenario({"crash": 2}, owned=False),
    "expelled": Scenario({"expel": 1}),
    "moved": Scenario({"move": 1}),
    "moved-twice": Scenario({"move": 2}, runs=(0,), records_first=True),
    "expelled-twice": Scenario({"expel": 2}, runs=(0,), records_first=True),
    "doubt": Scenario({"doubt": 1, "timeout": 1}),
    "doubt-and-expelled": Scenario({"doubt": 1, "expel": 1}, records_first=True),
    "doubt-and-crash": Scenario({"doubt": 1, "crash": 1}),
    "settled": Scenario({"expel": 1, "settle": 1}, runs=(0,)),
    "offsets-set": Scenario({"reset": 1, "crash": 1}),
    "leases-lost": Scenario({"lose_leases": 1, "crash": 1}),
    "swept": Scenario({"sweep": 2, "abort": 1}, runs=(0,), checkpoints=True, records_first=True),
    "swept-and-crash": Scenario({"sweep": 1, "abort": 1, "crash": 1}, runs=(0,), checkpoints=True, records_first=True),
    "overlap": Scenario({"abort": 1, "expel": 1}, runs=(0, 1), overlap=True),
    "overlap-of-three": Scenario({"abort": 1, "doubt": 1}, runs=(0, 0, 1), overlap=True),
    "two-partitions": Scenario({"expel": 1}, runs=(0,), partitions=2),
}
DEEP = {
    "three-workers": Scenario({"expel": 1}, workers=3, records_first=True),
    "expelled-and-moved": Scenario({"expel": 1, "move": 1}, records_first=True),
    "doubt-expelled-timeout": Scenario({"doubt": 1, "expel": 1, "timeout": 1}, runs=(0,), records_first=True),
    "two-partitions-moved": Scenario({"move": 1}, runs=(0,), partitions=2),
}


class Step(NamedTuple):
    """A rule of the protocol, what is seen without it, and in which scenario."""

    place: str
    """Where it stands: the section of the design and the number of the step."""
    scenario: str
    complaint: str = ""
    """How the complaint begins; empty where another rule does the same work."""
    also: tuple[str, ...] = ()
    """What has to be taken out with it, because it covers for it."""


STEPS = {
    # acquire
    "stable-fetch": Step("5.1", "expelled", "I1"),
    "ends-after-stable": Step("5.1, 5.2", "expelled", "I1"),
    "true-ends": Step("5.2", "expelled", "I1"),
    "barrier": Step("5.3", "expelled", "I1", ("position",)),
    "position": Step("5.6", "expelled", "I1", ("barrier",)),
    "claim": Step("5.5", "expelled", "I5"),
    "claim-alone": Step("5.5", "expelled"),
    "epoch-check": Step("5.6", "leases-lost", "I5"),
    "applied-from-events": Step("5.6, 6", "expelled", "I1"),
    "start-applied": Step("6", "offsets-set", "I"),
    "forward-reset": Step("6", "offsets-set", "I2"),
    # turn and commit
    "snapshot-of-poll": Step("4.1", "expelled", "I1"),
    "joined-metadata": Step("4.3", "expelled", "I1"),
    "generation": Step("4.3", "expelled", "I1"),
    "offsets": Step("4.3", "expelled", "I1"),
    "offsets-of-each": Step("4.3", "two-partitions", "I1"),
    "effects-inside": Step("4.3", "expelled", "I7"),
    "adopt-after-commit": Step("4.4", "overlap", "I2"),
    "tail-after-commit": Step("4, tail", "swept", "I6"),
    "second-falls": Step("0010", "overlap", "I2"),
    "one-run": Step("0010", "overlap-of-three", "I3"),
    "prefix": Step("0010", "overlap-of-three", "I2"),
    # trouble
    "abort-drops": Step("4, abortable", "overlap", "I2"),
    "fence-forgets": Step("4, fenced", "doubt", "I5"),
    "doubt-is-no-failure": Step("4, in doubt", "doubt-and-expelled", "I1"),
    "doubt-is-no-success": Step("4, in doubt", "doubt", "I2"),
    "fresh-producer": Step("4, in doubt", "doubt-and-expelled", "I"),
    "same-id": Step("4, in doubt", "doubt"),
    # release
    "forget-when-revoked": Step("5, revoked", "moved-twice", "I4"),
    "forget-when-lost": Step("5, lost", "expelled-twice", "I1"),
}
