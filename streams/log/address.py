"""Addresses of logs in messages: what may be a secret stays out."""

from __future__ import annotations

__all__ = ["shown"]


def shown(url: str) -> str:
    """The address without user, password and settings."""
    scheme, slashes, place = url.partition("?")[0].partition("//")
    host, slash, path = place.partition("/")
    return scheme + slashes + host.rpartition("@")[2] + slash + path
