"""What a claim, an outcome or an operator's word does to an entry of the ledger: pure, the same for every ledger."""

from __future__ import annotations

from streams.effects.port import Ask, Claim, Entry, Outcome, Resolution, Settlement, Status, Verdict, Word
from streams.errors import Refused

__all__ = ["extend", "is_final", "is_given_up", "judge", "opens", "published", "resolve", "settle"]

_SECOND_US = 1_000_000
_OPEN_TO_OPERATORS = frozenset({Status.PARKED, Status.UNCERTAIN, Status.FAILED})


def is_final(entry: Entry) -> bool:
    """Whether nothing happens to it any more by itself: done, or given up."""
    return entry.status is Status.DONE or is_given_up(entry)


def is_given_up(entry: Entry) -> bool:
    """Whether it surely was not carried out, and is not tried again by itself."""
    return entry.status is Status.FAILED and entry.due is None


def opens(entry: Entry, resent: str) -> bool:
    """Whether the re-send of this letter leads to another try: one does, once, where it was given up."""
    return is_given_up(entry) and _is_newer(resent, entry.resent)


def judge(
    entry: Entry | None, ask: Ask, *, owner: str, claim: str, lease_seconds: float, now: int
) -> tuple[Verdict, Entry | None]:
    """The answer to an ask, and the entry to write, None where nothing changes. `claim` is a name never used before."""
    lease_until = now + round(lease_seconds * _SECOND_US)
    if entry is None:
        fresh = Entry(
            key=ask.key,
            request_hash=ask.request_hash,
            status=Status.CLAIMED,
            effect_id=ask.effect_id,
            run_id=ask.run_id,
            op=ask.op,
            epoch=ask.epoch,
            attempt=ask.attempt,
            place=ask.place,
            deliveries=1,
            looks=0,
            created_at=now,
            updated_at=now,
            owner=owner,
            claim=claim,
            lease_until=lease_until,
            resent=ask.resent,
        )
        return Verdict(Word.CARRY_OUT, fresh), fresh
    if entry.request_hash != ask.request_hash:
        return _conflict(entry, ask, now)
    same_op = entry.effect_id == ask.effect_id
    newer = same_op and (ask.epoch, ask.attempt) > (entry.epoch, entry.attempt)
    if same_op and not newer and (ask.epoch, ask.attempt) < (entry.epoch, entry.attempt) and not is_final(entry):
        return Verdict(Word.STALE, entry), None
    current = entry
    if newer:
        current = entry._replace(epoch=ask.epoch, attempt=ask.attempt, place=ask.place, published=False)
    if opens(entry, ask.resent):
        current = current._replace(resent=ask.resent, due=now, deliveries=0, looks=0)
    verdict, changed = _granted(entry, current, owner, claim, lease_until, now)
    if verdict.word in (Word.CARRY_OUT, Word.LOOK_UP) and _is_newer(ask.resent, current.resent):
        # An operator's word has opened it before the re-send came: that one is used up too, and opens nothing later.
        changed = verdict.entry._replace(resent=ask.resent)
        verdict = Verdict(verdict.word, changed)
    return verdict, changed


def _is_newer(resent: str, known: str) -> bool:
    """Whether a re-send is another one than the last, and none from before it, such as a rewind brings again.

    Both are places of dead letters, which lie in one partition as long as the run is the same.
    """
    if not resent or resent == known:
        return False
    (partition, _, offset), (other, _, last) = resent.partition("@"), known.partition("@")
    comparable = partition == other and offset.isdecimal() and last.isdecimal()
    return int(offset) > int(last) if comparable else True


