"""The ownership and commit protocol, explored exhaustively: it holds, and each of its steps is there for something."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.model.__main__ import main
from tests.model.catalogue import DEEP, SCENARIOS, STEPS
from tests.model.explore import Edge, Found, System, TooManyStatesError, explore
from tests.model.rules import Rules
from tests.model.state import OPEN, Txn, canonical
from tests.model.tell import told

DOCUMENT = Path(__file__).parents[2] / "docs" / "model.md"
EXPLORED = {**SCENARIOS, **(DEEP if os.environ.get("STREAMS_MODEL_DEEP") else {})}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", EXPLORED)
def test_model_holds(name):
    found = explore(EXPLORED[name].system())
    assert not found.complaint, _story(found)
    assert _documented_scenarios()[name] == f"{found.states:,}"


@pytest.mark.parametrize("step", [name for name, step in STEPS.items() if step.complaint])
def test_without_step_gives_a_counter_example(step):
    about = STEPS[step]
    found = explore(SCENARIOS[about.scenario].system((step, *about.also)))
    assert found.complaint.startswith(about.complaint), _story(found)
    assert len(found.trace) == found.depth, "the trace can be walked from its beginning to the violation"
    assert _documented_steps()[step] == str(len(found.trace))


@pytest.mark.parametrize("step", [name for name, step in STEPS.items() if step.also or not step.complaint])
def test_a_step_that_another_covers_can_be_taken_out_alone(step):
    """Where this fails, the table in docs/model.md says too much: the step has become necessary by itself."""
    found = explore(SCENARIOS[STEPS[step].scenario].system((step,)))
    assert not found.complaint, _story(found)


def test_the_stable_fetch_is_covered_where_records_come_before_the_offsets():
    scenario = SCENARIOS["expelled"]._replace(records_first=True)
    assert not explore(scenario.system(("stable-fetch",))).complaint
    assert explore(scenario.system(("stable-fetch", "barrier", "position"))).complaint


def test_every_rule_is_in_the_catalogue_and_in_the_document():
    switches = {name.replace("_", "-") for name, value in Rules._field_defaults.items() if value is True}
    assert switches == set(STEPS) == set(_documented_steps())
    assert set(_documented_scenarios()) == {*SCENARIOS, *DEEP}
    for name, step in STEPS.items():
        assert (_documented_steps()[name] == "none") == (not step.complaint)


def test_the_command_prints_the_trace(capsys):
    assert main(["--without", "effects-inside", "--trace"]) == 1
    said = capsys.readouterr().out
    assert "I7: an effect for command 0, whose event does not exist" in said
    assert "1 A: 1, 2: takes command 0 of partition 0 (event 1 of run 0)" in said
    assert main(["--without", "barrier", "--scenario", "doubt"]) == 0
    assert "try it with position taken out too" in capsys.readouterr().out


def test_every_label_of_a_step_can_be_told():
    for name in ("leases-lost", "offsets-set", "settled"):
        system = SCENARIOS[name].system()
        seen, front = {system.initial}, [system.initial]
        for state in front[:400]:
            for label, after, _ in system.steps(state):
                assert re.match(r"[A-Z]: |broker: |group: |outside: ", told(label)), label
                if after not in seen:
                    seen.add(after)
                    front.append(after)


def test_names_of_workers_do_not_make_another_state():
    initial = SCENARIOS["expelled"].system().initial
    one, two = initial.workers
    swapped = initial._replace(workers=(two, one), txns=(Txn(8, OPEN, frozenset(), ()),))
    named = initial._replace(txns=(Txn(0, OPEN, frozenset(), ()),))
    mine, other = canonical(named), canonical(swapped)
    assert mine.workers == other.workers
    assert mine.txns == other.txns


def _counter(steps, *, bad: int = -1, goal: int = 3) -> System:
    return System(0, steps, lambda n: "too far" if n == bad else "", lambda n: n == goal, lambda n: n)


def test_the_explorer_finds_the_shortest_trace():
    def steps(n):
        return [Edge(("one",), n + 1, fault=False), Edge(("two",), n + 2, fault=False)] if n < 9 else []

    found = explore(_counter(steps, bad=5))
    assert found.complaint == "too far"
    assert sorted(label for label, _ in found.trace) == [("one",), ("two",), ("two",)]


def test_the_explorer_finds_a_dead_end_and_does_not_count_on_a_fault():
    begin = [Edge(("on",), 3, fault=False), Edge(("astray",), 1, fault=False)]
    stuck = explore(_counter(lambda n: begin if n == 0 else []))
    assert [label for label, _ in stuck.trace] == [("astray",)]
    luck = {0: begin, 1: [Edge(("luck",), 3, fault=True)]}
    assert explore(_counter(lambda n: luck.get(n, []))).complaint.startswith("from here the goal cannot be reached")
    back = {0: begin, 1: [Edge(("back",), 0, fault=False)]}
    assert not explore(_counter(lambda n: back.get(n, []))).complaint


def test_the_explorer_stops_at_its_limit():
    with pytest.raises(TooManyStatesError, match="narrow the bounds"):
        explore(_counter(lambda n: [Edge(("on",), n + 1, fault=False)]), states_max=10)


def _documented_steps() -> dict[str, str]:
    return {row[0]: row[3] for row in _rows(r"\| `([\w-]+)` \| ([^|]*) \| ([^|]*) \| (\d+|none) \|")}


def _documented_scenarios() -> dict[str, str]:
    return dict(_rows(r"\| `([\w-]+)` \| [^|]* \| ([\d,]+) \|$"))


def _rows(pattern: str) -> list[tuple[str, ...]]:
    return re.findall(pattern, DOCUMENT.read_text("utf-8"), re.MULTILINE)


def _story(found: Found) -> str:
    lines = [told(label) for label, _ in found.trace]
    return "\n".join([*lines, found.complaint or "no counter-example"])
