"""A broker that asks who you are and what you may: a second listener with SASL, and Kafka's own authorizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from streams.dev import Kafka, start_kafka, stop_kafka
from streams.dev.process import free_port

USERS = {"ann": "right-and-proper", "tom": "tom-may-little", "eve": "elsewhere-only"}
_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


class Secured(NamedTuple):
    """`kafka` is its listener without passwords, where anybody may do anything; `port` the one with."""

    kafka: Kafka
    port: int

    def url(self, user: str, password: str | None = None, **more: str) -> str:
        settings = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": user,
            "sasl.password": USERS[user] if password is None else password,
            **more,
        }
        return f"kafka://127.0.0.1:{self.port}?" + "&".join(f"{name}={value}" for name, value in settings.items())

    def allow(self, user: str, what: Mapping[tuple[str, str], str]) -> None:
        """Give rights: (kind, name's beginning) -> operations."""
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        bindings = [
            AclBinding(
                ResourceType[kind],
                prefix,
                ResourcePatternType.LITERAL if kind == "BROKER" else ResourcePatternType.PREFIXED,
                f"User:{user}",
                "*",
                AclOperation[operation],
                AclPermissionType.ALLOW,
            )
            for (kind, prefix), operations in what.items()
            for operation in operations.split()
        ]
        for future in admin.create_acls(bindings).values():
            future.result(30)


def settings(plain: int, secured: int, controller: int) -> dict[str, str]:
    listeners = (
        f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{secured},CONTROLLER://127.0.0.1:{controller}"
    )
    users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
    return {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{_LOGIN} {users};",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # Who comes without a name is the broker itself, or the test.
        "super.users": "User:ANONYMOUS",
    }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """The broker, for the tests of one module."""
    plain, port, controller = free_port(), free_port(), free_port()
    folder: Path = tmp_path_factory.mktemp("secured")
    wanted = settings(plain, port, controller)
    broker = start_kafka(folder, port=plain, settings=wanted, tied=True, seconds=110.0)
    yield Secured(broker, port)
    stop_kafka(broker)
