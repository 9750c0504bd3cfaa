"""`streams replay` on the command line: exit codes, JSON, and one line for every mistake."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from streams.cli import main
from streams.cli.loader import load_app, rename
from streams.client import Client
from streams.log.sqlite import open_sqlite
from streams.runtime.settings import WorkerSettings
from streams.runtime.topics import ensure_topics
from streams.runtime.worker import Worker

CODE = """
from streams import App, Context, TaskContext

app = App("shop")
shipped = app.effect("shipped", str)


@app.task
async def pay(ctx: TaskContext, amount: int) -> str:
    return f"paid {amount}"


@app.workflow(version=1)
async def order(ctx: Context, amount: int) -> str:
    receipt = await ctx.run(pay, amount)
    ctx.emit(shipped, receipt)
    return f"{receipt} {await ctx.interrupt('well?', answer=str)}"
"""
URL = "sqlite:///streams.db"


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("STREAMS_LOG", "STREAMS_APP", "STREAMS_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    Path("shop.py").write_text(CODE, "utf-8")


async def _work(name: str, story: Any) -> None:
    log = await open_sqlite(URL)
    app = rename(load_app("shop.py:app"), name)
    worker = Worker(app, log, settings=WorkerSettings(partitions=3))
    running = asyncio.create_task(worker.run())
    try:
        async with Client(log, app) as client:
            await story(client)
    finally:
        worker.stop()
        await running
        await log.close()


async def _waits(client: Client, run_id: str) -> None:
    for _ in range(600):
        view = await client.get(run_id)
        if view is not None and view.run is not None and any(o.kind == "interrupt" for o in view.run.ops.values()):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(run_id)


async def _orders(client: Client) -> None:
    await ensure_topics(client.log, client.topics, 3)
    for number in (1, 2, 3):
        await client.start("order", number, run_id=f"o-{number}")
        await _waits(client, f"o-{number}")
    await client.resume("o-1", "yes")
    assert await client.result("o-1") == "paid 1 yes"


@pytest.fixture
def orders() -> None:
    asyncio.run(_work("shop", _orders))


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["replay", *argv])
    out, err = capsys.readouterr()
    return code, out, err


WRONG = [
    ((), "missing: ACTION; see: streams replay --help"),
    (("frob",), "invalid choice: 'frob'"),
    (("rewind",), "missing: --to; see: streams replay rewind --help"),
    (("rewind", "--to", "soon"), "'soon' is no time; write it like"),
    (("rewind", "--to", "2020-01-01"), "names no zone"),
    (("rewind", "--to", "start", "--partition", "x"), "--partition: 'x' is no whole number"),
    (("rewind", "--to", "start"), "there is no log at sqlite:///streams.db"),
    (("shadow",), "missing: MODULE:APP"),
    (("shadow", "shop.py:app"), "there is no log at sqlite:///streams.db"),
    (("shadow", "shop.py:app", "--since", "then"), "'then' is no time"),
    (("shadow", "shop.py:app", "--status", "odd"), "--status: invalid choice: 'odd'"),
    (("shadow", "shop.py:app", "--limit", "0"), "--limit: '0' is no whole number"),
    (("reprocess", "shop.py:app"), "missing: --as"),
    (("reprocess", "shop.py:app", "--as", "new"), "say that you want it with: --tasks run"),
    (("reprocess", "shop.py:app", "--as", "a b", "--tasks", "run"), "a b"),
    (("reprocess", "shop.py:app", "--as", "new", "--effects", "some"), "--effects: invalid choice: 'some'"),
]


@pytest.mark.parametrize(("argv", "part"), WRONG)
def test_wrong_usage_is_one_line(argv: tuple[str, ...], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert part.lower() in err.lower()


@pytest.mark.usefixtures("orders")
def test_rewind(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "rewind", "--to", "start", "--dry-run", "--json")
    plan = json.loads(out)
    assert (code, plan["dry_run"], plan["moved"]) == (0, True, False)
    assert plan["total"] == {"known": 4, "expired": 0, "dead_lettered": 0, "new": 0, "skipped": 4}
    assert [part["partition"] for part in plan["partitions"]] == [0, 1, 2]
    code, out, _ = run(capsys, "rewind", "--to", "1d")
    assert code == 0
    assert "the group was moved: workers will skip 4 commands, and decide on 0 new" in out
    code, out, _ = run(capsys, "rewind", "--to", "start")
    assert (code, "nothing to move" in out) == (0, True)
    code, _, err = run(capsys, "rewind", "--to", "9", "--partition", "1")
    assert code == 1
    assert "FORWARD_MOVE" in err


@pytest.mark.usefixtures("orders")
def test_shadow(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "shadow", "shop.py:app")
    assert (code, out) == (0, "3 runs compared: 3 same\n")
    Path("shop.py").write_text(CODE.replace("ctx.run(pay, amount)", "ctx.run(pay, amount * 2)"), "utf-8")
    code, out, _ = run(capsys, "shadow", "shop.py:app", "--report", "report.jsonl")
    assert code == 1
    assert "1 × order: differs: op.scheduled: args" in out
    assert "2 × order: would block: NON_DETERMINISM" in out
    assert "args: [[1]] → [[2]]" in out
    assert "the run would block at the next delivery" in out
    lines = [json.loads(line) for line in Path("report.jsonl").read_text("utf-8").splitlines()]
    assert {line["run_id"]: line["verdict"] for line in lines} == {
        "o-1": "differs",
        "o-2": "would_block",
        "o-3": "would_block",
    }
    code, out, _ = run(capsys, "shadow", "shop.py:app", "--run", "o-1", "--json")
    summary = json.loads(out)
    assert (code, summary["runs"], summary["differs"]) == (1, 1, 1)
    assert summary["groups"][0]["examples"][0]["differences"][0]["fields"] == [
        {"field": "args", "recorded": [[1]], "now": [[2]]}
    ]
    code, out, _ = run(capsys, "shadow", "shop.py:app", "--status", "failed")
    assert (code, out) == (1, "no run was compared\n")


@pytest.mark.usefixtures("orders")
def test_shadow_is_no_proof_for_a_run_that_it_has_not_found(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = run(capsys, "shadow", "shop.py:app", "--run", "o-1", "o-9")
    assert (code, out) == (1, "1 run compared: 1 same\n")
    assert "not compared" in error
    assert "o-9" in error


@pytest.mark.usefixtures("orders")
def test_reprocess(capsys: pytest.CaptureFixture[str]) -> None:
    call = ("reprocess", "shop.py:app", "--as", "again", "--tasks", "run", "--idle", "0.2")
    code, out, err = run(capsys, *call)
    assert (code, "3 commands copied to app again" in out) == (1, True)
    assert "1 answers, replies and later commands wait for their runs to come so far: o-1" in out
    assert "tasks RUN, really" in out
    assert "streams worker shop.py:app --app again" in err
    code, out, _ = run(capsys, "reprocess", "shop.py:app", "--as", "again", "--compare")
    assert (code, "3 runs compared: 3 missing" in out) == (1, True)

    async def orders_again(client: Client) -> None:
        for number in (1, 2, 3):
            await _waits(client, f"o-{number}")

    asyncio.run(_work("again", orders_again))
    code, out, _ = run(capsys, *call, "--json")
    done = json.loads(out)
    assert (code, done["commands"], done["before"], done["held"], done["effects"]) == (0, 1, 3, 0, "off")

    async def answered(client: Client) -> None:
        assert await client.result("o-1") == "paid 1 yes"

    asyncio.run(_work("again", answered))
    code, out, _ = run(capsys, "reprocess", "shop.py:app", "--as", "again", "--compare", "--json")
    assert (code, json.loads(out)["same"]) == (0, 3)
    code = main(["topics", "check", "shop.py:app", "--app", "again"])
    assert (code, "effects" in capsys.readouterr().out) == (0, False)
