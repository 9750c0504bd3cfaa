"""The one PostgreSQL of a test run: started when the first test asks for it, and gone with the run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from streams.dev import Postgres, start_postgres, stop_postgres
from streams.dev.postgres import read_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A running server, shared by all tests of the run: they keep to databases of their own and never stop it."""
    folder = Path(tempfile.mkdtemp(prefix="streams-postgres-"))
    try:
        server = start_postgres(folder, tied=True, seconds=110.0)
        yield server
        stop_postgres(server)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    """The address of an empty database of one test."""
    name = f"test_{uuid4().hex[:12]}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield f"{postgres.url.rpartition('/')[0]}/{name}"
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterator[Postgres]:
    """A server that a test may kill and start again, with `start_postgres(postgres.folder)`: its port stays."""
    server = start_postgres(tmp_path / "postgres", tied=True, seconds=110.0)
    yield server
    stop_postgres(read_postgres(server.folder) or server)
