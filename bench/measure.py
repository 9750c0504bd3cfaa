"""Clocks, memory and order statistics."""

from __future__ import annotations

import gc
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.processes import memory_mb, peak_mb_of
from streams.kernel import decide

__all__ = ["Meter", "disk_folder", "filesystem", "machine", "peak_mb", "percentile", "resident_mb", "summary"]

_IN_MEMORY = ("tmpfs", "ramfs")


class Meter:
    """Wall and CPU time of this process since it was made, with all its threads."""

    def __init__(self) -> None:
        gc.collect()
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    def per_run(self, runs: int) -> dict[str, float]:
        """What `runs` runs have taken until now."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return {"runs_per_s": runs / wall, "cpu_us_per_run": cpu / runs * 1e6}


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share lies, with what stands between two of them."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Median, lowest, highest, and all of them in order."""
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "values": list(values),
    }


def resident_mb() -> float:
    """Memory of this process that is in RAM now, in MB of 1,000,000 bytes."""
    return memory_mb(os.getpid())


def peak_mb() -> float:
    """The most it ever was."""
    return peak_mb_of(os.getpid())


def filesystem(folder: Path) -> str:
    """The type of the file system, as far as the machine tells."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "unknown"
    points = [(fields[1], fields[2]) for fields in map(str.split, mounts) if len(fields) > 2]
    inside = [(len(point), kind) for point, kind in points if folder.is_relative_to(point)]
    return max(inside)[1] if inside else "unknown"


def disk_folder() -> Path:
    """Where temporary files reach a disk: a flush costs nothing in memory, and figures from there are worth nothing."""
    places = [Path(tempfile.gettempdir()), Path("/var/tmp"), Path.cwd()]
    usable = [place.resolve() for place in places if place.is_dir() and os.access(place, os.W_OK)]
    return next((place for place in usable if filesystem(place) not in _IN_MEMORY), usable[0])


def machine(folder: Path) -> Mapping[str, Any]:
    """What the figures depend on."""
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "compiled": "no" if str(decide.__file__).endswith(".py") else "yes",
        "system": f"{platform.system()} {platform.release()}",
        "filesystem": filesystem(folder),
        "load_before": round(os.getloadavg()[0], 2),
    }
