"""What these tests share."""

from __future__ import annotations

from uuid import uuid4

import pytest

from streams.dev import Kafka
from tests.effects.real.books import sql
from tests.effects.real.stage import Pair
from tests.system.processes import broker_of


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Kafka | None:
    """The broker of a test that runs on each log; None where it runs on sqlite."""
    return broker_of(request)


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Pair:
    """The log and the ledger of a test of `on_each_pair`; a database of its own where it is PostgreSQL."""
    if request.param == "embedded":
        return Pair()
    server = request.getfixturevalue("postgres")
    return Pair(request.getfixturevalue("kafka"), new_database(server.url))


def new_database(url: str) -> str:
    """The address of a database that nobody else has."""
    name = f"stage_{uuid4().hex[:12]}"
    sql(url, f"CREATE DATABASE {name}")
    return f"{url.rpartition('/')[0]}/{name}"
