"""Mistakes in what carries effects out: the rules of the ledger, the subscriber, and requests."""

from __future__ import annotations

from tests.sim.planted.planting import Edit, Fault

__all__ = ["FAULTS"]

_RULES, _REPLIES = "streams.effects.rules", "streams.kernel.replies"
_OUTSIDE, _OUTCOMES, _PUBLISHING, _STATION, _WINDOW = (
    f"streams.effects.subscriber.{name}" for name in ("outside", "outcomes", "publishing", "station", "window")
)

FAULTS = [
    Fault(
        "orphaned_claim_repeated_blindly",
        "What a dead subscriber had claimed is carried out again without a look-up",
        (Edit(_RULES, "certain = current.status is Status.FAILED", "certain = True"),),
    ),
    Fault(
        "offset_past_an_unfinished_message",
        "The group's offset is committed past messages whose outcome is not known yet",
        (Edit(_WINDOW, "if message.stage in (Stage.OPEN, Stage.FINISHED):", "if message.stage is Stage.FINISHED:"),),
    ),
    Fault(
        "settlement_ignores_the_claim",
        "An outcome is written whoever holds the claim by now",
        (
            Edit(
                _RULES,
                "entry is None or entry.status is not Status.CLAIMED or entry.claim != settlement.claim",
                "entry is None",
            ),
        ),
    ),
    Fault(
        "lease_never_extended",
        "The lease of a claim is not prolonged while its handler runs",
        (Edit(_OUTSIDE, "for start in range(0, len(held), parts.settings.claims_max):", "for start in ():"),),
        test="tests/effects/test_outcomes.py::"
        "test_a_handler_that_ignores_its_end_keeps_its_claim_and_its_outcome_counts",
    ),
    Fault(
        "reply_before_the_settlement",
        "A reply leaves, and the offset goes past its message, before the outcome is in the ledger",
        (
            Edit(
                _OUTSIDE,
                "        self._put(_Ended(message, call.entry, settlement))",
                "        self._put(_Ended(message, call.entry, settlement))\n"
                "        if settlement.due_in is None:\n"
                "            told = (settlement.status, settlement.response, settlement.error)\n"
                "            self._station._conclude(message, *told)",
            ),
        ),
    ),
    Fault(
        "dead_letter_outside_the_transaction",
        "Dead letters are written after the transaction of their offsets",
        (
            Edit(
                _PUBLISHING,
                "self._producer.commit(flight.snapshot, flight.records, flight.offsets)",
                "self._producer.commit(flight.snapshot, [r for r in flight.records if not r.topic.endswith('.dead')], "
                "flight.offsets)",
            ),
            Edit(
                _PUBLISHING,
                '        crash.passing("effect.committed", self._station.name)\n',
                "        late = [r for r in flight.records if r.topic.endswith('.dead')]\n"
                "        asyncio.ensure_future(self._station.parts.log.append(late))\n"
                '        crash.passing("effect.committed", self._station.name)\n',
            ),
        ),
    ),
    Fault(
        "newer_attempt_takes_a_live_claim",
        "A newer attempt of a request takes the claim under which an older one is being carried out",
        (
            Edit(
                _RULES,
                "if current.status is Status.CLAIMED and (current.lease_until or 0) > now:",
                "if current.status is Status.CLAIMED and (current.lease_until or 0) > now and not changed:",
            ),
        ),
        test="tests/contract/test_ledger.py::TestMemoryLedger::"
        "test_f26_an_older_attempt_is_stale_and_a_newer_one_takes_the_outcome",
    ),
    Fault(
        "conflict_carried_out",
        "A key that stands for another request is not noticed",
        (Edit(_RULES, "    if entry.request_hash != ask.request_hash:\n", "    if False:\n"),),
    ),
    Fault(
        "done_entry_ignored",
        "A rewind over what is done asks for it again",
        (
            Edit(
                _RULES,
                "    if current.status is Status.DONE:\n        return Verdict(Word.DONE, current), changed\n",
                "",
            ),
        ),
    ),
    Fault(
        "deliveries_not_counted",
        "What is tried again does not use up the budget",
        (Edit(_RULES, "deliveries=current.deliveries + certain,", "deliveries=current.deliveries,"),),
    ),
    Fault(
        "stale_reply_accepted",
        "A reply counts for whatever attempt and epoch it was made",
        (
            Edit(
                _REPLIES,
                "if (reply.effect_id, reply.attempt, reply.epoch) != (effect_id, op.attempt, op.epoch):",
                "if reply.effect_id != effect_id:",
            ),
        ),
    ),
    Fault(
        "epoch_check_at_the_subscriber",
        "A subscriber drops a message of an older epoch than one it has seen, as if it were a zombie's",
        (
            Edit(
                _STATION,
                "            if window.line_up(message):\n",
                '            epochs = self.__dict__.setdefault("epochs", {})\n'
                "            if message.effect.epoch < epochs.get(record.partition, 0):\n"
                "                window.finish(message, [], None)\n"
                "                continue\n"
                "            epochs[record.partition] = message.effect.epoch\n"
                "            if window.line_up(message):\n",
            ),
        ),
    ),
    Fault(
        "unclear_taken_for_not_found",
        "A look-up that cannot tell counts as one that has found nothing",
        (
            Edit(
                _OUTCOMES,
                "            return _look_again(subscription, entry, claim)",
                "            return claim._replace(due_in=0.0)",
            ),
        ),
    ),
    Fault(
        "noted_before_it_is_published",
        "The ledger notes a reply as published before it is committed",
        (
            Edit(
                _STATION,
                "        self._finish(message, records, outcome_of(message.ask, status))",
                "        self.publishing._notes.append(outcome_of(message.ask, status))\n"
                "        self.publishing._to_note.set()\n"
                "        self._finish(message, records, outcome_of(message.ask, status))",
            ),
        ),
    ),
    Fault(
        "doubtful_commit_of_replies_taken_for_done",
        "A commit of replies that is in doubt counts as one that has happened",
        (Edit(_PUBLISHING, "            if await self._was_committed(flight):", "            if True:"),),
    ),
    Fault(
        "re_send_not_used_up",
        "A re-send that an operator's word has let in opens its entry again when it is read once more",
        (
            Edit(
                _RULES,
                "    if verdict.word in (Word.CARRY_OUT, Word.LOOK_UP) and _is_newer(ask.resent, current.resent):",
                "    if False:",
            ),
        ),
    ),
    Fault(
        "key_per_attempt_of_a_request",
        "Each attempt of a request gets an idempotency key of its own",
        (
            Edit(
                "streams.wire.outbox",
                "return _message(event, run, op.id, op.name, op.args, op.key, body.attempt)",
                'return _message(event, run, op.id, op.name, op.args, f"{op.key}/{body.attempt}", body.attempt)',
            ),
        ),
    ),
]
