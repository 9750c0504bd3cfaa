"""Peers in the bench: found where they are installed, run by their own python, left out with a line elsewhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import jobs, peer
from bench.plan import STEPS, needs_postgres, rounds

SCRIPTS = Path(peer.SCRIPTS)
FAKE = """
from order import Load, Meter, arguments, charge, reserve, right, ship, tell
asked = arguments("a peer", ("memory",))
load, meter = Load(), Meter()
for number in range(asked.runs):
    right({"reserve": reserve("a"), "charge": charge("a"), "ship": ship("a")}, "a")
    load.saturated.append(0.001 * (1 + number))
load.alone = [0.002] * asked.alone
tell(meter.per_run(asked.runs), load.figures(), {"approvals": asked.approvals})
"""


@pytest.fixture
def venv(tmp_path, monkeypatch):
    """An environment with a python and nothing else."""
    folder = tmp_path / "venv"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setenv(peer.ENVIRONMENT, str(folder))
    return folder


def install(venv, *files):
    for name in files:
        path = venv / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def chosen(*names):
    return [step.name for _, step in rounds(names, quick=True, runs=None, repeat=1)]


def test_peers_that_are_not_installed_are_left_out_with_a_line(venv):
    assert not [name for name in chosen() if name.startswith("peer-")]
    assert chosen("peer") == []
    (line,) = peer.left_out([])
    assert all(each.name in line for each in peer.PEERS)
    assert "make bench-peers" in line
    assert list(peer.left_out(["floor"])) == []


def test_what_is_installed_is_measured(venv):
    install(venv, "lib/python3.11/site-packages/dbos/__init__.py")

    assert chosen("peer") == ["peer-dbos-postgres", "peer-dbos-sqlite"]
    assert chosen("peer-dbos-sqlite", "floor") == ["floor", "peer-dbos-sqlite"]
    assert needs_postgres(["peer"])
    assert not needs_postgres(["peer-dbos-sqlite"])


def test_a_server_of_its_own_belongs_to_being_installed(venv):
    install(venv, *(f"lib/python3.11/site-packages/{name}/__init__.py" for name in ("restate", "granian")))
    assert chosen("peer") == []

    install(venv, "node_modules/@restatedev/restate-server-linux-x64/bin/restate-server")
    assert chosen("peer") == ["peer-restate"]


def test_every_peer_has_a_step_and_a_script():
    names = [step.target for step in STEPS if step.courses == ("peer",)]

    assert names == [each.name for each in peer.PEERS]
    assert all((SCRIPTS / f"{each.script}_peer.py").exists() for each in peer.PEERS)


def test_a_script_gives_figures_and_its_size_scales_all_of_them(venv, tmp_path, monkeypatch):
    fake = peer.Peer("fake", "fake", "memory", (), 100, 4, 50, 20)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "order.py").write_text((SCRIPTS / "order.py").read_text())
    (tmp_path / "scripts" / "fake_peer.py").write_text(FAKE)
    monkeypatch.setattr(peer, "SCRIPTS", tmp_path / "scripts")
    monkeypatch.setattr(peer, "PEERS", (fake,))

    found = peer.measure_peer("fake", tmp_path, 10, 4)

    assert found["p50_ms"] == pytest.approx(5.5)
    assert found["alone_p50_ms"] == pytest.approx(2)
    assert found["approvals"] == 2
    assert found["runs_per_s"] > 0
    assert found["peak_mb"] > 0


def test_a_script_that_breaks_is_told_with_its_exit_code(venv, tmp_path, monkeypatch):
    (tmp_path / "fake_peer.py").write_text("raise SystemExit(3)")
    monkeypatch.setattr(peer, "SCRIPTS", tmp_path)
    monkeypatch.setattr(peer, "PEERS", (peer.Peer("fake", "fake", "memory", (), 1, 1, 1, 1),))

    with pytest.raises(AssertionError, match="fake ended with exit code 3"):
        peer.measure_peer("fake", tmp_path, 1, 1)


def test_the_steps_of_peers_are_ours():
    code = "import json, order; print(json.dumps([f('o-1') for f in (order.reserve, order.charge, order.ship)]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=SCRIPTS, capture_output=True, text=True, check=True)

    assert [jobs.step_result(name, "o-1") for name in ("reserve", "charge", "ship")] == json.loads(done.stdout)


def test_a_result_that_is_another_ones_is_refused():
    code = "from order import *; right({'reserve': reserve('b'), 'charge': charge('a'), 'ship': ship('a')}, 'a')"
    done = subprocess.run([sys.executable, "-c", code], cwd=SCRIPTS, capture_output=True, text=True, check=False)

    assert "the result of a is not its own" in done.stderr


def test_a_terminated_script_ends_its_server_and_what_that_has_started(tmp_path):
    code = f"""
import time
from pathlib import Path
from order import arguments
from servers import server
asked = arguments("a peer", ("memory",))
shell = ["sh", "-c", "sleep 300 & echo $! > {tmp_path}/pid; wait"]
with server(shell, asked.folder, "shell"):
    while not Path("{tmp_path}/pid").exists() or not Path("{tmp_path}/pid").read_text().strip():
        time.sleep(0.01)
    print("ready", flush=True)
    time.sleep(300)
"""
    command = [sys.executable, "-c", code, "--folder", str(tmp_path)]
    script = subprocess.Popen(command, cwd=SCRIPTS, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert script.stdout.readline() == "ready\n"
    pid = int((tmp_path / "pid").read_text())

    script.send_signal(signal.SIGTERM)
    script.wait(60)

    for _ in range(500):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            break
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.02)
    else:
        pytest.fail("what the server had started is still there")
