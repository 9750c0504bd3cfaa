"""Several processes of one worker: a supervisor that starts them, passes on what they say, and ends with them."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import selectors
import signal
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from streams.cli.child import Child, Line, outlive_readers
from streams.cli.parser import log_url
from streams.cli.terminal import console, note, print_json, safe
from streams.cli.watch import dated, ranges
from streams.errors import UsageError
from streams.log.address import shown

__all__ = ["Supervisor", "add_processes", "obey", "supervise"]

PROCESSES_MAX = 1_000
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.5, 30.0
STEADY_SECONDS = 60.0
"""One that has worked for so long is started again at once; one that ends sooner waits twice as long each time."""
SAME_NOTE_SECONDS = 30.0
"""What one process has noted, another one does not note again so soon: most is about the log and not about it."""
_WRONG_USAGE = 2
_LOOK_SECONDS = 1.0


def add_processes(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--processes",
        metavar="N",
        type=_count,
        help="share the partitions among N processes under one supervisor; auto: one for each core",
    )
    parser.add_argument("--supervisor", type=int, metavar="FD", help=argparse.SUPPRESS)


def _count(text: str) -> int:
    if text == "auto":
        return cores()
    if not re.fullmatch("[0-9]{1,4}", text) or not 1 <= int(text) <= PROCESSES_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of processes: 1 to {PROCESSES_MAX}, or auto")
    return int(text)


def cores() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def obey(supervisor: int, stop: Callable[[], None]) -> None:
    """Stop when the supervisor asks for it, and when it is gone: then its end of the pipe is closed."""
    loop = asyncio.get_running_loop()

    def gone() -> None:
        loop.remove_reader(supervisor)
        stop()

    outlive_readers()
    loop.add_reader(supervisor, gone)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


def supervise(args: argparse.Namespace) -> int:
    """Run the processes until they are stopped; returns the code of the whole."""
    url = log_url(args)
    if url.partition(":")[0] == "memory":
        raise UsageError(
            f"{shown(url)!r} lives inside one process, so several cannot share it; use sqlite:///PATH or "
            "kafka://HOST:PORT, or leave --processes out"
        )
    # In the environment and not among the arguments, where everybody on the machine could read a password in it.
    environment = {**os.environ, "STREAMS_LOG": url}
    environment.setdefault("PYTHONUNBUFFERED", "1")  # what tasks print comes when they print it
    children = [Child(f"w{n}", _arguments(args, n), environment) for n in range(1, args.processes + 1)]
    return Supervisor(children, as_json=getattr(args, "json", False), strict=args.strict).run()


def _arguments(args: argparse.Namespace, number: int) -> list[str]:
    given = [args.target, "--address", args.address] if args.address else [args.target]
    if getattr(args, "app", None) is not None:
        given += ["--app", args.app]
    if args.strict:
        given.append("--strict")
    state = getattr(args, "state", None)
    if state:
        given += ["--state", str(Path(state) / str(number))]  # a store belongs to one process
    return given


class Supervisor:
    """One thread, no event loop, no client of the log: what it does cannot fail with what the workers do.

    The first process begins alone. What is wrong with the app, the address or the topics is said once by it, and ends
    the whole with the code that a single worker would have ended with. When it has entered the group, others follow.
    """

    def __init__(self, children: list[Child], *, as_json: bool, strict: bool) -> None:
        self._children = children
        self._as_json = as_json
        self._strict = strict
        self._console = console()
        self._selector = selectors.DefaultSelector()
        self._greeting: dict[str, Any] | None = None
        self._worked = False
        """Whether any process has ever entered the group."""
        self._stopping: int | None = None
        self._code = 0
        self._notes: dict[str, tuple[str, float]] = {}
        self._life: tuple[int, int] = (-1, -1)

    def run(self) -> int:
        """Until every process has ended and none is to be started again."""
        self._life = os.pipe()
        woken = self._hear_signals()
        try:
            while self._start_due() or any(child.running for child in self._children):
                for key, _ in self._selector.select(self._nap()):
                    if key.data is None:
                        self._heard(os.read(woken, 1_000))
                    else:
                        self._pass_on(key.data, key.fileobj)  # type: ignore[arg-type]
                for child in self._children:
                    if child.has_ended():
                        self._ended(child)
        finally:
            # On whatever way this ends, the processes do too: by their end of the pipe.
            os.close(self._life[1])
            self._wait_for_all()
        self._summary(asked=False)
        return self._code

    # -- signals -------------------------------------------------------------------------------------------------

    def _hear_signals(self) -> int:
        woken, wake = os.pipe()
        for end in (woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGUSR1):
            signal.signal(number, lambda *_: None)
        self._selector.register(woken, selectors.EVENT_READ, None)
        return woken

    def _heard(self, numbers: bytes) -> None:
        for number in numbers:
            if number == signal.SIGUSR1:
                self._summary(asked=True)
            elif number != signal.SIGCHLD:
                self._told_to_stop(number)

    def _told_to_stop(self, number: int) -> None:
        if self._stopping is not None:
            for child in self._children:
                child.signal(signal.SIGKILL)
            sys.stdout.flush()
            os._exit(128 + number)
        note("stopping: tasks that run may finish; once more stops at once")
        self._stop(number)

    def _stop(self, number: int = signal.SIGTERM) -> None:
        if self._stopping is None:
            self._stopping = number
            for child in self._children:
                child.again_at = None
                child.signal(signal.SIGTERM)

    # -- the course of a process ---------------------------------------------------------------------------------

    def _start_due(self) -> bool:
        """Start what is due; returns whether something still waits for its time."""
        now = time.monotonic()
        for child in self._children:
            first = child is self._children[0]
            if child.again_at is not None and child.again_at <= now and (first or self._worked):
                for pipe in child.start(now, self._life[0]):
                    self._selector.register(pipe, selectors.EVENT_READ, child)
                self._say("started", child, f"pid {child.pid}", pid=child.pid, restarts=child.restarts)
        return any(child.again_at is not None for child in self._children)

    def _nap(self) -> float:
        if not self._worked:
            return _LOOK_SECONDS
        now = time.monotonic()
        times = [child.again_at - now for child in self._children if child.again_at is not None]
        return max(0.0, min(times, default=_LOOK_SECONDS))

    def _ended(self, child: Child) -> None:
        # Before the note of its end, so that what it said last stands above it.
        pipes = [key.fileobj for key in self._selector.get_map().values() if key.data is child]
        for pipe in pipes:
            self._pass_on(child, pipe, to_the_end=True)  # type: ignore[arg-type]
        for ended in child.bury():
            if ended in pipes:
                self._selector.unregister(ended)
            ended.close()
        code = child.code or 0
        if self._stopping is not None:
            # One that was not yet so far as to hear of it has nothing to hand back.
            if code not in (0, -signal.SIGTERM):
                self._say("ended", child, f"{_how(code)} while it was stopping", code=code)
                self._code = self._code or (code if code > 0 else 1)
            return
        if self._is_final(child, code):
            self._code = code if code > 0 else 1
            self._say("ended", child, f"{_how(code)}; so all of them end", code=code)
            self._stop()
            return
        self._plan_again(child, code)

    def _is_final(self, child: Child, code: int) -> bool:
        """Whether to start it again would be in vain."""
        if not self._worked:
            return True
        if self._strict and code == 1 and child.joined:
            return True
        return code == _WRONG_USAGE and all(
            not other.joined and other.code == _WRONG_USAGE and not other.running for other in self._children
        )

    def _plan_again(self, child: Child, code: int) -> None:
        now = time.monotonic()
        if now - child.began >= STEADY_SECONDS:
            child.pause = 0.0
        again = child.pause
        child.pause = min(PAUSE_SECONDS_MAX, max(PAUSE_SECONDS, 2 * child.pause))
        child.again_at = now + again
        text = f"{_how(code)}; it is started again " + (f"in {again:g} s" if again else "now")
        self._say("ended", child, text, code=code, again_in=again)

    def _wait_for_all(self) -> None:
        """Where this process fails, as when nobody reads what it prints: what the others still say goes nowhere."""
        while any(child.running for child in self._children):
            for key, _ in self._selector.select(_LOOK_SECONDS / 10):
                if key.data is None:
                    os.read(key.fd, 1_000)
                elif key.data.read(key.fileobj)[1]:
                    self._selector.unregister(key.fileobj)
            for child in self._children:
                if child.has_ended():
                    child.bury()

    # -- what they say -------------------------------------------------------------------------------------------

    def _pass_on(self, child: Child, pipe: IO[bytes], *, to_the_end: bool = False) -> None:
        lines, ended = child.read(pipe, to_the_end=to_the_end)
        for line in lines:
            self._one(child, line)
        if ended and not to_the_end:
            self._selector.unregister(pipe)

    def _one(self, child: Child, line: Line) -> None:
        if line.told is None:
            self._foreign(child, line)
            return
        told = line.told
        kind, text = str(told["kind"]), str(told.pop("line", ""))
        if kind == "joined":
            self._joined(child, told)
        elif kind == "worker":
            self._greet(told)
        elif kind == "owns":
            child.owned = told["partitions"]
        if kind == "joined" or (kind == "note" and self._is_known(child, text)):
            return
        if self._as_json:
            self._object({**told, "process": child.name})
        elif kind != "worker":
            self._console.print(dated(kind, text, child.name), soft_wrap=True)

    def _foreign(self, child: Child, line: Line) -> None:
        """What user code, or an interpreter that ends badly, has printed."""
        if self._as_json and not line.stderr:
            self._object({"kind": "output", "text": line.text, "process": child.name})
        else:
            stream = sys.stderr if line.stderr else sys.stdout
            print(f"{child.name}: {safe(line.text)}", file=stream, flush=True)

    def _joined(self, child: Child, told: dict[str, Any]) -> None:
        child.joined = True
        if self._worked:
            return
        self._worked = True
        spare = len(self._children) - int(told["partitions"])
        if spare > 0:
            text = (
                f"the app has {told['partitions']} partitions, and a partition is one process's: "
                f"{spare} of the {len(self._children)} processes will have nothing to do but to stand in for others"
            )
            self._say("note", None, text, text=text)

    def _greet(self, told: dict[str, Any]) -> None:
        if self._greeting is None:
            self._greeting = told
            if not self._as_json:
                many = f"{len(self._children)} processes" if len(self._children) > 1 else "1 process"
                text = f"worker of app {told['app']} on {told['log']} in {many} · Ctrl-C stops them"
                self._console.print(safe(text), style="bold", soft_wrap=True)

    def _is_known(self, child: Child, text: str) -> bool:
        now = time.monotonic()
        self._notes = {known: by for known, by in self._notes.items() if now - by[1] < SAME_NOTE_SECONDS}
        by, _ = self._notes.setdefault(text, (child.name, now))
        return by != child.name

    def _summary(self, *, asked: bool) -> None:
        """Who does what: at SIGUSR1, and in short at the end."""
        for child in self._children:
            seconds = time.monotonic() - child.began if child.running else 0.0
            restarts = max(0, child.restarts)
            text = f"pid {child.pid}, up {seconds:.0f} s, partitions {ranges(child.owned) or '-'}"
            if not child.running:
                text = "ended" if child.again_at is None else "waits for its next start"
            text += f", {restarts} restarts" if restarts != 1 else ", 1 restart"
            if asked or restarts:
                fields = {"pid": child.pid, "up_s": round(seconds), "partitions": child.owned, "restarts": restarts}
                self._say("status", child, text, **fields)

    def _say(self, kind: str, child: Child | None, text: str, /, **fields: Any) -> None:
        name = {} if child is None else {"process": child.name}
        if self._as_json:
            self._object({"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "kind": kind, **name, **fields})
        else:
            self._console.print(dated(kind, text, child.name if child else "all"), soft_wrap=True)

    @staticmethod
    def _object(value: dict[str, Any]) -> None:
        print_json(value, flush=True)


def _how(code: int) -> str:
    if code >= 0:
        return f"with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"by {name}"
