"""One turn: decide for everything that has arrived, and gather the records of one transaction. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streams.kernel.commands import Command
from streams.kernel.decide import Decision, decide, refuse, stop_run
from streams.kernel.events import Event
from streams.kernel.inputs import Due, Env, Input
from streams.kernel.repair import waits_for_repair
from streams.kernel.run import blank, is_terminal
from streams.kernel.wake import times_of
from streams.log.port import RECORD_BYTES_MAX, NewRecord, Record
from streams.runtime import crash
from streams.runtime.damage import command_of_damaged, note_damage, send_back
from streams.runtime.early import Early, EarlyStarts
from streams.runtime.engine import Engine
from streams.runtime.failures import plain_text
from streams.runtime.guard import DriveTooLong
from streams.runtime.inputs import Arrived, Damage, Happened, Item, SendBack, Sweep
from streams.runtime.leases import lease_record
from streams.runtime.mirror import follow
from streams.runtime.outgoing import (
    RECORD_OVERHEAD,
    Stop,
    Unwritable,
    dead_letter_of,
    encode_events,
    letter_record,
    rejection_record,
)
from streams.runtime.partition import Hot, Partition, PartitionState, Stamp
from streams.runtime.projecting import LEADS_ON, project
from streams.runtime.sweep import Swept, sweep
from streams.runtime.working import Start, Timer, Working
from streams.wire.partitioner import partition_of
from streams.wire.records import CommandUnreadable, DeadLetter, decode_command, encode_checkpoint

__all__ = ["Turn"]


class Turn:
    """Decisions and records of one transaction. Nothing in it counts before `adopt`."""

    def __init__(self, engine: Engine, slots: dict[str, int], before: Turn | None = None) -> None:
        self.engine = engine
        self.used: dict[str, int] = {}
        """Task slots that this turn has handed out."""
        self.records: list[NewRecord] = []
        self.owners: list[Working | None] = []
        self.working: dict[tuple[int, str], Working] = {}
        self.applied: dict[int, int] = {}
        self.partitions: dict[int, Partition] = {}
        self.starts: list[Start] = []
        self.early = EarlyStarts()
        self.timers: list[Timer] = []
        self.stops: list[tuple[Partition, str]] = []
        self.told: list[tuple[Event, str]] = []
        """Events to tell of, each with the name of the task that it is about."""
        self.letters: list[DeadLetter] = []
        self.skipped: dict[int, int] = {}
        self.swept = Swept()
        self.bytes = 0
        self.leases: dict[int, int] = {}
        """Which record is the lease of a partition."""
        self._before = before.applied if before is not None else {}
        """What the turn that is committed before this one has applied."""
        self.working_before: Mapping[tuple[int, str], Working] = before.working if before is not None else {}
        self.paged: list[tuple[Partition, str]] = []
        """Runs that leave memory once this turn is committed."""
        self.damages: list[Damage] = []
        self.repaired: list[tuple[Partition, str]] = []
        """Runs that can be folded again."""
        self._sweeps: list[Sweep] = []
        self._stopped: Mapping[tuple[int, str], Stop] = {}
        self.slots = slots
        """Those that it may still hand out."""
        self._envs: dict[int, Env] = {}
        self.now = engine.clock.now_us()

    # -- taking inputs -------------------------------------------------------------------------------------------

    def take(self, items: Sequence[Item], *, stopped: dict[tuple[int, str], Stop] | None = None) -> int:
        """Decide for each input in order, as long as there is room; return how many were taken.

        May be called again with more, until `finish`. `stopped` names runs to be blocked instead, with the reason.
        """
        taken = 0
        self._stopped = stopped or {}
        self.now = self.engine.clock.now_us()
        self._envs.clear()
        with self.engine.guard.hidden():
            for item in items:
                if self.full:
                    break
                taken += 1
                self.partitions[item.partition.number] = item.partition
                if isinstance(item, Arrived):
                    self._arrived(item.partition, item.record)
                elif isinstance(item, Happened):
                    self.happened(item.partition, item.run_id, item.input, item.early)
                elif isinstance(item, Damage):
                    note_damage(self, item)
                elif isinstance(item, SendBack):
                    send_back(self, item)
                else:
                    self._sweeps.append(item)
                crash.passing("turn.input")
        return taken

    def finish(self) -> None:
        """Add checkpoints. They come last: one made before other inputs would not cover what they lead to."""
        for item in self._sweeps:
            sweep(self, item)
        self._checkpoints()

    def _arrived(self, partition: Partition, record: Record) -> None:
        if record.offset < self._applied(partition):
            self.skipped[partition.number] = self.skipped.get(partition.number, 0) + 1
            return
        try:
            command = self._decode(partition, record)
        except CommandUnreadable as error:
            self.dead(partition, record, error.message, error.code)
        else:
            hot = partition.runs.get(command.run_id)
            if hot is not None and hot.damaged is not None and (partition.number, command.run_id) not in self.working:
                command_of_damaged(self, partition, record, hot, command)
            else:
                self.happened(partition, command.run_id, command)
        self.applied[partition.number] = record.offset + 1

    def _applied(self, partition: Partition) -> int:
        number = partition.number
        return self.applied.get(number, self._before.get(number, partition.applied))

    def _decode(self, partition: Partition, record: Record) -> Command:
        default_id = f"{partition.topic_id}/{partition.number}/{record.offset}"
        command = decode_command(record.key, record.value, default_id=default_id, offset=record.offset)
        right = partition_of(record.key or b"", self.engine.partitions)
        if right != partition.number:
            message = (
                f"run {command.run_id!r} belongs to partition {right}, and its command came on {partition.number}; "
                "use the murmur2 partitioner with the run id as key"
            )
            raise CommandUnreadable("WRONG_PARTITION", message)
        return command

    def _working(self, partition: Partition, run_id: str, input_: Input, early: Early | None) -> Working | None:
        working = self.working.get((partition.number, run_id))
        if working is None and early is not None and early.pending:
            before = self.working_before[partition.number, run_id]
            working = self.working[partition.number, run_id] = Working.following(before)
        if working is None:
            hot = partition.runs.get(run_id)
            if hot is None:
                if not isinstance(input_, Command):
                    return None
                hot = Hot(blank(run_id, input_.offset))
                hot.fresh = input_.offset >= partition.fresh_from
            elif hot.damaged is not None:
                return None
            working = self.working[partition.number, run_id] = Working(partition, hot)
            self.engine.hold(hot)
        return working

    def is_stopped(self, partition: int, run_id: str) -> bool:
        """Whether a record of the run was refused, and it is blocked instead of what was decided."""
        return (partition, run_id) in self._stopped

    def happened(self, partition: Partition, run_id: str, input_: Input, early: Early | None = None) -> None:
        """Decide for a run."""
        working = self._working(partition, run_id, input_, early)
        if working is None:
            return
        if working.run.seq == 0 and isinstance(input_, Command):
            working.run = blank(run_id, input_.offset)
        decision = self._decide(working, input_, self._stopped.get((partition.number, run_id)))
        try:
            encoded = encode_events(decision.events)
        except Unwritable as unwritable:
            working.live = decision.live
            self._drop_live(working)
            decision = self._decide(working, input_, unwritable.stop)
            encoded = encode_events(decision.events)
        if waits_for_repair(working.run) and not waits_for_repair(decision.run):
            times = times_of(decision.run)
            self.timers += [Timer(due, partition, run_id, op) for due, op in times]
        working.run, working.live, working.touched = decision.run, decision.live, True
        for event, data in zip(decision.events, encoded, strict=True):
            self.add_event(working, event, data)
        if isinstance(input_, Due) and not decision.events:
            self._wait_on(working, input_.op)

    def _wait_on(self, working: Working, op_id: str) -> None:
        """The clock went back between the timer and the turn, or the op has another time by now: wait for that."""
        op = working.run.ops.get(op_id)
        if op is not None and op.due is not None and op.due > self.now:
            self.timers.append(Timer(op.due, working.partition, working.run.run_id, op_id))

    def _decide(self, working: Working, input_: Input, stop: Stop | None) -> Decision:
        engine, run, env = self.engine, working.run, self._env(working.partition)
        if stop is None:
            try:
                with engine.guard.timed():
                    return decide(engine.definitions, run, working.live, input_, env)
            except DriveTooLong as error:
                stop = Stop("WORKFLOW_BUG", str(error))
            except (Exception, SystemExit) as error:  # noqa: BLE001 - user code outside a drive: types, keys, reducers
                stop = Stop("WORKFLOW_BUG", f"{type(error).__name__} while deciding: {plain_text(error)}")
                if isinstance(input_, Command):
                    self._drop_live(working)
                    return refuse(engine.definitions, run, input_, env, "INPUT_INVALID", stop.message)
            self._drop_live(working)
        return stop_run(engine.definitions, run, input_, env, *stop)

    def _drop_live(self, working: Working) -> None:
        if working.live is not None:
            self.engine.close(working.live)
            working.live = None

    def _env(self, partition: Partition) -> Env:
        env = self._envs.get(partition.number)
        if env is None:
            engine = self.engine
            env = Env(self.now, partition.epoch, engine.owner, engine.codec, self.slots, engine.entropy)
            self._envs[partition.number] = env
        return env

    # -- records -------------------------------------------------------------------------------------------------

    def add(self, record: NewRecord, working: Working | None) -> None:
        """Write this record with the turn, on behalf of a run where one can be named."""
        self.records.append(record)
        self.owners.append(working)
        self.bytes += len(record.value or b"")

    def add_event(self, working: Working, event: Event, data: bytes) -> None:
        """Write an event of a run, and what follows from it."""
        partition = working.partition
        if working.first is None and event.seq is not None:
            working.first = len(self.records)
        working.event_bytes += len(data)
        self.add(NewRecord(self.engine.topics.events, partition.number, working.key, data), working)
        if type(event.body) in LEADS_ON:
            project(self, working, event)

    def dead(self, partition: Partition, record: Record, reason: str, code: str) -> None:
        """Set a record aside; the rejection among the events shows that its offset was applied."""
        topics = self.engine.topics
        letter = dead_letter_of(record, reason, self.now, code)
        self.letters.append(letter)
        self.add(letter_record(topics, letter), None)
        self.add(rejection_record(topics, letter, partition.epoch), None)

    # -- checkpoints and leases ----------------------------------------------------------------------------------

    def _checkpoints(self) -> None:
        for working in self.working.values():
            # After the null of a forgotten run, a checkpoint would bring it back.
            if working.gone or not working.touched or working.first is None:
                continue
            hot = working.hot
            grown = working.since_bytes + working.event_bytes
            enough = max(self.engine.settings.checkpoint_bytes_min, working.checkpoint_bytes)
            # A repaired one at once: the mark of its damage is what else a restore would begin with.
            if is_terminal(working.run) or grown >= enough or hot.damaged is not None:
                self.checkpoint(working)

    def checkpoint(self, working: Working) -> None:
        """Write the state of a run as it is after the turn, unless no record can hold it."""
        data = encode_checkpoint(working.run)
        refused = (working.partition.number, working.run.run_id) in self._stopped
        if refused or len(data) > RECORD_BYTES_MAX - RECORD_OVERHEAD:
            limit = "may be what the log refuses" if refused else "is over the limit of a record"
            text = (
                f"its checkpoint of {len(data)} bytes {limit} and is not written; the run is restored from its events"
            )
            self.engine.observer.message(f"run {working.run.run_id}: {text} until it has shrunk")
            return
        working.checkpoint = data
        self.add(NewRecord(self.engine.topics.checkpoints, working.partition.number, working.key, data), working)

    def add_lease(self, partition: Partition, ids: tuple[str, ...], *, released: bool = False) -> None:
        """Write the partition's lease with this turn; the applied offset is what the turn makes it."""
        self.partitions[partition.number] = partition
        record = lease_record(self.engine, partition, self._applied(partition), ids, now=self.now, released=released)
        self.leases[partition.number] = len(self.records)
        self.add(record, None)

    # -- the end of a turn ---------------------------------------------------------------------------------------

    def offsets(self) -> dict[int, int]:
        """The next command to apply of every partition that the turn writes for: this is the fence."""
        touched = {record.partition for record in self.records} | set(self.applied)
        return {number: self._applied(self.partitions[number]) for number in sorted(touched)}

    @property
    def full(self) -> bool:
        """Whether it has as many bytes as one transaction should carry."""
        return self.bytes > self.engine.settings.turn_bytes_max

    @property
    def empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not self.records and not self.applied

    def discard(self) -> None:
        """The turn was not committed: drop its coroutines; the committed states are as they were."""
        for working in self.working.values():
            self._drop(working)

    def _drop(self, working: Working) -> None:
        if working.live is not None and working.live is not working.hot.live:
            self.engine.close(working.live)
        self.engine.evict(working.hot)

    def stamp(self, offsets: list[int]) -> None:
        """Note between which readings of the clock each lease was written."""
        for number, index in self.leases.items():
            self.partitions[number].stamp = Stamp(offsets[index], self.now, self.engine.clock.now_us())

    def adopt(self, offsets: list[int]) -> None:
        """The turn is committed: its states are the states now."""
        crash.passing("commit.after")
        self.stamp(offsets)
        events = self.engine.topics.events
        written = zip(self.records, offsets, strict=True)
        for number, last in {record.partition: offset for record, offset in written if record.topic == events}.items():
            partition = self.partitions[number]
            partition.events_end = max(partition.events_end, last + 1)
        if self.engine.mirrored:
            follow(self.partitions, self.records, offsets, self.engine.topics.checkpoints, self.now)
        for number, applied in self.applied.items():
            self.partitions[number].applied = applied
        for damage in self.damages:
            damage.hot.first_offset = None
        for working in self.working.values():
            self._adopt(working, offsets)
        # Only now that every run has its coroutine: touching one may evict another, which this turn has moved on.
        for working in self.working.values():
            self.engine.touch(working.hot)

    def _adopt(self, working: Working, offsets: list[int]) -> None:
        hot, run = working.hot, working.run
        if working.partition.state is PartitionState.CLOSED:
            self._drop(working)  # given up while the commit was under way
            return
        if working.gone:
            working.partition.runs.pop(run.run_id, None)
            self.engine.evict(hot)
            return
        if run.seq == 0:
            return
        working.partition.runs[run.run_id] = hot
        hot.run, hot.live, hot.damaged = run, working.live, None
        if working.checkpoint is not None:
            hot.first_offset, hot.since_bytes, hot.checkpoint_bytes = None, 0, len(working.checkpoint)
        elif working.first is not None:
            hot.since_bytes += working.event_bytes
            if hot.first_offset is None:
                hot.first_offset, hot.first_at = offsets[working.first], self.now
