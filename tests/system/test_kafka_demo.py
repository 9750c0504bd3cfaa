"""The demos on a real broker: again and again on the same one, with their kills, and by `make kafka-demo`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from streams.dev import Kafka
from streams.log.kafka import open_kafka
from tests.system.test_demo import ROOT, play

HANG_SECONDS = 240

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(500)]


def names(kafka: Kafka) -> set[str]:
    async def ask() -> set[str]:
        log = await open_kafka(kafka.url)
        try:
            return set(await log.list_topics())
        finally:
            await log.close()

    return asyncio.run(ask())


def test_an_order_is_paid_and_shipped_once_each_time_it_is_played_on_one_broker(kafka: Kafka, tmp_path: Path) -> None:
    before = names(kafka)
    for _ in range(2):
        end, told = play(tmp_path, "order", "--approve", "--log", kafka.url)
        result = end.pop("result")
        assert end == {
            "status": "completed",
            "worker_kills": 2,
            "effects": 1,
            "provider_requests": 2,
            "provider_payments": 1,
        }
        assert (result["status"], result["payment_id"]) == ("confirmed", "pay-1")
        assert "WORKER_LOST" in told
    made = names(kafka) - before
    apps = {name.removesuffix(".commands") for name in made if name.endswith(".commands")}
    assert len(apps) == 2
    assert f"{max(apps)}.effects.shipments" in made
    assert before <= names(kafka), "nothing of anybody was deleted"


def test_a_report_is_written_once_under_the_name_that_was_asked_for(kafka: Kafka, tmp_path: Path) -> None:
    end, told = play(tmp_path, "report", "--approve", "--log", kafka.url, "--app", "my-reports")
    assert end.pop("result")["status"] == "already_exists"
    assert end == {"status": "completed", "worker_kills": 2, "effects": 0, "rows": 1}
    assert "streams show r-2026-09 --app my-reports" in told
    shown = subprocess.run(
        [sys.executable, "-m", "streams", "show", "r-2026-09", "--app", "my-reports", "--log", kafka.url, "--json"],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=True,
    )
    assert json.loads(shown.stdout)["status"] == "completed"


def heirs(folder: Path) -> list[str]:
    """The command lines of processes whose temporary folder is `folder`: workers do not name it on theirs."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"TMPDIR={folder}\0".encode() in (path / "environ").read_bytes():
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


class Make:
    """`make kafka-demo` in the environment of the tests, which has all that it would install."""

    def __init__(self, folder: Path, arguments: str) -> None:
        make, here = shutil.which("make"), Path(sys.prefix)
        assert make, "the Makefile is what a newcomer begins with"
        self.folder = folder
        self.process = subprocess.Popen(
            [make, "-o", str(here / ".stack"), "kafka-demo", f"VENV={here}", f"ARGS={arguments}"],
            env=os.environ | {"TMPDIR": str(folder), "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def end(self) -> str:
        told, _ = self.process.communicate(timeout=HANG_SECONDS)
        assert not heirs(self.folder)
        assert not list(self.folder.iterdir())
        return told

    def until_running(self, words: str) -> None:
        deadline = time.monotonic() + HANG_SECONDS
        while not any(words in line for line in heirs(self.folder)):
            assert time.monotonic() < deadline
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.05)


def test_make_kafka_demo_starts_a_broker_and_takes_it_down_again(tmp_path: Path) -> None:
    make = Make(tmp_path, "report --reject")
    told = make.end()
    assert make.process.returncode == 0, told
    assert "starting Kafka" in told
    assert "The run is completed; its result says: rejected." in told
    assert "stopped Kafka; the data is gone" in told


def test_make_kafka_demo_takes_the_broker_down_when_the_demo_fails(tmp_path: Path) -> None:
    make = Make(tmp_path, "no-such-story")
    told = make.end()
    assert make.process.returncode == 2
    assert "invalid choice: 'no-such-story'" in told
    assert "stopped Kafka; the data is gone" in told


@pytest.mark.parametrize("at", ["kafka.Kafka", "provider.py"])
def test_make_kafka_demo_takes_everything_down_when_it_is_interrupted(at: str, tmp_path: Path) -> None:
    make = Make(tmp_path, "order --approve")
    make.until_running(at)
    os.killpg(make.process.pid, signal.SIGINT)
    told = make.end()
    assert make.process.returncode != 0, told
    assert "Traceback" not in told
