"""What a worker takes from its machine beside the clock: names, chance, threads. The simulator brings its own."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

__all__ = ["Host", "in_thread"]

T = TypeVar("T")


class Host:
    """This machine and this process."""

    watched = True
    """Whether a thread watches that workflow code does not run for too long."""

    @property
    def name(self) -> str:
        """The name of the machine."""
        return socket.gethostname()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return os.getpid()

    def random_bytes(self, count: int) -> bytes:
        """Bytes that nobody can guess."""
        return secrets.token_bytes(count)

    def start_thread(self, work: Callable[[], None], name: str) -> None:
        """Do some work beside the event loop."""
        threading.Thread(target=work, name=name, daemon=True).start()

    @staticmethod
    def traceback(error: BaseException) -> str:
        """Where an exception of user code came from: files of this machine and their lines."""
        return "".join(traceback.format_exception(error))


async def in_thread(host: Host, function: Callable[[], T], name: str) -> T:
    """Run a plain function in a thread of its own: one that hangs keeps no other from running."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)  # type: ignore[arg-type]
        else:
            future.set_exception(error if not isinstance(error, StopIteration) else RuntimeError(repr(error)))

    def work() -> None:
        value, error = None, None
        try:
            value = function()
        except BaseException as raised:  # noqa: BLE001 - goes to the loop, where it becomes the outcome
            error = raised
        with suppress(RuntimeError):  # the loop is closed: its process ends, and nobody asks any more
            loop.call_soon_threadsafe(settle, value, error)

    host.start_thread(work, name)
    return await future
