"""Mistakes around the commit of a turn: what goes into the transaction, what comes before it, what follows on it."""

from __future__ import annotations

from tests.sim.planted.planting import Edit, Fault

__all__ = ["FAULTS", "KAFKAS_FENCE"]

_PROJECTING = "streams.runtime.projecting"
_TURN, _TURNS, _WORKER = "streams.runtime.turn", "streams.runtime.turns", "streams.runtime.worker"
_PRODUCER, _GROUP = "streams.log.memory.producer", "streams.log.memory.group"
_UNCHECKED = Edit(_PRODUCER, "        check_commit(snapshot, records, offsets)\n", "")
"""The memory log refuses what Kafka's client drops without a word; here it drops it too."""
_NO_FENCE = Edit(_PRODUCER, "group.check(snapshot, offsets)", "offsets and group.check(snapshot, offsets)")
_COMMIT = "commit = self.producer.commit(snapshot, turn.records, turn.offsets())"


KAFKAS_FENCE = Edit(
    _GROUP,
    "        for partition in offsets:\n",
    "        if member not in self._members:\n"
    '            raise CommitAborted("the group does not know this member")\n'
    "        for partition in ():\n",
)
"""A broker compares member and generation, and not who owns what (KIP-447). The memory log does both."""

FAULTS = [
    Fault(
        "empty_offsets",
        "A turn sends no offsets, so nothing in its transaction is checked against the group",
        (
            Edit(_TURN, "{number: self._applied(self.partitions[number]) for number in sorted(touched)}", "{}"),
            _UNCHECKED,
            _NO_FENCE,
        ),
    ),
    Fault(
        "written_partition_not_among_offsets",
        "Only partitions in which a command was applied are among the offsets; outcomes are written unfenced",
        (
            Edit(
                _TURN,
                "touched = {record.partition for record in self.records} | set(self.applied)",
                "touched = set(self.applied)",
            ),
            _UNCHECKED,
            _NO_FENCE,
        ),
    ),
    Fault(
        "metadata_of_unjoined_consumer",
        "Commits carry the metadata of a consumer that has not joined, which a broker accepts for anything",
        (
            Edit("streams.log.memory.member", "return self.group.token(self.id)", "return Token(self.id, -1)"),
            Edit(
                _GROUP,
                "        member, generation = snapshot.token\n",
                "        member, generation = snapshot.token\n        if generation < 0:\n            return\n",
            ),
        ),
    ),
    Fault(
        "fresh_snapshot_for_a_lost_partition",
        "A turn for a lost partition goes out with a newer snapshot; a broker, which checks no owners, accepts it",
        (
            Edit(
                _TURNS,
                "            if not partition.running or owned.get(partition.number) != partition.incarnation:\n",
                "            if owned is None:\n",
            ),
            _UNCHECKED,
            KAFKAS_FENCE,
        ),
    ),
    Fault(
        "offsets_unchecked_on_kafka",
        "The log hands Kafka's client an empty list of offsets, and it commits without a fence and without a word",
        (Edit("streams.log.kafka.producer", "        check_commit(snapshot, records, offsets)\n", ""),),
        test="tests/contract/test_kafka_log.py::TestKafkaLog::test_a_commit_without_a_fence_is_a_programming_error",
        kafka=True,
    ),
    Fault(
        "unfenced_on_sqlite",
        "The embedded log writes a turn without a look whether its partitions still belong to the worker",
        (Edit("streams.log.sqlite.producer", "            groups.check_fence(connection, snapshot, offsets)\n", ""),),
        test="tests/contract/test_sqlite_log.py::TestSqliteLog::test_f05_a_frozen_owner_loses_and_publishes_nothing",
    ),
    Fault(
        "tail_advanced_when_produced",
        "The tail counts a checkpoint as soon as it is produced, also when its transaction is aborted",
        (
            Edit(
                _TURN,
                "        working.checkpoint = data\n",
                "        working.checkpoint = data\n        working.hot.first_offset = None\n",
            ),
        ),
    ),
    Fault(
        "effect_before_commit",
        "Messages of effects leave before the transaction of their events",
        (
            Edit(
                _WORKER,
                _COMMIT,
                """early = [record for record in turn.records if ".effects." in record.topic]

        async def apart() -> list[int]:
            if early:
                await self.log.append(early)
            rest = [record for record in turn.records if ".effects." not in record.topic]
            offsets = iter(await self.producer.commit(snapshot, rest, turn.offsets()))
            return [0 if ".effects." in record.topic else next(offsets) for record in turn.records]

        commit = apart()""",
            ),
        ),
    ),
    Fault(
        "checkpoint_before_commit",
        "Checkpoints are written outside the transaction, with a state that may never be committed",
        (
            Edit(
                _WORKER,
                _COMMIT,
                """early = [record for record in turn.records if record.topic == self.engine.topics.checkpoints]

        async def apart() -> list[int]:
            if early:
                await self.log.append(early)
            rest = [record for record in turn.records if record not in early]
            offsets = iter(await self.producer.commit(snapshot, rest, turn.offsets()))
            return [0 if record in early else next(offsets) for record in turn.records]

        commit = apart()""",
            ),
        ),
    ),
    Fault(
        "epoch_check_on_effects",
        "An effect of a run that was owned under an older epoch before is held to be a zombie's and not published",
        (
            Edit(
                _PROJECTING,
                "elif isinstance(body, ev.EffectEmitted):",
                "elif isinstance(body, ev.EffectEmitted) and working.hot.run.epoch not in (0, event.epoch):\n"
                "        pass\n"
                "    elif isinstance(body, ev.EffectEmitted):",
            ),
        ),
    ),
    Fault(
        "attempt_not_recorded",
        "A task that finds no free slot begins all the same, and no record says so",
        (
            Edit(
                _PROJECTING,
                "            turn.timers.append(Timer(0, partition, run_id, body.op))\n",
                "            turn.starts.append(Start(partition, run_id, body.op, 0))\n",
            ),
            Edit(
                "streams.runtime.dispatch",
                "op is None or op.phase is not OpPhase.RUNNING or op.attempt != attempt_number",
                "op is None or op.attempt != attempt_number",
            ),
            Edit(
                "streams.kernel.attempts",
                "op.phase is OpPhase.RUNNING and op.attempt == outcome.attempt",
                "op.attempt == outcome.attempt",
            ),
        ),
    ),
    Fault(
        "attempt_recorded_before_a_slot",
        "Every task is recorded as begun when it is scheduled, though there is no slot for it yet",
        (Edit("streams.kernel.draft", "        if free <= 0:\n            return task._replace(attempt=0)\n", ""),),
    ),
    Fault(
        "dedup_of_committed_state_only",
        "What a turn has taken in already does not count when it looks for repeats",
        (
            Edit(
                _TURN,
                "                    return decide(engine.definitions, run, working.live, input_, env)\n",
                "                    known, pending = working.hot.run.seen, run.seen[len(working.hot.run.seen) :]\n"
                "                    blind = run._replace(seen=known)\n"
                "                    decision = decide(engine.definitions, blind, working.live, input_, env)\n"
                "                    seen = (*known, *pending, *decision.run.seen[len(known) :])\n"
                "                    return decision._replace(run=decision.run._replace(seen=seen))\n",
            ),
        ),
    ),
    Fault(
        "doubtful_producer_reused",
        "A producer whose commit is in doubt goes on to be used",
        (
            Edit(
                _WORKER,
                "        except (Fenced, InDoubt):\n            self._distrusted = True\n            raise\n",
                "        except (Fenced, InDoubt):\n            raise\n",
            ),
        ),
    ),
    Fault(
        "doubtful_memory_kept",
        "After a commit in doubt the worker goes on from its old memory",
        (
            Edit(
                _WORKER,
                "        self.producer, self._distrusted = fresh, False\n        await self.owner.all_again()\n",
                "        self.producer, self._distrusted = fresh, False\n",
            ),
            Edit(
                _TURNS,
                "            await worker.owner.all_again()\n",
                "            if not isinstance(error, InDoubt):\n                await worker.owner.all_again()\n",
            ),
        ),
    ),
    Fault(
        "doubtful_commit_taken_for_done",
        "A commit in doubt counts as one that has happened",
        (
            Edit(
                _WORKER,
                "        except (Fenced, InDoubt):\n            self._distrusted = True\n            raise\n",
                "        except InDoubt:\n            self._distrusted = True\n"
                "            return [0] * len(turn.records)\n"
                "        except Fenced:\n            self._distrusted = True\n            raise\n",
            ),
        ),
    ),
    Fault(
        "redo_loses_an_input",
        "The last input of a turn that was not committed is not put back",
        (
            Edit(
                _TURNS,
                "self._inbox.put_back(flight.items, suspects",
                "self._inbox.put_back(flight.items[:-1], suspects",
            ),
        ),
    ),
    Fault(
        "redo_in_another_order",
        "The inputs of a turn that was not committed come back in reverse",
        (
            Edit(
                _TURNS,
                "self._inbox.put_back(flight.items, suspects",
                "self._inbox.put_back(flight.items[::-1], suspects",
            ),
        ),
    ),
    Fault(
        "redo_carries_the_coroutine_on",
        "After an abort the coroutine stays, though it has seen what was never committed",
        (
            Edit(
                _TURN,
                "            self.engine.close(working.live)\n        self.engine.evict(working.hot)\n",
                "            working.hot.live = working.live\n",
            ),
        ),
    ),
    Fault(
        "refusal_without_record",
        "The applied offset goes past a refused command that leaves no record",
        (
            Edit(
                _TURN,
                "        for event, data in zip(decision.events, encoded, strict=True):\n",
                "        for event, data in zip(decision.events, encoded, strict=True):\n"
                "            if isinstance(event.body, ev.CommandRejected):\n"
                "                continue\n",
            ),
        ),
    ),
    Fault(
        "dead_letter_without_record",
        "The applied offset goes past a dead letter that leaves no record among the events",
        (Edit(_TURN, "        self.add(rejection_record(topics, letter, partition.epoch), None)\n", ""),),
    ),
    Fault(
        "no_checkpoint_at_the_end",
        "A run that ends with few events gets no checkpoint",
        (Edit(_TURN, "if is_terminal(working.run) or grown >= enough or", "if grown >= enough or"),),
    ),
    Fault(
        "next_turn_sees_what_is_not_adopted",
        "A turn that overlaps another one decides for its runs too, from the state before both",
        (Edit(_TURNS, "busy = flying.turn.working if flying is not None else ()", "busy = ()"),),
    ),
    Fault(
        "commands_overtake_one_that_waits",
        "While a command waits for its run, later ones of its partition go on, and the applied offset passes over it",
        (
            Edit(
                "streams.runtime.inbox",
                "if number in self._held_commands or (number, key) in busy:",
                "if (number, key) in busy:",
            ),
        ),
    ),
    Fault(
        "next_turn_outlives_an_abort",
        "The turn that was decided beside one that is aborted is sent all the same",
        (
            Edit(_TURNS, "undone, following = following, None\n", "undone, kept = None, following\n"),
            Edit(
                _TURNS,
                "                        following = await self._again(landed, error)\n",
                "                        following = await self._again(landed, error) or kept\n",
            ),
        ),
    ),
    Fault(
        "next_turn_forgets_what_the_one_before_applied",
        "A turn beside another one carries the applied offset from before both",
        (
            Edit(
                _TURN,
                "return self.applied.get(number, self._before.get(number, partition.applied))",
                "return self.applied.get(number, partition.applied)",
            ),
        ),
        test="tests/runtime/test_overlap.py::test_a_turn_that_applies_no_command_carries_the_offset_of_the_one_before",
    ),
    Fault(
        "known_commands_not_skipped",
        "A command below the applied offset is applied again",
        (Edit(_TURN, "if record.offset < self._applied(partition):", "if record.offset < 0:"),),
    ),
    Fault(
        "stray_commands_taken",
        "A command in a partition that is not that of its run starts a second run of that name",
        (Edit(_TURN, "if right != partition.number:", "if right < 0:"),),
    ),
    Fault(
        "first_offset_of_the_last_event",
        "Memory takes the last event of a turn for the first one that no checkpoint covers",
        (
            Edit(
                _TURN,
                "            if hot.first_offset is None:\n                hot.first_offset, hot.first_at",
                "            if True:\n                hot.first_offset, hot.first_at",
            ),
        ),
    ),
]
