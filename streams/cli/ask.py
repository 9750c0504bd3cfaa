"""The verbs that talk to runs: start, resume, signal, cancel, result, and the repairs retry, skip and complete."""

from __future__ import annotations

import argparse
import asyncio
import getpass
from collections.abc import Awaitable, Callable
from typing import Any

from streams.cli.bulk import start_all
from streams.cli.logs import connect
from streams.cli.parser import Verbs, attribute, json_value, run_id, seconds, whole_number
from streams.cli.terminal import console, note, plain, print_json
from streams.cli.wait import print_end, wait_for_end
from streams.client import Client, RunView, Sent
from streams.errors import Refused, UsageError

__all__ = ["ANSWER_SECONDS", "add", "operator_name"]

ANSWER_SECONDS = 5.0
"""How long a request waits to hear what a worker made of it. The request is in the log by then, and stays there."""

VERSION_MAX = 1_000_000
Request = Callable[[Client, argparse.Namespace], Awaitable[Sent]]


def add(verbs: Verbs) -> None:
    """Declare the verbs."""
    _add_start(verbs)
    resume = _request(verbs, "ask", "resume", _resume, "answer a question that a run asks", '{"approved": true}')
    resume.add_argument("--interrupt", metavar="ID", help="which question, by id or key, where several are open")
    _request(verbs, "ask", "signal", _signal, "send a signal to a run", '"ready"', "NAME")
    cancel = _request(verbs, "ask", "cancel", _cancel, "ask a run to clean up and end")
    cancel.add_argument("--force", action="store_true", help="end it at once, without its clean-up")
    result = verbs.add("ask", "result", _result, "wait for the end of a run and print its result", "streams result o-1")
    result.add_argument("run", metavar="RUN", type=run_id)
    result.add_argument("--timeout", metavar="SECONDS", type=seconds, help="give up waiting; 0 only looks")
    retry = _request(verbs, "repair", "retry", _retry, "let a blocked run or a parked op go on")
    retry.add_argument("--op", metavar="ID", help="which op, where several are parked")
    skip = _request(verbs, "repair", "skip", _skip, "fail an op for good, so that the code goes on without it")
    skip.add_argument("--op", metavar="ID", required=True)
    complete = _request(verbs, "repair", "complete", _complete, "complete a task with a value you vouch for", "null")
    complete.add_argument("--op", metavar="ID", required=True)


def _request(
    verbs: Verbs, group: str, name: str, send: Request, help_: str, value: str | None = None, *more: str
) -> argparse.ArgumentParser:
    arguments = " ".join(("o-1", *(word.lower() for word in more), *([f"--value '{value}'"] if value else ())))
    parser = verbs.add(group, name, lambda args: asyncio.run(_ask(args, send)), help_, f"streams {name} {arguments}")
    parser.add_argument("run", metavar="RUN", type=run_id, help="the id of the run")
    for word in more:
        parser.add_argument(word.lower(), metavar=word)
    if value is not None:
        parser.add_argument("--value", metavar="JSON", type=json_value, required=True)
    return parser


def _add_start(verbs: Verbs) -> None:
    example = """streams start order --run-id o-1 --input '{"order_id": "o-1", …}' --attr tenant=acme
  streams start order --from examples/data/orders.jsonl --id-field order_id"""
    start = verbs.add("ask", "start", _start, "start a run, or one for each line of a file", example)
    start.add_argument("workflow", metavar="WORKFLOW")
    start.add_argument("--run-id", metavar="ID", type=run_id, help="its id; starting it again changes nothing")
    start.add_argument(
        "--input", metavar="JSON", type=json_value, default=argparse.SUPPRESS, help="the input of the workflow"
    )
    start.add_argument("--from", metavar="FILE", dest="source", help="a file of JSON lines, or - for stdin")
    start.add_argument("--id-field", metavar="F", help="the field of each line that names its run")
    start.add_argument("--attr", metavar="K=V", type=attribute, action="append", default=[], help="`runs` lists by it")
    start.add_argument("--version", metavar="N", type=whole_number(1, VERSION_MAX), help="not the newest, but this one")
    start.add_argument("--wait", action="store_true", help="wait for the end and print the result")
    start.add_argument("--timeout", metavar="SECONDS", type=seconds, help="how long --wait waits")


# ---- start ----------------------------------------------------------------------------------------------------------


