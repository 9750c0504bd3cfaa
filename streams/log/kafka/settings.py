"""Where a Kafka log is and how to connect to it: URL, environment and properties file; secrets are never printed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from streams.errors import UsageError

__all__ = [
    "BATCH_BYTES_MAX",
    "CONSUMERS_ONLY",
    "MEMBERS_ONLY",
    "MESSAGE_BYTES_MIN",
    "PRODUCERS_ONLY",
    "Settings",
    "is_secret",
    "parse_url",
]

ENVIRONMENT = "STREAMS_KAFKA_"
PROPERTIES_FILE = "STREAMS_KAFKA_PROPERTIES"
PORT_DEFAULT = "9092"
CONNECT_TIMEOUT_MS_DEFAULT = 30_000

OWN = {
    "connect_timeout_ms": "how long `open` waits for a broker",
    "replication_factor": "of topics that are created; the broker's default where it is not given",
    "properties": "a file with one name=value a line",
}
"""Settings of ours, told from the client's by their underscores."""

FIXED = frozenset(
    """
    acks allow.auto.create.topics auto.commit.enable auto.offset.reset bootstrap.servers client.id enable.auto.commit
    enable.auto.offset.store enable.idempotence enable.partition.eof group.id group.instance.id group.protocol
    isolation.level max.in.flight max.in.flight.requests.per.connection metadata.broker.list
    partition.assignment.strategy partitioner request.required.acks transactional.id
    """.split()
)
"""What the guarantees rest on, so it is not for anybody to change."""

BATCH_BYTES_MAX = 900_000
"""Under the smallest `max.message.bytes` of a topic: the client does not split a batch, so one that is too big fails
every record in it."""
MESSAGE_BYTES_MIN = 1_000_000
"""Room for the largest record of streams, which no client may refuse while another one takes it."""

MEMBERS_ONLY = frozenset({"heartbeat.interval.ms", "max.poll.interval.ms", "session.timeout.ms"})
PRODUCERS_ONLY = frozenset(
    """
    batch.num.messages batch.size compression.codec compression.level compression.type delivery.timeout.ms linger.ms
    message.send.max.retries message.timeout.ms queue.buffering.backpressure.threshold queue.buffering.max.kbytes
    queue.buffering.max.messages queue.buffering.max.ms request.timeout.ms retries retry.backoff.max.ms
    retry.backoff.ms transaction.timeout.ms
    """.split()
)
CONSUMERS_ONLY = frozenset(
    """
    check.crcs fetch.error.backoff.ms fetch.max.bytes fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms
    fetch.wait.max.ms max.partition.fetch.bytes queued.max.messages.kbytes queued.min.messages
    """.split()
)
"""The client warns of settings of another role, and refuses some of them."""

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_SECRET = re.compile(r"password|secret|token|pem|jaas|credential|assertion|oauthbearer\.config|\.key(\.|$)|ssl_|_key")


@dataclass(frozen=True, slots=True)
class Settings:
    """A parsed address. `url` names it without secrets; `client` goes to every client of Kafka."""

    url: str
    servers: str
    client: Mapping[str, str]
    connect_seconds: float
    replication_factor: int

    def conf(self, role: Mapping[str, Any], leave_out: AbstractSet[str], *, client_id: str) -> dict[str, Any]:
        """The settings of one client: what it needs for its role, under what the user wants of all."""
        return {
            "bootstrap.servers": self.servers,
            "client.id": client_id,
            # A broker that comes back is found in a second; the default backs off to ten.
            "reconnect.backoff.max.ms": 1000,
            # With the default, `rebootstrap`, a client throws its brokers away when none answers, and then waits for
            # good for the one that it remembers as the group's coordinator (librdkafka issues 5456 and 5511).
            "metadata.recovery.strategy": "none",
            **role,
            **{name: value for name, value in self.client.items() if name not in leave_out},
        }


def parse_url(
    url: str, properties: Mapping[str, str] | None = None, environment: Mapping[str, str] | None = None
) -> Settings:
    """Read `kafka://HOST:PORT[,HOST:PORT][?name=value…]`.

    Of two sources the later one counts: properties file, environment (STREAMS_KAFKA_SASL_PASSWORD is `sasl.password`),
    URL, `properties`.
    """
    servers, query = _split(url)
    in_url = dict(parse_qsl(query, keep_blank_values=True))
    environment = os.environ if environment is None else environment
    above = {**_of_environment(environment), **in_url, **(properties or {})}
    path = above.pop("properties", None) or environment.get(PROPERTIES_FILE)
    wanted = {**(_of_file(path) if path else {}), **above}
    for name in wanted:
        if name in FIXED:
            raise UsageError(f"{name!r} is set by streams, its guarantees rest on it: leave it out")
    _number(wanted, "batch.size", BATCH_BYTES_MAX, 1, BATCH_BYTES_MAX)
    _number(wanted, "message.max.bytes", MESSAGE_BYTES_MIN, MESSAGE_BYTES_MIN)
    timeout = _number(wanted, "connect_timeout_ms", CONNECT_TIMEOUT_MS_DEFAULT, 1)
    replicas = _number(wanted, "replication_factor", -1, 1)
    shown = {name: value for name, value in in_url.items() if not is_secret(name)}
    safe = f"kafka://{servers}" + (f"?{urlencode(shown, quote_via=quote)}" if shown else "")
    client = {name: value for name, value in wanted.items() if name not in OWN}
    return Settings(safe, servers, client, timeout / 1000, replicas)


def is_secret(name: str) -> bool:
    """Whether the value of this setting must never be printed."""
    return _SECRET.search(name.lower()) is not None


def _split(url: str) -> tuple[str, str]:
    """Broker addresses and query. The URL itself stays out of every message: it may carry a password."""
    if any("\ud800" <= char <= "\udfff" for char in url):  # how Python shows bytes of a command line that are no text
        raise UsageError("no address of a Kafka log: it holds bytes that are no UTF-8")
    address, _, query = url.removeprefix("kafka://").partition("?")
    servers = []
    for server in address.rstrip("/").split(","):
        found = _ADDRESS.fullmatch(server)
        if not url.startswith("kafka://") or found is None:
            hint = "; user and password go into sasl.username and sasl.password" if "@" in server else ""
            raise UsageError(f"no address of a Kafka log: write kafka://HOST:PORT[,HOST:PORT][?name=value]{hint}")
        servers.append(f"{found[1]}:{found[2] or PORT_DEFAULT}")
    return ",".join(servers), query


def _of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, value in environment.items():
        if name.startswith(ENVIRONMENT) and name != PROPERTIES_FILE:
            plain = name.removeprefix(ENVIRONMENT).lower()
            found[plain if plain in OWN else plain.replace("_", ".")] = value
    return found


def _of_file(path: str) -> dict[str, str]:
    try:
        text = Path(path).read_text("utf-8")
    except OSError as error:
        raise UsageError(f"the properties file {path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # bytes that are no UTF-8, or a path with a zero byte
        raise UsageError(f"the properties file {path!r} cannot be read: its path or content is no text") from error
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith(("#", "!")):
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"line {number} of {path} is no name=value, such as security.protocol=SASL_SSL")
        found[name.strip()] = value.strip()
    return found


def _number(wanted: Mapping[str, str], name: str, default: int, least: int, most: int = 10**9) -> int:
    text = wanted.get(name)
    if text is None:
        return default
    if not re.fullmatch("[0-9]{1,10}", text) or not least <= int(text) <= most:
        bounds = f"of at least {least}" if most == 10**9 else f"from {least} to {most}"
        raise UsageError(f"{name} must be a whole number {bounds}, not {text!r}")
    return int(text)
