"""Where a query begins, if it has no checkpoint: by its progress in Kafka, by what the user says, and by the events.

A query has two records of its progress: the checkpoint, and the offsets of a private consumer group, which each batch
writes together with its copies. Either is enough to go on. Without both, whoever starts it must say where it begins in
the main topics, if the group has ever worked: to begin at the first record would handle everything again.

- `main_offsets` is asked when the DataFrame is made, because Spark's own Kafka source must know then. It uses the
  private group, or `start`. Spark ignores its answer if there is a checkpoint.
- `handled_records` is asked then, too: which main records behind that were handled already, and have failed. Whoever
  begins at an earlier time handles what was taken once more, but not what is waiting, dead or done after retries.
- `begin` is asked by our source, once Spark has found no checkpoint. It refuses the start that nobody has decided,
  and says where each partition of the level topics and the ready topic begins.

Records that wait are always taken, whatever `start` says, so that none is orphaned. Those topics also hold the copies
of all attempts of the last days that were made already. Which are those, the events say: a copy is left out if the
group has an event of a later state of its record. Of several copies of one attempt, as hops leave them, the newest
counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple, TypeAlias

from reconsume.sidecar.core.offset_ranges import OffsetRanges
from reconsume.spark.consumer.brokers import Lookup, read
from reconsume.spark.consumer.offsets import NO_LATER, Offsets, PartitionName, Range, Reach
from reconsume.spark.consumer.record import REPLACED
from reconsume.topics.attempt import Attempt, attempt_of
from reconsume.topics.events import RANKS, Event, State, decode_event
from reconsume.topics.names import LEGAL_NAMES, Kind, Names
from reconsume.topics.retry_headers import LARGEST_LONG, BadHeader, parse_retry_headers

EARLIEST, NOW, AFTER, AT = "earliest", "now", "after:", "at:"
"""The forms of a start in the source's options; AT has epoch ms behind it. An empty text: nobody has said."""
FORMS = 'write "earliest", "now", "after:NAME", an aware datetime, or an ISO time with a zone (2026-11-30T06:00:00Z)'

When: TypeAlias = str | datetime | None


class StartError(RuntimeError):
    """A query has no progress, and nobody has said where it begins; or what was said is not possible."""


class Query(NamedTuple):
    """A query as its source knows it. `main`: where it begins in the main topics without a checkpoint."""

    names: Names
    name: str
    topics: tuple[str, ...]
    start: str = ""
    main: Mapping[PartitionName, int] = {}
    gated: bool = True

    @property
    def private_group(self) -> str:
        """The consumer group that holds the query's progress."""
        return self.names.spark_group(self.name)


def start_text(start: When) -> str:
    """Return a start as the source's options have it. Raises ValueError if it is none."""
    if start is None:
        return ""
    if isinstance(start, str) and (start in (EARLIEST, NOW) or (start.startswith(AFTER) and start != AFTER)):
        return start
    try:
        at = datetime.fromisoformat(start) if isinstance(start, str) else start
        if at.tzinfo is None:
            raise ValueError
        return f"{AT}{int(at.timestamp() * 1000)}"
    except (ValueError, AttributeError, OverflowError):
        raise ValueError(f"start: {str(start)[:40]!r} is not a start: {FORMS}") from None


def main_offsets(lookup: Lookup, query: Query) -> dict[PartitionName, int]:
    """Return where the query begins in each partition of its main topics, if there is no checkpoint.

    Raises StartError if a main topic is missing, and the errors of Lookup.
    """
    if missing := sorted(set(query.topics) - set(lookup.all_topics())):
        raise StartError(f"main topics are missing, or this user may not see them: {', '.join(missing)}")
    partitions = lookup.partitions(query.topics)
    done = lookup.committed(query.private_group, partitions)
    if not done and query.start.startswith(AFTER):
        done = lookup.committed(query.names.spark_group(query.start.removeprefix(AFTER)), partitions)
    lows, ends = lookup.lows(partitions), lookup.ends(partitions)
    if not done and query.start == NOW:
        return ends
    if not done and query.start.startswith(AT):
        firsts = lookup.firsts_at(partitions, int(query.start.removeprefix(AT)))
        return {at: ends[at] if offset == NO_LATER else offset for at, offset in firsts.items()}
    return begins(done, lows, ends)


def begins(done: Offsets, lows: Offsets, ends: Offsets) -> dict[PartitionName, int]:
    """Return where to go on in each partition, by the progress in it, if any.

    Progress beyond the end is of a topic that was deleted and created again.
    """
    return {at: low if not low <= done.get(at, -1) <= ends[at] else done[at] for at, low in lows.items()}


def begin(lookup: Lookup, client: Mapping[str, str], query: Query) -> tuple[Reach, str]:
    """Return where the query begins in the level topics and the ready topic, as there is no checkpoint.

    The text says what it goes on from; empty for a new group. The private group has all of it afterwards. Raises
    StartError, PermissionError, and the errors of Lookup.
    """
    retries, ids = lookup.topics()
    group, other = query.private_group, query.names.spark_group(query.start.removeprefix(AFTER))
    own = lookup.committed(group, [*retries, *query.main])
    done, said = own, ""
    if own:
        said = f"goes on from the progress of {group}" + ("; `start` has no effect" if query.start else "")
    elif query.start.startswith(AFTER):
        done, said = lookup.committed(other, [*retries, *query.main]), f"goes on from the progress of {other}"
        if not done:
            raise StartError(f"start: the consumer group {other} has no progress from which the query could go on")
    elif not query.start and (why := trace_of_work(lookup, query, retries)):
        raise StartError(
            f'the query "{query.name}" has no progress (no checkpoint, and no offsets of the consumer group {group}), '
            f"but {why}. Say where it begins in the main topics with start=: {FORMS}. It takes all waiting retries"
        )
    of_events = lookup.partitions([query.names.events])
    if not own and query.start.startswith((EARLIEST, AT)):
        lookup.commit(group, lookup.ends(of_events))
    lows, ends = lookup.lows(retries), lookup.ends(retries)
    reach = without_handled(lookup, client, query.names, begins(done, lows, ends), ends)
    mains = lookup.ends(list(query.main))
    wanted = {**query.main, **reach.next}
    lookup.commit(group, {at: to for at, to in wanted.items() if not 0 <= own.get(at, -1) <= {**mains, **ends}[at]})
    return reach._replace(ids=ids), said


