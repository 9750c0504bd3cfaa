"""Where a sqlite log lives: its URL, its settings, and whether the file system can carry it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from streams.errors import UsageError
from streams.log.address import shown

__all__ = ["Place", "network_filesystem", "parse_url", "refuse_network"]

SESSION_TIMEOUT_MS_DEFAULT = 3_000
SESSION_TIMEOUT_MS_MIN = 300
MAX_POLL_INTERVAL_MS_DEFAULT = 300_000

# Write-ahead logging needs shared memory and POSIX locks that all processes see; these give one or neither.
# fmt: off
NETWORK_FILESYSTEMS = frozenset((
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "drvfs", "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs",
    "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2",
    "orangefs", "smb2", "smb3", "smbfs",
))
# fmt: on


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


def refuse_network(path: str) -> None:
    """Raise UsageError when the folder is missing or lies on a network file system."""
    folder = Path(path).parent
    if not folder.is_dir():
        raise UsageError(f"the folder {folder} does not exist: create it, or choose another path for the log")
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux: nothing to ask
        return
    kind = network_filesystem(str(folder), mounts)
    if kind is not None:
        raise UsageError(
            f"{path} is on a network file system ({kind}), where sqlite's locks do not hold and commits would be lost: "
            "put the file on a local disk, or use kafka://HOST:PORT for several machines"
        )


def network_filesystem(folder: str, mounts: str) -> str | None:
    """The type of the network file system that holds `folder`, given the text of /proc/self/mounts."""
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        inside = point in ("/", folder) or folder.startswith(point + "/")
        if inside and len(point) >= len(best):  # of two mounts on one point, the later one is seen
            best, kind = point, fields[2]
    return kind if kind in NETWORK_FILESYSTEMS else None
