"""What the engine tells of itself: a class of hooks that do nothing; metrics, terminals and tests override some."""

from __future__ import annotations

__all__ = ["Observer"]


class Observer:
    """Every method may be called from the event loop at any time and must return quickly."""

    def partition(self, number: int, state: str, epoch: int, detail: str) -> None:
        """A partition changed its state; `detail` has the reason of a refusal or what a restore found."""

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

    def message(self, text: str) -> None:
        """Anything else that a person at the terminal should know."""