def _start(args: argparse.Namespace) -> int:
    if args.source is not None:
        if args.run_id is not None or "input" in args or args.wait:
            raise UsageError("--from FILE takes no --run-id, --input or --wait: each line is a run of its own")
        if args.id_field is None:
            raise UsageError("--from FILE needs --id-field F, the field of each line that names its run")
        return asyncio.run(start_all(args))
    if args.id_field is not None:
        raise UsageError("--id-field is for --from FILE")
    if args.timeout is not None and not args.wait:
        raise UsageError("--timeout is for --wait")
    if args.run_id is None or "input" not in args:
        raise UsageError("start needs --run-id ID and --input JSON, or --from FILE and --id-field F")
    return asyncio.run(_start_one(args))


async def _start_one(args: argparse.Namespace) -> int:
    async with connect(args, patient=True) as client:
        sent = await client.start(
            args.workflow, args.input, run_id=args.run_id, version=args.version, attributes=dict(args.attr)
        )
        new = await _answer(client, sent)
        if args.wait:
            return print_end(args, await wait_for_end(client, sent.run_id, args.timeout))
        view = await client.get(sent.run_id) if new is not None else None
        status = view.status.value if view is not None else None
        done = {True: "started", False: "was started before with this input; nothing changed", None: _NOT_TAKEN}[new]
        _print_answer(args, sent, f"run {sent.run_id} {done}", new=new, status=status)
        _refuse_blocked(view)
        return 0


def _refuse_blocked(view: RunView | None) -> None:
    blocked = view.run.blocked if view is not None and view.run is not None else None
    if view is not None and blocked is not None:
        raise Refused(blocked.code, f"{blocked.message}; then: streams retry {view.run_id}")


_DONE = {
    "resume": "has its answer",
    "signal": "has the signal",
    "cancel": "is being cancelled",
    "retry": "goes on",
    "skip": "goes on without the op",
    "complete": "goes on with the value",
}
_NOT_TAKEN = "is in the log; no worker has taken it yet"


async def _answer(client: Client, sent: Sent) -> bool | None:
    """Whether the command changed something; None where no worker has taken it yet. Raises `Refused`."""
    try:
        return await client.accepted(sent, timeout=ANSWER_SECONDS)
    except TimeoutError as late:
        note(str(late))
        return None


def _print_answer(args: argparse.Namespace, sent: Sent, text: str, **facts: Any) -> None:
    if getattr(args, "json", False):
        print_json({"run_id": sent.run_id, "command_id": sent.command_id, **facts})
    else:
        console().print(plain(text), soft_wrap=True)


# ---- the others -----------------------------------------------------------------------------------------------------


async def _ask(args: argparse.Namespace, send: Request) -> int:
    async with connect(args) as client:
        sent = await send(client, args)
        new = await _answer(client, sent)
        if new and args.verb == "retry":
            _refuse_blocked(await client.get(sent.run_id))
        words = {True: _DONE[args.verb], False: "knew this already; nothing changed", None: _NOT_TAKEN}
        subject = "the request for run" if new is None else "run"
        _print_answer(args, sent, f"{subject} {sent.run_id} {words[new]}", new=new)
        return 0


def operator_name() -> str:
    """Who sits at the terminal."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        return ""


async def _resume(client: Client, args: argparse.Namespace) -> Sent:
    return await client.resume(args.run, args.value, interrupt=args.interrupt)


async def _signal(client: Client, args: argparse.Namespace) -> Sent:
    return await client.signal(args.run, args.name, args.value)


async def _cancel(client: Client, args: argparse.Namespace) -> Sent:
    return await client.cancel(args.run, force=args.force, operator=operator_name())


async def _retry(client: Client, args: argparse.Namespace) -> Sent:
    return await client.retry(args.run, op=args.op, operator=operator_name())


async def _skip(client: Client, args: argparse.Namespace) -> Sent:
    return await client.skip(args.run, args.op, operator=operator_name())


async def _complete(client: Client, args: argparse.Namespace) -> Sent:
    return await client.complete(args.run, args.op, args.value, operator=operator_name())


def _result(args: argparse.Namespace) -> int:
    async def look() -> int:
        async with connect(args) as client:
            return print_end(args, await wait_for_end(client, args.run, args.timeout))

    return asyncio.run(look())
