"""Servers that peers need beside their library: started on free ports, and ended with everything they began."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

__all__ = ["answers", "free_ports", "post", "server"]

_STOP_SECONDS = 10.0
_LOG_CHARACTERS = 4_000


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


@contextmanager
def server(command: Sequence[str], folder: Path, name: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process in a group of its own, its output in a file; show the end of that when something goes wrong."""
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, start_new_session=True, env={**os.environ, **environment}, cwd=folder
        )
    try:
        yield process
    except BaseException:
        print(
            f"--- the end of what {name} said:", log.read_text("utf-8", "replace")[-_LOG_CHARACTERS:], file=sys.stderr
        )
        raise
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """The whole group in the end: a web server's parent may leave workers behind."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def answers(url: str, process: subprocess.Popen[bytes], seconds: float = 60.0) -> None:
    """Wait until a health check succeeds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"nothing has answered at {url} in {seconds:.0f} s (exit code {process.poll()})")


def post(url: str, body: Mapping[str, Any], seconds: float = 30.0) -> None:
    """Send JSON, again and again until it is taken."""
    end = time.monotonic() + seconds
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    while True:
        try:
            with urllib.request.urlopen(request, timeout=seconds):
                return
        except urllib.error.HTTPError as error:
            if time.monotonic() > end:
                raise AssertionError(f"{url} refused: {error.read().decode('utf-8', 'replace')}") from error
        except OSError:
            if time.monotonic() > end:
                raise
        time.sleep(0.5)
