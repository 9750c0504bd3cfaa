"""What processes use: CPU time and memory of any of them by its pid, with all its threads."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

__all__ = ["cpu_seconds", "memory_mb", "peak_mb_of"]


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used. What it has waited for in children counts not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    except OSError:
        return _clock(_ps(pid, "time"))
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    """Memory that is in RAM now, in MB of 1,000,000 bytes."""
    return _status(pid, "VmRSS") or float(_ps(pid, "rss") or 0) * 1024 / 1e6


def peak_mb_of(pid: int) -> float:
    """The most it ever was; where the system does not tell that, what it is now."""
    return _status(pid, "VmHWM") or memory_mb(pid)


def _status(pid: int, name: str) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(f"{name}:")), 0.0)


def _ps(pid: int, column: str) -> str:
    """For systems without /proc."""
    done = subprocess.run(["/bin/ps", "-o", f"{column}=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _clock(text: str) -> float:
    """`[[days-]hours:]minutes:seconds` in seconds."""
    days, _, rest = text.rpartition("-")
    seconds = float(days or 0) * 86_400
    for place, part in enumerate(reversed((rest or "0").split(":"))):
        seconds += float(part) * 60**place
    return seconds
