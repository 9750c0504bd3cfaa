"""`streams export`: histories as `history --json` prints them, rows that DuckDB reads, and nothing lost in silence."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

from streams.cli import main
from streams.log.port import TopicPartition
from streams.log.sqlite import open_sqlite
from streams.ops.export import COLUMNS
from streams.ops.verify.report import KINDS
from streams.runtime.topics import ensure_topics
from tests.ops.good import app, fill
from tests.runtime.checker import records_of, try_event
from tests.runtime.history import send_raw
from tests.runtime.lab import PARTITIONS, Lab

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A log with every kind of run, and two records that are no events."""
    url = f"sqlite:///{tmp_path_factory.mktemp('export')}/log.db"

    async def work() -> None:
        lab = Lab(app, lambda: open_sqlite(url), await open_sqlite(url))
        await ensure_topics(lab.log, lab.topics, PARTITIONS)
        try:
            await fill(lab, 3)
            await send_raw(lab.log, lab.topics.events, 1, b"odd \xff", b"\x00garbage")
            await send_raw(lab.log, lab.topics.events, 2, b"null", None)
        finally:
            await lab.end()

    asyncio.run(work())
    return url


def count_of(url: str) -> int:
    async def work() -> int:
        log = await open_sqlite(url)
        records = [await records_of(log, TopicPartition("good.events", number)) for number in range(PARTITIONS)]
        await log.close()
        return sum(1 for some in records for record in some if try_event(record) is not None)

    return asyncio.run(work())


