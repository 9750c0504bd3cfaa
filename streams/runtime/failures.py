"""Exceptions of user code as stored data."""

from __future__ import annotations

from collections.abc import Callable

from streams.errors import Fail, ValueRefused
from streams.kernel.bodies import Failure, Policy
from streams.kernel.codec import Codec
from streams.runtime.host import Host

__all__ = ["failure_of", "plain_text", "storable"]

_MESSAGE_CHARS_MAX = 2_000
_TRACEBACK_CHARS_MAX = 4_000


def plain_text(error: BaseException, limit: int = _MESSAGE_CHARS_MAX) -> str:
    """The message of an exception, whatever its `__str__` does, as text that every store can hold."""
    return storable(error)[:limit]


def storable(value: object) -> str:
    """A value as text without lone surrogates, which no UTF-8 store takes."""
    try:
        text = str(value)
    except BaseException as nested:  # noqa: BLE001 - a user's __str__ may raise anything
        text = f"(its message cannot be shown: {type(nested).__name__})"
    return text.encode("utf-8", "backslashreplace").decode()


def failure_of(
    error: BaseException, policy: Policy, codec: Codec, trace: Callable[[BaseException], str] = Host.traceback
) -> Failure:
    """Sort an exception of a task: terminal if it says so, else worth a retry. Lost type, kept name and traceback."""
    if isinstance(error, Fail):
        return Failure(
            "terminal", storable(error.code), storable(error.message)[:_MESSAGE_CHARS_MAX], _details(error, codec)
        )
    if isinstance(error, ValueRefused):
        return Failure("terminal", error.code, plain_text(error))
    kind = "terminal" if set(policy.terminal) & _names(type(error)) else "retryable"
    name = type(error).__name__
    text = plain_text(error)
    details = codec.encode({"type": name, "traceback": _traceback(error, trace)})
    return Failure(kind, name, text, details)


def _names(kind: type[BaseException]) -> set[str]:
    return {f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__}


def _traceback(error: BaseException, trace: Callable[[BaseException], str]) -> str:
    try:
        text = trace(error)
    except BaseException as nested:  # noqa: BLE001 - formatting calls user code
        text = f"(no traceback: {type(nested).__name__})"
    return storable(text)[-_TRACEBACK_CHARS_MAX:]


def _details(error: Fail, codec: Codec) -> bytes | None:
    if error.details is None:
        return None
    try:
        return codec.encode(error.details)
    except ValueRefused as refused:
        return codec.encode({"details_refused": storable(str(refused))})
