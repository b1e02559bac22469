"""A group's dead letters: where they are in Kafka, what is known of earlier redrives, and how they are read.

Nothing is written here. Commands, the dashboard and the search call it, each on its own threads; every call blocks.

- `DeadLetters` is one group's dead letter topics: their spans now (`layout`), and their histories: earlier redrives, as
  the redrive group has committed them, and dismissals, as the policy topic has them.
- `Scan` reads the records of spans, in the order of their offsets within a partition, and reports how far it is.
- `LetterScan` reads dead letters with what a redrive does with each (`Eligibility`). That needs to know which of them
  are copies of others, so it reads the DLQ once more before (`histories_with_copies`).
- `search_letters` keeps the newest of them for a list; `find_letters` finds one record, or one position.

A redrive asks only after it has fenced all others. A list, a plan and an export only read: what they say may be out of
date by the time it is read.
"""

from __future__ import annotations

import heapq
import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from msgspec.structs import replace

from reconsume.sidecar.clock import now
from reconsume.sidecar.core.offset_ranges import OffsetRanges
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.record import Partition, Record, weight_of
from reconsume.sidecar.dlq.copies import MOST_AT_ONCE, ComparedLetters, LetterNames, hash_of
from reconsume.sidecar.dlq.dismissals import Settlements, read_settlements
from reconsume.sidecar.dlq.letters import OPEN, Eligibility, Filter, Letter, RedriveRequest, read_letter
from reconsume.sidecar.dlq.preview import BEGINNING
from reconsume.sidecar.dlq.redrive_history import (
    MOST_REDRIVES_EVER,
    Copies,
    NewerPast,
    RedriveHistory,
    decode_past,
    eligibility,
    first_open,
    read_from,
)
from reconsume.sidecar.errors import BrokerError, ContractError
from reconsume.sidecar.hints import absent
from reconsume.sidecar.kafka.admin.cluster import OFFSETS_KEPT, Cluster
from reconsume.sidecar.kafka.admin.descriptions import Offset, PartitionName, unled_partitions
from reconsume.sidecar.kafka.client_config import BATCH_BYTES, reader_config
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.errors import (
    ANSWER_SECONDS,
    CONNECTION,
    COORDINATOR,
    OPEN_TRANSACTION,
    committed_of,
    passing,
    sentence_of,
)
from reconsume.sidecar.kafka.messages import Reading, to_record
from reconsume.sidecar.kafka.policy_topic import read_present_resets
from reconsume.sidecar.kafka.scan import Bounds, Fetches, ScanClient, partition_of
from reconsume.sidecar.operation import Report

CLIENT = "reconsume-dlq"
_NOWHERE = logging.getLogger("reconsume.nowhere")
_NOWHERE.addHandler(logging.NullHandler())
_NOWHERE.propagate = False
QUIET: Mapping[str, object] = {"log_level": 0, "logger": _NOWHERE}
"""Settings for a command's Kafka clients. What matters comes back as an error, and librdkafka's own log lines would mix
with the command's output. librdkafka logs that it was fenced at any log level."""
CLOCKS = 3_600_000
"""ms by which the clocks of sidecars, brokers and this machine may differ."""
COORDINATOR_SECONDS = 30.0
"""Seconds that the group's coordinator may be unavailable: a hanging transaction is open for 10 s, a broker restarts in
20."""
SETTLED_AGAIN_S = 0.2
"""Seconds between two looks whether transactions have ended."""
SILENCE = 15.0
"""Seconds without a record or an end of a partition after which Kafka counts as unreachable."""
STAYS = 10
"""Stays of one id that are returned in full, the newest ones. A record is redriven three times, as a rule."""
MOST_BYTES = 16 * 1024 * 1024
"""Bytes (`Record.weight`) of dead letters that are returned in full. A single one may have more."""
POSITION = re.compile(r"(.+):([0-9]{1,9}):([0-9]{1,18})")
_PASSING = passing(COORDINATOR, OPEN_TRANSACTION, CONNECTION, frozenset({KafkaError._TIMED_OUT}))
"""Transient errors of the first request to a group."""


