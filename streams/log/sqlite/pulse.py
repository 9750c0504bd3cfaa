"""The thread that keeps members alive, declares silent ones dead, and notices what other processes wrote."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Hashable, Mapping

from streams.errors import LogError
from streams.log.news import News
from streams.log.sqlite import groups
from streams.log.sqlite.lane import connect, transaction, translated
from streams.log.sqlite.patience import Patience
from streams.log.sqlite.place import Place
from streams.log.sqlite.rows import spans, sum_of_ends

__all__ = ["Pulse", "Silence"]

WATCH_SECONDS_MIN = 0.002
WATCH_SECONDS_MAX = 0.020


class Silence:
    """Tells members that are dead from members that were merely not seen.

    A member is dead when its counter stood still for the session time-out while our own heartbeats went through
    without a gap. Only this process's monotonic clock is used, so clock jumps expire nobody; and after a stall that
    hit us too (a stopped machine, a frozen process with the write lock) everybody gets a full time-out again.
    """

    def __init__(self, session_timeout: float) -> None:
        self._session_timeout = session_timeout
        self._gap_max = session_timeout / 3
        self._seen: dict[str, tuple[int, float]] = {}
        self._looked_at = float("-inf")

    def dead(self, beats: Mapping[str, int], now: float) -> list[str]:
        """Who is dead, given every member's counter at one of our own heartbeats."""
        stalled = now - self._looked_at > self._gap_max
        self._looked_at = now
        before = {} if stalled else self._seen
        self._seen = {
            member: before[member] if member in before and before[member][0] == count else (count, now)
            for member, count in beats.items()
        }
        return [member for member, (_, since) in self._seen.items() if now - since >= self._session_timeout]


class Pulse:
    """One daemon thread with its own connection, off the event loop: a busy loop must not cost the membership."""

    def __init__(
        self, place: Place, patience: Patience, news: News, tell: Callable[[Mapping[Hashable, int]], None]
    ) -> None:
        self._place = place
        self._patience = patience
        self._news = news
        self._tell = tell
        self._members: dict[str, Callable[[], bool]] = {}
        self._observers = 0
        self._silence = Silence(place.session_timeout)
        self._version = -1
        self._looked: frozenset[Hashable] = frozenset()
        self._marks: dict[Hashable, groups.Mark] = {}
        self._changed_at = 0.0
        self._beat_at = 0.0
        self._kicked = threading.Event()
        self._resting = False
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="sqlite-pulse", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; `join` waits for it."""
        self._stopped = True
        self._kicked.set()

    def join(self) -> None:
        """Wait until the thread has ended. Call `stop`, and stop the patience, before."""
        self._thread.join()

    def add(self, member: str, alive: Callable[[], bool]) -> None:
        """Keep a member alive for as long as `alive()` says so."""
        self._members[member] = alive
        self._kicked.set()

    def remove(self, member: str) -> None:
        """Stop keeping a member alive."""
        self._members.pop(member, None)

    def observe(self, change: int) -> None:
        """Count those (+1, -1) who want the dead to be expired without being members themselves."""
        self._observers += change
        self._kicked.set()

    def watch(self) -> None:
        """Somebody began to wait for news."""
        if self._resting:
            self._kicked.set()

    def _run(self) -> None:
        connection: sqlite3.Connection | None = None
        while not self._stopped:
            try:
                connection = connection or connect(self._patience, "NORMAL")
                self._step(connection)
            except (sqlite3.Error, LogError) as error:
                # Heartbeats are tried again: whoever needs this file meets the same error in his own call.
                if not self._stopped:
                    cause = translated(error, self._place.path) if isinstance(error, sqlite3.Error) else error
                    self._patience.report(f"a heartbeat failed: {cause}")
            self._rest()
        if connection is not None:
            connection.close()

    def _step(self, connection: sqlite3.Connection) -> None:
        now = time.monotonic()
        if self._beating and now >= self._beat_at:
            self._beat_at = now + self._place.heartbeat_interval
            if transaction(connection, self._patience, self._beat):
                self._version = -1  # the version does not tell of what this connection itself has written
        awaited = self._news.awaited
        if awaited:
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            if version != self._version:
                self._changed_at = now
            if version != self._version or not self._looked.issuperset(awaited):
                self._look(connection, awaited)
                self._version, self._looked = version, frozenset(awaited)

    def _look(self, connection: sqlite3.Connection, awaited: Collection[Hashable]) -> None:
        """Tell what is news to this process; most commits are its own, and those who wait know of them already."""
        found: dict[Hashable, int] = {}
        pids = [key for key in awaited if isinstance(key, int)]
        known = {pid: self._news.number(pid) for pid in pids}
        # Ends only grow, so equal sums are equal ends; a sum is one row.
        if sum_of_ends(connection, pids) != sum(known.values()):
            found |= {pid: end for pid, (_, end) in spans(connection, pids).items() if end > known[pid]}
        for key in awaited:
            if isinstance(key, tuple):
                mark = groups.mark(connection, *key)
                if mark != self._marks.get(key):
                    self._marks[key] = mark
                    # Read after the mark: who has seen a higher number has looked later than this.
                    found[key] = self._news.number(key) + 1
        if found:
            self._tell(found)

    def _beat(self, connection: sqlite3.Connection) -> list[str]:
        alive = [(member,) for member, alive in list(self._members.items()) if alive()]
        connection.executemany("UPDATE members SET beats = beats + 1 WHERE member = ?", alive)
        dead = self._silence.dead(groups.beats(connection), time.monotonic())
        for member in dead:
            groups.leave(connection, member)
        return dead

    def _rest(self) -> None:
        """Sleep until the next heartbeat, the next look, or a kick."""
        now = time.monotonic()
        seconds = max(0.0, self._beat_at - now) if self._beating else None
        if self._news.awaited:
            quiet = min(WATCH_SECONDS_MAX, max(WATCH_SECONDS_MIN, (now - self._changed_at) / 100))
            seconds = quiet if seconds is None else min(seconds, quiet)
        else:
            # Announce the rest before the second look, or a waiter that comes in between would not be noticed.
            self._resting = True
            if self._news.awaited:
                seconds = 0.0
        self._kicked.wait(seconds)
        self._kicked.clear()
        self._resting = False

    @property
    def _beating(self) -> bool:
        return bool(self._members or self._observers)
