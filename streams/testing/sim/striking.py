"""Faults that strike at their time, whatever the processes do just then; the others are laid in wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from streams.testing.sim.clients import CLIENTS, OF_CLIENTS
from streams.testing.sim.faults import SUBSCRIBER, Fault
from streams.testing.sim.process import Process

if TYPE_CHECKING:
    from streams.testing.sim.world import World

__all__ = ["Striker"]

_LATE_SECONDS = 1.5
_SMALL_SECONDS = 0.3


class Absence:
    """Something that does not answer for a while."""

    def __init__(self, world: World, what: str) -> None:
        self._world, self._what = world, what
        self._until = 0.0
        self._fault: Fault | None = None

    def begin(self, fault: Fault) -> None:
        """From now on."""
        self._fault, self._until = fault, self._world.loop.time() + fault.seconds

    def end(self) -> None:
        """It is there."""
        self._until = 0.0

    @property
    def there(self) -> bool:
        """Whether it answers. Where it does not, its fault has hit somebody."""
        if self._world.loop.time() >= self._until:
            return True
        if self._fault is not None:
            self._world.struck(self._fault, f"{self._what} is away for {self._fault.seconds:g} s")
            self._fault = None
        return False


class Striker:
    """The hand of the faults in one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._away_until = 0.0
        self._away: Fault | None = None
        self._late: tuple[float, Fault] | None = None
        self._moved: dict[int, tuple[int | None, Fault]] = {}
        self.ledger = Absence(world, "a database")
        self.providers = Absence(world, "a provider")
        self._effect_moved: dict[tuple[str, int], tuple[int | None, Fault]] = {}
        self._at_once: dict[str, Callable[[Fault, Process], None]] = {
            "kill at a random instant": self._kill,
            "graceful stop": self._stop,
            "freeze at a random instant": self._freeze,
            "membership lost": self._lose,
            "needless rebalance": self._rebalance,
            "log away": self._leave_log,
            "late markers": self._make_late,
            "group offset moved back": self._move_offset,
            "group offset moved ahead": self._move_offset,
            "compaction": self._compact,
            "clock forward": self._jump,
            "clock back": self._jump,
        }
        self._at_once_to_subscribers: dict[str, Callable[[Fault, Process], None]] = {
            "kill at a random instant": self._kill,
            "graceful stop": self._stop,
            "freeze at a random instant": self._freeze,
            "membership lost": self._lose,
            "needless rebalance": self._rebalance,
            "group offset moved back": self._move_effect_offset,
            "ledger away": lambda fault, _: self.ledger.begin(fault),
            "providers away": lambda fault, _: self.providers.begin(fault),
        }

    def strike(self, fault: Fault) -> None:
        """Its time has come."""
        world = self._world
        if world.calm:
            return
        of_subscribers = fault.kind.startswith(SUBSCRIBER)
        act = (self._at_once_to_subscribers if of_subscribers else self._at_once).get(fault.what)
        if act is None:
            world.faults.arm(fault._replace(slot=CLIENTS) if fault.kind in OF_CLIENTS else fault)
            return
        everybody: Sequence[Process] = world.subscribers if of_subscribers else world.processes
        there = [one for one in everybody if not one.actor.frozen]
        if there:
            # Where the one that it was drawn for is gone, it hits another.
            act(fault, next((one for one in there if one.slot == fault.slot), there[0]))

    def calm_down(self) -> None:
        """The log is there, and its markers are on time."""
        self._away_until = 0.0
        self._late = None
        self.ledger.end()
        self.providers.end()

    # -- processes -----------------------------------------------------------------------------------------------

    def _kill(self, fault: Fault, process: Process) -> None:
        self._world.struck(fault, process.name)
        self._world.killed(process, fault.seconds)

    def _freeze(self, fault: Fault, process: Process) -> None:
        self._world.struck(fault, f"{process.name} for {fault.seconds:g} s")
        self._world.frozen(process, fault.seconds)

    def _stop(self, fault: Fault, process: Process) -> None:
        if process.owns and not process.stopping:
            self._world.struck(fault, process.name)
            process.stop(fault.seconds)

    def _jump(self, fault: Fault, process: Process) -> None:
        # Where runs are forgotten after seconds and not after weeks, a clock must not be wrong by as much.
        seconds = min(fault.seconds, _SMALL_SECONDS) if self._world.expiring else fault.seconds
        seconds = seconds if fault.kind == "clock forward" else -seconds
        self._world.struck(fault, f"{process.name} by {seconds:+g} s")
        process.clock.jump(seconds)

    # -- ownership -----------------------------------------------------------------------------------------------

    def _lose(self, fault: Fault, process: Process) -> None:
        if process.owns:
            self._world.struck(fault, f"{process.name}, which owned {process.owns}")
            self._world.expire(process)

    def _rebalance(self, fault: Fault, process: Process) -> None:
        world = self._world
        if process.owns:
            world.struck(fault, f"while {process.name} owns {process.owns}")
            for group, topic in process.places():
                world.broker.rebalance(group, topic)

    def _move_offset(self, fault: Fault, process: Process) -> None:
        """The owner is given up on, so that somebody reads the offset."""
        del process
        world, number = self._world, fault.number % self._world.partitions
        group, topic = world.topics.group, world.topics.commands
        for owner in world.processes:
            if number in owner.owns:
                before = world.broker.move_offset(group, topic, number, None) or 0
                ahead = fault.kind == "group offset moved ahead"
                moved = before + fault.number if ahead else (None if fault.number % 2 else before // 2)
                world.broker.move_offset(group, topic, number, moved)
                self._moved[number] = (moved, fault)
                world.expire(owner)
                return

    def offset_read(self, partition: int, offset: int | None, name: str) -> None:
        """A new owner has read the group's offset."""
        moved, fault = self._moved.pop(partition, (None, None))
        if fault is not None and moved == offset:
            self._world.struck(fault, f"{name} finds {offset} as the group's offset of partition {partition}")

    def _move_effect_offset(self, fault: Fault, process: Process) -> None:
        """Back to the half of it, or lost; and everybody is given up on, so that somebody reads it."""
        world = self._world
        group, topic = process.places()[fault.number % len(process.places())]
        number = fault.number % world.partitions
        before = world.broker.move_offset(group, topic, number, None) or 0
        moved = None if fault.number % 2 else before // 2
        world.broker.move_offset(group, topic, number, moved)
        self._effect_moved[topic, number] = (moved, fault)
        for one in world.subscribers:
            world.expire(one, topic)

    def effect_offset_read(self, topic: str, partition: int, offset: int | None, name: str) -> None:
        """A new owner has read the offset of a group of subscribers."""
        moved, fault = self._effect_moved.pop((topic, partition), (None, None))
        if fault is not None and moved == offset:
            self._world.struck(fault, f"{name} finds {offset} as the group's offset of {topic}/{partition}")

    # -- the log -------------------------------------------------------------------------------------------------

    def _leave_log(self, fault: Fault, process: Process) -> None:
        del process
        self._away, self._away_until = fault, self._world.loop.time() + fault.seconds

    @property
    def away(self) -> bool:
        """Whether no broker answers."""
        return self._world.loop.time() < self._away_until

    def refused_while_away(self) -> None:
        """An operation was refused because no broker answers."""
        if self._away is not None:
            self._world.struck(self._away, f"for {self._away.seconds:g} s")
            self._away = None

    def _make_late(self, fault: Fault, process: Process) -> None:
        del process
        self._late = (self._world.loop.time() + _LATE_SECONDS, fault)

    def marker_seconds_max(self) -> float:
        """How late an end may be seen because of a fault; 0 where there is none."""
        if self._late is None:
            return 0.0
        until, fault = self._late
        if self._world.loop.time() >= until:
            self._late = None
            return 0.0
        if fault.number not in self._world.faults.struck:
            self._world.struck(fault, "ends of transactions take long to be seen")
        return fault.seconds

    def _compact(self, fault: Fault, process: Process) -> None:
        del process
        gone = self.compact()
        if gone:
            self._world.struck(fault, f"{gone} records are gone")

    def compact(self) -> int:
        """Compact what is compacted; return how many records are gone. The invariants still know them."""
        broker = self._world.broker
        compacted = (self._world.topics.checkpoints, self._world.topics.leases)
        before = list(broker.everything("read_committed"))
        for record in before:
            if record.topic in compacted:
                place = (record.topic, record.partition)
                self._world.kept.setdefault(place, {})[record.offset] = record
        for topic in compacted:
            broker.compact_now(topic)
        return len(before) - sum(1 for _ in broker.everything("read_committed"))
