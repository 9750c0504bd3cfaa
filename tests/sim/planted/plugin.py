"""A plug-in of pytest: plants the fault that STREAMS_PLANTED names, before any test is collected.

STREAMS_PLANTED=late_outcome_taken python -m pytest -p tests.sim.planted.plugin tests/kernel/test_attempts.py
"""

from __future__ import annotations

import os

from tests.sim.planted.faults import FAULTS
from tests.sim.planted.planting import plant

__all__ = ["pytest_configure"]


def pytest_configure() -> None:
    plant(FAULTS[os.environ["STREAMS_PLANTED"]])
