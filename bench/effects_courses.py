"""How fast effects are carried out: into the ledger's database, outside, and not at all where they are known."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from bench.broker import postgres_url
from bench.effects_app import INSERT, TABLE, Call, Provider, Row, calls_app, rows_app
from bench.measure import Meter, percentile
from streams import App
from streams.cli.logs import open_log
from streams.effects.port import Ledger
from streams.effects.postgres import open_postgres_ledger
from streams.effects.sqlite import open_sqlite_ledger
from streams.effects.subscriber import Subscriber, SubscriberSettings
from streams.errors import LogUnavailable
from streams.log.port import Log, NewRecord
from streams.observer import Observer
from streams.runtime.collector import calm_collector
from streams.runtime.topics import ensure_topics
from streams.wire.app_codec import make_codec
from streams.wire.partitioner import partition_of
from streams.wire.records import EffectMessage, encode_effect
from streams.wire.topics import PARTITIONS_DEFAULT, Topics, topics_of

__all__ = ["effects_calls", "effects_many", "effects_rows"]

LATENCY_MS = 100
BATCH = 500
_APPEND = 5_000
_NOTE = "x" * 120


class _Watch(Observer):
    """Counts ends, and when each came."""

    def __init__(self) -> None:
        self.done: list[float] = []
        self.known: list[tuple[float, int]] = []

    def effect_done(self, effect: str, effect_id: str, run_id: str, delivery: int) -> None:
        """One was carried out."""
        del effect, effect_id, run_id, delivery
        self.done.append(time.perf_counter())

    def effects_known(self, effect: str, count: int) -> None:
        """So many were carried out long ago."""
        del effect
        self.known.append((time.perf_counter(), count))


async def effects_rows(log_url: str, folder: Path, effects: int, ledger: str) -> dict[str, float]:
    """Rows by a transactional handler, between the same rows by the bare driver; then all of them once more, known."""
    url = _ledger_url(ledger, folder)
    app = rows_app(url)
    half = effects // 2
    meter = Meter()
    bare = [await _bare(url, 0, half)]
    bare_cpu = meter.per_run(max(1, half))["cpu_us_per_run"]
    found = await _rows(log_url, url, app, effects)
    bare.append(await _bare(url, half, effects))
    await _rewind(log_url, app, "rows")
    known, again = await _serve(
        log_url, url, app, "rows", lambda watch: sum(count for _, count in watch.known) >= effects
    )
    if again.done:
        raise AssertionError(f"{len(again.done)} effects were carried out twice")
    return {
        **found,
        "bare_rows_per_s": effects / sum(bare),
        "bare_rows_cpu_us": bare_cpu,
        "rows_to_bare": found["rows_per_s"] * sum(bare) / effects,
        "known_per_s": _known_rate(again.known) or known["runs_per_s"],
        "known_cpu_us": known["cpu_us_per_run"],
    }


async def effects_many(log_url: str, folder: Path, effects: int, ledger: str) -> dict[str, float]:
    """The same rows by a handler that takes a batch and `executemany`, between the bare driver's, both ways."""
    url = _ledger_url(ledger, folder)
    half = effects // 2
    spent = {"bare_many": 0.0, "bare_rows": 0.0}
    cpu = {}
    meter = Meter()
    for name in spent:
        spent[name] += await _bare(url, 0, half, many=name == "bare_many")
        cpu[f"{name}_cpu_us"] = meter.per_run(max(1, half))["cpu_us_per_run"]
        meter = Meter()
    found = await _rows(log_url, url, rows_app(url, many=True), effects)
    for name in spent:
        spent[name] += await _bare(url, half, effects, many=name == "bare_many")
    rates = {f"{name}_per_s": effects / seconds for name, seconds in spent.items()}
    ratios = {f"rows_to_{name}": found["rows_per_s"] * seconds / effects for name, seconds in spent.items()}
    return {**found, **rates, **cpu, **ratios}


async def _rows(log_url: str, url: str, app: App, effects: int) -> dict[str, float]:
    await _fill(log_url, app, "rows", effects, lambda n: Row(n, _NOTE), attempt=0)
    found, watch = await _serve(log_url, url, app, "rows", lambda watch: len(watch.done) >= effects)
    return {"rows_per_s": _rate(watch.done) or found["runs_per_s"], "rows_cpu_us": found["cpu_us_per_run"]}


def _ledger_url(ledger: str, folder: Path) -> str:
    return postgres_url() if ledger == "postgresql" else f"sqlite:///{folder}/ledger.db"


async def effects_calls(log_url: str, folder: Path, effects: int, in_flight: int, ledger: str) -> dict[str, float]:
    """Calls of a service that takes 100 ms, each asked for by a request that gets its reply."""
    url = _ledger_url(ledger, folder)
    service = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.provider", str(LATENCY_MS), stdout=asyncio.subprocess.PIPE
    )
    assert service.stdout is not None
    provider = Provider()
    try:
        await provider.open(int(await service.stdout.readline()), in_flight)
        app = calls_app(provider)
        await _fill(log_url, app, "calls", effects, Call, attempt=1)
        settings = SubscriberSettings(concurrency=in_flight)
        found, watch = await _serve(log_url, url, app, "calls", lambda watch: len(watch.done) >= effects, settings)
    finally:
        provider.close()
        service.kill()
        await service.wait()
    middle = [at for at in watch.done if at > percentile(watch.done, 0.1)]
    return {
        "calls_per_s": _rate(middle),
        "calls_cpu_us": found["cpu_us_per_run"],
        "calls_most_in_flight": float(provider.most),
    }