class Span(NamedTuple):
    """The offsets of a partition from `begin` up to `end`. `topic` is the id that Kafka gave its topic."""

    begin: int
    end: int
    topic: str = ""


Layout = Mapping[Partition, Span]


def position_in(ident: str, topics: Collection[str]) -> tuple[Partition, int] | None:
    """Return the partition and the offset that `ident` names, as `topic:partition:offset`; None if it names none in
    these topics."""
    match = POSITION.fullmatch(ident)
    return None if match is None or match[1] not in topics else (Partition(match[1], int(match[2])), int(match[3]))


def narrowed(layout: Layout, wanted: Filter, topics: Collection[str]) -> Layout:
    """Return the part of the layout that has every dead letter with one of the filter's ids.

    That is less than all only if each id is a position in these topics.
    """
    positions = [position_in(ident, topics) for ident in wanted.ids]
    if not positions or None in positions:
        return layout
    offsets: dict[Partition, list[int]] = {}
    for partition, offset in filter(None, positions):
        offsets.setdefault(partition, []).append(offset)
    narrower = dict[Partition, Span]()
    for partition, span in layout.items():
        wanted_offsets = offsets.get(partition, [span.end])
        begin = max(span.begin, min(wanted_offsets))
        narrower[partition] = span._replace(begin=begin, end=max(begin, min(span.end, max(wanted_offsets) + 1)))
    return narrower


