"""Closing coroutines that may not want to end."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from streams.errors import Cancelled, Evicted
from streams.kernel.fault import Fault

__all__ = ["close_quietly"]

_ABANDONED: list[Coroutine[Any, Any, Any]] = []


def close_quietly(coro: Coroutine[Any, Any, Any]) -> None:
    """Close a coroutine; one that goes on awaiting is kept aside, since the collector would try to close it again."""
    try:
        coro.close()
    except RuntimeError:
        _ABANDONED.append(coro)
    except Exception:  # noqa: BLE001 - what clean-up raises at eviction has no one to go to: the run is not changed
        return
    except BaseException as error:
        if not isinstance(error, (Evicted, Cancelled, Fault, SystemExit)):
            raise
