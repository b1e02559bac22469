"""The invariants, numbered as in the fault matrix: each a function from the evidence to the records that break it.

I1 no loss, I2 counted once, I4 never early, I5 byte fidelity, and events that tell what the copies tell. (I3, bounded
duplicates, is a number: the report has it, and each test knows its bound.)
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

from reconsume.topics import retry_headers as wire
from reconsume.topics.durations import render_duration
from reconsume.topics.levels import shortest_wait
from reconsume.topics.other_group_headers import is_original
from reconsume.topics.render_headers import DROPPED
from tests.support.kafka.topic_io import UNREADABLE, Row
from tests.support.proof.by_audit import by_the_audit
from tests.support.proof.evidence import Copy, Evidence, LifeKey
from tests.support.proof.ledger import FAILED, THROTTLED, TOOK, Delivery

Violations: TypeAlias = Iterator[str]
GRAIN = 1
"""ms. The service and the sidecar cut the same clock to milliseconds at different moments."""


# --- I1: nothing is lost ---------------------------------------------------------------------------------------------


def lost(evidence: Evidence) -> Violations:
    """What the committed progress covers was taken by the service, or lives on as a copy."""
    ended = {(d.id, d.redrives, d.times) for d in evidence.deliveries if d.means == TOOK}
    ended |= {(copy.id, copy.redrives, copy.times) for copy in evidence.dead}
    for ident, (topic, row) in evidence.sources.items():
        if evidence.covers(topic, row) and not _goes_on(evidence, (ident, 0), 0, ended):
            yield f"I1 lost: {ident} is committed, was not taken, and has no copy"
    for (ident, redrives), life in evidence.lives.items():
        for times, chain in life.items():
            last = chain[-1]
            if evidence.covers(last.topic, last.row) and not _goes_on(evidence, (ident, redrives), times, ended):
                yield f"I1 lost: {last} is committed, was not taken, and has no copy"
    own_place = {copy.id for copy in evidence.dead}
    for place, (topic, row) in evidence.foreign.items():
        if evidence.covers(topic, row) and place not in own_place:
            yield f"I1 lost: the foreign record {place} is committed and not in the DLQ"


def _goes_on(evidence: Evidence, key: LifeKey, times: int, ended: set[tuple[str, int, int]]) -> bool:
    """Whether an attempt, or one that follows it in memory, was the last one or has a copy, or was destroyed."""
    while (*key, times) not in ended and times + 1 not in evidence.lives.get(key, {}):
        if (*key, times) not in evidence.kept:
            return evidence.destroyed(key, times)
        times += 1
    return True


# --- I2: each attempt is counted once --------------------------------------------------------------------------------


def miscounted(evidence: Evidence) -> Violations:
    """Counts are 1, 2, … without gap or repeat, each after an attempt, each with its source committed."""
    attempts = {(d.id, d.redrives, d.times) for d in evidence.deliveries if d.means != THROTTLED}
    for (ident, redrives), life in evidence.lives.items():
        if ident not in evidence.sources:
            yield f"I2 unknown: copies of {ident}, which is on no main topic"
            continue
        first = 0 if redrives or only_postponed(life.get(0, ())) else 1
        counted = {*life, *_counted_in_memory(evidence, (ident, redrives))}
        if not counted >= set(range(first, max(life) + 1)) or min(life) < first:
            yield f"I2 gap: {ident} has copies with the counts {sorted(life)}"
        for times, chain in life.items():
            yield from _broken_chain(evidence, chain)
            attempt_seen = (ident, redrives, times - 1) in attempts or evidence.unseen(chain[0])
            if times and not attempt_seen:
                yield f"I2 no attempt: {chain[0]} counts an attempt that the service never saw"
            if not _source_covered(evidence, (ident, redrives), times):
                yield f"I2 torn: {chain[0]} is there and its source is not committed"
    yield from _dead_twice(evidence, attempts)


def _broken_chain(evidence: Evidence, chain: list[Copy]) -> Violations:
    """Copies of one count: the first, and its hops, each after the delay of the one before. A postponed one has another
    due time."""
    for before, after in pairwise(chain):
        too_soon = after.row.timestamp < before.row.timestamp + evidence.delay_of(before.topic)
        moved = after.due != before.due and not (after.postponed and after.due > before.due)
        if moved or too_soon or not evidence.covers(before.topic, before.row):
            yield f"I2 twice: {before} and {after} count the same attempt"


def _source_covered(evidence: Evidence, key: LifeKey, times: int) -> bool:
    life = evidence.lives.get(key, {})
    before = [count for count in life if count < times]
    if before:
        last = life[max(before)][-1]
        return evidence.covers(last.topic, last.row)
    source = evidence.sources.get(key[0])
    return source is None or evidence.covers(*source)


def _dead_twice(evidence: Evidence, attempts: set[tuple[str, int, int]]) -> Violations:
    for key, count in Counter((copy.id, copy.redrives) for copy in evidence.dead).items():
        if count > 1:
            yield f"I2 dead twice: {key[0]} is {count} times in the DLQ"
    for copy in evidence.dead:
        if copy.id in evidence.foreign or _condemned(copy):
            continue
        life = evidence.lives.get((copy.id, copy.redrives), {})
        in_memory = _counted_in_memory(evidence, (copy.id, copy.redrives))
        if copy.times != max(life, default=0) and not (copy.times > max(life, default=0) and copy.times in in_memory):
            yield f"I2 gap: the dead letter {copy} has copies with the counts {sorted(life)}"
        attempt_seen = (copy.id, copy.redrives, copy.times) in attempts or evidence.unseen(copy)
        if not attempt_seen and not _passed_on(copy):
            yield f"I2 no attempt: the dead letter {copy} ends an attempt that the service never saw"
        if not _source_covered(evidence, (copy.id, copy.redrives), copy.times + 1):
            yield f"I2 torn: the dead letter {copy} is there and its source is not committed"


def _counted_in_memory(evidence: Evidence, key: LifeKey) -> set[int]:
    """The counts that a record had without a copy."""
    return {times + 1 for ident, redrives, times in evidence.kept if (ident, redrives) == key}


def _condemned(copy: Copy) -> bool:
    """Whether it was refused unseen, for headers that cannot be read."""
    return copy.ours[wire.RETRY_REASON].startswith(b"headers-unreadable")


def _passed_on(copy: Copy) -> bool:
    """Whether no instance consumed its topic: its last copy was delivered to nobody."""
    return copy.ours[wire.RETRY_REASON].startswith(b"unknown-topic")


# --- I4: never early -------------------------------------------------------------------------------------------------


def early(evidence: Evidence) -> Violations:
    """A retry comes not before its due time and its level's delay; its due time is failure + delay, or later."""
    for delivery in evidence.deliveries:
        chain = chain_of(evidence, delivery)
        if chain is None:
            if delivery.times and (delivery.id, delivery.redrives, delivery.times - 1) not in evidence.kept:
                yield f"I4 unknown: {delivery.idempotency_key} was delivered and has no copy"
            continue
        known = _written_by(chain, delivery.received)
        due = due_of(evidence, known)
        if delivery.received < due:
            yield f"I4 early: {known[-1]} was delivered {due - delivery.received} ms before it was due"
    failures = _failures(evidence)
    for (ident, redrives), life in evidence.lives.items():
        for times, chain in life.items():
            failed = failures.get((ident, redrives, times - 1))
            least = shortest_wait(evidence.delay_of(evidence.first_topic(chain)))
            short = 0 if failed is None else failed + least - chain[0].due
            if short > GRAIN:
                yield f"I4 early: {chain[0]} is due {short} ms before its level's delay after the failure"


