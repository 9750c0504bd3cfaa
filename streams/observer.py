"""What the engine tells of itself: a class of hooks that do nothing; metrics, terminals and tests override some."""

from __future__ import annotations

__all__ = ["Observer"]


class Observer:
    """Every method may be called from the event loop at any time and must return quickly."""

    def partition(self, number: int, state: str, epoch: int, detail: str) -> None:
        """A partition changed its state; `detail` has the reason of a refusal or what a restore found."""

    def joined(self, partitions: int) -> None:
        """The worker has entered its group; the app has so many partitions, and some of them may come to it."""

    def turn(self, runs: int, records: int, seconds: float) -> None:
        """A turn was committed and adopted."""

    def redo(self, reason: str) -> None:
        """A turn was not committed and is done again."""

    def dead_letter(self, topic: str, partition: int, offset: int, reason: str) -> None:
        """A record that is no command was set aside."""

    def skipped(self, partition: int, commands: int) -> None:
        """Commands that the log shows as applied were read again and skipped."""

    def run_blocked(self, run_id: str, code: str, message: str) -> None:
        """A run waits for an operator."""

    def op_parked(self, run_id: str, op: str, code: str, message: str) -> None:
        """An op waits for an operator."""

    def run_ended(self, run_id: str, status: str) -> None:
        """A run has ended."""

    def attempt_failed(self, run_id: str, op: str, task: str, attempt: int, code: str, message: str) -> None:
        """An attempt failed and another one follows."""

    def effect_partition(self, effect: str, number: int, state: str, detail: str) -> None:
        """A partition of an effect's topic changed its state at a subscriber; `detail` has the reason of a refusal."""

    def effect_done(self, effect: str, effect_id: str, run_id: str, delivery: int) -> None:
        """A subscriber has carried an effect out, or found that it was."""

    def effect_failed(
        self, effect: str, effect_id: str, run_id: str, delivery: int, code: str, message: str, again: float
    ) -> None:
        """A try or a look-up of a subscriber failed, and another one follows in `again` seconds."""

    def effect_parked(self, effect: str, effect_id: str, run_id: str, code: str, message: str) -> None:
        """An effect waits for a person: only an operator's word in the ledger helps."""

    def effect_refused(self, effect: str, what: str, run_id: str, code: str, message: str) -> None:
        """An effect was given up or is never carried out, and went to its dead letters. `what`: its id or its place."""

    def effects_known(self, effect: str, count: int) -> None:
        """Messages came whose effects the ledger knew to be finished; nothing was repeated."""

    def claim_lost(self, effect: str, effect_id: str, run_id: str) -> None:
        """Somebody else has taken the claim of an effect that is being carried out here; its outcome is not written."""

    def ledger_away(self, url: str, reason: str) -> None:
        """The ledger does not answer; subscribers wait and try again."""

    def ledger_back(self, url: str) -> None:
        """The ledger answers again."""

    def message(self, text: str) -> None:
        """Anything else that a person at the terminal should know."""
