"""One Kafka broker (KRaft, broker and controller in one process) that keeps its data in a folder."""

from __future__ import annotations

import base64
import signal
import subprocess
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from streams.dev.packages import java, kafka_classpath
from streams.dev.process import (
    ENDED,
    Process,
    StackFailed,
    answers,
    end,
    free_port,
    is_alive,
    is_free,
    read_state,
    spawn,
    tail,
    wait_for,
    write_state,
)

__all__ = ["Kafka", "kill_kafka", "read_kafka", "start_kafka", "stop_kafka"]

_STARTED = b"Kafka Server started"
_STATE = "kafka.json"
_LOG = "kafka.log"
_STOP_SECONDS = 20.0
_BASE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    # One node: the internal topics cannot have the three replicas they ask for, and need not be fifty files each.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "8",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "8",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # A first worker owns its partitions at once instead of after three seconds.
    "group.initial.rebalance.delay.ms": "0",
    # A misspelt name must not bring a topic to life without the settings that keep its data.
    "auto.create.topics.enable": "false",
    # A producer with a wrong clock must not decide when its records are deleted.
    "log.message.timestamp.type": "LogAppendTime",
    # After a kill -9 the controller refuses the broker until its last session is over; the default is nine seconds.
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
    # In a controlled shutdown the partitions of a lone broker have no leader, and the markers of a transaction that
    # ends meanwhile are skipped as those of deleted partitions: acknowledged, and never visible (seen in 4.3.1).
    "controlled.shutdown.enable": "false",
    # An eighth of the default, which would be a quarter of this small heap.
    "log.cleaner.dedupe.buffer.size": "16777216",
}
_JVM = (
    "-Xms64m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Djava.awt.headless=true",
)

Say = Callable[[str], None]


class Kafka(NamedTuple):
    """A broker that was started. `settings` are what differs from the defaults of this module."""

    folder: Path
    process: Process
    port: int
    settings: Mapping[str, str]

    @property
    def pid(self) -> int:
        """The broker's process."""
        return self.process.pid

    @property
    def bootstrap(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The address of the log."""
        return f"kafka://{self.bootstrap}"

    @property
    def alive(self) -> bool:
        """Whether its process is there."""
        return is_alive(self.process)

    @property
    def crashed(self) -> bool:
        """Whether it has ended without having been stopped."""
        return self.process != ENDED and not self.alive

    @property
    def log(self) -> Path:
        """Where it writes what it does."""
        return self.folder / _LOG


def start_kafka(
    folder: Path | str,
    *,
    port: int | None = None,
    settings: Mapping[str, str] | None = None,
    tied: bool = False,
    seconds: float = 60.0,
    say: Say | None = None,
) -> Kafka:
    """Start the broker of this folder, or find it running. Its port stays the same from start to start.

    `settings` are broker properties by Kafka's names; None keeps those of the last start. `tied` lets it die with
    the calling thread.
    """
    folder = Path(folder).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    last = read_kafka(folder)
    if last is not None and last.alive:
        return _ready(last, seconds)
    wanted = dict(settings) if settings is not None else dict(last.settings if last else {})
    classpath = kafka_classpath(*([say] if say else []))
    address = port or (last.port if last and is_free(last.port) else free_port())
    config = _write_config(folder, address, wanted)
    _format(folder, classpath, config)
    start = _size(folder / _LOG)
    process = spawn([java(), *_JVM, "-cp", classpath, "kafka.Kafka", str(config)], folder / _LOG, cwd=folder, tied=tied)
    kafka = Kafka(folder, process, address, wanted)
    try:
        _write_state(kafka)
        _wait_until_started(kafka, start, seconds)
    except BaseException:
        kill_kafka(kafka)  # whoever is interrupted here leaves no broker behind
        raise
    return kafka


def read_kafka(folder: Path) -> Kafka | None:
    """The broker that was last started in this folder, alive or not."""
    state = read_state(folder / _STATE)
    return Kafka(folder, state["process"], state["port"], state.get("settings", {})) if state else None


def stop_kafka(kafka: Kafka) -> None:
    """Stop it in order; its data stays."""
    end(kafka.process, "Kafka", signal.SIGTERM, _STOP_SECONDS)
    if kafka.folder.is_dir():
        _write_state(kafka._replace(process=ENDED))


def kill_kafka(kafka: Kafka) -> None:
    """Kill it as a crash does. `start_kafka` with its folder and port brings it back."""
    end(kafka.process, "Kafka", signal.SIGKILL, _STOP_SECONDS)


def _write_config(folder: Path, port: int, settings: Mapping[str, str]) -> Path:
    controller = free_port()
    addresses = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "log.dirs": str(folder / "data").replace("\\", "\\\\"),
    }
    lines = [f"{name}={value}\n" for name, value in {**_BASE, **addresses, **settings}.items()]
    config = folder / "server.properties"
    config.write_text("".join(lines), "utf-8")
    return config


def _format(folder: Path, classpath: str, config: Path) -> None:
    if (folder / "data" / "meta.properties").exists():
        return
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    command = [java(), "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", classpath]
    # In one word: an id may begin with a minus and would pass for an option.
    command += ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(config)]
    with (folder / _LOG).open("ab") as out:
        done = subprocess.run(command, cwd=folder, stdout=out, stderr=out, stdin=subprocess.DEVNULL, check=False)  # noqa: S603 - a program of ours
    if done.returncode:
        raise StackFailed(f"Kafka's storage could not be made in {folder}: {tail(folder / _LOG)}")


def _wait_until_started(kafka: Kafka, start: int, seconds: float) -> None:
    def settled() -> bool:
        return not kafka.alive or _says(kafka.log, start, _STARTED)

    if wait_for(settled, seconds) and kafka.alive:
        return
    came = "ended while it started" if not kafka.alive else f"was not ready after {seconds:.0f} s"
    raise StackFailed(f"Kafka {came}; its log {kafka.log} says: {tail(kafka.log, start)}")


def _ready(kafka: Kafka, seconds: float) -> Kafka:
    """A broker that runs, once it listens: another `up` may have started it a moment ago, and died."""
    if not wait_for(lambda: answers(kafka.port) or not kafka.alive, seconds) or not kafka.alive:
        raise StackFailed(
            f"Kafka (process {kafka.pid}) runs but does not answer; its log {kafka.log} says: {tail(kafka.log)}"
        )
    return kafka


def _says(log: Path, start: int, text: bytes) -> bool:
    with log.open("rb") as file:
        file.seek(start)
        return text in file.read()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _write_state(kafka: Kafka) -> None:
    write_state(kafka.folder / _STATE, kafka.process, kafka.port, settings=dict(kafka.settings))
