"""Faust apps whose settings suit a log of `streams`: the driver of this package, short time-outs, local pages."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import faust
from faust.types import TransportT
from mode.utils.objects import cached_property
from mode.utils.queues import FlowControlEvent

from streams.effects.faust.codecs import register_codecs
from streams.effects.faust.driver import Transport
from streams.errors import UsageError

__all__ = ["SETTINGS", "LogTopic", "ServiceApp", "SteadyFlow", "make_app", "run_app"]

SETTINGS: dict[str, Any] = {
    # A worker that was killed is missed after the session, not after Faust's 60 seconds. Brokers allow 6 s by default.
    "broker_session_timeout": 6.0,
    "broker_heartbeat_interval": 1.0,
    "broker_request_timeout": 20.0,
    # How long the others of the group wait for one that lives but does not rejoin.
    "broker_rebalance_timeout": 10.0,
    "broker_commit_interval": 1.0,
    # A rebalance must not wait for a provider that is slow: what was not finished is delivered to the next owner.
    "stream_wait_empty": False,
    # An agent that raises ends the worker, which is seen; restarted in place it would go on behind what it left.
    "agent_supervisor": "mode.CrashingSupervisor",
    "processing_guarantee": "at_least_once",
    "consumer_auto_offset_reset": "earliest",
    "table_standby_replicas": 0,
    "key_serializer": "streams-key",
    "web_bind": "127.0.0.1",
    "web_host": "127.0.0.1",
    # Faust's own pages print tables unescaped and are no part of a service that others reach.
    "web_stats_enabled": False,
    "web_graph_enabled": False,
    "web_tables_enabled": False,
    "web_router_enabled": False,
}
"""What `make_app` sets, unless it is told otherwise."""


class LogTopic(faust.Topic):
    """A topic of a `streams` app. It is made by `streams topics create`, never by a reader with other settings."""

    async def declare(self) -> None:
        """Nothing: the topic is there, or the log is wrong."""


class SteadyFlow(FlowControlEvent):
    """Empties the queues of agents only where the flow was stopped.

    Faust resumes it twice when the tables of a worker are restored, and empties them each time: what was delivered in
    between is lost to the agents.
    """

    def resume(self) -> None:
        """Let messages in."""
        if not self.is_active():
            super().resume()


class ServiceApp(faust.App):
    """A Faust app on the driver of this package."""

    @cached_property
    def flow_control(self) -> FlowControlEvent:
        """What stops and resumes the flow of messages to agents."""
        return SteadyFlow(loop=self.loop)

    def _new_transport(self) -> TransportT:
        return Transport(self.conf.broker_consumer, self)

    def _new_producer_transport(self) -> TransportT:
        return Transport(self.conf.broker_producer, self)

    def _create_directories(self) -> None:
        """A table in memory needs none, and where a service happens to be started is no place for them."""
        if self.conf.store.scheme != "memory":
            super()._create_directories()

    def log_topic(self, name: str, *, value_serializer: str = "raw") -> LogTopic:
        """A topic of the log, with keys as text; `value_serializer` is one of `CODECS`, or `raw`."""
        return LogTopic(
            self, topics=[name], key_serializer="streams-key", value_serializer=value_serializer, allow_empty=True
        )


def make_app(id: str, log_url: str, **settings: Any) -> ServiceApp:
    """A Faust app that reads the log at `log_url`. Its `id` is the name of its consumer group.

    Any setting of Faust may be given. `processing_guarantee="exactly_once"` is refused: after a kill Faust's own
    transactions gave wrong totals, and what this package promises does not need them.
    """
    servers, _, query = log_url.removeprefix("kafka://").partition("?")
    if not log_url.startswith("kafka://") or not servers:
        raise UsageError("a Faust service reads Kafka: the address of its log is kafka://HOST:PORT[,HOST:PORT]")
    if query:
        raise UsageError(
            "what follows the ? in the address is for the client of the engine; give a Faust service Faust's own "
            "settings instead, such as broker_credentials=faust.SASLCredentials(…)"
        )
    if settings.get("processing_guarantee", "at_least_once") != "at_least_once":
        raise UsageError(
            "leave processing_guarantee at at_least_once: Faust's exactly-once loses and repeats messages when a "
            "worker is killed; a fold by (run_id, seq) and a ledger need no more than at-least-once"
        )
    register_codecs()
    brokers = [f"kafka://{server}" for server in servers.split(",")]
    return ServiceApp(id, broker=brokers, **{**SETTINGS, **settings})


def run_app(app: faust.App, *, loglevel: str = "WARNING") -> NoReturn:
    """Run a worker of the app until a signal ends it, or an error with exit code 1. `faust worker` does too."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)  # Faust and aiokafka look for it there
    worker = faust.Worker(app, loop=loop, loglevel=loglevel, redirect_stdouts=False)
    worker.spinner = None
    worker.execute_from_commandline()
