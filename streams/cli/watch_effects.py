"""What a subscriber tells the person at its terminal: what it owns, what it gave up, and what waits for somebody."""

from __future__ import annotations

import asyncio
from collections import Counter

from streams.cli.terminal import error_text
from streams.cli.watch import TerminalObserver, ranges

__all__ = ["SubscriberObserver"]

_GATHER_SECONDS = 0.3
_COUNT_SECONDS = 1.0


class SubscriberObserver(TerminalObserver):
    """Prints lines; with `as_json` objects instead."""

    def __init__(self, *, as_json: bool = False) -> None:
        super().__init__(as_json=as_json)
        self._owned: dict[str, dict[int, str]] = {}
        self._said: dict[str, str] = {}
        self._waiting: asyncio.TimerHandle | None = None
        self._known: Counter[str] = Counter()
        self._is_away = False

    def effect_partition(self, effect: str, number: int, state: str, detail: str) -> None:
        self._owned.setdefault(effect, {})[number] = state
        if state == "refused":
            text = (
                f"{effect}, partition {number}: {detail} (nothing is carried out there; it is tried again every 30 s)"
            )
            self._say("refused", text, effect=effect, partition=number, detail=detail)
        elif self._waiting is None:
            # They come one by one within milliseconds, and one line is enough.
            self._waiting = asyncio.get_running_loop().call_later(_GATHER_SECONDS, self._tell_effects)

    def effect_failed(
        self, effect: str, effect_id: str, run_id: str, delivery: int, code: str, message: str, again: float
    ) -> None:
        text = f"{effect} of {run_id}, try {delivery}: {error_text(code, message)} · again in {again:.1f} s"
        fields = {"effect": effect, "effect_id": effect_id, "run_id": run_id, "delivery": delivery}
        self._say("retry", text, **fields, code=code, message=message, again=again)

    def effect_parked(self, effect: str, effect_id: str, run_id: str, code: str, message: str) -> None:
        cure = f"find out, then: streams ledger resolve (streams diagnose {run_id} has the lines)"
        text = f"{effect} of {run_id}: {error_text(code, message)} · {cure}"
        self._say("parked", text, effect=effect, effect_id=effect_id, run_id=run_id, code=code, message=message)

    def effect_refused(self, effect: str, what: str, run_id: str, code: str, message: str) -> None:
        cure = f"streams dead-letters list --effect {effect}"
        text = f"{effect} {what}: {error_text(code, message)} · {cure}"
        self._say("dead", text, effect=effect, what=what, run_id=run_id, code=code, message=message)

    def effects_known(self, effect: str, count: int) -> None:
        if not self._known:  # a rewound group brings thousands, batch by batch
            asyncio.get_running_loop().call_later(_COUNT_SECONDS, self._tell_known)
        self._known[effect] += count

    def claim_lost(self, effect: str, effect_id: str, run_id: str) -> None:
        text = f"{effect} of {run_id}: its claim was over and somebody else has it; what was done here is looked up"
        self._say("note", text, effect=effect, effect_id=effect_id, run_id=run_id)

    def ledger_away(self, url: str, reason: str) -> None:
        if not self._is_away:
            self._say("ledger", f"{url} does not answer, trying again: {reason}", ledger=url, away=True, reason=reason)
        self._is_away = True

    def ledger_back(self, url: str) -> None:
        if self._is_away:
            self._say("ledger", f"{url} answers again", ledger=url, away=False)
        self._is_away = False

    def _tell_effects(self) -> None:
        self._waiting = None
        for effect, states in sorted(self._owned.items()):
            owned = sorted(number for number, state in states.items() if state == "open")
            pending = any(state == "opening" for state in states.values())
            text = f"partitions {ranges(owned)}" if owned else "no partitions; other subscribers have them all"
            if self._said.get(effect) != text and not (pending and not owned):
                self._said[effect] = text
                self._say("owns", f"{effect}: {text}", effect=effect, partitions=owned)

    def _tell_known(self) -> None:
        known, self._known = self._known, Counter()
        for effect, count in sorted(known.items()):
            one = "1 message was" if count == 1 else f"{count:,} messages were"
            self._say(
                "skipped", f"{effect}: {one} known to the ledger; nothing was repeated", effect=effect, count=count
            )