def lines_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main([*arguments]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_every_event_is_there_as_history_prints_it(url: str, capsys: pytest.CaptureFixture[str]):
    lines = lines_of(capsys, "export", "--log", url)
    assert len([line for line in lines if "damage" not in line]) == count_of(url)
    for run_id in ("order1", "hears", "nobody"):
        mine = [line for line in lines if line["run_id"] == run_id]
        assert mine
        assert mine == lines_of(capsys, "history", run_id, "--log", url, "--json")
        assert mine == lines_of(capsys, "export", run_id, "--log", url)


def test_what_is_no_event_is_exported_with_its_bytes(url: str, capsys: pytest.CaptureFixture[str]):
    for form in ("jsonl", "rows"):
        odd = [line for line in lines_of(capsys, "export", "--log", url, "--format", form) if line.get("damage")]
        assert [line["run_id"] for line in odd] == ["odd \\xff", "null"]
        assert base64.b64decode(odd[0]["raw"]) == b"\x00garbage"
        assert odd[1]["raw"] is None
        assert all(line["event_id"] is None and "expected a record event" in line["damage"] for line in odd)


def test_a_run_a_partition_and_a_time_choose(url: str, capsys: pytest.CaptureFixture[str]):
    everything = lines_of(capsys, "export", "--log", url, "--format", "rows")
    some = lines_of(capsys, "export", "order0", "ask1", "--log", url)
    assert {line["run_id"] for line in some} == {"order0", "ask1"}
    parts = [lines_of(capsys, "export", "--log", url, "--format", "rows", "--partition", str(n)) for n in range(4)]
    assert [line for part in parts for line in part] == everything
    events = [line for line in everything if line["damage"] is None]
    middle = sorted(events, key=lambda line: line["at_us"])[len(events) // 2]["at_utc"]
    before = lines_of(capsys, "export", "--log", url, "--until", middle)
    after = lines_of(capsys, "export", "--log", url, "--since", middle)
    assert 0 < len(before) < len(everything)
    assert len(before) + len(after) == len(everything)
    assert max(line["at"] for line in before if line["at"]) <= min(line["at"] for line in after if line["at"])


def test_rows_have_the_same_flat_columns(url: str, capsys: pytest.CaptureFixture[str]):
    rows = lines_of(capsys, "export", "--log", url, "--format", "rows")
    assert all(list(row) == list(COLUMNS) for row in rows)
    assert all(value is None or isinstance(value, str | int) for row in rows for value in row.values())
    started = next(row for row in rows if row["type"] == "run.started" and row["run_id"] == "order0")
    assert (started["workflow"], started["version"], started["command_offset"] is not None) == ("order", 1, True)
    scheduled = next(row for row in rows if row["type"] == "op.scheduled" and row["name"] == "work")
    assert (scheduled["kind"], scheduled["attempt"]) == ("task", 1)
    failed = next(row for row in rows if row["type"] == "op.failed" and row["run_id"] == "doomed0")
    assert (failed["error_class"], failed["error_code"]) == ("terminal", "RETRIES_EXHAUSTED")
    refused = next(row for row in rows if row["type"] == "command.rejected" and row["run_id"] == "nobody")
    assert (refused["seq"], refused["error_code"]) == (None, "UNKNOWN_RUN")
    emitted = next(row for row in rows if row["type"] == "effect.emitted" and row["run_id"] == "order0")
    assert (emitted["name"], json.loads(emitted["payload"])["payload"]) == ("parcels", {"what": "A"})


def test_duckdb_reads_the_log(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "events.jsonl"
    assert main(["export", "--log", url, "--format", "rows", "--out", str(file)]) == 0
    assert f"written to {file}" in capsys.readouterr().err
    assert main(["export", "--columns"]) == 0
    columns = capsys.readouterr().out.strip()
    sql = duckdb.connect()
    sql.execute(f"CREATE VIEW events AS FROM read_json('{file}', format = 'newline_delimited', columns = {columns})")
    counts = dict(sql.execute("SELECT type, count(*) FROM events WHERE type IS NOT NULL GROUP BY type").fetchall())
    assert sum(counts.values()) == count_of(url)
    assert counts["run.started"] == 20
    types = {name: type_ for name, type_, *_ in sql.execute("DESCRIBE events").fetchall()}
    assert types == {name: type_.replace("TIMESTAMPTZ", "TIMESTAMP WITH TIME ZONE") for name, type_ in COLUMNS.items()}
    durations = sql.execute(
        """
        SELECT started.name, count(*), min(ended.at_us - started.at_us)
        FROM events AS started JOIN events AS ended USING (identity, op)
        WHERE started.type = 'op.scheduled' AND started.kind = 'task' AND ended.type IN ('op.completed', 'op.failed')
        GROUP BY started.name
        """
    ).fetchall()
    found = {name: (count, least) for name, count, least in durations}
    assert found["work"][0] == 3 * 3 + 2
    assert all(least >= 0 for _, least in found.values())
    parquet = tmp_path / "events.parquet"
    sql.execute(f"COPY (FROM events) TO '{parquet}' (FORMAT parquet)")
    (again,) = sql.execute(f"SELECT count(*) FROM '{parquet}' WHERE type = 'run.started'").fetchone() or ()
    assert again == 20
    (question,) = (
        sql.execute(
            "SELECT payload ->> '$.args.question' FROM events WHERE run_id = 'waits' AND kind = 'interrupt'"
        ).fetchone()
        or ()
    )
    assert question == "for long"


def test_an_export_that_fails_leaves_no_file(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "events.jsonl"
    assert main(["export", "no-such-run", "--log", url, "--out", str(file)]) == 1
    assert "has no event of run 'no-such-run'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    file.write_text("an earlier one")
    assert main(["export", "--partition", "9", "--log", url, "--out", str(file)]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["events.jsonl"]
    assert file.read_text() == "an earlier one"


def test_an_export_that_is_interrupted_leaves_no_file(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("streams.cli.export.json.dump", interrupt)
    assert main(["export", "--log", url, "--out", str(tmp_path / "events.jsonl")]) == 130
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_goes_away_ends_it_quietly(url: str):
    command = f"{sys.executable} -m streams export --log {url} | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    first, code = done.stdout.splitlines()
    assert json.loads(first)["seq"] == 1
    assert code in {"0", "141"}  # what fits into the pipe is written before the reader goes
    assert done.stderr == "" or "damage" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--since", "yesterday"], "--since: 'yesterday' is no time; write it like 2026-01-31"),
        (["--partition", "9"], "there is no partition 9; the app has 4, from 0 on"),
        (["--format", "csv"], "--format: invalid choice: 'csv'"),
        (["a\nb"], "a run id must not hold control characters"),
    ],
)
def test_wrong_usage_is_one_line(url: str, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str):
    assert main(["export", "--log", url, *arguments]) == 2
    (complaint,) = capsys.readouterr().err.splitlines()
    assert line in complaint


def test_times_without_a_zone_are_utc(url: str, capsys: pytest.CaptureFixture[str]):
    first = lines_of(capsys, "export", "--log", url, "order0")[0]["at"]
    naive, zoned = first.removesuffix("Z"), first.replace("Z", "+00:00")
    assert lines_of(capsys, "export", "order0", "--log", url, "--since", naive) == lines_of(
        capsys, "export", "order0", "--log", url, "--since", zoned
    )


def test_the_sql_in_the_docs_runs(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    monkeypatch.chdir(tmp_path)
    assert main(["export", "--log", url, "--format", "rows", "--out", "events.jsonl"]) == 0
    assert main(["export", "--columns"]) == 0
    columns = capsys.readouterr().out.strip()
    blocks = re.findall(r"```sql\n(.*?)```", (ROOT / "docs" / "verify.md").read_text("utf-8"), re.DOTALL)
    sql = duckdb.connect()
    answers = [sql.execute(block.replace("COLUMNS", columns)).fetchall() for block in blocks]
    assert len(answers) == 8
    _, types, tasks, runs, errors, effects, damaged, copied = answers
    assert dict(types)["run.started"] == 20
    assert {name for name, *_ in tasks} >= {"work", "broken"}
    assert ("order", 1, "run.completed", 3) in runs
    assert any(status == "open" for *_, status, _ in runs)
    assert {code for code, *_ in errors} >= {"RETRIES_EXHAUSTED", "DOOMED"}
    assert ("order0", "parcels", '{"what":"A"}') in effects
    assert sorted(data for *_, data in damaged if data) == [b"\x00garbage"]
    assert copied[0][0] > 100
    assert (tmp_path / "events.parquet").is_file()


def test_every_kind_of_divergence_is_in_the_docs():
    text = (ROOT / "docs" / "verify.md").read_text("utf-8")
    assert [kind for kind in KINDS if f"`{kind}`" not in text] == []
