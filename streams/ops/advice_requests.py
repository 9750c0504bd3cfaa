"""Error codes of replies to requests: rows of the table in `advice`."""

from __future__ import annotations

from streams.ops.advice_repair import Row

__all__ = ["REQUEST_ROWS"]

REQUEST_ROWS = (
    Row(
        "STALE_REPLY",
        "command",
        "The reply names another effect id, attempt or epoch than the request waits for: it is of an older attempt, of "
        "an earlier run of this name, or was made up. The message has both. What it says is kept in the history.",
        "Nothing, where a newer attempt is under way. Else mend the service: it copies `effect_id`, `op`, `attempt` "
        "and `epoch` from the message that it answers.",
        ("streams show RUN",),
    ),
    Row(
        "REPLY_INVALID",
        "command",
        "The value of the reply does not fit the type that the effect declares with `reply=`, or the class of its "
        "error is none of retryable, terminal and unknown. The request stays open.",
        "Mend the service and let it reply again, or complete the op yourself.",
        ("streams complete RUN --op OP --value JSON",),
    ),
)