def _failures(evidence: Evidence) -> dict[tuple[str, int, int], int]:
    """When each attempt failed at the earliest."""
    failures: dict[tuple[str, int, int], int] = {}
    for delivery in evidence.deliveries:
        if delivery.means != THROTTLED:
            attempt = (delivery.id, delivery.redrives, delivery.times)
            failures[attempt] = min(_failed_at(evidence, delivery), failures.get(attempt, 2**63))
    return failures


def _failed_at(evidence: Evidence, delivery: Delivery) -> int:
    """The earliest time at which the sidecar may have seen the failure; an answer that it did not wait for is none."""
    chain = chain_of(evidence, delivery._replace(times=delivery.times + 1))
    if chain is not None and chain[0].ours[wire.RETRY_REASON].startswith((b"timeout", b"connection-lost")):
        return evidence.sent_at(delivery)
    return delivery.received if delivery.answered is None or delivery.means != FAILED else delivery.answered


def chain_of(evidence: Evidence, delivery: Delivery) -> list[Copy] | None:
    """The copies that a delivery may have been of. A first attempt is of none that was postponed after it began."""
    chain = evidence.lives.get((delivery.id, delivery.redrives), {}).get(delivery.times)
    if chain is None or delivery.times or not only_postponed(chain):
        return chain
    return [copy for copy in chain if copy.row.timestamp <= delivery.received] or None


def only_postponed(chain: Sequence[Copy]) -> bool:
    """Whether there are copies, and they only wait because their service postponed the record: no event tells of it."""
    return bool(chain) and all(copy.postponed for copy in chain)


def _written_by(chain: list[Copy], at: int) -> list[Copy]:
    """The copies that a delivery at `at` can have been of: a hop may follow a delivery whose answer was not counted."""
    return [copy for copy in chain if copy.row.timestamp <= at] or chain[:1]


