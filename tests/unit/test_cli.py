"""The command line: every mistake is one line on stderr and exit code 2, and `--json` keeps its contracts."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from streams.cli import main, watch
from streams.cli.loader import load_app
from streams.cli.parser import attribute, json_value, seconds, whole_number
from streams.cli.terminal import safe, short_json
from streams.cli.watch import TerminalObserver, ranges
from streams.errors import UsageError
from streams.log.port import TopicSpec
from streams.log.sqlite import open_sqlite
from streams.runtime.topics import ensure_topics
from streams.wire.topics import topics_of

ROOT = Path(__file__).resolve().parents[2]
ORDER = f"{ROOT / 'examples' / 'order.py'}:app"
BY_REQUEST = f"{ROOT / 'examples' / 'order_request.py'}:app"
START = ["start", "order", "--run-id", "o-1", "--input"]


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("streams.cli.logs.APPEAR_SECONDS", 0.2)
    monkeypatch.setattr("streams.cli.ask.ANSWER_SECONDS", 0.2)
    monkeypatch.setattr("streams.cli.bulk.SILENCE_SECONDS", 0.5)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("STREAMS_LOG", "STREAMS_APP", "STREAMS_DEBUG", "STREAMS_LEDGER"):
        monkeypatch.delenv(name, raising=False)


def run(*argv: str) -> int:
    return main(argv)


def topics(*apps: str, url: str = "sqlite:///streams.db") -> None:
    async def create() -> None:
        log = await open_sqlite(url)
        for app in apps:
            await ensure_topics(log, topics_of(app, ["shipments"]), 3)
        await log.close()

    asyncio.run(create())


# ---- usage ----------------------------------------------------------------------------------------------------------

WRONG = [  # arguments, a part of the one line
    (["frob"], "unknown verb 'frob'; there are: demo, dev, worker"),
    (["--frob"], "unknown option --frob"),
    (["--frob", "runs"], "unknown option --frob"),
    (["--json"], "which verb?"),
    (["--log"], "--log: expected one argument"),
    (["runs", "--log"], "--log: expected one argument; see: streams runs --help"),
    (["runs", "--jso"], "--jso"),
    (["runs", "extra"], "extra"),
    (["runs", "--status", "odd"], "--status: invalid choice: 'odd'"),
    (["runs", "--attr", "tenant"], "--attr: 'tenant' is no KEY=VALUE"),
    (["show"], "missing: RUN; see: streams show --help"),
    (["show", ""], "a run id must not be empty"),
    (["show", "a\nb"], "a run id must not hold control characters"),
    (["show", "x" * 201], "a run id takes 201 bytes"),
    (["demo", "cake"], "invalid choice: 'cake'"),
    (["demo", "--approve", "--reject"], "--reject: not allowed with argument --approve"),
    (["demo", "--via", "pigeon"], "--via: invalid choice: 'pigeon'"),
    (["demo", "--ledger", "sqlite:///x.db"], "--ledger is for --via subscriber"),
    (["demo", "report", "--via", "subscriber"], "is written into PostgreSQL: add --ledger postgresql://…"),
    (["demo", "order", "--via", "subscriber", "--ledger", "x"], "'x' is no address of a ledger"),
    (["subscribe"], "missing: MODULE:APP; see: streams subscribe --help"),
    (["subscribe", "nowhere.py:app"], "there is no file nowhere.py"),
    (["subscribe", ORDER], "order.py:app has no subscriber; write one: @app.subscriber(EFFECT)"),
    (["subscribe", BY_REQUEST, "--only"], "--only: expected at least one argument"),
    (["subscribe", BY_REQUEST, "--only", "shipments"], "has no subscriber of shipments; it has: payments"),
    (["subscribe", BY_REQUEST, "--lease", "0.5"], "--lease: a claim lasts at least 1 s"),
    (["subscribe", BY_REQUEST, "--lease", "long"], "--lease: 'long' is no number of seconds"),
    (["subscribe", BY_REQUEST, "--ledger", "redis://h"], "'redis://h' is no address of a ledger"),
    (["subscribe", BY_REQUEST, "--ledger", "sqlite:///x/y/z.db"], "does not exist"),
    (["subscribe", BY_REQUEST, "--log", "nonsense"], "'nonsense' is no address of a log"),
    (["subscribe", BY_REQUEST, "--app", "my app"], "app 'my app': use 1 to 100 ASCII letters"),
    (["topics", "drop", ORDER], "invalid choice: 'drop'"),
    (["topics", "create"], "missing: MODULE:APP"),
    (["topics", "create", ORDER, "--partitions", "0"], "--partitions: '0' is no whole number from 1 to"),
    (["topics", "create", ORDER, "--partitions", "many"], "--partitions: 'many' is no whole number"),
    (["topics", "check", ORDER], "there is no log at sqlite:///streams.db; create one with"),
    (["start"], "missing: WORKFLOW"),
    (["rebuild", "o-1"], "a repair needs --reason TEXT"),
    (["rebuild", "o-1", "--reason", " "], "a repair needs --reason TEXT"),
    (["rebuild", "o-1", "--reason", "x", "--partition", "1"], "--partition is for all checkpoints"),
    (["rebuild", "--reason", "x"], "are for one run: streams rebuild RUN"),
    (["rebuild", "--parked"], "are for one run: streams rebuild RUN"),
    (["rebuild", "--partition", "x"], "--partition: 'x' is no whole number"),
    (["verify", "--report", "no/x.json"], "--report: no/x.json cannot be written: there is no folder no"),
    (["export", "--out", "."], "--out: . is a folder"),
    (["rebuild"], "there is no log at sqlite:///streams.db"),
    (["start", "order"], "start needs --run-id ID and --input JSON, or --from FILE"),
    (["start", "order", "--run-id", "o-1"], "start needs --run-id ID and --input JSON"),
    ([*START, "{"], "--input: '{' is no JSON"),
    ([*START, "hello"], """a text needs its quotes: '"text"'"""),
    ([*START, "[NaN]"], "NaN is no JSON"),
    ([*START, "1", "--version", "0"], "--version: '0' is no whole number from 1"),
    ([*START, "1", "--timeout", "3"], "--timeout is for --wait"),
    ([*START, "1", "--wait", "--timeout", "-3"], "--timeout"),
    ([*START, "1", "--id-field", "id"], "--id-field is for --from FILE"),
    (["start", "order", "--from", "x.jsonl"], "--from FILE needs --id-field F"),
    (["start", "order", "--from", "x.jsonl", "--id-field", "id"], "--from: cannot read x.jsonl: No such file"),
    (["start", "order", "--from", "-", "--id-field", "id", "--run-id", "o"], "--from FILE takes no --run-id"),
    ([*START, "1"], "there is no log at sqlite:///streams.db; start a worker first"),
    (["resume", "o-1"], "missing: --value"),
    (["resume", "o-1", "--value", "yes"], "--value: 'yes' is no JSON"),
    (["signal", "o-1", "--value", "1"], "missing: NAME"),
    (["skip", "o-1"], "missing: --op"),
    (["complete", "o-1", "--op", "1"], "missing: --value"),
    (["result", "o-1", "--timeout", "soon"], "--timeout: 'soon' is no number of seconds"),
    (["runs"], "there is no log at sqlite:///streams.db; start a worker first"),
    (["runs", "--log", "kafka://h:1?linger.msec=1"], 'No such configuration property: "linger.msec"'),
    (["runs", "--log", "memory:"], "lives inside one process"),
    (["runs", "--log", "ftp://x"], "'ftp://x' is no address of a log; write sqlite:///PATH or kafka://HOST:PORT"),
    (["runs", "--log", "streams.db"], "'streams.db' is no address of a log"),
    (["runs", "--log", ""], "there is no log at sqlite:///streams.db"),
    (["runs", "--log", "sqlite:streams.db"], "is no address of a sqlite log"),
    (["runs", "--log", "sqlite:///x/y/z.db"], "does not exist"),
    (["runs", "--log", "sqlite:///s.db?colour=red"], "unknown setting 'colour'"),
    (["worker", ORDER, "--log", "sqlite:///x/y/z.db"], "does not exist"),
    (["worker", ORDER, "--log", "nonsense"], "'nonsense' is no address of a log"),
    (["worker", ORDER, "--app", "my app"], "app 'my app': use 1 to 100 ASCII letters"),
    (["worker", "order.py"], "'order.py' is no MODULE:APP; write it like examples/order.py:app"),
    (["worker", "nowhere.py:app"], "there is no file nowhere.py"),
    (["worker", "no.such.module:app"], "there is no module 'no.such.module'"),
    (["worker", "json:app"], "json:app: 'app' has nothing of this name; make one with app = App('NAME')"),
    (["worker", f"{ORDER}2"], f"'app2' has nothing of this name; it has {ORDER}"),
    (["worker", ORDER.replace(":app", ":Order")], "'Order' is type, no App"),
]


@pytest.mark.parametrize(
    ("argv", "part"), WRONG, ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else ""
)
def test_a_mistake_is_one_line_and_exit_code_2(argv: list[str], part: str, capsys) -> None:
    code = run(*argv)
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("streams: ")
    assert part in err
    assert "Traceback" not in err


def test_a_mistake_before_the_verb_and_the_verb_after_it(capsys) -> None:
    topics("orders")
    assert run("--log", "sqlite:///streams.db", "--json", "runs") == 0
    assert run("--log=sqlite:///streams.db", "runs", "--app", "orders") == 0
    assert capsys.readouterr().out == ""


def test_topics_are_those_of_the_name_that_was_given(capsys) -> None:
    assert run("topics", "create", ORDER, "--app", "other", "--json") == 0
    assert "other.commands" in (out := capsys.readouterr().out)
    assert "orders.commands" not in out


@pytest.mark.parametrize("argv", [[], ["--help"], ["start", "--help"], ["demo", "-h"], ["--version"]])
def test_help_goes_to_stdout(argv: list[str], capsys) -> None:
    assert run(*argv) == 0
    out, err = capsys.readouterr()
    assert out.startswith(("usage: streams", "streams "))
    assert err == ""


# ---- loading an app -------------------------------------------------------------------------------------------------

BROKEN = [  # source, a part of the one line
    ("def f(:", "invalid syntax"),
    ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
    ("\n\n1 / 0", "ZeroDivisionError: division by zero (/broken.py, line 3)"),
    ("def deep():\n    raise ValueError('two\\nlines')\ndeep()", "ValueError: two lines (/broken.py, line 2)"),
    ("raise SystemExit(3)", "SystemExit: 3"),
    ("app = 5", "'app' is int, no App"),
    ("from streams import App\napp = App('bad name')", "use 1 to 100 ASCII letters"),
    ("from streams import App\nshop = App('shop')", "it has broken.py:shop"),
]


@pytest.mark.parametrize(("source", "part"), BROKEN)
def test_a_broken_module_is_told_of_in_one_line(source: str, part: str, tmp_path: Path, capsys) -> None:
    (tmp_path / "broken.py").write_text(source)
    assert run("worker", "broken.py:app") == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert part in err.replace(str(tmp_path), "")


def test_the_examples_are_a_package_as_in_the_wheel() -> None:
    """There they are `streams._examples`, and nothing puts their folder on the path for `import provider_client`."""
    code = "from streams.cli.loader import load_app as load; print(load('examples.order:app').name)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "orders\n", done.stderr


def test_an_app_is_loaded_by_path_and_by_name(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "helper.py").write_text("NAME = 'shop'\n")
    (tmp_path / "shop" / "json.py").write_text("import helper\nfrom streams import App\napp = App(helper.NAME)\n")
    assert load_app("shop/json.py:app").name == "shop"  # called like a module that is loaded already
    (tmp_path / "kiosk.py").write_text("from streams import App\nclass my: app = App('kiosk')\n")
    assert load_app("kiosk:my.app").name == "kiosk"
    with pytest.raises(UsageError, match="no module 'shop\\.nothing' here"):
        load_app("shop.nothing:app")


# ---- which app ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("apps", "argv", "part"),
    [
        ((), [], "no app has topics in sqlite:///streams.db; start a worker first"),
        (("orders", "reports"), [], "several apps are in sqlite:///streams.db: orders, reports; name one with --app"),
        (("orders",), ["--app", "order"], "no app 'order' has topics in sqlite:///streams.db; there are: orders"),
    ],
)
def test_the_app_is_named_or_the_only_one(apps: tuple[str, ...], argv: list[str], part: str, capsys) -> None:
    topics(*apps)
    assert run("runs", *argv) == 2
    assert part in capsys.readouterr().err


def test_the_environment_stands_for_flags(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    topics("orders", "reports", url="sqlite:///other.db")
    monkeypatch.setenv("STREAMS_LOG", "sqlite:///other.db")
    monkeypatch.setenv("STREAMS_APP", "reports")
    assert run("show", "r-1") == 1
    assert "app 'reports' has no run 'r-1'" in capsys.readouterr().err


# ---- requests without a worker --------------------------------------------------------------------------------------


def test_a_request_is_kept_where_no_worker_answers(capsys) -> None:
    topics("orders")
    assert run(*START, "{}", "--json") == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert (answer["run_id"], answer["new"]) == ("o-1", None)
    assert "no worker has taken the command for run 'o-1'" in err


@pytest.mark.parametrize("verb", ["show", "history", "result"])
def test_an_unknown_run_is_exit_code_1(verb: str, capsys) -> None:
    topics("orders")
    assert run(verb, "o-1") == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "UNKNOWN_RUN" in err


def test_bad_lines_are_told_of_and_the_good_ones_are_sent(tmp_path: Path, capsys) -> None:
    topics("orders")
    lines = [
        '{"id": "a"}',
        "{",
        "",
        "[1]",
        '{"no": 1}',
        '{"id": null}',
        '{"id": ""}',
        '{"id": 7, "x": NaN}',
        '{"id": 8}',
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    assert run("start", "order", "--from", "in.jsonl", "--id-field", "id", "--json") == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == {"lines": 8, "new": 0, "known": 0, "refused": 0, "bad": 6, "unanswered": 2}
    told = [line.split(": ")[1] for line in err.splitlines()]
    assert told == ["line 2", "line 4", "line 5", "line 6", "line 7", "line 8"]


def test_a_start_reads_stdin(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    topics("orders")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO('{"id": "ключ"}\n'.encode())))
    assert run("start", "order", "--from", "-", "--id-field", "id") == 0
    assert capsys.readouterr().out.startswith("1 lines: 0 new, 0 already there, 0 refused, 1 in the log")


# ---- topics ---------------------------------------------------------------------------------------------------------


def test_topics_are_created_and_checked(capsys) -> None:
    assert run("topics", "create", ORDER, "--partitions", "3") == 0
    assert run("topics", "check", ORDER) == 0
    assert "✓ all topics are as they must be" in capsys.readouterr().out
    assert run("topics", "check", ORDER, "--partitions", "4", "--json") == 1
    checked = json.loads(capsys.readouterr().out)
    assert checked["faults"] == ["the topics have 3 partitions, not 4; the count of an app never changes"]
    assert {topic["partitions"] for topic in checked["topics"]} == {3}


def test_a_topic_that_would_lose_data_is_refused(capsys) -> None:
    async def spoil() -> None:
        log = await open_sqlite("sqlite:///streams.db")
        await log.create_topics([TopicSpec("orders.events", 3, {"cleanup.policy": "compact"})])
        await log.close()

    asyncio.run(spoil())
    assert run("topics", "create", ORDER) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "cleanup.policy is 'compact' and must be 'delete'" in err


# ---- the process ----------------------------------------------------------------------------------------------------


def test_checkpoints_are_rebuilt_and_the_report_says_so(capsys) -> None:
    topics("orders")
    assert run("rebuild", "--dry-run") == 0
    assert "0 checkpoints would be written" in capsys.readouterr().out
    assert run("rebuild", "--partition", "2", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {name: found[name] for name in ("app", "runs", "events", "written", "good", "dry_run")} == {
        "app": "orders",
        "runs": 0,
        "events": 0,
        "written": 0,
        "good": True,
        "dry_run": False,
    }
    assert [part["partition"] for part in found["partitions"]] == [2]
    assert run("rebuild", "--partition", "3") == 2
    assert "there is no partition 3: app 'orders' has 3" in capsys.readouterr().err
    assert run("rebuild", "o-1", "--reason", "x") == 1
    assert "no run 'o-1' has been started" in capsys.readouterr().err


def test_an_internal_error_is_one_line_with_a_hint(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def broken(_: object) -> int:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("streams.cli.look.connect", broken)
    assert run("runs") == 1
    assert capsys.readouterr().err == "streams: internal error: RuntimeError: two lines (STREAMS_DEBUG=1 shows where)\n"
    monkeypatch.setenv("STREAMS_DEBUG", "1")
    assert run("runs") == 1
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_is_quiet(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("streams.cli.look.connect", interrupted)
    assert run("runs") == 130
    assert capsys.readouterr() == ("", "")


CHATTY = """
import sys
from streams.cli import entry, topics
topics.load_app = lambda target: [print(number) for number in range(100_000)]
sys.exit(entry.main(["topics", "check", "x:app"]))
"""


def test_a_closed_pipe_is_quiet() -> None:
    command = f"{sys.executable} -c '{CHATTY}' | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("0\n141\n", "")


# ---- parts ----------------------------------------------------------------------------------------------------------


def test_readers_of_values() -> None:
    assert attribute("tenant=a=b") == ("tenant", "a=b")
    assert attribute("tenant=") == ("tenant", "")
    assert json_value('{"a": 1e400}') == {"a": float("inf")}
    assert seconds("1.5") == 1.5
    assert whole_number(1, 9)("9") == 9
    for read, text in [(attribute, "=x"), (seconds, "nan"), (seconds, "1e10"), (whole_number(1, 9), "10")]:
        with pytest.raises(argparse.ArgumentTypeError):
            read(text)


def test_text_of_users_cannot_move_the_cursor() -> None:
    assert safe("a\x1b[2J\r\n\u202eb\ud800") == "a\\x1b[2J\\r\\n\\u202eb\\ud800"
    assert safe("Größe 客户 👩‍🚀") == "Größe 客户 👩‍🚀"
    assert short_json({"a": "x" * 200}, 20) == '{"a": "xxxxxxxxxxxx…'


def test_ranges() -> None:
    assert ranges([]) == ""
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"


def test_skipped_commands_are_counted_on_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watch, "_COUNT_SECONDS", 0.01)

    async def tell(*, as_json: bool) -> None:
        observer = TerminalObserver(as_json=as_json)
        for _ in range(20):
            observer.skipped(3, 2_000)
        observer.skipped(0, 1)
        await asyncio.sleep(0.05)

    asyncio.run(tell(as_json=False))
    line = capsys.readouterr().out
    assert "40001 commands were applied before and skipped" in line
    assert "partition 0: 1, partition 3: 40000" in line
    asyncio.run(tell(as_json=True))
    told = json.loads(capsys.readouterr().out)
    assert (told["kind"], told["commands"], told["partitions"]) == ("skipped", 40001, {"0": 1, "3": 40000})
