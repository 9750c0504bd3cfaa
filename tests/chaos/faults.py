"""Worker processes and a broker, and what is done to them: kills, freezes, crashes and restarts that hit on purpose.

A victim that seems to be inside what the fault is aimed at is stopped and looked at: only if it still is, the fault is
done; else it goes on and another look is taken. So the count of hits says what was really hit.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from streams.dev import Kafka, kill_kafka, start_kafka, stop_kafka
from tests.chaos.marks import Marks, Phase, make_marks

__all__ = ["FAULTS", "TARGETS", "Crew", "Worker"]

RUNNER = Path(__file__).with_name("worker.py")
FAULTS = ("worker killed", "worker frozen", "worker stopped", "broker killed", "broker restarted")
TARGETS = ("open transaction", "running task")
LOOKS = 60
GLIMPSE_SECONDS = 0.2
FREEZE_SECONDS = (7.5, 9.5)
"""Longer than the session timeout of 6 s: the group gives the partitions to others."""
BROKER_REST_SECONDS = 14.0
"""Work goes on for so long before the next fault of the broker, or all that the others hit would be an outage. On a
slow machine, where the broker takes long to come back, it is twice as long as the outage was."""
_OPEN = (Phase.SENT, Phase.FENCED)


class Worker:
    """A worker process in its slot; after a kill another one takes the slot."""

    def __init__(self, index: int, url: str, folder: Path, settings: dict[str, Any]) -> None:
        self.index = index
        self.marks = Marks(folder / "marks", index)
        self.born = 0
        self.frozen_until = 0.0
        self.stopping = False
        """It was told to stop in order, and is on its way."""
        # A slow machine may need more than the usual half a minute to have its broker back.
        url = f"{url}?connect_timeout_ms=600000"
        self._command = [sys.executable, str(RUNNER), url, str(folder / "marks"), str(index)]
        self._folder, self._settings = folder, json.dumps(settings)
        self.process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        self.born += 1
        self.stopping = False
        self.marks.clear()
        environment = os.environ | {"CHAOS_OUTSIDE": str(self._folder / "outside")}
        with self.said.open("wb") as out:
            self.process = subprocess.Popen(
                [*self._command, f"w{self.index}.{self.born}", self._settings], stdout=out, stderr=out, env=environment
            )

    @property
    def said(self) -> Path:
        return self._folder / f"worker-{self.index}-{self.born}.log"

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def frozen(self) -> bool:
        return self.frozen_until > 0

    def halt(self) -> bool:
        """Stop it with SIGSTOP; return when all of its threads stand still, False where it has ended."""
        self.process.send_signal(signal.SIGSTOP)
        while self.alive:
            if self._states() <= {"T", "t"}:
                return True
            time.sleep(0.0005)
        return False

    def _states(self) -> set[str]:
        states = set()
        for path in Path(f"/proc/{self.process.pid}/task").glob("*/stat"):
            try:
                states.add(path.read_text().rpartition(")")[2].split()[0])
            except (FileNotFoundError, ProcessLookupError):
                continue  # the thread has ended meanwhile
        return states

    def go_on(self) -> None:
        self.frozen_until = 0.0
        if self.alive:
            self.process.send_signal(signal.SIGCONT)

    def hits(self) -> set[str]:
        """What it is inside of; true as long as it stands still."""
        found = set()
        if self.marks.phase in _OPEN:
            found.add(TARGETS[0])
        if self.marks.running > 0:
            found.add(TARGETS[1])
        return found

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Crew:
    """The workers and their broker."""

    def __init__(self, kafka: Kafka, folder: Path, count: int, settings: dict[str, Any], rng: random.Random) -> None:
        self.kafka = kafka
        self.hits: Counter[tuple[str, str]] = Counter()
        self.done: Counter[str] = Counter()
        self.in_the_end = 0
        """Faults that came while a commit was on its way."""
        self.wrong: list[str] = []
        """Workers that ended by themselves."""
        self._rng = rng
        self._dead: dict[int, float] = {}
        """When the slot of a dead worker is filled again."""
        self._broker_rests_until = time.monotonic() + BROKER_REST_SECONDS / 2
        make_marks(folder / "marks", count)
        self.workers = [Worker(index, kafka.url, folder, settings) for index in range(count)]

    # -- the course ----------------------------------------------------------------------------------------------

    @property
    def missing(self) -> list[tuple[str, str]]:
        """What was not hit yet."""
        return [(fault, target) for fault in FAULTS for target in TARGETS if not self.hits[fault, target]]

    def may(self, fault: str) -> bool:
        """Whether the fault would hit a system at work, and not one that is busy with another fault."""
        frozen = any(worker.frozen for worker in self.workers)
        if fault.startswith("broker"):
            return not frozen and time.monotonic() > self._broker_rests_until
        return len(self._up()) > 1 and not (fault == "worker frozen" and frozen)

    def strike(self, fault: str, target: str) -> bool:
        """Do a fault to something that is inside `target`; False where nothing was found inside it."""
        self.tend()
        found = self._strike_broker(fault, target) if fault.startswith("broker") else self._strike_worker(fault, target)
        if found:
            self.done[fault] += 1
        return found

    def tend(self) -> None:
        """Wake whoever has slept enough, replace the dead, and notice who has died by itself."""
        now = time.monotonic()
        for worker in self.workers:
            if worker.frozen and now > worker.frozen_until:
                worker.go_on()
            if not worker.alive and worker.index not in self._dead:
                code = worker.process.returncode
                if code or not worker.stopping:
                    how = "was told to stop and ended" if worker.stopping else "ended by itself"
                    self.wrong.append(f"worker {worker.said} {how} with {code}")
                self._dead[worker.index] = now
            if now > self._dead.get(worker.index, now):
                del self._dead[worker.index]
                worker.start()

    def _up(self) -> list[Worker]:
        """Those at work."""
        return [worker for worker in self.workers if worker.alive and not worker.frozen and not worker.stopping]

    # -- workers -------------------------------------------------------------------------------------------------

    def _strike_worker(self, fault: str, target: str) -> bool:
        for _ in range(LOOKS):
            self._pause()
            victim = self._glimpse(target)
            if victim is None or not victim.halt():
                return False
            hits = victim.hits()
            if target not in hits:
                victim.go_on()
                continue
            self._count(fault, hits, [victim])
            if fault == "worker killed":
                victim.kill()
                self._dead[victim.index] = time.monotonic() + self._rng.uniform(0.0, 2.0)
            elif fault == "worker stopped":
                victim.stopping = True
                victim.process.terminate()
                victim.go_on()
            else:
                victim.frozen_until = time.monotonic() + self._rng.uniform(*FREEZE_SECONDS)
            return True
        return False

    # -- the broker ----------------------------------------------------------------------------------------------

    def _strike_broker(self, fault: str, target: str) -> bool:
        for _ in range(LOOKS):
            self._pause()
            first = self._glimpse(target)
            up = sorted(self._up(), key=lambda worker: worker is not first)
            halted = [worker for worker in up if worker.halt()]
            hits = {hit for worker in halted for hit in worker.hits()}
            hit = target in hits
            try:
                if hit:
                    self._count(fault, hits, halted)
                    self._end_broker(fault)
            finally:
                for worker in halted:
                    worker.go_on()
            if hit:
                self._restart_broker()
                return True
        return False

    def _end_broker(self, fault: str) -> None:
        """Workers stand still meanwhile, so it is they who are hit; they go on before the broker has stopped."""
        if fault == "broker killed":
            kill_kafka(self.kafka)
        else:
            os.kill(self.kafka.pid, signal.SIGTERM)

    def _restart_broker(self) -> None:
        began = time.monotonic()
        stop_kafka(self.kafka)  # waits for the end of one that was told to stop
        time.sleep(self._rng.uniform(0.0, 2.0))
        self.kafka = start_kafka(self.kafka.folder, port=self.kafka.port, tied=True, seconds=110.0)
        now = time.monotonic()
        self._broker_rests_until = now + max(BROKER_REST_SECONDS, 2 * (now - began))

    # -- parts ---------------------------------------------------------------------------------------------------

    def _glimpse(self, target: str) -> Worker | None:
        """A worker that seems to be inside of `target` as it runs on, or any. What counts is seen when it is halted."""
        end = time.monotonic() + GLIMPSE_SECONDS
        up = self._up()
        self._rng.shuffle(up)
        while time.monotonic() < end:
            for worker in up:
                if target in worker.hits():
                    return worker
            time.sleep(0.0002)
        return up[0] if up else None

    def _pause(self) -> None:
        self.tend()
        time.sleep(self._rng.uniform(0.005, 0.06))

    def _count(self, fault: str, hits: set[str], victims: list[Worker]) -> None:
        self.hits.update((fault, hit) for hit in hits)
        self.in_the_end += any(worker.marks.phase is Phase.ENDING for worker in victims)

    # -- the end -------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Faults are over: all go on, and who is dead is replaced."""
        for worker in self.workers:
            if worker.frozen:
                worker.go_on()
            if worker.index in self._dead:
                del self._dead[worker.index]
                worker.start()

    def stop(self, seconds: float) -> None:
        """Stop all gracefully, and say who did not."""
        for worker in self.workers:
            if worker.alive:
                worker.process.terminate()
        for worker in self.workers:
            try:
                code = worker.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.wrong.append(f"worker {worker.said} did not stop in {seconds:g} s")
            else:
                if code:
                    self.wrong.append(f"worker {worker.said} stopped with {code}")

    def end(self) -> None:
        """Kill what is still there."""
        for worker in self.workers:
            if worker.alive:
                worker.kill()
