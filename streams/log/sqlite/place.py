"""Where a sqlite log lives: its URL, its settings, and whether the file system can carry it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from streams.embedded.file import network_filesystem, refuse_network
from streams.errors import UsageError
from streams.log.address import shown

__all__ = ["Place", "network_filesystem", "parse_url", "refuse_network"]

SESSION_TIMEOUT_MS_DEFAULT = 3_000
SESSION_TIMEOUT_MS_MIN = 300
MAX_POLL_INTERVAL_MS_DEFAULT = 300_000


@dataclass(frozen=True, slots=True)
class Place:
    """A parsed URL. A member is dead after `session_timeout` seconds without a heartbeat."""

    url: str
    path: str
    session_timeout: float
    max_poll_interval: float

    @property
    def heartbeat_interval(self) -> float:
        """Six in a session, so that one or two late ones kill nobody."""
        return self.session_timeout / 6


def parse_url(url: str) -> Place:
    """Read `sqlite:///relative.db` or `sqlite:////absolute.db`, with settings as a query."""
    try:
        parts = urlsplit(url)
    except ValueError:  # a bracket that is not closed
        parts = urlsplit("")
    path = unquote(parts.path)[1:]
    if parts.scheme != "sqlite" or parts.netloc or not path or not parts.path.startswith("/") or "\0" in path:
        raise UsageError(
            f"{shown(url)!r} is no address of a sqlite log: write sqlite:///relative.db or sqlite:////absolute/path.db"
        )
    settings = {
        "session_timeout_ms": SESSION_TIMEOUT_MS_DEFAULT,
        "max_poll_interval_ms": MAX_POLL_INTERVAL_MS_DEFAULT,
    }
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        if name not in settings:
            raise UsageError(f"unknown setting {name!r} in {shown(url)!r}: known are {', '.join(sorted(settings))}")
        if not re.fullmatch("[0-9]{1,10}", text):
            raise UsageError(f"{name} in {shown(url)!r} must be a number of milliseconds, not {text[:40]!r}")
        settings[name] = int(text)
    if settings["session_timeout_ms"] < SESSION_TIMEOUT_MS_MIN:
        raise UsageError(
            f"session_timeout_ms must be at least {SESSION_TIMEOUT_MS_MIN}: healthy owners would be expired"
        )
    return Place(
        url,
        os.path.realpath(path),
        settings["session_timeout_ms"] / 1000,
        settings["max_poll_interval_ms"] / 1000,
    )
