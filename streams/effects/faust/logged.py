"""What the effect agent of a Faust service tells, as lines of Python's logging, where Faust's own are."""

from __future__ import annotations

import logging

from streams.observer import Observer

__all__ = ["LogObserver"]

_log = logging.getLogger("streams.effects.faust")


class LogObserver(Observer):
    """Payloads are never told."""

    def effect_done(self, effect: str, effect_id: str, run_id: str, delivery: int) -> None:
        _log.info("effect %s: %s of run %s is done, delivery %d", effect, effect_id, run_id, delivery)

    def effect_failed(
        self, effect: str, effect_id: str, run_id: str, delivery: int, code: str, message: str, again: float
    ) -> None:
        text = "effect %s: delivery %d of %s of run %s failed, again in %.1f s: %s: %s"
        _log.warning(text, effect, delivery, effect_id, run_id, again, code, message)

    def effect_parked(self, effect: str, effect_id: str, run_id: str, code: str, message: str) -> None:
        _log.error("effect %s: %s of run %s waits for a person: %s: %s", effect, effect_id, run_id, code, message)

    def effect_refused(self, effect: str, what: str, run_id: str, code: str, message: str) -> None:
        _log.error("effect %s: %s of run %s went to the dead letters: %s: %s", effect, what, run_id, code, message)

    def claim_lost(self, effect: str, effect_id: str, run_id: str) -> None:
        _log.warning("effect %s: somebody else has taken the claim of %s of run %s", effect, effect_id, run_id)

    def ledger_away(self, url: str, reason: str) -> None:
        _log.error("the ledger %s does not answer, trying again: %s", url, reason)

    def ledger_back(self, url: str) -> None:
        _log.warning("the ledger %s answers again", url)

    def message(self, text: str) -> None:
        _log.warning("%s", text)
