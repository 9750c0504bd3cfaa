"""How a worker behaves; every limit of the runtime stands here, with its unit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from streams.runtime.policies import CHECKPOINT_AGE_SECONDS
from streams.wire.topics import PARTITIONS_DEFAULT

__all__ = ["WorkerSettings"]


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Defaults are meant for production; tests shorten the times."""

    address: str = ""
    """Where people find this worker, as its leases tell it; empty stands for the name of its host."""
    partitions: int = PARTITIONS_DEFAULT
    """Partition count of topics that the worker creates."""
    loop_slots: int = 2_000
    """Async tasks that run at once."""
    thread_slots: int = 256
    """Plain-function tasks that run at once, each in a thread."""
    stop_seconds: float = 10.0
    """How long a graceful stop waits for running tasks; what still runs then is handed back."""
    drain_seconds: float = 5.0
    """The budget of giving partitions up in a rebalance, shared by all its steps."""
    turn_inputs_max: int = 2_000
    """Inputs of one turn, and so of one transaction."""
    turn_bytes_max: int = 16_000_000
    """Encoded bytes after which a turn takes no further input."""
    poll_seconds: float = 0.2
    """How long a poll waits for records; a worker that stops waits for it."""
    inbox_max: int = 10_000
    """Inputs waiting for a turn, beyond which no commands are polled."""
    inbox_bytes_max: int = 64_000_000
    """Bytes of commands waiting for a turn, beyond which none are polled."""
    queued_max: int = 10_000
    """Tasks waiting for a slot, beyond which commands come slowly: what is begun is finished first."""
    backlog_inputs: int = 100
    """Commands of one poll then."""
    backlog_seconds: float = 0.2
    """The pause before such a poll. Commands never stop: what a waiting task needs may be among them."""
    live_runs_max: int = 4_000
    """Coroutines kept in memory as a cache; about 8 KB each."""
    hot_runs_max: int = 50_000
    """Runs in memory, where a local store holds the others; some 3 to 10 KB each, with small states."""
    hot_bytes_max: int = 200_000_000
    """Encoded bytes of the runs in memory, where a local store holds the others."""
    checkpoint_bytes_min: int = 4_096
    """Events since the last checkpoint, in bytes, below which no new one is written."""
    sweep_seconds: float = 900.0
    """How often old events without a checkpoint get one."""
    checkpoint_age_seconds: float = CHECKPOINT_AGE_SECONDS
    """The age that no event without a checkpoint outlives."""
    sweep_records_max: int = 1_000
    """Checkpoints and expired runs of one turn of a sweep; the next turns go on with the rest."""
    early_input_seconds: float = 86_400.0
    """How long input waits for a run that is not started."""
    result_kept_seconds: float = 7 * 86_400.0
    """How long a run keeps its result after its end; then a stub is left of it. `math.inf`: for good."""
    stub_kept_seconds: float = 30 * 86_400.0
    """How long the stub knows the id and the recent commands; as long as commands are kept, where that is more."""
    drive_seconds: float = 5.0
    """How long workflow code may run without waiting for anything, before it is stopped and its run blocked."""
    clock_warn_seconds: float = 5.0
    """How far the clock may be from the log's append times before the worker says so."""
    clock_refuse_seconds: float = 60.0
    """How far it may be before partitions are refused."""
    retry_refused_seconds: float = 30.0
    """When a refused partition is tried again."""

    def stub_seconds(self, commands: Mapping[str, str]) -> float:
        """How long a stub stays, given how the topic of the commands is set up.

        No command that it still holds may meet a name that has been forgotten.
        """
        retention_ms = int(commands.get("retention.ms", 0))
        return math.inf if retention_ms < 0 else max(self.stub_kept_seconds, retention_ms / 1_000)
