"""The Faust package without a broker: codecs, the fold of the view, its pages, and a clear word where Faust is not."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from html import unescape
from typing import Any

import pytest
from faust.serializers import codecs
from mode.utils.queues import FlowControlEvent, FlowControlQueue

from streams.effects.faust import CODECS, make_app, make_view, register_codecs
from streams.effects.faust.pages import counts_page, run_page
from streams.effects.faust.service import SteadyFlow
from streams.effects.faust.views import INCOMPLETE, View, ViewCodec, fold, shown, status
from streams.errors import UsageError, WireError
from streams.kernel import bodies as ev
from streams.kernel.events import Event
from streams.kernel.evolve import evolve
from streams.kernel.run import Run, status_of
from streams.wire.app_codec import make_codec
from streams.wire.checkpoints import encode_checkpoint
from streams.wire.records import decode_event, encode_effect
from tests.effects.faust_lab import ROOT, effect
from tests.ops import good

LOCAL = "kafka://127.0.0.1:9092"
values = make_codec((), {})


@cache
def events() -> list[tuple[Event, int, int]]:
    """The events of runs of every kind, with their places."""
    found = good.Copy(good.make())
    return [(decode_event(r.value or b""), r.partition, r.offset) for r in found.records(found.topics.events)]


def folded(stories: Any, views: dict[str, View] | None = None) -> dict[str, View]:
    views = {} if views is None else views
    for event, partition, offset in stories:
        after = fold(views.get(event.run_id), event, partition, offset)
        if after is not None:
            views[event.run_id] = after
    return views


def whole(run_id: str) -> Run:
    """The run as the engine folds it."""
    run: Run | None = None
    for event, _, _ in events():
        if event.run_id == run_id and event.seq is not None:
            run = evolve(run or Run(run_id, event.identity), event)
    assert run is not None
    return run


def test_the_view_has_the_status_result_and_waits_of_every_run() -> None:
    views = folded(events())
    assert len(views) > 25
    assert {status(view) for view in views.values()} >= {"completed", "failed", "cancelled", "blocked", "waiting"}
    for run_id, view in views.items():
        run = whole(run_id)
        assert status(view) == status_of(run).value
        assert (view.run.seq, view.run.result, view.run.error) == (run.seq, run.result, run.error)
        assert {op.id: op.phase for op in view.run.ops.values()} == {op.id: op.phase for op in run.ops.values()}


def test_every_event_twice_and_all_of_them_again_change_nothing() -> None:
    once = folded(events())
    twice = folded(part for story in events() for part in (story, story))
    assert twice == once
    assert folded(events(), dict(once)) == once
    copied = [(event, partition, offset + 100_000) for event, partition, offset in events()]
    assert folded(copied, dict(once)) == once


def test_a_view_comes_back_from_its_changelog_and_goes_on() -> None:
    codec, views = ViewCodec(), {}
    for event, partition, offset in events():
        after = fold(views.get(event.run_id), event, partition, offset)
        if after is not None:
            views[event.run_id] = codec.loads(codec.dumps(after))
            assert views[event.run_id] == after
    assert views == folded(events())


def test_a_view_is_much_smaller_than_the_run() -> None:
    sizes = {run_id: len(ViewCodec().dumps(view)) for run_id, view in folded(events()).items()}
    assert sizes["waits"] < len(encode_checkpoint(whole("waits")))


def test_a_missing_event_makes_the_run_incomplete_and_others_not() -> None:
    kept = [story for story in events() if not (story[0].run_id == "order1" and story[0].seq == 3)]
    views = folded(kept)
    assert status(views["order1"]) == INCOMPLETE
    assert "does not follow on 2" in views["order1"].trouble
    assert shown(views["order1"], values)["attention"] is True
    assert status(views["order2"]) == "completed"


def test_a_run_id_that_is_used_again_begins_anew() -> None:
    story = [part for part in events() if part[0].run_id == "order1"]
    views = folded(story)
    again = [(event._replace(identity="order1@999"), partition, offset + 10_000) for event, partition, offset in story]
    views = folded(again[:3], views)
    assert (views["order1"].run.identity, views["order1"].run.seq) == ("order1@999", 3)
    before = dict(views)
    assert folded(story, views) == before  # the first one's, redelivered


def test_an_expired_run_is_dropped() -> None:
    views = folded(events())
    view = views["order1"]
    expired = Event("order1", view.run.identity, view.run.seq + 1, 0, None, None, 1, ev.RunExpired("done with"))
    assert fold(view, expired, view.partition, view.offset + 5) is None


def test_what_is_shown_has_the_names_of_the_command_line() -> None:
    found = shown(folded(events())["waits"], values)
    assert found["status"] == "waiting"
    assert [(wait["kind"], wait["question"]) for wait in found["waiting"]] == [("interrupt", {"question": "for long"})]
    assert found["changed_at"].endswith("Z")


def test_pages_escape_what_users_wrote() -> None:
    evil = '<script>alert("x")</script>&'
    run = {"run_id": evil, "workflow": evil, "status": "waiting", "changed_at": None, "result": {"a": evil}}
    counts = {"runs": 1, "statuses": {evil: 1}, "missing_partitions": [3], "unreadable": 2}
    for page in (counts_page(evil, counts, [run]), run_page(evil, evil, run), run_page(evil, evil, None)):
        assert "<script" not in page
        assert "&lt;script&gt;" in page
    assert "partitions 3" in counts_page("a", counts, [])


def test_pages_load_anew_unless_somebody_types_into_them() -> None:
    counts = {"runs": 1, "statuses": {"waiting": 1}, "missing_partitions": [], "unreadable": 0}
    run = {"run_id": "o-1", "workflow": "order", "status": "waiting", "changed_at": None}
    for page in (counts_page("a", counts, [run]), run_page("a", "o-1", run)):
        assert 'http-equiv="refresh"' in page
        assert "<input" not in page
    for page in (run_page("a", "", None), run_page("a", "o-2", None)):
        assert 'http-equiv="refresh"' not in page
        assert "<input" in page
    assert "No run 'o-2'" in unescape(run_page("a", "o-2", None))
    assert "No run" not in run_page("a", "", None)


def test_a_view_of_nothing_says_so() -> None:
    counts = {"runs": 0, "statuses": {}, "missing_partitions": [], "unreadable": 0}
    assert "No runs yet" in counts_page("a", counts, [])
    assert "No runs yet" not in counts_page("a", {**counts, "missing_partitions": [0]}, [])  # they may only be missing


@pytest.mark.parametrize("name", sorted(CODECS))
def test_bytes_that_are_no_record_are_refused(name: str) -> None:
    register_codecs()
    with pytest.raises(WireError):
        codecs.loads(name, b"junk")


def test_records_go_through_their_codec_and_keys_are_text() -> None:
    register_codecs()
    event = events()[0][0]
    assert codecs.loads("streams-event", codecs.dumps("streams-event", event)) == event
    message = effect(1)
    assert codecs.dumps("streams-effect", message) == encode_effect(message)
    assert codecs.loads("streams-effect", encode_effect(message)) == message
    assert codecs.loads("streams-key", codecs.dumps("streams-key", "läuft/1")) == "läuft/1"


def test_settings_that_would_lose_messages_are_refused() -> None:
    with pytest.raises(UsageError, match="at_least_once"):
        make_app("a", LOCAL, processing_guarantee="exactly_once")
    with pytest.raises(UsageError, match=r"is kafka://HOST:PORT"):
        make_app("a", "sqlite:///x.db")
    with pytest.raises(UsageError, match="broker_credentials") as refused:
        make_app("a", f"{LOCAL}?sasl.password=secret")
    assert "secret" not in str(refused.value)


def test_several_brokers_are_faust_s_list() -> None:
    app = make_app("a", "kafka://one:9092,two:9093")
    assert [str(url) for url in app.conf.broker] == ["kafka://one:9092", "kafka://two:9093"]


@pytest.mark.parametrize(("flow", "kept"), [(SteadyFlow, 1), (FlowControlEvent, 0)])
def test_resuming_a_flow_that_runs_empties_no_queue_only_with_the_cure(flow: type, kept: int) -> None:
    """Faust does so at the end of a restore, when messages may have been delivered already."""
    control = flow()
    control.resume()
    queue: Any = FlowControlQueue(flow_control=control, clear_on_resume=True)
    queue.put_nowait("a message")
    control.resume()
    assert queue.qsize() == kept
    control.suspend()
    control.resume()
    assert queue.qsize() == 0
    assert isinstance(make_app("a", LOCAL).flow_control, SteadyFlow)


def test_the_pages_listen_on_this_machine_only_and_faust_serves_none_of_its_own() -> None:
    view = make_view("a", LOCAL)
    settings = view.service.conf
    assert settings.web_bind == "127.0.0.1"
    assert view.url == f"http://127.0.0.1:{settings.web_port}/"
    assert settings.web_port != make_view("a", LOCAL, port=settings.web_port + 1).service.conf.web_port
    assert not any((settings.web_stats_enabled, settings.web_tables_enabled, settings.web_graph_enabled))


@pytest.mark.parametrize("absent", ["faust", "aiokafka"])
def test_without_faust_importing_says_what_to_install(absent: str) -> None:
    program = f"import sys\nsys.modules[{absent!r}] = None\nimport streams.effects.faust"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'streams-engine[faust]'" in done.stderr.splitlines()[-1]


def test_importing_prints_no_warning() -> None:
    program = "import streams.effects.faust"
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_engine_does_without_faust() -> None:
    program = "import sys, streams.effects.subscriber, streams.runtime\nprint('faust' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "False", done.stderr
