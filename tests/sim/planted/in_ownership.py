"""Mistakes in acquiring, keeping and giving up a partition."""

from __future__ import annotations

from tests.sim.planted.planting import Edit, Fault

__all__ = ["FAULTS"]

_OWNER, _RESTORE, _RECOVER = "streams.runtime.owner", "streams.runtime.restore", "streams.runtime.recover"
_WAKE = "streams.kernel.wake"
_CLAIM = "            turn.stamp(await worker.commit(snapshot, turn))\n"

FAULTS = [
    Fault(
        "stable_fetch_skipped",
        "The new owner does not wait for a pending offset of the one before",
        (
            Edit(
                _RESTORE,
                "    asked = asyncio.ensure_future(member.committed(partition))\n",
                "    return None\n    asked = asyncio.ensure_future(member.committed(partition))\n",
            ),
        ),
    ),
    Fault(
        "visible_end_taken_for_the_end",
        "The new owner reads up to what is visible, and not up to what was written",
        (
            Edit(
                _RESTORE, 'log.span(name, partition, "read_uncommitted") for name', "log.span(name, partition) for name"
            ),
        ),
    ),
    Fault(
        "barrier_skipped",
        "The new owner claims before it sees up to the ends that it has captured",
        (Edit(_RESTORE, "while (await log.span(name, partition)).end < span.end:", "while False:"),),
        test="tests/kafka/test_ownership.py::test_f02_steps_2_and_3_wait_for_events_whose_markers_are_late",
        kafka=True,
    ),
    Fault(
        "claim_skipped",
        "The new owner raises the epoch for itself and writes no claim",
        (Edit(_OWNER, _CLAIM, ""),),
    ),
    Fault(
        "claim_with_the_first_turn",
        "The claim is written with the first turn, and not in a transaction of its own",
        (
            Edit(_OWNER, _CLAIM, ""),
            Edit(
                "streams.runtime.turns",
                "        for partition in turn.swept.done:\n",
                "        fresh = [p for p in turn.partitions.values() if p.stamp is None]\n"
                "        for partition in dict.fromkeys([*turn.swept.done, *fresh]):\n",
            ),
        ),
    ),
    Fault(
        "epoch_not_raised",
        "The claim takes over the epoch of the last owner",
        (
            Edit(_OWNER, "partition.epoch = epoch_seen + 1", "partition.epoch = max(epoch_seen, 1)"),
            Edit(_OWNER, "if found.epoch_seen < partition.epoch:", "if found.epoch_seen <= partition.epoch:"),
        ),
    ),
    Fault(
        "memory_kept_after_revoke",
        "A partition that comes back is served from the memory of the last time",
        (
            Edit(
                _OWNER,
                "        partition.runs = {}\n",
                '        self._worker.__dict__.setdefault("kept", {})[partition.number] = partition.runs\n',
            ),
            Edit(
                _OWNER,
                "        partition = self.partitions[number] = Partition(number, incarnation)\n",
                "        partition = self.partitions[number] = Partition(number, incarnation)\n"
                '        partition.runs = self._worker.__dict__.get("kept", {}).get(number, {})\n',
            ),
            Edit(
                _OWNER,
                "found = await restore(log, topics, partition, tail, ends)",
                "found = Found(0, 0, []) if partition.runs else await restore(log, topics, partition, tail, ends)",
            ),
        ),
    ),
    Fault(
        "forward_reset_obeyed",
        "A group offset that was moved ahead is believed, and the commands before it are passed over",
        (Edit(_OWNER, "            start = max(partition.applied, commands.start)\n", ""),),
    ),
    Fault(
        "applied_from_the_lease_alone",
        "What the events show of applied commands does not count",
        (Edit(_OWNER, "partition.applied = max(partition.applied, found.applied)", "pass"),),
    ),
    Fault(
        "aborted_records_restored",
        "The restore reads records that were never committed",
        (
            Edit(
                _RESTORE,
                "reader = log.reader({place: start}, isolation)",
                'reader = log.reader({place: start}, "read_uncommitted")',
            ),
        ),
    ),
    Fault(
        "tail_of_the_lease_ignored_from_above",
        "The restore reads events from the end on, as if checkpoints held everything",
        (
            Edit(
                _RESTORE,
                "TopicPartition(topics.events, partition.number), tail, end)",
                "TopicPartition(topics.events, partition.number), max(tail, end - 3), end)",
            ),
        ),
    ),
    Fault(
        "back_off_not_restored",
        "A task that waits for its next attempt is forgotten by a new owner",
        (Edit(_WAKE, "op.phase in (OpPhase.WAITING, OpPhase.BACKOFF)", "op.phase is OpPhase.WAITING"),),
    ),
    Fault(
        "queued_tasks_not_restored",
        "A task that waits for a slot is forgotten by a new owner",
        (Edit(_WAKE, "        if op.phase is OpPhase.QUEUED:\n", "        if op.phase is None:\n"),),
    ),
    Fault(
        "timers_not_restored",
        "A timer is forgotten by a new owner",
        (Edit(_WAKE, "op.phase in (OpPhase.WAITING, OpPhase.BACKOFF)", "op.phase is OpPhase.BACKOFF"),),
    ),
    Fault(
        "timer_begun_anew_at_restore",
        "A new owner lets a timer wait for its whole length again",
        (
            Edit(
                _RECOVER,
                "        worker.timers.add(due, partition, run.run_id, op)\n",
                "        late = worker.engine.clock.now_us() - run.ops[op].since if due else 0\n"
                "        worker.timers.add(due + late, partition, run.run_id, op)\n",
            ),
        ),
    ),
    Fault(
        "recovered_without_a_new_attempt",
        "A new owner runs an attempt of the old one again, under the same number",
        (
            Edit(
                _RECOVER,
                "        worker.put(Happened(partition, run.run_id, Recover()))\n",
                "        for op in run.ops.values():\n"
                "            worker.dispatcher.start(partition, run.run_id, op.id, op.attempt)\n",
            ),
        ),
    ),
    Fault(
        "nothing_recovered",
        "A new owner leaves alone what was running",
        (Edit(_RECOVER, "        worker.put(Happened(partition, run.run_id, Recover()))\n", "        pass\n"),),
    ),
    Fault(
        "outcome_of_another_incarnation_taken",
        "Attempts go on when their partition is lost, and their outcomes wait until it comes back and count then",
        (
            Edit(
                _OWNER,
                "        worker.dispatcher.abandon({partition.number})\n",
                "        for key in [key for key in worker.dispatcher._promised if key[0] == partition.number]:\n"
                "            worker.dispatcher._take_back(key)\n",
            ),
            Edit(
                "streams.runtime.worker",
                "        self.inbox.put([item])\n",
                "        now = self.owner.partitions.get(item.partition.number)\n"
                "        known = now is not None and not isinstance(item, Damage)\n"
                "        self.inbox.put([item._replace(partition=now) if known else item])\n",
            ),
            Edit(
                "streams.runtime.inbox",
                "            if not partition.running or owned.get(partition.number) != partition.incarnation:\n",
                '            outcome = type(getattr(item, "input", None)).__name__ == "Outcome"\n'
                '            if outcome and partition.state.value == "restoring":\n'
                "                self._held.append(item)\n"
                "            elif not partition.running or owned.get(partition.number) != partition.incarnation:\n",
            ),
        ),
    ),
    Fault(
        "lost_partition_kept",
        "A worker that has lost a partition goes on as if it had not, and its fence is off",
        (
            Edit(
                _OWNER,
                '        """Somebody else owns them: publish nothing, stop the tasks, forget everything."""\n',
                '        """Somebody else owns them: publish nothing, stop the tasks, forget everything."""\n'
                "        return\n",
            ),
            Edit(
                "streams.log.memory.group",
                "        member, generation = snapshot.token\n",
                "        member, generation = snapshot.token\n        return\n",
            ),
        ),
    ),
    Fault(
        "handed_back_task_loses_its_doubt",
        "An attempt that a graceful stop gives back is tried again as if it had not begun",
        (
            Edit(
                "streams.kernel.evolve",
                "spent=max(op.spent - 1, 0), maybe=True)",
                "spent=max(op.spent - 1, 0), maybe=False)",
            ),
        ),
    ),
    Fault(
        "handed_back_attempt_counts",
        "An attempt that a graceful stop gives back uses up the budget",
        (Edit("streams.kernel.evolve", "spent=max(op.spent - 1, 0), maybe=True)", "spent=op.spent, maybe=True)"),),
    ),
    Fault(
        "expired_run_resurrected",
        "A restore passes over the event that a run was forgotten",
        (
            Edit(
                _RESTORE,
                "        partition.runs.pop(event.run_id, None)\n"
                "        damaged.pop(event.run_id, None)\n"
                "        return shown._replace(expired=True)\n",
                "        return shown._replace(expired=True)\n",
            ),
        ),
        test="tests/runtime/test_expiry.py::test_f15_expired_runs_do_not_come_back_where_all_events_are_read_again",
    ),
    Fault(
        "tombstone_taken_for_a_value",
        "A null among the checkpoints is taken for a checkpoint that cannot be read",
        (
            Edit(
                _RESTORE,
                "        if record.value is None:\n"
                "            latest.pop(record.key, None)\n"
                "        else:\n"
                "            latest[record.key] = record\n",
                "        latest[record.key] = record\n",
            ),
        ),
    ),
]
