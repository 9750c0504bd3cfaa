"""A server process that outlives its starter: found again by pid and birth, so that no other process is ever hit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from streams.errors import StreamsError

__all__ = [
    "ENDED",
    "Process",
    "StackFailed",
    "answers",
    "end",
    "free_port",
    "is_alive",
    "is_free",
    "read_state",
    "spawn",
    "tail",
    "wait_for",
    "write_state",
]

_LOOK_SECONDS = 0.03
_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}
"""What this process started and has to reap, or it would stay as a zombie that looks alive."""


class StackFailed(StreamsError):
    """A server of the development stack could not be started or stopped."""


class Process(NamedTuple):
    """`birth` tells a process from a later one that was given the same pid."""

    pid: int
    birth: str


ENDED = Process(0, "")
"""Stands where a process was that was stopped in order."""


def read_state(file: Path) -> dict[str, Any] | None:
    """What was last written down about a server; None where nothing was."""
    try:
        state: dict[str, Any] = json.loads(file.read_text("utf-8"))
        return {**state, "process": Process(int(state["pid"]), str(state["birth"])), "port": int(state["port"])}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise StackFailed(
            f"{file} cannot be read ({error}): end the server by hand if it runs, and delete the folder {file.parent}"
        ) from error


def write_state(file: Path, process: Process, port: int, **more: Any) -> None:
    """Write it down in one step: who reads it finds all or what was there before."""
    part = file.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps({"pid": process.pid, "birth": process.birth, "port": port, **more}), "utf-8")
    part.replace(file)


def spawn(command: Sequence[str], log: Path, *, cwd: Path, prefix: Sequence[str] = (), tied: bool = False) -> Process:
    """Start a process in a session of its own, with its output added to `log`. `prefix` is a command that becomes it.

    `tied` lets it die with the thread that starts it, where the system can do that: for tests that are killed.
    """
    setpriv = shutil.which("setpriv") if tied else None
    # Behind the prefix: a change of user would take the tie off again.
    whole = [*prefix, *([setpriv, "--pdeathsig", "KILL"] if setpriv else []), *command]
    with log.open("ab") as out:
        child = subprocess.Popen(  # noqa: S603 - a program of ours with arguments of ours
            whole, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    _CHILDREN[child.pid] = child
    return Process(child.pid, _birth(child.pid) or "")


def is_alive(process: Process) -> bool:
    """Whether it is there and still the same."""
    child = _CHILDREN.get(process.pid)
    if child is not None and child.poll() is not None:
        del _CHILDREN[process.pid]
        return False
    return bool(process.birth) and _birth(process.pid) == process.birth


def end(process: Process, name: str, gently: signal.Signals, seconds: float) -> None:
    """Ask it to stop, then kill it. Nothing happens where the pid belongs to another process by now."""
    for number, patience in ((gently, seconds), (signal.SIGKILL, 10.0)):
        if not is_alive(process):
            return
        try:
            os.kill(process.pid, number)
        except PermissionError as error:
            raise StackFailed(f"{name} (process {process.pid}) belongs to another user and was not stopped") from error
        except ProcessLookupError:
            continue
        wait_for(lambda: not is_alive(process), patience)
    if is_alive(process):
        raise StackFailed(f"{name} (process {process.pid}) does not end, even when killed")


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether the condition came to hold in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def free_port() -> int:
    """A port of 127.0.0.1 that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(port: int) -> bool:
    """Whether somebody listens on this port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def tail(log: Path, start: int = 0) -> str:
    """The last line of a log that says something, for a message."""
    with log.open("rb") as file:
        file.seek(start)
        lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines()]
    loud = [line for line in lines if "ERROR" in line or "FATAL" in line or "Exception" in line]
    return (loud or [line for line in lines if line] or ["(it wrote nothing)"])[-1]


def _birth(pid: int) -> str | None:
    """When a process was born, as text to compare; None where it is dead or only waits to be reaped."""
    try:
        # The name in parentheses may hold anything, so the fields are counted from its end.
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return None if Path("/proc/self/stat").exists() else _birth_by_ps(pid)
    return None if fields[0] in ("Z", "X") else fields[19]


def _birth_by_ps(pid: int) -> str | None:
    done = subprocess.run(  # noqa: S603 - a fixed program
        ["/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, born = done.stdout.strip().partition(" ")
    return None if not born or state.startswith("Z") else born.strip()
