"""A model of the consumer client as librdkafka 2.16 behaves, with the calls that the product makes of it.

`test_client_conformance.py` compares it with the real one. What is easily taken to be kinder than it is:

- a pause belongs to the partition's entry in the client, which stays: it outlives `incremental_unassign`;
- the offsets of all partitions that are assigned together at `OFFSET_STORED` are asked for in one request, which is
  repeated for all of them while an open transaction holds one of them back; if the assignment has changed since, it is
  not repeated, and they end as partitions without an offset;
- an offset that is not in the log ends the fetching with one error, which neither pause nor unassign takes back;
  from then on a seek fails, and only unassign and assign set it going;
- no topic may be listed in a callback: the process would end;
- no other topics may be subscribed to between a lost membership and the next one: the process would end
  (`test_subscribe_conformance.py`);
- a request for offsets fails for all partitions if the leader of one does not answer;
- pause, seek and unassign purge what was fetched and not yet consumed; the end is told anew after each of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from random import Random
from typing import Any

import confluent_kafka
from confluent_kafka import OFFSET_INVALID, OFFSET_STORED, KafkaError, TopicPartition

from reconsume.sidecar.core.record import Partition
from tests.sim.client_parts import Event, Toppar
from tests.sim.client_questions import Questions, failure
from tests.sim.kafka_model import KafkaModel

Callback = Callable[[Any, list[TopicPartition]], None]


class ClientModel(Questions):
    """One consumer of one group. `slow`: called before each answer of the broker, and may raise or take its time."""

    def __init__(
        self, kafka: KafkaModel, group: str, random: Random, slow: Callable[[str], None] = lambda call: None
    ) -> None:
        super().__init__(kafka, group, slow)
        self.topics: tuple[str, ...] = ()
        self.metadata: object = None
        """What the group's coordinator last told it of its membership; None: it is no member."""
        self._random = random
        self._changes = 0
        """Of the assignment."""
        self._callbacks: dict[str, Callback] = {}
        self._rebalances: deque[tuple[str, Sequence[Partition]]] = deque()

    # --- the assignment ----------------------------------------------------------------------------------------------

    @property
    def assignment_now(self) -> list[Partition]:
        """The partitions that are assigned."""
        return [source for source, toppar in self.toppars.items() if toppar.assigned]

    def incremental_assign(self, places: Iterable[TopicPartition]) -> None:
        """Begin with partitions, at an offset or a logical one."""
        asked = [(self._toppar(place), place) for place in places]
        if any(toppar.assigned for toppar, _ in asked):
            raise failure(KafkaError._CONFLICT)
        stored = [Partition(place.topic, place.partition) for _, place in asked if place.offset == OFFSET_STORED]
        self._changes += 1
        for toppar, place in asked:
            toppar.assigned = toppar.fetching = True
            toppar.consumed = None
            toppar.asked_with = stored if place.offset == OFFSET_STORED else ()
            toppar.asked_at = self._changes
            toppar.begin_anew(place.offset)

    def incremental_unassign(self, places: Iterable[TopicPartition]) -> None:
        """End with partitions. Their pauses stay."""
        toppars = [self._toppar(place) for place in places]
        if not all(toppar.assigned for toppar in toppars):
            raise failure(KafkaError._INVALID_ARG)
        self._changes += 1
        for toppar in toppars:
            toppar.assigned = toppar.fetching = False
            toppar.consumed = None
            toppar.begin_anew()

    def pause(self, places: Iterable[TopicPartition]) -> None:
        """Fetch nothing of these, and purge what was fetched; it is fetched again after the resumption."""
        for place in places:
            toppar = self._toppar(place)
            toppar.paused = True
            toppar.begin_anew(toppar.consumed)

    def resume(self, places: Iterable[TopicPartition]) -> None:
        """Fetch these again."""
        for place in places:
            toppar = self._toppar(place)
            if toppar.paused:
                toppar.paused = False
                toppar.begin_anew()

    def seek(self, place: TopicPartition) -> None:
        """Go on elsewhere, paused or not."""
        toppar = self._toppar(place)
        if not toppar.fetching:
            raise failure(KafkaError._STATE)
        toppar.consumed = None
        toppar.begin_anew(place.offset)

    # --- what is read ------------------------------------------------------------------------------------------------

    def fetch(self, most: int = 1 << 30) -> None:
        """Read ahead: what the client's own threads do."""
        for source in self.toppars:
            self.fetch_one(source, most)

    def fetch_one(self, source: Partition, most: int) -> None:
        """Read ahead of one partition."""
        self._fetch(source, self.toppars[source], most)

    def hungry(self, source: Partition) -> bool:
        """Whether a look at the log would bring something."""
        log, toppar = self.kafka.logs.get(source), self.toppars[source]
        if log is None or not log.led or toppar.paused or not toppar.fetching or not self.reaches(source):
            return False
        if self._held(toppar):
            return toppar.asked_at != self._changes
        return toppar.position != log.end or toppar.told_end != log.end

    def _held(self, toppar: Toppar) -> bool:
        """Whether it has no offset yet, as the group's are held back."""
        return toppar.position == OFFSET_STORED and self._held_back(toppar.asked_with)

    def _fetch(self, source: Partition, toppar: Toppar, most: int) -> None:
        log = self.kafka.logs.get(source)
        if not toppar.assigned or not toppar.fetching or log is None or not log.led or not self.reaches(source):
            return
        if self._held(toppar):
            if toppar.asked_at != self._changes:
                self._stop(source, toppar, None)
            return
        if toppar.position < 0:
            self._look_up(source, toppar)
        position = toppar.position
        if toppar.paused or not toppar.fetching:
            return
        if not log.start <= position <= log.end:
            self._stop(source, toppar, position)
            return
        toppar.edges = log.start, log.end
        for stored in log.after(position, most):
            toppar.queue.append(Event(source, stored.offset, None, stored))
            toppar.position = position = stored.offset + 1
        if not log.after(position, 1) and toppar.told_end != log.end:
            toppar.position = toppar.told_end = log.end
            toppar.queue.append(Event(source, log.end, KafkaError(KafkaError._PARTITION_EOF)))

    def truncated(self, source: Partition, end: int) -> None:
        """The log has a new leader, whose epoch tells the client that it ends sooner now."""
        toppar = self.toppars.get(source)
        if toppar is not None and toppar.assigned and toppar.fetching and toppar.position > end:
            self._stop(source, toppar, toppar.position)

    def _look_up(self, source: Partition, toppar: Toppar) -> None:
        log = self.kafka.logs[source]
        match toppar.position:
            case confluent_kafka.OFFSET_BEGINNING:
                offset = log.start
            case confluent_kafka.OFFSET_END:
                offset = log.end
            case confluent_kafka.OFFSET_STORED:
                offset = self.kafka.committed.get((self.group, source), (OFFSET_INVALID, ""))[0]
            case _:
                offset = OFFSET_INVALID
        toppar.start = toppar.position = offset
        if offset == OFFSET_INVALID:
            self._stop(source, toppar, None)

    def _stop(self, source: Partition, toppar: Toppar, offset: int | None) -> None:
        toppar.fetching = False
        toppar.queue.append(Event(source, offset, KafkaError(KafkaError._AUTO_OFFSET_RESET)))

    def consume(self, most: int = 1, timeout: float = -1) -> list[Event]:
        """Run callbacks that wait, then take up to `most` of what was fetched, of any partitions."""
        self.run_callbacks()
        taken: list[Event] = []
        while len(taken) < most and (full := [toppar for toppar in self.toppars.values() if self.gives(toppar)]):
            toppar = self._random.choice(full)
            for _ in range(self._random.randint(1, most - len(taken))):
                if toppar.queue:
                    taken.append(self.take(toppar))
        return taken

    def gives(self, toppar: Toppar) -> bool:
        """Whether it has something to consume."""
        return bool(toppar.queue)

    def take(self, toppar: Toppar) -> Event:
        """Consume the next event of a partition."""
        event = toppar.queue.popleft()
        log = self.kafka.logs.get(event.source)
        if event.stored is not None:
            toppar.consumed = event.stored.offset + 1
        elif (
            event.place is not None
            and log is not None
            and toppar.start < event.place
            and event.place - 1 in log.markers
        ):
            toppar.consumed = event.place  # a marker is consumed too, without being seen
        return event

    def position(self, places: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Behind the last record that was consumed."""
        found = [(place, self._toppar(place).consumed) for place in places]
        return [
            TopicPartition(place.topic, place.partition, OFFSET_INVALID if offset is None else offset)
            for place, offset in found
        ]

    # --- the group ---------------------------------------------------------------------------------------------------

    def subscribe(self, topics: Collection[str], **callbacks: Callback) -> None:
        """Ask the group for partitions of these topics."""
        assert self.metadata is not None or not self.topics, "a client that is no member would end the process"
        self.topics, self._callbacks = tuple(topics), callbacks

    def rebalance(self, kind: str, places: Sequence[Partition]) -> None:
        """The coordinator's word, `on_assign`, `on_revoke` or `on_lost`: told at the next `consume`."""
        self._rebalances.append((kind, places))

    def forget_rebalances(self) -> None:
        """What waited is not true any more."""
        self._rebalances.clear()

    @property
    def rebalancing(self) -> bool:
        """Whether a callback waits to be run."""
        return bool(self._rebalances)

    def run_callbacks(self) -> None:
        """Run what waits."""
        while self._rebalances:
            self.run_callback()

    @property
    def next_callback(self) -> tuple[str, Sequence[Partition]]:
        """The callback that waits first: which it is, and of which partitions."""
        return self._rebalances[0]

    def run_callback(self) -> tuple[str, Sequence[Partition]]:
        """Run the callback that waits first: which it was, and of which partitions."""
        kind, places = self._rebalances.popleft()
        self.calls_back = True
        self._callbacks[kind](self, [TopicPartition(*place) for place in places])
        self.calls_back = False
        return kind, places

    def consumer_group_metadata(self) -> object:
        """The membership as the client knows it."""
        return self.metadata
