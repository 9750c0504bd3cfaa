"""The page on durability modes: its code runs as it stands, in the transactions that the page speaks of."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from streams import App
from tests.runtime.history import start, until
from tests.runtime.lab import lab
from tests.runtime.test_overlap import Gate

TEXT = (Path(__file__).parents[2] / "docs" / "durability.md").read_text("utf-8")


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> App:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    module = ModuleType("durability_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code, "durability.md", "exec", dont_inherit=True), module.__dict__)
    found: App = module.app
    return found


def test_the_three_steps_of_the_page_run_beside_the_first_of_two_commits(app: App, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lab(app, "memory", tmp_path) as found:
            running = await found.worker()
            gate = Gate(running)
            gate.open.clear()
            await found.history.send("q", start("quote", [100, 900]))
            await until(lambda: len(gate.tried) == 1)
            await asyncio.sleep(0.1)
            await found.history.read()
            assert not found.history.events.get("q"), "something was visible before the commit"
            gate.open.set()
            assert await found.history.result("q") == 1080
            assert len(gate.tried) == 2
            await running.stop()
            await found.check()

    asyncio.run(scenario())


def test_the_page_names_the_modes_as_they_are() -> None:
    for mode in ("every_step", "pipelined"):
        assert f'durability="{mode}"' in TEXT
