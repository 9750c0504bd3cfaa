"""Any bytes at all: decoders, readers of JSON, addresses and words of a command line never do what is not documented.

Guided by coverage where atheris is installed; on every Python the same targets are tried by hypothesis as well.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streams.errors import WireError
from tests.fuzz import oracles
from tests.fuzz.engine import has_atheris
from tests.fuzz.targets import CORPUS, GROUPS, TARGETS, regressions

ROOT = Path(__file__).parents[2]
SECONDS = int(os.environ.get("STREAMS_FUZZ_SECONDS", "32"))
"""For all groups together, beside the time that their processes take to start."""
HANG_SECONDS = 100
FEW, MANY = 60, 1500


@pytest.mark.parametrize("name", TARGETS)
def test_valid_inputs_and_those_that_found_a_bug(name):
    inputs = [*TARGETS[name].seeds(), *regressions(name)]
    assert inputs
    for data in inputs:
        TARGETS[name].check(data)


def test_every_input_that_found_a_bug_belongs_to_a_target():
    assert {path.name.partition("-")[0] for path in CORPUS.glob("*.hex")} <= set(TARGETS)
    assert {name for names in GROUPS.values() for name in names} == set(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes(name):
    _try(name, FEW)


@pytest.mark.slow
@pytest.mark.timeout(HANG_SECONDS + SECONDS)
@pytest.mark.parametrize("name", GROUPS)
def test_guided_by_coverage(name, tmp_path):
    if not has_atheris():
        for target in GROUPS[name]:
            _try(target, MANY)
        return
    seconds = max(1, SECONDS // len(GROUPS))
    command = [sys.executable, "-m", "tests.fuzz", name, "--seconds", str(seconds), "--keep", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, errors="replace", timeout=HANG_SECONDS + seconds, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}\n{_found(tmp_path)}"
    assert "number_of_executed_units" in done.stderr


def test_the_judge_judges():
    """An oracle that never disagrees proves nothing: it sees a byte that was changed, and one too many."""
    from tests.fuzz.judge import judged

    data = oracles.framed("lease", TARGETS["lease"].seeds()[0])
    assert judged("lease", data) == data
    assert judged("lease", data + b"0") is None
    assert judged("lease", data[:-1]) is None
    longer = data[:10] + bytes([data[10] | 0x80, 0]) + data[11:]
    assert judged("lease", longer) == data, "a number written in more bytes than it needs"


def _other_exception(decode, encode, data):
    raise KeyError(data[:4])


def _poorer(decode, encode, data):
    return decode(data)._replace(released=False)


def _refusing(decode, encode, data):
    raise WireError("the record lease is damaged: its bytes do not fit")


def _lenient(decode, encode, data):
    return decode(data.removesuffix(b"0"))


def _talking(decode, encode, data):
    raise WireError(f"the record lease is damaged: {data.decode('utf-8', 'backslashreplace')}")


@pytest.mark.parametrize(
    ("planted", "input_"),
    [
        (_other_exception, lambda lease: lease),
        (_poorer, lambda lease: lease),
        (_refusing, lambda lease: lease),
        (_lenient, lambda lease: lease + b"0"),
        (_talking, lambda lease: lease[:-1] + b"0" * 600),
    ],
)
def test_a_wrong_decoder_is_noticed(planted, input_, monkeypatch):
    decode, encode = oracles.RECORDS["lease"]
    lease = TARGETS["lease"].seeds()[1]  # a released one
    TARGETS["lease"].check(input_(lease))
    monkeypatch.setitem(oracles.RECORDS, "lease", (lambda data: planted(decode, encode, data), encode))
    with pytest.raises((AssertionError, KeyError)):
        TARGETS["lease"].check(input_(lease))


def test_a_length_that_is_not_there_allocates_nothing():
    import tracemalloc

    from streams.wire.binary import encode_long

    huge = encode_long(2**40)
    tracemalloc.start()
    for name, (decode, _) in oracles.RECORDS.items():
        for seed in TARGETS[name].seeds()[:8]:
            for at in range(0, len(seed), 3):
                with suppress(WireError):
                    decode(oracles.framed(name, seed[:at] + huge + seed[at + 1 :]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50_000_000


def _try(name: str, count: int) -> None:
    """Random bytes, and valid inputs that are cut, joined and changed in places."""
    seeds = TARGETS[name].seeds()
    changed = st.builds(
        _changed, st.sampled_from(seeds), st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=4)))
    )
    joined = st.builds(lambda one, two, at: one[:at] + two[at:], *[st.sampled_from(seeds)] * 2, st.integers(0, 200))

    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.binary(max_size=300) | changed | joined)
    def any_bytes(data: bytes) -> None:
        TARGETS[name].check(data)

    any_bytes()


def _changed(seed: bytes, changes: list[tuple[int, bytes]]) -> bytes:
    for place, new in changes:
        at = place % (len(seed) + 1)
        seed = seed[:at] + new + seed[at + len(new) // 2 :]
    return seed


def _found(folder: Path) -> str:
    inputs = [f"keep it as tests/fuzz/corpus/{path.name}: {path.read_text()}" for path in folder.glob("*.hex")]
    return "\n".join(inputs)
