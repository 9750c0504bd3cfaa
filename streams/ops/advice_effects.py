"""Error codes of subscribers, of their ledger and of their dead letters: rows of the table in `advice`."""

from __future__ import annotations

from streams.ops.advice_repair import Row

__all__ = ["EFFECT_ROWS"]

_SHOW = "streams dead-letters show --effect NAME --at PARTITION@OFFSET"
_BACK = "streams dead-letters send-back --effect NAME --at PARTITION@OFFSET"
_RESOLVE = "streams ledger resolve KEY --effect NAME"

EFFECT_ROWS = (
    Row(
        "EFFECT_UNREADABLE",
        "effect",
        "A record on the topic of an effect is no message of it: other bytes, another effect, a key that is not its "
        "run, or a schema of a newer release. It is among the dead letters, and others went on.",
        "Find out who wrote it. Where a newer release did: upgrade the subscriber, then send the letter back.",
        (_SHOW, _BACK),
    ),
    Row(
        "KEY_CONFLICT",
        "effect",
        "The idempotency key stands for another request in the subscriber's ledger. This one was not carried out and "
        "never is; its run has been told. The message names who used the key first.",
        "Give each request a key of its own, made of what makes it different. Then ask again from a new run.",
        ("streams ledger show KEY --effect NAME", _SHOW),
    ),
    Row(
        "SUBSCRIBER_LOST",
        "effect",
        "A subscriber ended, or was cut off, in the middle of an effect, so it may have been carried out. With a "
        "`reconcile` it is looked up; without one, and not marked idempotent, it is parked.",
        "Where it is parked: look in the outside system under the key, then say in the ledger what you have found.",
        (f"{_RESOLVE} --done JSON", f"{_RESOLVE} --not-done", f"{_RESOLVE} --give-up TEXT"),
    ),
    Row(
        "HANDLER_TIMED_OUT",
        "effect",
        "A handler took longer than its `timeout`, so the effect may have been carried out. A thread cannot be "
        "stopped: what it brings later counts, as long as its subscriber lives.",
        "Give the handler a longer `timeout=`, or the outside call a shorter one. Where it is parked, resolve it.",
        (f"{_RESOLVE} --done JSON", f"{_RESOLVE} --not-done"),
    ),
    Row(
        "GIVEN_UP",
        "effect",
        "An operator has said that the effect was not carried out and never will be (`streams ledger resolve "
        "--give-up`). A request of it has failed with this code and the operator's words.",
        "Nothing; if it was a mistake, let it be carried out after all. A request keeps its failure.",
        (f"{_RESOLVE} --not-done",),
    ),
)
