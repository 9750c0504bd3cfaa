"""What is measured: an engine on a store. A new one implements `Target` and gets a line in TARGETS."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from bench.broker import broker_url
from bench.jobs import Job
from bench.streams_target import StreamsTarget

__all__ = ["TARGETS", "Target", "url_of"]


class Target(Protocol):
    """One engine, in this process as far as it is a library. What it stores lies in `folder` or is its own affair."""

    name: str
    jobs: frozenset[Job]

    async def start(self, folder: Path) -> None:
        """Be ready for runs, with those that an earlier process left in `folder`."""

    async def stop(self) -> None:
        """Free everything."""

    async def submit(self, job: Job, run_id: str, size: int = 0) -> None:
        """Start a run; return when its start is durable. `size` is the number of turns of a loop."""

    async def submit_many(self, job: Job, run_ids: Iterable[str]) -> None:
        """Start many, in the way that is best for many."""

    async def answer(self, run_id: str) -> None:
        """Say yes to the question of a run."""

    async def answer_each(self, run_id: str, questions: int) -> None:
        """Say yes to so many questions of a run, one after another, each as soon as it is asked."""

    async def result(self, run_id: str) -> Any:
        """Wait for the end of a run that this process has started, and return its result."""

    async def settled(self, count: int) -> None:
        """Return once `count` runs wait for an answer."""

    def facts(self) -> Mapping[str, float]:
        """Whatever else is worth knowing since the start, as metrics."""


_URLS: Mapping[str, Callable[[Path], str]] = {
    "kafka": lambda _: broker_url(),
    "sqlite": lambda folder: f"sqlite:///{folder}/log.db",
}
TARGETS: Mapping[str, Callable[[], Target]] = {
    "kafka": lambda: StreamsTarget("kafka", _URLS["kafka"]),
    "sqlite": lambda: StreamsTarget("sqlite", _URLS["sqlite"]),
}


def url_of(target: str, folder: Path) -> str:
    """The address of the log of a measurement."""
    return _URLS[target](folder)
