"""The verb `worker`: runs an app until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from streams.authoring.app import App
from streams.cli.loader import load_app, rename
from streams.cli.logs import open_log
from streams.cli.parser import Verbs, log_url
from streams.cli.processes import add_processes, obey, supervise
from streams.cli.terminal import complain, console, note, print_json, safe
from streams.cli.watch import TerminalObserver
from streams.errors import UsageError
from streams.runtime.collector import calm_collector
from streams.runtime.settings import WorkerSettings
from streams.runtime.worker import PartitionRefused, Worker
from streams.store.port import Store

__all__ = ["add", "leave_if_held", "loop_factory", "stop_on_signals"]


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    example = "streams worker examples/order.py:app\n  streams worker examples/order.py:app --app orders-test"
    help_ = "run an app's workflows and tasks until stopped; --app runs it under another name, on topics of its own"
    parser = verbs.add("serve", "worker", _run, help_, example)
    parser.add_argument("target", metavar="MODULE:APP", help="a file or a module, and the app in it")
    parser.add_argument(
        "--address", default="", help="where people find this worker, for its leases; its host if left out"
    )
    parser.add_argument(
        "--state",
        metavar="DIR",
        default=os.environ.get("STREAMS_STATE", ""),
        help="a folder of this worker alone, for runs beyond memory; STREAMS_STATE if left out (extra: state)",
    )
    parser.add_argument("--strict", action="store_true", help="end with 1 when a partition has to be refused")
    add_processes(parser)


def _run(args: argparse.Namespace) -> int:
    if args.processes is not None:
        return supervise(args)
    # Not STREAMS_APP: it says whom the other verbs mean, and must not move an app to other topics.
    app = rename(load_app(args.target), getattr(args, "app", None))
    calm_collector()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve(app, args))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The loop of uvloop where the extra `speed` is installed, else asyncio's own."""
    try:
        import uvloop  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(app: App, args: argparse.Namespace) -> int:
    as_json, supervisor = getattr(args, "json", False), args.supervisor
    store = _open_store(args.state, app.name)
    log = await open_log(log_url(args))
    code = 0
    try:
        worker = Worker(
            app,
            log,
            settings=WorkerSettings(address=args.address),
            observer=TerminalObserver(as_json=as_json, supervised=supervisor is not None),
            strict=args.strict,
            store=store,
        )
        if supervisor is None:
            stop_on_signals(worker.stop, "tasks")
        else:
            obey(supervisor, worker.stop)
        _greet(app, log.url, as_json=as_json or supervisor is not None)
        await worker.run()
    except PartitionRefused as error:
        complain(str(error))
        code = 1
    finally:
        await log.close()
        if store is not None:
            store.close()
    leave_if_held(code)
    return code


def _open_store(state: str, app: str) -> Store | None:
    if not state:
        return None
    try:
        from streams.store.rocks import open_rocks  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UsageError("--state keeps runs in RocksDB: pip install 'streams-engine[state]'") from error
    return open_rocks(Path(state), app, note)


def _greet(app: App, url: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"kind": "worker", "app": app.name, "log": url, "pid": os.getpid()})
    else:
        console().print(f"worker of app {app.name} on {safe(url)} · Ctrl-C stops it", style="bold", soft_wrap=True)
    sys.stdout.flush()


def stop_on_signals(stop: Callable[[], None], waits_for: str) -> None:
    """Let the first SIGTERM or SIGINT call `stop`, and the second end the process."""
    loop = asyncio.get_running_loop()
    asked: list[int] = []

    def on_signal(number: int) -> None:
        asked.append(number)
        if len(asked) > 1:
            os._exit(128 + number)
        note(f"stopping: {waits_for} that run may finish; once more stops at once")
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)


def leave_if_held(code: int) -> None:
    """End here if a task's thread hangs: the interpreter would wait for it, and its work is handed back already."""
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    if others and threading.current_thread() is threading.main_thread():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