def newest_spans(layout: Layout, most: int) -> Layout:
    """Return the last `most` offsets, shared evenly among the partitions.

    Offsets that one partition does not need are not given to the others.
    """
    share = max(1, most // max(1, len(layout)))
    return {partition: span._replace(begin=max(span.begin, span.end - share)) for partition, span in layout.items()}


class Scan:
    """A reader of offset spans, to be iterated over once. A context manager, which closes its client.

    Each partition's records come in the order of their offsets. Raises BrokerError, and whatever `report` raises.
    """

    def __init__(self, letters: DeadLetters, layout: Layout, report: Report, reading: Reading | None = None) -> None:
        """`reading`: reads our headers; None: nobody does here."""
        self.read = 0
        """Records read so far."""
        self.total = sum(span.end - span.begin for span in layout.values())
        """Offsets in all spans: there are at most as many records."""
        self.complete = False
        """Whether all spans were read to their ends."""
        self._layout, self._report, self._reading = layout, report, reading
        self._client = ScanClient(
            letters.cluster.kafka, letters.names.redrive_group, letters.cluster.client_id, Fetches.UNTIL_GAP
        )

    def __enter__(self) -> Scan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the client back."""
        self._client.close(is_usable=self.complete)

    def __iter__(self) -> Iterator[Record]:
        for message in self._client.scan(self._layout, Bounds(SILENCE), expected="the records"):
            self.read += 1
            self._report(self.read, self.total)
            yield to_record(message, Partition(*partition_of(message)), 0, self._reading)
        self.complete = True


class DeadLetters:
    """The dead letter topics of one group. Every method raises BrokerError if Kafka does not answer.

    `policy`: knows the group's topics. `say`: gets a sentence for users when partitions without a leader are left out;
    None: none may be.
    """

    def __init__(self, cluster: Cluster, policy: Policy, say: Callable[[str], None] | None = None) -> None:
        self.cluster, self.policy, self.names = cluster, policy, policy.names
        self.topics = policy.names.dlqs_of(policy.topics)
        self._say, self._left_out = say, list[PartitionName]()

    def reader(self) -> Consumer:
        """Return a client of the redrive group that never joins it. The caller closes it."""
        config = reader_config(self.cluster.kafka, self.names.redrive_group, self.cluster.client_id)
        return make_client(Consumer, {**config, **QUIET})

    def layout(self, *, whole: bool = False) -> Layout:
        """Return the span of every partition. Raises ContractError if a topic does not exist.

        Partitions without a leader are left out and named, if there is somebody to say it to. Unless it must be
        `whole`: then such a partition is a BrokerError.
        """
        topics = self.cluster.find_topics(self.topics)
        if missing := sorted(set(self.topics) - set(topics)):
            raise ContractError(absent(missing))
        left_out = [] if whole or self._say is None else unled_partitions(topics.values())
        if left_out and left_out != self._left_out and self._say is not None:
            names = ", ".join(f"{topic}[{number}]" for topic, number in left_out)
            self._say(f"left out, as they have no leader now: {names}; run this again when they have one")
        self._left_out = left_out
        spans = self.cluster.spans(
            {partition for topic in topics.values() for partition in topic.all_partitions}.difference(left_out)
        )
        return {Partition(*partition): Span(*span, topics[partition[0]].id) for partition, span in spans.items()}

    def settled_layout(self) -> Layout:
        """Return the span of every partition, once each transaction has ended that has written there by now.

        Nobody can read yet what lies behind an open one, and it would be taken for absent. Raises as `layout` does, and
        BrokerError if one is open for `COORDINATOR_SECONDS`.
        """
        deadline = time.monotonic() + COORDINATOR_SECONDS
        layout = self.layout(whole=True)
        listed = self.cluster.offsets(layout, Offset.END, committed=False)
        ends = {partition: end.offset for partition, end in listed.items()}
        while open_ := [partition for partition, span in layout.items() if span.end < ends.get(partition, 0)]:
            if time.monotonic() > deadline:
                text = "a transaction is open in {} for {:g} s, and what lies behind it cannot be read: try it again"
                raise BrokerError(text.format(open_[0], COORDINATOR_SECONDS))
            time.sleep(SETTLED_AGAIN_S)
            layout = self.layout(whole=True)
        return layout

    def expect_targets(self) -> None:
        """Raise ContractError if a topic that a redrive writes to does not exist."""
        targets = {self.names.ready, self.names.events}
        missing = sorted(targets - self.cluster.existing(targets).keys())
        if missing:
            raise ContractError(f"nothing can be redriven: {absent(missing)}")

    def batch_limit(self, topics: Iterable[str]) -> int:
        """Return the bytes that a batch of records may have in each of these topics, as far as this user may see it."""
        settings = self.cluster.settings(topics).values()
        limits = [int(one["max.message.bytes"]) for one in settings if one.get("max.message.bytes", "").isdecimal()]
        return max(1, min(limits, default=BATCH_BYTES))

    def since(self, layout: Layout, since: int) -> Layout:
        """Return the layout without the records before the first one at or after `since` (epoch ms)."""
        if since <= 0 or not layout:
            return layout
        starts = {partition: listed.offset for partition, listed in self.cluster.offsets(layout, since).items()}
        later = dict[Partition, Span]()
        for partition, span in layout.items():
            # A negative offset means that no record is so new.
            start = starts[partition] if starts[partition] >= 0 else span.end
            later[partition] = span._replace(begin=min(span.end, max(span.begin, start)))
        return later

    def settlements(self) -> Settlements:
        """Return what people have settled, as the policy topic has it now."""
        return read_settlements(self.cluster, self.names)

    def is_queued(self) -> bool:
        """Return whether configuration or policy in force have a ladder that keeps the order. Raises BrokerError."""
        return self.policy.queued or (self.policy.has_queues and self.settlements().has_ladder)

    # --- what is known of redrives -----------------------------------------------------------------------------------

    def histories(
        self, layout: Layout, reader: Consumer | None = None, *, only_shown: bool = False, dismissals: bool = True
    ) -> dict[Partition, RedriveHistory]:
        """Return what is known of redrives, by partition. Wait for a transaction that is still open.

        Raises ContractError if a newer version has stored the history of a partition. With `only_shown` nothing is
        known of such a partition: its dead letters are listed as forgotten, and no decision may depend on that. Without
        `dismissals` no dead letter counts as dismissed or superseded.
        """
        consumer = reader or self.reader()
        partitions = [TopicPartition(partition.topic, partition.number) for partition in layout]
        try:
            committed = committed_of(consumer, partitions, COORDINATOR_SECONDS, _PASSING, each=ANSWER_SECONDS)
        except KafkaException as failure:
            raise BrokerError(
                f"the progress of group {self.names.redrive_group} cannot be read: {sentence_of(failure)}"
            ) from failure
        finally:
            if reader is None:
                consumer.close()
        histories = self._histories_in(layout, committed, only_shown=only_shown)
        if not dismissals:
            return histories
        dismissed, resets = self.settlements().dismissed, read_present_resets(self.cluster, self.names)
        return {
            partition: replace(history, dismissed=dismissed, resets=resets) for partition, history in histories.items()
        }

    def _histories_in(
        self, layout: Layout, committed: Iterable[TopicPartition], *, only_shown: bool
    ) -> dict[Partition, RedriveHistory]:
        wall, histories = now().wall_ms, dict[Partition, RedriveHistory]()
        retention: int | None = None
        for position in committed:
            partition = Partition(position.topic, position.partition)
            history = decode_past(position.metadata)
            if isinstance(history, NewerPast):
                # Without the history of that version, dead letters could be redriven twice.
                if not only_shown:
                    raise ContractError(
                        f"what was redriven of {partition} is kept by a newer version of Reconsume, and this one "
                        "cannot read it: run `dlq` with that version; nothing was changed"
                    )
                history = None
            topic = layout[partition].topic
            if history is None and position.offset >= 0:
                # An operator has reset the offset: nothing is known of the dead letters that are there today.
                history = RedriveHistory(topic, wall)
            elif history is None or history.topic != topic:
                retention = self._retention() if retention is None else retention
                history = RedriveHistory(topic, wall - max(0, retention - CLOCKS))
            histories[partition] = history
        return histories

    def _retention(self) -> int:
        """Return how long Kafka keeps committed offsets, in ms."""
        try:
            return self.cluster.offset_retention()
        except BrokerError:
            return OFFSETS_KEPT

    def histories_with_copies(
        self, layout: Layout, histories: Mapping[Partition, RedriveHistory], report: Report
    ) -> dict[Partition, RedriveHistory]:
        """Return the histories, each with the copies in its partition, among the dead letters of the layout.

        Which letters are copies depends on all others, so the layout is read first: 8 bytes are kept of each. Only if
        some are equal is it read again, and with more than `MOST_AT_ONCE` letters in several parts.
        """
        partitions = sorted(layout)
        readings = 1 + sum(span.end - span.begin for span in layout.values()) // MOST_AT_ONCE
        of_open: dict[Partition, list[int]] = {partition: [] for partition in histories}
        of_redriven: dict[Partition, list[int]] = {partition: [] for partition in histories}
        for reading in range(readings):
            names = LetterNames(readings, reading)
            with Scan(self, layout, report) as scan:
                for record in scan:
                    names.add(record.headers)
            shared = names.shared()
            if not shared:
                continue
            compared = ComparedLetters(partitions)
            with Scan(self, layout, report) as scan:
                for record in scan:
                    if hash_of(record.headers) in shared:
                        letter = read_letter(record, self.policy)
                        compared.add(letter, is_redriven=histories[record.source].covers(letter))
            for partition, offset, is_redriven in compared.copies():
                (of_redriven if is_redriven else of_open)[partition].append(offset)
        return {
            partition: replace(
                history, copies=Copies(OffsetRanges.of(of_open[partition]), OffsetRanges.of(of_redriven[partition]))
            )
            for partition, history in histories.items()
        }


class LetterScan:
    """The dead letters that a request may select, to be iterated over once, each with what a redrive does with it.

    A context manager, which closes its client.

    The second of each pair is None if the request's filter does not select the dead letter. `report`: as in `Scan`.
    `most`: the newest records that are looked at, None: all. `only_shown`: as in `DeadLetters.histories`. `resumed`:
    what earlier redrives of the same letters have done is not read again; `reader`: the redrive's own client.

    Making one raises BrokerError and ContractError, iterating BrokerError.
    """

    def __init__(
        self,
        letters: DeadLetters,
        request: RedriveRequest,
        report: Report,
        *,
        most: int | None = None,
        only_shown: bool = False,
        resumed: bool = False,
        reader: Consumer | None = None,
    ) -> None:
        self.letters, self.request = letters, request
        self.whole = letters.layout()
        """The spans of the DLQ."""
        histories = letters.histories(self.whole, reader, only_shown=only_shown)
        known = self.whole if most is None else newest_spans(self.whole, most)
        self.histories = letters.histories_with_copies(known, histories, report)
        """What is known of redrives, by partition. A redrive brings it up to date."""
        matching = narrowed(letters.since(self.whole, request.filter.since), request.filter, letters.topics)
        if resumed:
            matching = {partition: self._open_span(partition, span) for partition, span in matching.items()}
        self.spans = matching if most is None else newest_spans(matching, most)
        """The spans that are read."""
        self.cut = any(self.spans[partition].begin > span.begin for partition, span in matching.items())
        """Whether older records are not looked at."""
        self.records = Scan(letters, self.spans, report)
        """The reading: how much was read, and whether all was."""

    def __enter__(self) -> LetterScan:
        return self

    def __exit__(self, *_: object) -> None:
        self.records.close()

    def _open_span(self, partition: Partition, span: Span) -> Span:
        """Return the part of a span where the redrive may find dead letters, or an earlier range may be extended."""
        history = self.histories[partition]
        first = min(span.end, first_open(self.request, history, span.begin))
        return span._replace(begin=max(self.whole[partition].begin, read_from(self.request, history, first)))

    def __iter__(self) -> Iterator[tuple[Letter, Eligibility | None]]:
        for record in self.records:
            letter = read_letter(record, self.letters.policy)
            yield letter, eligibility(letter, self.request, self.histories[record.source])

    def is_copy(self, letter: Letter) -> bool:
        """Whether another dead letter has this one's id and attempt counts, and counts in its place."""
        return letter.record.offset in self.histories[letter.record.source].copies


class SearchResult(NamedTuple):
    """The dead letters that were found, newest first, each with what a redrive would do with it.

    `matched` may be more than those in the list. `scanned` records were read. `cut`: whether older ones were not.
    """

    letters: list[tuple[Letter, Eligibility]]
    matched: int
    scanned: int
    cut: bool


def slim(letter: Letter) -> Letter:
    """Return the letter without key, value and headers, which most lists do not show."""
    return replace(letter, record=replace(letter.record, key=None, value=None, headers=None, weight=0))


def whole(letter: Letter) -> Letter:
    """Return the letter as it is."""
    return letter


def beginning(letter: Letter) -> Letter:
    """Return the letter with the first BEGINNING bytes of its key and value, and without headers."""
    record = letter.record
    key, value = (None if data is None else data[:BEGINNING] for data in (record.key, record.value))
    weight = weight_of(key, value, None, None)
    return replace(letter, record=replace(record, key=key, value=value, headers=None, weight=weight))


def search_letters(
    letters: DeadLetters,
    request: RedriveRequest,
    most: int,
    scan_most: int,
    report: Report,
    states: Collection[Eligibility] = OPEN,
    *,
    keep: Callable[[Letter], Letter] = slim,
) -> SearchResult:
    """Return the newest dead letters that a request selects: at most `most`, from the newest `scan_most` records.

    `keep` returns what is kept of one; of whole ones a list of a hundred would take a hundred MB. Those that are kept
    have MOST_BYTES together, or are one. Raises BrokerError.
    """
    newest = list[tuple[int, int, int, Letter, Eligibility]]()
    """A heap, the oldest first. A number of its own keeps letters from being compared."""
    matched = weight = 0
    with LetterScan(letters, request, report, most=scan_most, only_shown=True) as scan:
        for letter, state in scan:
            if state is None or state not in states:
                continue
            kept = keep(letter)
            matched, weight = matched + 1, weight + kept.record.weight
            heapq.heappush(newest, (kept.record.timestamp, kept.record.offset, -matched, kept, state))
            while len(newest) > most or (weight > MOST_BYTES and len(newest) > 1):
                weight -= heapq.heappop(newest)[3].record.weight
    newest.sort(key=lambda row: row[:3], reverse=True)
    return SearchResult([(letter, state) for *_, letter, state in newest], matched, scan.records.read, scan.cut)


def find_letters(letters: DeadLetters, ident: str, scan_most: int, report: Report) -> SearchResult:
    """Return the newest stays of a record in the DLQ by its origin id, or one letter by its position in a DLQ topic."""
    request = RedriveRequest(Filter(ids=(ident,)), MOST_REDRIVES_EVER, forgotten=False)
    return search_letters(letters, request, STAYS, scan_most, report, frozenset(Eligibility), keep=whole)
