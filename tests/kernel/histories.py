"""Lives through drawn histories, the same each time, and prints what became of each (`python -m`).

For what must decide the same as this Python does: the kernel when it is compiled.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streams.kernel import decide
from streams.kernel.run import OpPhase, is_terminal
from streams.wire.records import encode_checkpoint, encode_event
from tests.kernel.harness import Harness, failure
from tests.kernel.programs import build, programs

APP = build("good")


def live(program: Any, chance: Random, *, graph: bool) -> str:
    """The digest of all records and the last state, behind how many records there were."""
    run = Harness(APP, slots=2, checked=False)
    input_ = {"programs": [program, program], "rounds": 2, "log": []} if graph else program
    run.start("graph" if graph else "program", input_, version=1)
    for _ in range(30):
        if is_terminal(run.run):
            break
        act(run, chance)
    records = [encode_event(event) for event in (*run.log, *run.records)]
    digest = hashlib.sha256(b"".join((*records, encode_checkpoint(run.run)))).hexdigest()
    run.evict()
    return f"{len(records)} {run.status} {digest}"


def act(run: Harness, chance: Random) -> None:
    what = chance.choice(["step"] * 6 + ["fail", "signal", "resume", "cancel", "evict", "take over", "reply"])
    running = run.ops(OpPhase.RUNNING)
    if what == "fail" and running:
        run.fail(running[0].id, failure(kind=chance.choice(["retryable", "terminal", "unknown"])))
    elif what == "signal":
        run.signal("word", chance.randrange(9))
    elif what == "resume":
        run.resume(chance.randrange(9))
    elif what == "cancel" and chance.random() < 0.3:
        run.cancel()
    elif what == "evict":
        run.evict()
    elif what == "take over":
        run.take_over()
    elif what == "reply" and (asked := [op for op in run.run.ops.values() if op.kind == "request"]):
        run.reply(asked[0].id, 3)
    else:
        run.step()


@settings(max_examples=200, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    program=st.tuples(st.just("seq"), st.lists(programs, min_size=2, max_size=5)),
    seed=st.integers(0, 2**32),
    graph=st.booleans(),
)
def histories(program: Any, seed: int, *, graph: bool) -> None:
    sys.stdout.write(live(program, Random(seed), graph=graph) + "\n")


if __name__ == "__main__":
    sys.stderr.write(f"{Path(decide.__file__ or '').suffix}\n")
    histories()