def _granted(
    entry: Entry, current: Entry, owner: str, claim: str, lease_until: int, now: int
) -> tuple[Verdict, Entry | None]:
    changed = None
    if current is not entry:
        current = changed = current._replace(updated_at=now)
    if current.status is Status.DONE:
        return Verdict(Word.DONE, current), changed
    if current.status is Status.PARKED:
        return Verdict(Word.PARKED, current), changed
    if is_given_up(current):
        return Verdict(Word.GIVEN_UP, current), changed
    if current.status is Status.CLAIMED and (current.lease_until or 0) > now:
        # Also for a newer attempt: a second call beside one under way could not be told apart by any look-up. It has
        # left its token, so an older one that comes now is stale, and it takes the outcome or the claim that is over.
        return Verdict(Word.WAIT, current, current.lease_until or 0), changed
    if current.status is not Status.CLAIMED and (current.due or 0) > now:
        return Verdict(Word.WAIT, current, current.due or 0), changed
    certain = current.status is Status.FAILED
    taken = current._replace(
        status=Status.CLAIMED,
        deliveries=current.deliveries + certain,
        looks=0 if certain else current.looks + 1,
        updated_at=now,
        due=None,
        owner=owner,
        claim=claim,
        lease_until=lease_until,
    )
    return Verdict(Word.CARRY_OUT if certain else Word.LOOK_UP, taken), taken


def _conflict(entry: Entry, ask: Ask, now: int) -> tuple[Verdict, Entry | None]:
    words = f"{ask.effect_id} at {ask.place} asked for something else under this key"
    if entry.conflict == words:  # the same message once more
        return Verdict(Word.CONFLICT, entry), None
    found = entry._replace(conflicts=entry.conflicts + 1, conflict=words, updated_at=now)
    return Verdict(Word.CONFLICT, found), found


def settle(entry: Entry | None, settlement: Settlement, now: int) -> Entry | None:
    """The entry after the outcome of a claim; None where the claim is gone."""
    if entry is None or entry.status is not Status.CLAIMED or entry.claim != settlement.claim:
        return None
    if settlement.due_in is None and settlement.status is Status.UNCERTAIN:
        message = "an uncertain outcome needs the time of its next look"
        raise ValueError(message)
    due = None if settlement.due_in is None else now + round(settlement.due_in * _SECOND_US)
    looked = entry.looks > 0
    return entry._replace(
        status=settlement.status,
        deliveries=entry.deliveries - (settlement.returned and not looked),
        looks=entry.looks - (settlement.returned and looked),
        response=settlement.response,
        error=settlement.error,
        due=due,
        updated_at=now,
        owner="",
        claim="",
        lease_until=None,
        published=False,
    )


def extend(entry: Entry | None, claim: Claim, lease_seconds: float, now: int) -> Entry | None:
    """The entry with a longer lease, also where it was over but nobody has taken it; None where the claim is gone."""
    if entry is None or entry.status is not Status.CLAIMED or entry.claim != claim.claim:
        return None
    lease_until = max(entry.lease_until or 0, now + round(lease_seconds * _SECOND_US))
    return entry._replace(lease_until=lease_until, updated_at=now)


def published(entry: Entry | None, outcome: Outcome) -> Entry | None:
    """The entry once its reply or dead letter is in the log; None where it has changed since, or is noted already."""
    if entry is None or entry.published:
        return None
    told = Outcome(entry.key, entry.effect_id, entry.epoch, entry.attempt, entry.status)
    return entry._replace(published=True) if told == outcome else None


def resolve(entry: Entry | None, resolution: Resolution, now: int) -> Entry:
    """The entry after an operator's word. Raises `Refused`."""
    if entry is None:
        raise Refused("UNKNOWN_KEY", "the ledger has no entry under this key")
    over = entry.status is Status.CLAIMED and (entry.lease_until or 0) <= now
    if entry.status not in _OPEN_TO_OPERATORS and not over:
        what = f"is {entry.status}" if entry.status is Status.DONE else f"is being carried out by {entry.owner}"
        raise Refused("NOTHING_TO_RESOLVE", f"{entry.key.operation} {entry.key.key!r} {what}")
    again = resolution.status is Status.FAILED and resolution.again
    return entry._replace(
        status=resolution.status,
        response=resolution.response,
        error=resolution.error,
        due=now if again else None,
        deliveries=0 if again else entry.deliveries,
        looks=0,
        updated_at=now,
        owner="",
        claim="",
        lease_until=None,
        operator=resolution.operator,
        published=False,
    )
