"""The floor on PostgreSQL: what bare commits of the records of runs take, from one client and from sixteen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from psycopg import AsyncConnection

from bench.broker import fresh_database
from bench.floor import BATCHES, RECORD_BYTES, RECORDS_PER_RUN
from bench.measure import percentile

__all__ = ["CLIENTS", "postgres_floor"]

CLIENTS = 16
STEP_RECORDS = 3
"""What an engine with a commit for each step writes in one: about 210 bytes of a result, and what it keeps beside."""
_INSERT = "INSERT INTO records (key, value) SELECT %s, %s FROM generate_series(1, %s)"
_WARM_UP = 50


async def postgres_floor(commits: int) -> dict[str, float]:
    """Commits of one run's records, of one step's, and of many runs'; then those of a run from many clients at once."""
    url = fresh_database("floor")
    clients = [await AsyncConnection.connect(url, autocommit=True) for _ in range(CLIENTS)]
    try:
        table = "CREATE TABLE records (id bigserial PRIMARY KEY, key bytea NOT NULL, value bytea NOT NULL)"
        await clients[0].execute(table)
        one = clients[:1]
        await _commit(clients, RECORDS_PER_RUN, _WARM_UP)
        single = await _commit(one, RECORDS_PER_RUN, commits)
        step = await _commit(one, STEP_RECORDS, commits)
        found = {
            "commits_per_s": len(single) / sum(single),
            "p50_ms": percentile(single, 0.5) * 1e3,
            "step_p50_ms": percentile(step, 0.5) * 1e3,
        }
        for runs in BATCHES:
            times = await _commit(one, RECORDS_PER_RUN * runs, max(3, commits * 5 // runs))
            found[f"batch_{runs}_runs_per_s"] = len(times) * runs / sum(times)
        began = time.perf_counter()
        times = await _commit(clients, RECORDS_PER_RUN, commits)
        found[f"clients_{CLIENTS}_commits_per_s"] = len(times) / (time.perf_counter() - began)
        found[f"clients_{CLIENTS}_p50_ms"] = percentile(times, 0.5) * 1e3
        return found
    finally:
        for client in clients:
            await client.close()


async def _commit(clients: Sequence[AsyncConnection], records: int, commits: int) -> list[float]:
    """The seconds of each commit; the clients share them."""
    each = max(1, commits // len(clients))
    times = await asyncio.gather(*(_one_after_another(client, records, each) for client in clients))
    return [seconds for some in times for seconds in some]


async def _one_after_another(client: AsyncConnection, records: int, commits: int) -> list[float]:
    value = b"x" * RECORD_BYTES
    times = []
    for _ in range(commits):
        began = time.perf_counter()
        await client.execute(_INSERT, (b"run-1234", value, records), prepare=True)
        times.append(time.perf_counter() - began)
    return times
