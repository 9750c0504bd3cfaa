"""Records that the broker refuses, under a whole worker: their run is blocked, its neighbours are unharmed."""

from __future__ import annotations

import asyncio
import secrets

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from streams import App, Context, TaskContext
from streams.dev import Kafka
from streams.kernel import commands as cmd
from streams.kernel.run import Phase
from tests.kafka.follower_lab import lab
from tests.runtime.history import start
from tests.system.processes import members

pytestmark = pytest.mark.kafka


async def limit(kafka: Kafka, topic: str, size: int) -> None:
    """Change what a topic takes while workers run, as an administrator may at any time."""
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    client = AdminClient({"bootstrap.servers": kafka.bootstrap})
    (done,) = client.incremental_alter_configs([resource]).values()
    await asyncio.to_thread(done.result, 30)


@pytest.mark.slow
def test_f13_a_record_over_the_limit_of_its_topic_blocks_its_run_alone(kafka: Kafka):
    """The limit is the broker's, which the worker does not know of; incompressible data, below its own limits."""
    app = App(f"limits-{secrets.token_hex(4)}")
    parcels = app.effect("parcels", str)

    @app.task
    async def measure(ctx: TaskContext, size: int) -> str:
        return secrets.token_hex(size)

    @app.workflow(version=1)
    async def sender(ctx: Context, size: int) -> int:
        text = await ctx.run(measure, size)
        ctx.emit(parcels, text)
        return len(text)

    async def scenario() -> None:
        async with lab(app, members(kafka, 10_000)) as found:
            worker = await found.worker()
            await limit(kafka, found.topics.effect("parcels"), 30_000)
            history = found.history
            sizes = {f"small{number}": 500 for number in range(40)} | {f"big{number}": 20_000 for number in range(2)}
            small, big = [[run_id for run_id in sizes if run_id.startswith(kind)] for kind in ("small", "big")]
            await history.send_all([(run_id, start("sender", size)) for run_id, size in sizes.items()])
            await history.ended(*small)
            await history.until(lambda h: all(h.blocked(run_id) for run_id in big), "the blocked runs")
            assert {history.blocked(run_id).code for run_id in big} == {"VALUE_TOO_LARGE"}
            await history.send_all([(run_id, cmd.Cancel(force=True)) for run_id in big])
            await history.ended(*big)
            await worker.stop()
            checked = await found.check()
            assert {checked.runs[run_id].phase for run_id in small} == {Phase.COMPLETED}
            assert {message.run_id for message in checked.effects} == set(small)

    asyncio.run(scenario())
