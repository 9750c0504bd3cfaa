"""What may be a run id or another name that comes from outside: the kernel's rule, and its refusal."""

from __future__ import annotations

from streams.errors import UsageError
from streams.kernel.names import ID_BYTES_MAX, flaw_of

__all__ = ["ID_BYTES_MAX", "check_run_id", "flaw_of"]


def check_run_id(run_id: str) -> str:
    """Give the id back. Raises UsageError for one that no run can have.

    `@` and `/` are allowed: ids of events and checkpoints put theirs behind it, so the last one separates.
    """
    if flaw := flaw_of(run_id):
        raise UsageError(f"a run id {flaw}")
    return run_id
