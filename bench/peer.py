"""Other engines doing the same job: which of them are installed here, and how each is measured.

Their scripts lie in `bench/peers/` and run with the python of a virtual environment of their own, which `make
bench-peers` makes. What is not installed is left out of a run, with a line that says so.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from bench.broker import broker_url, fresh_database

__all__ = ["PEERS", "SECONDS_MAX", "Peer", "left_out", "measure_peer", "peer_named", "venv"]

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = Path(__file__).resolve().parent / "peers"
ENVIRONMENT = "STREAMS_BENCH_PEERS"
"""Names another virtual environment than `.venv-peers`."""
SECONDS_MAX = 600.0
_STOP_SECONDS = 30.0


class Peer(NamedTuple):
    """One engine on one store, with the setting that served it best; why that one: its script says it.

    `needs` are files of the virtual environment, as patterns: by them it is known whether the peer is installed.
    """

    name: str
    script: str
    store: str
    needs: tuple[str, ...]
    runs: int
    in_flight: int
    alone: int
    approvals: int

    def installed(self, venv: Path) -> bool:
        return (venv / "bin" / "python").exists() and all(any(venv.glob(pattern)) for pattern in self.needs)

    @property
    def on_postgres(self) -> bool:
        return self.store == "postgres"

    @property
    def on_kafka(self) -> bool:
        return self.store == "kafka"


def _packages(*names: str) -> tuple[str, ...]:
    return tuple(f"lib/python*/site-packages/{name}" for name in names)


PEERS = (
    Peer("langgraph-sqlite", "langgraph", "sqlite", _packages("langgraph/checkpoint/sqlite"), 600, 1, 200, 100),
    Peer("langgraph-postgres", "langgraph", "postgres", _packages("langgraph/checkpoint/postgres"), 600, 16, 200, 100),
    Peer("dbos-postgres", "dbos", "postgres", _packages("dbos"), 400, 8, 150, 50),
    Peer("dbos-sqlite", "dbos", "sqlite", _packages("dbos"), 100, 4, 40, 15),
    Peer(
        "restate",
        "restate",
        "server",
        (*_packages("restate", "granian"), "node_modules/@restatedev/restate-server-*/bin/restate-server"),
        2_000,
        64,
        200,
        100,
    ),
    Peer(
        "temporal-postgres", "temporal", "postgres", (*_packages("temporalio"), "go/bin/server"), 200, 32, 60, 30
    ),
)  # fmt: skip


def venv() -> Path:
    """Where the peers are installed."""
    return Path(os.environ.get(ENVIRONMENT) or ROOT / ".venv-peers").absolute()


def peer_named(name: str) -> Peer:
    """The one of this name."""
    return next(peer for peer in PEERS if peer.name == name)


def left_out(names: Sequence[str]) -> Iterator[str]:
    """A line for those that are asked for, or belong to everything, and are not installed."""
    asked = [peer for peer in PEERS if not names or {"peer", f"peer-{peer.name}"} & set(names)]
    missing = [peer.name for peer in asked if not peer.installed(venv())]
    if missing:
        yield f"left out, because they are not installed in {venv().name}: {', '.join(missing)} (`make bench-peers`)"


def measure_peer(name: str, folder: Path, runs: int, in_flight: int) -> dict[str, float]:
    """Run its script, and return its figures. A smaller size makes the measurements of single runs smaller as well."""
    peer = peer_named(name)
    share = min(1.0, runs / peer.runs)
    command = [str(venv() / "bin" / "python"), str(SCRIPTS / f"{peer.script}_peer.py"), "--store", peer.store]
    command += ["--folder", str(folder), "--runs", str(runs), "--in-flight", str(in_flight)]
    command += ["--alone", str(max(2, round(peer.alone * share)))]
    command += ["--approvals", str(max(2, round(peer.approvals * share)))]
    if peer.on_postgres:
        command += ["--postgres", fresh_database(f"peer_{uuid4().hex[:8]}")]
    if peer.on_kafka:
        command += ["--kafka", broker_url()]
    # Its own python and packages: nothing of ours may be found by it.
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE) as script:
        try:
            out, _ = script.communicate(timeout=SECONDS_MAX - 2 * _STOP_SECONDS)
        finally:
            script.terminate()  # it ends its servers; killed, it would leave them behind
    if script.returncode != 0:
        raise AssertionError(f"{name} ended with exit code {script.returncode}; what it said stands above")
    found: dict[str, float] = json.loads(out.splitlines()[-1])
    return found
