"""The demos, as a newcomer runs them: real processes, two kills, and what the outside world counts in the end."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 100  # more than any single wait of the demo, so that its own message is seen

pytestmark = pytest.mark.slow


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "streams", "demo", *arguments]


def environment(folder: Path) -> dict[str, str]:
    """The demo's temporary folder lies in `folder`, so that its processes can be told from those of other tests."""
    return os.environ | {"TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}


def play(folder: Path, *arguments: str) -> tuple[dict[str, object], str]:
    done = subprocess.run(
        command(*arguments, "--json"),
        env=environment(folder),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert_nothing_is_left(folder)
    return json.loads(done.stdout), done.stderr


def processes(folder: Path) -> list[str]:
    """The command lines of processes that speak of `folder`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in line and path.parent.name != str(os.getpid()):
            found.append(line)
    return found


def assert_nothing_is_left(folder: Path) -> None:
    assert not processes(folder)
    assert not list(folder.glob("streams-demo-*"))


def test_an_approved_order_is_paid_and_shipped_once(tmp_path: Path) -> None:
    end, told = play(tmp_path, "order", "--approve")
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


def test_a_rejected_order_gives_everything_back(tmp_path: Path) -> None:
    end, _ = play(tmp_path, "order", "--reject")
    assert end.pop("result")["status"] == "rejected"
    assert end == {
        "status": "completed",
        "worker_kills": 1,
        "effects": 0,
        "provider_requests": 0,
        "provider_payments": 0,
    }


def test_an_approved_report_is_written_once(tmp_path: Path) -> None:
    end, _ = play(tmp_path, "report", "--approve")
    assert end.pop("result")["status"] == "already_exists"
    assert end == {"status": "completed", "worker_kills": 2, "effects": 0, "rows": 1}


def test_a_rejected_report_is_not_written(tmp_path: Path) -> None:
    end, _ = play(tmp_path, "report", "--reject")
    assert end.pop("result")["status"] == "rejected"
    assert end == {"status": "completed", "worker_kills": 1, "effects": 0, "rows": 0}


class Terminal:
    """A demo on a terminal of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.seen = ""
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command(*arguments), env=environment(folder), cwd=folder, stdin=slave, stdout=slave, stderr=slave
        )
        os.close(slave)

    def until(self, text: str) -> None:
        """Read on until `text` has come."""
        deadline = time.monotonic() + SECONDS_MAX
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            self._read()

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> int:
        while self.process.poll() is None:
            self._read()
        os.close(self._master)
        return self.process.returncode

    def _read(self) -> None:
        if select.select([self._master], [], [], 0.1)[0]:
            try:
                self.seen += os.read(self._master, 65_536).decode(errors="replace")
            except OSError:  # its other side is closed
                time.sleep(0.05)


def test_the_keyboard_answers_on_a_terminal(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "report")
    terminal.until("Accept? [y/n]")
    terminal.type("perhaps\n")
    terminal.until("perhaps")
    terminal.type("n\n")
    assert terminal.end() == 0
    assert "completed" in terminal.seen
    assert_nothing_is_left(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_ends_every_process(number: int, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    terminal.until("Accept? [y/n]")
    assert len(processes(tmp_path)) == 1  # the provider; the worker has been killed, as the story wants it
    terminal.process.send_signal(number)
    assert terminal.end() == 130
    assert "Traceback" not in terminal.seen
    assert_nothing_is_left(tmp_path)


def test_a_worker_that_cannot_start_is_told_of(tmp_path: Path) -> None:
    """The demo does not hang; it says what its worker said."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif 'worker' in sys.orig_argv:\n    sys.exit('no luck today')\n"
    )
    broken = environment(tmp_path) | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(
        command("report", "--approve"),
        env=broken,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "worker 1 ended before the run asks its question; it said: " in done.stderr
    assert "no luck today" in done.stderr
    assert_nothing_is_left(tmp_path)