def due_of(evidence: Evidence, chain: list[Copy]) -> int:
    """When a copy may be delivered at the earliest: RETRY_DUE_AT or the end of its level, whichever is later."""
    return max(chain[-1].due, chain[-1].row.timestamp + evidence.delay_of(chain[-1].topic))


# --- I5: bytes stay as they are --------------------------------------------------------------------------------------


def altered(evidence: Evidence) -> Violations:
    """Key, value, own headers and first timestamp are the same in every copy and every delivery."""
    chains = [chain for life in evidence.lives.values() for chain in life.values()]
    for copy in [*(copy for chain in chains for copy in chain), *evidence.dead]:
        source = evidence.sources.get(copy.id) or evidence.foreign.get(copy.id)
        if source is None:
            yield f"I5 unknown: {copy} is of a record that is nowhere"
            continue
        yield from _changed(evidence, copy, *source)
        if copy.ours[wire.RETRY_GROUP] != evidence.group.group.encode():
            yield f"I5 group: {copy} names {copy.ours[wire.RETRY_GROUP]!r}"
    for delivery in evidence.deliveries:
        place = evidence.sources.get(delivery.id)
        if place is None or (delivery.key, delivery.value) != (place[1].key, place[1].value):
            yield f"I5 altered: {delivery.idempotency_key} was delivered with another key or value"
        if delivery.idempotency_key != f"{evidence.group.group}/{delivery.id}/{delivery.redrives}":
            yield f"I5 idempotency key: {delivery.idempotency_key} for {delivery.id} times={delivery.times}"


def _changed(evidence: Evidence, copy: Copy, topic: str, source: Row) -> Violations:
    if (copy.row.key, copy.row.value) != (source.key, source.value):
        yield f"I5 altered: {copy} has another key or value"
    if source.headers != UNREADABLE and _own(copy.row) != _own(source):
        yield f"I5 altered: {copy} has other headers: {_own(copy.row)} for {_own(source)}"
    there, first = evidence.name_of(copy.topic), str(source.timestamp)
    wanted = {wire.REAL_TOPIC: topic, wire.RETRY_TOPIC: there, wire.RETRY_REAL_TIMESTAMP: first}
    for key, text in wanted.items():
        if copy.ours.get(key) != text.encode():
            yield f"I5 header: {copy} has {key} {copy.ours.get(key)!r}, not {text}"


def _own(row: Row) -> list[tuple[str, bytes | None]]:
    return [(key, value) for key, value in row.headers if key not in DROPPED and not is_original(key)]


# --- events tell what the copies tell --------------------------------------------------------------------------------


def contradicted(evidence: Evidence) -> Violations:
    """One event for each change of state, with the same due time and level as the copy."""
    told: Counter[tuple[str, int, int, str]] = Counter()
    for row in evidence.events:
        event: dict[str, Any] = json.loads(row.value or b"")
        told[event["id"], event["redrives"], event["times"], event["state"]] += 1
        yield from _false_event(evidence, row, event)
    true = Counter(_changes(evidence))
    for change, count in ((told | true) - (told & true)).items():
        if told[change] > 1 or change[:2] not in evidence.touched:  # of those the event may be all that is left
            yield f"event: {change} was told {told[change]} times and happened {true[change]} times ({count} off)"


def _changes(evidence: Evidence) -> Iterator[tuple[str, int, int, str]]:
    for (ident, redrives), life in evidence.lives.items():
        told = [times for times, chain in life.items() if times or not only_postponed(chain)]
        for times in told:
            yield ident, redrives, times, "WAITING_RETRY" if times else "REDRIVEN"
        last = life[max(life)][-1]
        if told and evidence.covers(last.topic, last.row) and (ident, redrives) not in evidence.died:
            yield ident, redrives, last.times, "COMMIT"
    for copy in evidence.dead:
        yield copy.id, copy.redrives, copy.times, "DLQ"


def _false_event(evidence: Evidence, row: Row, event: dict[str, Any]) -> Violations:
    if row.key != event["id"].encode() or event["id"] != f"{event['topic']}:{event['partition']}:{event['offset']}":
        yield f"event: {event['id']} under the key {row.key!r}"
    chain = evidence.lives.get((event["id"], event["redrives"]), {}).get(event["times"])
    if event["state"] == "WAITING_RETRY" and chain is not None:
        delay = evidence.group.levels.get(evidence.name_of(evidence.first_topic(chain)))
        level = None if delay is None else render_duration(delay)
        if (event["due"], event["level"]) != (chain[0].due, level):
            yield f"event: {chain[0]} is told to be due at {event['due']} in {event['level']}"


Rule: TypeAlias = Callable[[Evidence], Violations]
STRANGERS: tuple[Rule, ...] = (lost, miscounted, early, altered, contradicted)
"""The rules of this file, which take only names and headers from the product."""
RULES = (*STRANGERS, by_the_audit)
