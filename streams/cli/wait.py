"""Waiting for the end of a run, and saying meanwhile what it waits for."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any, NamedTuple

from streams.cli.terminal import complain, console, error_text, note, print_json, short_json
from streams.client import Client, RunView
from streams.errors import Refused, RunCancelled, RunFailed, UnknownRun
from streams.kernel.run import OpPhase, OpState, is_terminal

__all__ = ["End", "print_end", "wait_for_end"]

FIRST_LOOK_SECONDS = 0.5
LOOK_SECONDS_MAX = 5.0


class End(NamedTuple):
    """How a run has ended. `error` has code and message where it has failed."""

    run_id: str
    status: str
    result: Any = None
    error: dict[str, Any] | None = None


async def wait_for_end(client: Client, run_id: str, timeout: float | None) -> End:
    """The end of the run; with a time-out of 0 only a look.

    Raises:
        UnknownRun: there is no such run.
        Refused: the run is blocked, so that waiting alone brings no end.
        TimeoutError: it has not ended in time.
    """
    if timeout == 0:
        view = await client.get(run_id)
        if view is None:
            raise UnknownRun("UNKNOWN_RUN", f"no run {run_id!r} has been started in app {client.topics.app!r}")
        if view.run is None or not is_terminal(view.run):
            raise TimeoutError(f"run {run_id!r} has not ended, it is {view.status}")
    ending = asyncio.create_task(_end(client, run_id))
    watching = asyncio.create_task(_watch(client, run_id))
    try:
        done, _ = await asyncio.wait({ending, watching}, timeout=timeout or None, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            message = f"run {run_id!r} has not ended in {timeout:g} s; it goes on (streams diagnose {run_id} says why)"
            raise TimeoutError(message)
        return ending.result() if ending in done else watching.result()
    finally:
        for task in (ending, watching):
            task.cancel()
        await asyncio.gather(ending, watching, return_exceptions=True)


async def _end(client: Client, run_id: str) -> End:
    try:
        return End(run_id, "completed", await client.result(run_id))
    except RunFailed as failed:
        error = {"code": failed.code, "message": failed.message, "details": failed.details}
        return End(run_id, "failed", error=error)
    except RunCancelled:
        return End(run_id, "cancelled")


async def _watch(client: Client, run_id: str) -> End:
    """Never returns: tells of questions and parked ops, and raises `Refused` when the run is blocked."""
    said: set[str] = set()
    pause = FIRST_LOOK_SECONDS
    while True:
        await asyncio.sleep(pause)
        pause = min(pause * 2, LOOK_SECONDS_MAX)
        view = await client.get(run_id)
        if view is None or view.run is None:
            continue
        if view.run.blocked is not None:
            blocked = view.run.blocked
            raise Refused(blocked.code, f"run {run_id!r} is blocked: {blocked.message} (streams diagnose {run_id})")
        for op in view.run.ops.values():
            text = _waits_for(client, view, op)
            if text and text not in said:
                said.add(text)
                note(text)


def _waits_for(client: Client, view: RunView, op: OpState) -> str:
    if op.phase is OpPhase.PARKED:
        why = error_text(op.error.code, op.error.message) if op.error is not None else ""
        return f"op {op.id} ({op.name}) is parked: {why}; then: streams retry {view.run_id} --op {op.id}"
    if op.kind == "interrupt" and op.phase is OpPhase.WAITING:
        question = short_json(client.values.codec.to_plain(op.args)) if op.args is not None else ""
        return f"it asks: {question} · streams resume {view.run_id} --value JSON"
    return ""


def print_end(args: argparse.Namespace, end: End) -> int:
    """Print the end of a run; 0 where it has completed, else 1."""
    if getattr(args, "json", False):
        print_json(end._asdict())
    elif end.status == "completed":
        _print_result(end.result)
    elif end.error is not None:
        complain(f"run {end.run_id!r} failed: {end.error['code']}: {end.error['message']}")
    else:
        complain(f"run {end.run_id!r} was {end.status}")
    return 0 if end.status == "completed" else 1


def _print_result(result: Any) -> None:
    out = console()
    if out.is_terminal:
        out.print_json(data=result, default=str)
    else:
        print_json(result)
