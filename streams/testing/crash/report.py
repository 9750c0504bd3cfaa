"""What `crash_everywhere` has found, for people: a line a finding, with what repeats just that one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["CrashTestFailed", "Finding", "Parked", "Report"]

_SAME_MAX = 3


class CrashTestFailed(AssertionError):
    """Crashes change what the app does; the message is the report."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A difference to the execution without a crash. `run_id` is empty for what concerns no run alone."""

    position: str
    """Where the worker died, such as `commit.after:3`; this is what `only=` takes."""
    after: str
    """The last event of the log by then."""
    run_id: str
    what: str
    without: str
    found: str

    def __str__(self) -> str:
        run = f"{self.run_id}: " if self.run_id else ""
        return (
            f"{self.position} (after {self.after}): {run}{self.what}: without a crash {self.without}; with it "
            f"{self.found} [only={self.position!r}]"
        )

    @property
    def kind(self) -> tuple[str, str, str]:
        """Findings of one kind differ in their position alone."""
        return self.run_id, self.what, self.found


@dataclass(frozen=True, slots=True)
class Parked:
    """After a crash there an op waits for a person, as its task asks for: no fault, but good to know."""

    position: str
    run_id: str
    op: str
    code: str


@dataclass(frozen=True, slots=True)
class Report:
    """All executions. `report.raise_if_failed()` shows it in a test, and so does `assert report.ok, str(report)`."""

    workflow: str
    executions: int
    positions: tuple[str, ...]
    """Where the worker died, one execution each."""
    left_out: int = 0
    """How many positions a bound on their number has left out."""
    findings: tuple[Finding, ...] = ()
    parked: tuple[Parked, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether no crash has changed anything."""
        return not self.findings

    @property
    def failed(self) -> tuple[str, ...]:
        """The positions with findings."""
        return tuple(dict.fromkeys(finding.position for finding in self.findings))

    def raise_if_failed(self) -> None:
        """Raise `CrashTestFailed`, an AssertionError, where something was found."""
        if not self.ok:
            raise CrashTestFailed(f"\n{self}")

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        left_out = f" ({self.left_out:,} more were left out)" if self.left_out else ""
        result = "nothing differs" if self.ok else f"{len(self.failed):,} of them change something"
        yield f"{self.workflow}: a crash at each of {len(self.positions):,} positions{left_out}: {result}"
        kinds: dict[tuple[str, str, str], list[Finding]] = {}
        for finding in self.findings:
            kinds.setdefault(finding.kind, []).append(finding)
        for same in kinds.values():
            yield from (f"  {finding}" for finding in same[:_SAME_MAX])
            if len(same) > _SAME_MAX:
                more = ", ".join(finding.position for finding in same[_SAME_MAX:])
                yield f"  … and the same at {more}"
        ops: dict[tuple[str, str, str], list[str]] = {}
        for parked in self.parked:
            ops.setdefault((parked.run_id, parked.op, parked.code), []).append(parked.position)
        for (run_id, op, code), positions in ops.items():
            count = f"{len(positions):,} positions, first {positions[0]}"
            yield f"  no fault: {op} of {run_id} waits for a person after a crash at {count} ({code})"
