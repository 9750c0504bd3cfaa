"""One thread for one C client, which no other thread ever touches."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from streams.errors import StreamsError
from streams.log.kafka.patience import Patience

__all__ = ["Lane"]

LOOK_SECONDS = 1.0

T = TypeVar("T")

Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Lane:
    """Runs jobs one after another. The thread starts with the first job.

    It is a daemon: a broker that does not answer must not keep a process from ending.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._broken: StreamsError | None = None

    async def run(self, job: Callable[[], T]) -> T:
        """Run `job` on the thread and return its result. Cancelled, it stops waiting; the job goes on."""
        if self._broken is not None:
            raise self._broken
        if self._closed:
            raise ValueError(f"{self._name} is closed: open it again")
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"kafka-{self._name}", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put((job, loop, future))
        return await future

    async def watched(self, job: Callable[[], T], patience: Patience, error: StreamsError) -> T:
        """Run a job. Where a call of the client in it never returns, give the thread up and raise the error."""
        running = asyncio.ensure_future(self.run(job))
        late = 0
        try:
            while not running.done():
                await asyncio.wait([running], timeout=LOOK_SECONDS)
                # Twice: a process that was frozen is late at first, and all is well.
                late = late + 1 if patience.over else 0
                if late > 1 and not running.done():
                    self._closed, self._broken = True, error  # a daemon; nobody waits for it
                    self._jobs.put(None)
                    raise error
        finally:
            running.cancel()
        return running.result()

    async def close(self, last: Callable[[], None], seconds: float) -> None:
        """Run `last` after the jobs that wait, then end the thread. Waits for it no longer than `seconds`."""
        if self._closed:
            return
        try:
            if self._thread is not None:
                async with asyncio.timeout(seconds):
                    await self.run(last)
        except TimeoutError:
            pass  # the thread goes on alone; it is a daemon
        finally:
            self._closed = True
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            call, loop, future = job
            result: Any = None
            error: BaseException | None = None
            try:
                result = call()
            except BaseException as raised:  # noqa: BLE001 - it belongs to whoever waits for the job
                error = raised
            _post(loop, future, result, error)
            del job, call, future, result, error  # the client must be freed on this thread, and not kept by a job


def _post(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], result: object, error: BaseException | None
) -> None:
    try:
        loop.call_soon_threadsafe(_settle, future, result, error)
    except RuntimeError:
        return  # the loop is closed, so nobody waits any more


def _settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