def _rate(times: list[float]) -> float:
    """Of what came behind the first batch, whose beginning nobody has seen; 0 where one batch was all."""
    first = sum(at - times[0] < 1e-3 for at in times)
    return (len(times) - first) / max(1e-9, times[-1] - times[0])


def _known_rate(known: list[tuple[float, int]]) -> float:
    """The same."""
    seconds = known[-1][0] - known[0][0]
    return sum(count for _, count in known[1:]) / seconds if seconds else 0.0


async def _fill(
    log_url: str, app: App, effect: str, effects: int, payload: Callable[[int], Any], *, attempt: int
) -> None:
    """Messages as a worker writes them; of attempt 1 where somebody waits for the reply."""
    topics, codec = topics_of(app.name, app.effects), make_codec(app.annotations, app.named_types)
    log = await open_log(log_url)
    try:
        await _topics(log, topics)
        now = time.time_ns() // 1_000
        for first in range(0, effects, _APPEND):
            records = []
            for number in range(first, min(first + _APPEND, effects)):
                run_id = f"run-{number}"
                message = EffectMessage(
                    effect_id=f"{run_id}@0/1",
                    run_id=run_id,
                    effect=effect,
                    payload=codec.encode(payload(number)),
                    idempotency_key=f"{app.name}/{effect}/{number}",
                    epoch=1,
                    at=now,
                    workflow="order",
                    version=1,
                    op="1",
                    attempt=attempt,
                )
                partition = partition_of(run_id.encode(), PARTITIONS_DEFAULT)
                records.append(NewRecord(topics.effect(effect), partition, run_id.encode(), encode_effect(message)))
            await log.append(records)
    finally:
        await log.close()


async def _topics(log: Log, topics: Topics) -> None:
    """Until all are there: a broker names the leaders of new partitions a moment later."""
    while True:
        try:
            await ensure_topics(log, topics, PARTITIONS_DEFAULT)
            return
        except LogUnavailable:
            await asyncio.sleep(0.2)


async def _serve(
    log_url: str,
    ledger_url: str,
    app: App,
    effect: str,
    over: Callable[[_Watch], bool],
    settings: SubscriberSettings | None = None,
) -> tuple[dict[str, float], _Watch]:
    """Run a subscriber until it has seen all of it and has committed its offsets."""
    log, ledger, watch = await open_log(log_url), await _open(ledger_url), _Watch()
    subscriber = Subscriber(app, log, ledger, settings=settings, observer=watch)
    calm_collector()  # as a process that is a subscriber and nothing else does
    meter = Meter()
    running = asyncio.create_task(subscriber.run())
    try:
        while not over(watch) and not running.done():  # noqa: ASYNC110 - what is measured must not be disturbed
            await asyncio.sleep(0.05)
        count = max(1, len(watch.done) + sum(known for _, known in watch.known))
        spent = meter.per_run(count)
        subscriber.stop()
        await running
        await _check(log, app, effect)
        return spent, watch
    finally:
        await ledger.close()
        await log.close()


async def _open(url: str) -> Ledger:
    return await (open_sqlite_ledger(url) if url.startswith("sqlite:") else open_postgres_ledger(url))


async def _check(log: Log, app: App, effect: str) -> None:
    topics = topics_of(app.name, app.effects)
    offsets = await log.group_offsets(topics.subscribers(effect), topics.effect(effect))
    for partition in range(PARTITIONS_DEFAULT):
        span = await log.span(topics.effect(effect), partition)
        if span.end > span.start and offsets.get(partition, 0) < span.end - 1:
            raise AssertionError(f"partition {partition} was left at {offsets.get(partition)} of {span.end}")


async def _rewind(log_url: str, app: App, effect: str) -> None:
    topics = topics_of(app.name, app.effects)
    log = await open_log(log_url)
    try:
        offsets = dict.fromkeys(range(PARTITIONS_DEFAULT), 0)
        await log.rewind_group(topics.subscribers(effect), topics.effect(effect), offsets)
    finally:
        await log.close()


async def _bare(url: str, first: int, last: int, *, many: bool = False) -> float:
    """The handler's statement by the bare driver, as many in a transaction as a batch has; the seconds."""
    began = time.perf_counter()
    rows = [(f"bare/{began}/{number}", number, _NOTE) for number in range(first, last)]
    batches = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
    if url.startswith("postgresql:"):
        return await _bare_postgres(url, batches, many=many)
    return _bare_sqlite(url, batches, many=many)


async def _bare_postgres(url: str, batches: Sequence[Sequence[Any]], *, many: bool) -> float:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(TABLE)
        began = time.perf_counter()
        for rows in batches:
            async with connection.transaction(), connection.cursor() as cursor:
                if many:
                    await cursor.executemany(INSERT, rows)
                else:
                    for row in rows:
                        await connection.execute(INSERT, row)
        return time.perf_counter() - began


def _bare_sqlite(url: str, batches: Sequence[Sequence[Any]], *, many: bool) -> float:
    statement = INSERT.replace("%s", "?")
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(TABLE)
        began = time.perf_counter()
        for rows in batches:
            connection.execute("BEGIN IMMEDIATE")
            if many:
                connection.executemany(statement, rows)
            else:
                for row in rows:
                    connection.execute(statement, row)
            connection.execute("COMMIT")
        return time.perf_counter() - began
