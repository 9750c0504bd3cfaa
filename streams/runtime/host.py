"""What a worker takes from its machine beside the clock: names, chance, threads. The simulator brings its own."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import traceback
from collections.abc import Callable

__all__ = ["Host"]


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
