"""The Kafka log passes the contract on a real broker."""

from __future__ import annotations

import pytest

from tests.contract.kafka_config import KafkaConfig
from tests.contract.log_contract import LogContract

pytestmark = pytest.mark.kafka


class TestKafkaLog(KafkaConfig, LogContract):
    """All cases of the contract."""
