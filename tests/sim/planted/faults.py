"""All planted faults."""

from __future__ import annotations

from tests.sim.planted import in_commits, in_effects, in_kernel, in_ownership, in_pipelines
from tests.sim.planted.planting import Fault

__all__ = ["FAULTS"]

FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        *in_commits.FAULTS,
        *in_ownership.FAULTS,
        *in_kernel.FAULTS,
        *in_effects.FAULTS,
        *in_pipelines.FAULTS,
    )
}
