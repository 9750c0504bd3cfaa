"""The page docs/testing.md: its code runs, its tests pass, its fault is found, and it names every crash point."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from streams.runtime import crash
from streams.testing import Scenario

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "testing.md").read_text("utf-8")
FENCE = re.compile(r"^```(\w+) (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = {name: body for _, name, body in FENCE.findall(TEXT)}


def run(folder: Path, *command: str) -> tuple[int, str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "150"}
    line = [sys.executable, *command]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def write(folder: Path, shop: str, test: str) -> None:
    for name, text in (("shop.py", shop), ("test_shop.py", test), ("plain.py", BLOCKS["plain.py"])):
        (folder / name).write_text(text, "utf-8")


PYTEST = ("-m", "pytest", "-p", "streams.testing.plugin", "-p", "no:cacheprovider", "test_shop.py")


@pytest.mark.slow
def test_the_first_test_passes(tmp_path: Path):
    write(tmp_path, BLOCKS["shop.py"], BLOCKS["test_shop.py"])
    code, told = run(tmp_path, *PYTEST)
    assert (code, "1 passed" in told) == (0, True), told
    assert run(tmp_path, "plain.py") == (0, "")


@pytest.mark.slow
def test_the_fault_is_found_as_the_page_says(tmp_path: Path):
    begin, wrong = "@app.task(key=", BLOCKS["wrong.py"]
    shop = BLOCKS["shop.py"]
    right = shop[shop.index(begin) : shop.index("\n\n\n", shop.index(begin)) + 1]
    write(tmp_path, shop.replace(right, wrong), BLOCKS["test_shop.py"])
    code, told = run(tmp_path, *PYTEST)
    assert code == 1
    (shown,) = re.findall(r"^(SUBFAILED.*) - ", TEXT, re.MULTILINE)
    assert shown in told
    assert BLOCKS["line.txt"].strip() in told
    (option,) = re.findall(r"^\$ pytest test_shop.py (--crash-only \S+)$", TEXT, re.MULTILINE)
    code, told = run(tmp_path, *PYTEST, *option.split())
    assert (code, told.count("SUBFAILED[")) == (1, 1), told


@pytest.mark.slow
def test_the_subscriber_passes_and_its_mistakes_are_found_as_the_page_says(tmp_path: Path):
    for name in ("post.py", "test_post.py"):
        (tmp_path / name).write_text(BLOCKS[name], "utf-8")
    command = [*PYTEST[:-1], "test_post.py"]
    code, told = run(tmp_path, *command)
    assert (code, "1 passed" in told) == (0, True), told
    (tmp_path / "post.py").write_text(BLOCKS["post.py"].replace("reconcile=find", "idempotent=True"), "utf-8")
    code, told = run(tmp_path, *command)
    assert code == 1
    assert "['send/o-1', 'send/o-1']" in told
    (tmp_path / "post.py").write_text(BLOCKS["post.py"].replace(", reconcile=find", ""), "utf-8")
    lines = ("from streams.testing import crash_everywhere", "from test_post import *")
    code, told = run(tmp_path, "-c", "\n".join([*lines, "print(crash_everywhere(app, sent, resources=Post))"]))
    assert "waits for a person" in told


def test_the_page_names_every_point_and_no_other():
    table = TEXT.partition("| point | a worker dies when |\n")[2].partition("\n\n")[0]
    named = set()
    for row in table.splitlines()[1:]:
        point, told = (cell.strip() for cell in row.strip("|").split("|"))
        group = point.strip("`").partition(".")[0]
        named |= {f"{group}.{name.partition('/')[0]}" for name in re.findall(r"`([a-z_/A-Z]+)`", told)}
    assert named - {"sweep.crash_everywhere"} == crash.POINTS | {"task.waited", "effect.waited"}


def test_the_page_names_every_call_of_a_scenario():
    table = TEXT.partition("| call | what it does |\n")[2].partition("\n\n")[0]
    named = set(re.findall(r"s\.(\w+)", table))
    assert named == {name for name in vars(Scenario) if not name.startswith("_")}
