"""What these tests share."""

from __future__ import annotations

import pytest

from streams.dev import Kafka
from tests.system.processes import broker_of


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Kafka | None:
    """The broker of a test that runs on each log; None where it runs on sqlite."""
    return broker_of(request)
