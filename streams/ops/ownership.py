"""Who owns a run: who wrote its last event, who holds the lease of its partition, and whether these are the same."""

from __future__ import annotations

import os
import socket
from typing import NamedTuple

from streams.client import RunView, StoredEvent
from streams.kernel import bodies as ev
from streams.ops.texts import iso, span
from streams.wire.records import Lease

__all__ = ["Ownership", "is_alive", "ownership"]


class Ownership(NamedTuple):
    """Who wrote the run's last event, and who owns its partition now.

    `current`: both are the same, and the lease is not given back. `alive`: whether the owner's process runs, None where
    that cannot be told from here.
    """

    text: str
    run_epoch: int
    run_owner: str | None
    current: bool = False
    lease_epoch: int | None = None
    lease_owner: str | None = None
    released: bool = False
    written_at: str | None = None
    alive: bool | None = None
    address: str | None = None


def ownership(view: RunView, history: list[StoredEvent], now: int) -> Ownership:
    """Compare the run's epoch with the lease of its partition."""
    lease = view.lease
    epoch = view.run.epoch if view.run is not None else 0
    owner = _owner_of(history, epoch) or view.owner or None
    if lease is None:
        return Ownership(f"no worker has ever claimed partition {view.partition}", epoch, owner)
    alive = None if lease.released else is_alive(lease)
    text = _text(view.partition, lease, epoch, owner, now)
    if alive is False:
        text += "; its process is gone from this machine, so the next worker takes over"
    return Ownership(
        text,
        epoch,
        owner,
        current=lease.epoch == epoch and not lease.released,
        lease_epoch=lease.epoch,
        lease_owner=lease.owner,
        released=lease.released,
        written_at=iso(lease.claimed_at),
        alive=alive,
        address=lease.address,
    )


def _text(partition: int, lease: Lease, epoch: int, owner: str | None, now: int) -> str:
    since = f"{span(now - lease.claimed_at)} ago" if now > lease.claimed_at else "just now"
    if lease.released:
        return (
            f"nobody owns it: {lease.owner} gave partition {partition} back in good order {since} (epoch {lease.epoch})"
        )
    if lease.epoch == epoch:
        return f"{_named(lease)} owns it (epoch {epoch}); its lease was written {since}"
    if lease.epoch > epoch:
        return (
            f"{_named(lease)} owns it now (epoch {lease.epoch}; lease written {since}); the last event is by "
            f"{owner or 'an earlier owner'} (epoch {epoch}), and nothing has happened to the run since"
        )
    return (
        f"the lease of {lease.owner} (epoch {lease.epoch}) is older than the run's last event (epoch {epoch}): leases "
        "were lost, and the next owner claims above it"
    )


def _named(lease: Lease) -> str:
    """The owner, and where it is found, if that is more than the host in its name."""
    return lease.owner if lease.address in (None, "", lease.host) else f"{lease.owner} at {lease.address}"


def _owner_of(history: list[StoredEvent], epoch: int) -> str | None:
    for stored in reversed(history):
        body = stored.event.body
        if stored.event.epoch == epoch and isinstance(body, (ev.RunStarted, ev.RunOwned)):
            return body.owner
    return None


def is_alive(lease: Lease) -> bool | None:
    """Whether the owner's process runs, where it is on this machine. An owner's name is HOST/PID/…."""
    host, pid = lease.host, lease.pid
    parts = lease.owner.split("/")
    if not pid and len(parts) >= 2 and parts[1].isdigit():
        host, pid = parts[0], int(parts[1])
    if not pid or host != socket.gethostname():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return None
    return True
