"""What docker-compose.yml and the Dockerfile say, done without Docker: the broker's settings, and the wheel at work."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from streams.dev import Kafka, start_kafka, stop_kafka
from streams.dev.process import free_port
from tests import compose
from tests.compose import ROOT, SERVICES

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

SECONDS_MAX = 90
ORDER = {"customer": "Ada", "currency": "EUR", "items": [{"sku": "lamp", "quantity": 2, "unit_price": "45.00"}]}


def test_the_broker_takes_every_setting_of_the_file(kafka: Kafka):
    """A name that Kafka does not know would be passed over without a word."""
    wanted = compose.broker_properties()
    for name in ("listeners", "advertised.listeners", "controller.quorum.voters", "log.dirs"):
        del wanted[name]
    wanted["listener.security.protocol.map"] = wanted["listener.security.protocol.map"].removesuffix(",HOST:PLAINTEXT")
    resource = ConfigResource(ResourceType.BROKER, wanted["node.id"])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    (asked,) = admin.describe_configs([resource]).values()
    found = {name: entry.value for name, entry in asked.result(SECONDS_MAX).items()}
    assert {name: found.get(name) for name in wanted} == wanted


def test_the_broker_has_a_listener_for_this_machine_and_one_for_containers(tmp_path: Path):
    ports = {"9092": free_port(), "19092": free_port(), "9093": free_port()}
    settings = compose.broker_properties()
    del settings["log.dirs"]
    for name in ("listeners", "advertised.listeners", "controller.quorum.voters"):
        parts = []
        for part in settings[name].split(","):
            begin, _, port = part.rpartition(":")
            head, sign, _ = begin.partition("://" if "://" in begin else "@")
            parts.append(f"{head}{sign}127.0.0.1:{ports[port]}")
        settings[name] = ",".join(parts)
    broker = start_kafka(tmp_path / "kafka", port=ports["9092"], settings=settings, tied=True, seconds=110.0)
    try:
        for port in ("9092", "19092"):
            there = AdminClient({"bootstrap.servers": f"127.0.0.1:{ports[port]}"}).list_topics(timeout=SECONDS_MAX)
            assert [node.port for node in there.brokers.values()] == [ports[port]], "sent on to the same listener"
    finally:
        stop_kafka(broker)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as the image has it: the wheel from what the Dockerfile copies, and nothing of the checkout."""
    folder = tmp_path_factory.mktemp("image")
    for source in compose.sources():
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, folder / "src" / source, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (folder / "src").mkdir(exist_ok=True)
            shutil.copy(ROOT / source, folder / "src")
    (build,) = [text for name, text in compose.instructions() if name == "RUN" and text.startswith("pip wheel ")]
    words = [str(folder / "wheels") if word == "/wheels" else word for word in build.split()]
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder / "src", capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = (folder / "wheels").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


@pytest.mark.postgres
@pytest.mark.parametrize("names", [("worker",), ("requests", "subscriber")], ids=["tasks", "subscriber"])
def test_the_services_of_the_image_take_an_order(
    image: Path, names: tuple[str, ...], kafka: Kafka, database: str, tmp_path: Path
):
    environment = os.environ | {"PYTHONPATH": str(image), "PYTHONUNBUFFERED": "1"}
    environment |= SERVICES[names[-1]]["environment"] | {"STREAMS_LOG": kafka.url, "STREAMS_LEDGER": database}
    processes: list[subprocess.Popen[str]] = []

    def spawn(name: str, *command: str) -> subprocess.Popen[str]:
        with (tmp_path / name).open("w") as output:
            processes.append(
                subprocess.Popen(
                    [sys.executable, *command], cwd=tmp_path, env=environment, stdout=output, stderr=output, text=True
                )
            )
        return processes[-1]

    def said(name: str) -> str:
        return (tmp_path / name).read_text("utf-8")

    try:
        python, *module = SERVICES["provider"]["entrypoint"]
        assert python == "python"
        inside = {"0.0.0.0": "127.0.0.1", "8765": "0", "/data/provider.db": "provider.db"}
        spawn("provider", *module, *(inside.get(word, word) for word in SERVICES["provider"]["command"]))
        until(lambda: said("provider").startswith("provider listening on "), lambda: said("provider"))
        environment["ORDERS_PROVIDER"] = said("provider").split()[-1]
        servers = [spawn(name, "-m", "streams", *SERVICES[name]["command"]) for name in names]
        run = f"o-{uuid4().hex[:8]}"
        order = json.dumps(ORDER | {"order_id": run})
        for name in names:
            until(lambda name=name: "owns" in said(name), lambda name=name: said(name))
        start = [
            sys.executable,
            "-m",
            "streams",
            "start",
            "order",
            "--run-id",
            run,
            "--input",
            order,
            "--wait",
            "--json",
        ]
        done = subprocess.run(
            start, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )
        assert done.returncode == 0, done.stderr + "".join(map(said, names))
        assert '"confirmed"' in done.stdout
        for name, server in zip(names, servers, strict=True):
            server.terminate()
            assert server.wait(SECONDS_MAX) == 0, said(name)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def until(condition: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)
