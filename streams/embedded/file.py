"""What an embedded database must know of its file: whether the file system can carry it, and who holds its lock."""

from __future__ import annotations

import os
import re
import sqlite3
from pathlib import Path

from streams.errors import UsageError

__all__ = ["is_busy", "lock_holder", "network_filesystem", "refuse_network", "stall_message"]

WAL_WRITE_LOCK_BYTE = 120
"""The byte of the -shm file that a writer locks. Part of SQLite's file format (walformat, section 2.3)."""

_LOCK = re.compile(r"POSIX\s+ADVISORY\s+WRITE\s+(\d+)\s+\w+:\w+:(\d+)\s+(\d+)\s+(\d+|EOF)")


# Write-ahead logging needs shared memory and POSIX locks that all processes see; these give one or neither.
# fmt: off
NETWORK_FILESYSTEMS = frozenset((
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "drvfs", "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs",
    "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2",
    "orangefs", "smb2", "smb3", "smbfs",
))
# fmt: on


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection is in the way. Nothing was written."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def stall_message(path: str, seconds: float, holder: int | None) -> str:
    """What a person needs to know to end the stall."""
    if holder is None:
        who, cure = "another process holds it", f"find it with `fuser {path}`, then continue or end it"
    elif holder == os.getpid():
        who, cure = f"this process ({holder}) holds it itself", "another connection of it is inside a transaction"
    else:
        who = f"process {holder}{_command(holder)} holds it, frozen or very slow"
        cure = f"continue it with `kill -CONT {holder}` or end it with `kill -KILL {holder}`; either is safe"
    return f"waiting for the write lock of {path} for {seconds:.0f} s: {who}; {cure}"


def lock_holder(path: str) -> int | None:
    """The process that holds the write lock, as the kernel knows it; None where it cannot be told.

    Never open the -shm or the database file to ask: closing it again would drop all of this process's own locks.
    """
    try:
        inode = Path(f"{path}-shm").stat().st_ino
        locks = Path("/proc/locks").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    for pid, locked, first, last in _LOCK.findall(locks):
        end = WAL_WRITE_LOCK_BYTE if last == "EOF" else int(last)
        if int(locked) == inode and int(first) <= WAL_WRITE_LOCK_BYTE <= end:
            return int(pid)
    return None


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return f" ({b' '.join(words).decode(errors='replace').strip()[:80]})"


def refuse_network(path: str, what: str = "the log", otherwise: str = "kafka://HOST:PORT") -> None:
    """Raise UsageError when the folder is missing or lies on a network file system."""
    folder = Path(path).parent
    if not folder.is_dir():
        raise UsageError(f"the folder {folder} does not exist: create it, or choose another path for {what}")
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux: nothing to ask
        return
    kind = network_filesystem(str(folder), mounts)
    if kind is not None:
        raise UsageError(
            f"{path} is on a network file system ({kind}), where sqlite's locks do not hold and commits would be lost: "
            f"put the file on a local disk, or use {otherwise} for several machines"
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