def handled_records(
    lookup: Lookup, client: Mapping[str, str], query: Query, main: Offsets
) -> dict[PartitionName, list[int]]:
    """Return the offsets at and after `main` of main records that have failed already, by the events.

    There are some if the query begins at an earlier time than it or others have come to. Their events were there when
    it began: the private group has where the events ended then, and until they are deleted each restart looks again.
    """
    partitions = lookup.partitions([query.names.events])
    ends = lookup.ends(partitions)
    begun = lookup.committed(query.private_group, partitions)
    is_fresh = query.start.startswith((EARLIEST, AT)) and not lookup.committed(query.private_group, main)
    until = {at: min(begun.get(at, end if is_fresh else 0), end) for at, end in ends.items()}
    handled: dict[PartitionName, set[int]] = {}
    for event in events_until(lookup, client, query.names, until):
        at = event.id.rsplit(":", 2)[0], event.partition  # its topic may be the one that this one is drained into
        if event.offset >= main.get(at, LARGEST_LONG):
            handled.setdefault(at, set()).add(event.offset)
    return {at: sorted(offsets) for at, offsets in handled.items()}


def trace_of_work(lookup: Lookup, query: Query, retries: Collection[PartitionName]) -> str:
    """Return by what the group is known to have worked before; empty if it has not."""
    names, roles = query.names, ((name, query.names.role(name, query.topics)) for name in lookup.all_topics())
    of_copies = [name for name, role in roles if role is not None and role.kind in (Kind.LEVEL, Kind.READY, Kind.DLQ)]
    for (topic, _), end in lookup.ends(lookup.partitions(of_copies)).items():
        if end:
            return f"the group has failed records: {topic} is not new"
    groups = {names.group: lookup.partitions(query.topics)}
    if query.gated:  # of a relay, the sidecar's progress in the levels is no progress of a service
        groups[names.retry_group] = list(retries)
    for group, partitions in groups.items():
        if lookup.committed(group, partitions):
            return f"the consumer group {group} has progress"
    return ""


def without_handled(lookup: Lookup, client: Mapping[str, str], names: Names, firsts: Offsets, ends: Offsets) -> Reach:
    """Return the position of a query that leaves out the copies of attempts that were made."""
    ranges = [Range(*at, first, ends[at]) for at, first in firsts.items() if first < ends[at]]
    copies: dict[tuple[str, Attempt], list[tuple[int, PartitionName, int]]] = {}
    taken: dict[PartitionName, list[int]] = {at: [] for at in firsts}
    for topic, partition, offset, timestamp, _, _, headers in read(client, ranges) if ranges else ():
        unreadable = any(REPLACED in name for name, _ in headers)
        state = BadHeader("") if unreadable else parse_retry_headers(headers, LEGAL_NAMES, LARGEST_LONG)
        if isinstance(state, BadHeader):
            taken[topic, partition].append(offset)
        else:
            copies.setdefault((state.id, attempt_of(state)), []).append((timestamp, (topic, partition), offset))
    newest = newest_states(lookup, client, names, {ident for ident, _ in copies})
    handled: dict[PartitionName, list[int]] = {at: [] for at in firsts}
    for (ident, attempt), of_attempt in copies.items():
        is_waiting = newest.get(ident, (attempt, 0)) <= (attempt, RANKS[State.WAITING_RETRY])
        of_attempt.sort()
        for number, (_, at, offset) in enumerate(of_attempt, 1):
            (taken if is_waiting and number == len(of_attempt) else handled)[at].append(offset)
    position = {at: min(taken[at], default=max(first, ends[at])) for at, first in firsts.items()}
    skips = {at: OffsetRanges.of(offset for offset in handled[at] if offset > position[at]) for at in firsts}
    return Reach(position, skips={at: list(skipped.ranges) for at, skipped in skips.items() if skipped})


def newest_states(
    lookup: Lookup, client: Mapping[str, str], names: Names, idents: Collection[str]
) -> dict[str, tuple[Attempt, int]]:
    """Return the newest state of these records by the group's events: the attempt, and the rank of the state."""
    newest: dict[str, tuple[Attempt, int]] = {}
    until = lookup.ends(lookup.partitions([names.events])) if idents else {}
    for event in events_until(lookup, client, names, until):
        if event.id in idents:
            state = attempt_of(event), RANKS[event.state]
            newest[event.id] = max(newest.get(event.id, state), state)
    return newest


def events_until(lookup: Lookup, client: Mapping[str, str], names: Names, ends: Offsets) -> Iterator[Event]:
    """Yield the group's events up to these ends."""
    lows = lookup.lows(list(ends))
    ranges = [Range(*at, lows[at], end) for at, end in ends.items() if lows[at] < end]
    for row in read(client, ranges) if ranges else ():
        event = decode_event(row[5])
        if isinstance(event, Event) and event.group == names.group:
            yield event
