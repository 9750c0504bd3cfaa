"""Closing coroutines that may not want to end."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from streams.errors import Cancelled, Evicted
from streams.kernel.fault import Fault

__all__ = ["close_quietly"]

_ABANDONED: list[Coroutine[Any, Any, Any]] = []


def close_quietly(coro: Coroutine[Any, Any, Any]) -> bool:
    """Close a coroutine. False for one that goes on awaiting: it is kept, since the collector would close it again."""
    try:
        coro.close()
    except RuntimeError:
        _ABANDONED.append(coro)
        return False
    except Exception:  # noqa: BLE001 - what clean-up raises at eviction has no one to go to: the run is not changed
        return True
    except BaseException as error:
        if not isinstance(error, (Evicted, Cancelled, Fault, SystemExit)):
            raise
    return True
