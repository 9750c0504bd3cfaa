"""Talks to the provider of the order demo; plain blocking functions, for tasks that the engine runs in threads.

The three errors tell a task what to do:

    ProviderError            try again with the same key; it may or may not have been done
    └── ProviderUnavailable  the request never reached it: try again once the provider is started
    ProviderRefused          it was understood and turned down: trying again cannot help
"""

from __future__ import annotations

import json
import os
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import quote, urlsplit

__all__ = ["ProviderError", "ProviderRefused", "ProviderUnavailable", "get", "post"]

PORT_DEFAULT = 8765
ADDRESS_DEFAULT = f"http://127.0.0.1:{PORT_DEFAULT}"
TIMEOUT_S = 10


class ProviderError(Exception):
    """The provider failed or did not answer (status 0). The outcome is unknown until it is looked up by its key."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(status, code, message)
        self.status = status
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class ProviderUnavailable(ProviderError):
    """No provider listens there; nothing was done."""


class ProviderRefused(Exception):
    """The provider said no, with a status of 400 to 499."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(status, code, message)
        self.status = status
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


def post(path: str, body: dict[str, Any], *, key: str) -> dict[str, Any]:
    """Asks for an operation under an idempotency key and gives back the provider's answer."""
    return _call("POST", path, json.dumps(body).encode(), {"Idempotency-Key": quote(key)})


def get(path: str) -> dict[str, Any]:
    """Looks something up. Quote what goes into the path: `get("/operations/" + quote(key, safe=""))`."""
    return _call("GET", path, None, {})


def _call(method: str, path: str, body: bytes | None, headers: dict[str, str]) -> dict[str, Any]:
    host, port = _address()
    # Not urllib.request: it would go through a proxy of the environment, and mixes "not sent" with "no answer".
    connection = HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        try:
            connection.connect()
        except OSError as error:
            raise _unavailable(f"no provider at {host}:{port} ({error})", port) from error
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"} | headers)
            response = connection.getresponse()
            return _read(response.status, response.read())
        except (OSError, HTTPException) as error:
            raise ProviderError(0, "NO_ANSWER", f"{method} {path} was sent and not answered ({error!r})") from error
    finally:
        connection.close()


def _read(status: int, content: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(content)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise ProviderError(status, "NOT_A_PROVIDER", f"what answers is not the provider (status {status})")
    if status < 300:
        return answer
    error = ProviderRefused if 400 <= status < 500 else ProviderError
    raise error(status, str(answer.get("code")), str(answer.get("message")))


def _address() -> tuple[str, int]:
    """Host and port from ORDERS_PROVIDER: `127.0.0.1:9000` or `http://127.0.0.1:9000`."""
    told = os.environ.get("ORDERS_PROVIDER") or ADDRESS_DEFAULT
    try:
        parts = urlsplit(told if "://" in told else f"http://{told}")
        if parts.hostname and parts.scheme == "http" and parts.path in {"", "/"}:
            return parts.hostname, parts.port or PORT_DEFAULT
    except ValueError:
        pass  # a port that is no number, a broken bracket: the same to whoever set it
    raise _unavailable(f"ORDERS_PROVIDER is {told!r}, which is not like {ADDRESS_DEFAULT!r}", PORT_DEFAULT)


def _unavailable(reason: str, port: int) -> ProviderUnavailable:
    start = f"start it with: python examples/provider.py --port {port} --db provider.db"
    return ProviderUnavailable(0, "UNAVAILABLE", f"{reason}; {start}")
