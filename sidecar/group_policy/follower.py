"""Follow the control log on a thread, and publish this instance there.

The thread reads the log from its beginning, writes heartbeats, and checks which level topics outside the policy still
hold waiting records. It never blocks the records. Without the topic, or without Kafka, the configuration's values stay
in force and the thread tries again. All of this file runs on that thread.

A heartbeat is sent every 60 s, because the other instances drop an instance after 180 s. A change of the pace, and of
what is retried in place or stalls (`Judged` in `observability/signals.py`), is sent within 15 s of being seen; within
a second whether the instance works, and what it obeys of what operators say: commands wait for that. One that works
answers another that does not: only a heartbeat behind its own lets that one leave the group
(`core/participation.py`). A clean stop deletes the record.

No heartbeat is written before the log was read to its end, nor while a Spark query reads the group's retries
(`topics/ownership.py`). The log's order decides: if another reader was first, the listener hears of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, TypeAlias

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from msgspec.structs import replace

from reconsume.sidecar.background import ContextThread
from reconsume.sidecar.clock import wall
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.group_policy.levels import Undrained, leftover_levels
from reconsume.sidecar.group_policy.state import ControlRecord, control_record
from reconsume.sidecar.hints import ABSENT, hint
from reconsume.sidecar.kafka.client_config import Config
from reconsume.sidecar.kafka.clients import ClientCredentials, make_client, new_client, unchanging
from reconsume.sidecar.kafka.consumer.log_checks import Leaders, OffsetLookup, recreated
from reconsume.sidecar.kafka.errors import named_topics
from reconsume.sidecar.kafka.scan import next_messages
from reconsume.sidecar.observability.signals import Judged, Signals
from reconsume.sidecar.observability.thread_watch import FOLLOWER_LIMIT, StopRequest, WatchedThread
from reconsume.sidecar.printable import plural
from reconsume.topics.names import Names
from reconsume.topics.ownership import Reader, Readers, reader_of
from reconsume.topics.policy_record import (
    PARTITION,
    InstanceHeard,
    ObeysTold,
    OwnerHeard,
    PaceTold,
    RefusedTold,
    SubscriptionRecord,
    fitted,
    instance_key,
    render_record,
)
from reconsume.topics.position_ranges import RESET, ResetNote, read_resets

TELL_EVERY = 60.0
"""Seconds between two heartbeats, as between two checks of the topics (LOOK_EVERY): a third of the time after which
others drop an instance (SILENT_AFTER)."""
CHANGE_EVERY = 15.0
"""Shortest time, in seconds, between two published changes of the pace. In a storm every instance changes its pace, and
every instance reads all changes."""
SOON_EVERY = 1.0
"""The same if the instance begins or ceases to work, or obeys something else."""
ANSWER_EVERY = 5.0
"""The same for answers to instances that do not work. A hundred of them that break together get one answer."""
FLUSH_WITHIN = 2.0
MOST_REFUSED = 16
"""Topics whose records the service rejects that a heartbeat names, so that it stays far below `LARGEST`."""
LATE = 60_000
"""ms by which a retry must be overdue to be published soon. The alert and the doctor wait as long."""


ControlState: TypeAlias = tuple[str | None, bool, frozenset[tuple[str, int]], Judged | None]
"""What is published soon after it changes: the pace, whether retries are overdue, what the service rejects, and the
news of the last minutes."""


class InstanceInfo(NamedTuple):
    """The data to publish: the instance's name, what never changes (`fixed`), and the present pace and overdue time.

    `pace` returns None if nothing is delivered. `overdue` returns by how many ms the most overdue retry is late. `well`
    returns whether the instance works; None if that is not known of its kind. `signals`: what it saw in the last
    minutes; None if nobody looks. `refused` returns the topics whose records its service rejects. `obeys` returns what
    it obeys of what operators say; None if it has not read that yet.
    """

    instance: str
    fixed: SubscriptionRecord
    pace: Callable[[], PaceTold | None] = lambda: None
    overdue: Callable[[], int] = lambda: 0
    well: Callable[[], bool | None] = lambda: None
    signals: Signals | None = None
    refused: Callable[[], tuple[RefusedTold, ...]] = tuple
    obeys: Callable[[], ObeysTold | None] = lambda: None

    def urgent(self) -> tuple[bool | None, ObeysTold | None, bool]:
        """Return what is published within a second after it changes: whether the instance works, what it obeys, and
        whether a key is blocked."""
        return self.well(), self.obeys(), self.signals is not None and self.signals.blocks


class Heartbeat:
    """The publisher of this instance's record. `say` is called with each problem, as a sentence.

    No client is made before the first heartbeat.
    """

    def __init__(
        self,
        writer: Config,
        credentials: ClientCredentials,
        topic: str,
        own: InstanceInfo,
        say: Callable[[str], None],
        change_every: float = CHANGE_EVERY,
    ) -> None:
        self._writer, self._credentials, self._topic = dict(writer), credentials, topic
        self._own, self._say, self._change_every = own, say, change_every
        self._producer: Producer | None = None
        self._told_at = -TELL_EVERY
        self._state: ControlState = (None, False, frozenset(), None)
        self._soon: tuple[bool | None, ObeysTold | None, bool] = (None, None, False)
        """`urgent`, as it was published last."""
        self._asked = False
        """Whether another instance waits for a heartbeat behind its own."""
        self._is_unreached = False
        """Whether the producer has reached no broker in time: it may have lost the cluster (`kafka/cut_off.py`)."""

    @property
    def clients(self) -> list[Producer]:
        """The producer, if there is one yet."""
        return [] if self._producer is None else [self._producer]

    def renew(self) -> None:
        """Publish everything again, by a new producer with the newest credentials."""
        self._producer, self._told_at, self._is_unreached = None, -TELL_EVERY, False

    def tell(self) -> None:
        """Publish the heartbeat, unless it was just published. Raises KafkaException.

        It is called when a check has found the topic.
        """
        self._tell(TELL_EVERY / 2)

    def turn(self, *, there: bool) -> None:
        """Serve the producer. While the topic is `there`, publish another state. Raises KafkaException."""
        if self._producer is None:
            return
        self._producer.poll(0)
        if self._is_unreached:
            self.renew()
            return
        if not there:
            return
        if self._own.urgent() != self._soon:
            self._tell(min(SOON_EVERY, self._change_every))
        elif self._asked:
            self._tell(min(ANSWER_EVERY, self._change_every))
        elif self._present()[0] != self._state:
            self._tell(self._change_every)

    def hear(self, records: Iterable[ControlRecord]) -> None:
        """Note that another instance has just said that it does not work. Heartbeats of this one answer nothing."""
        for said in records:
            news = said.heard
            if isinstance(news, InstanceHeard) and news.instance != self._own.instance and news.record is not None:
                self._asked |= news.record.well is False and self._own.well() is not False

    def _present(self) -> tuple[ControlState, PaceTold | None, int]:
        """Return the state whose change is published soon, and the values that are published with it."""
        pace, overdue = self._own.pace(), self._own.overdue()
        state = None if pace is None else f"{pace.state} {pace.cause} {pace.idle_since is not None}"
        if pace is not None and pace.state == "waiting":
            # The first heartbeat often comes before the service was asked, and cannot say what keeps it away.
            state = f"{pace.state} {pace.reason}"
        refused = frozenset((one.topic, one.status) for one in self._own.refused()[:MOST_REFUSED])
        return (state, overdue >= LATE, refused, self._news()), pace, overdue

    def _news(self) -> Judged | None:
        return None if self._own.signals is None else self._own.signals.news()

    def _tell(self, every: float) -> None:
        now = time.monotonic()
        if now - self._told_at < every:
            return
        self._told_at, self._asked = now, False
        if self._producer is None:
            self._producer = make_client(Producer, self._credentials.newest(self._writer))
        own, signals = self._own, self._own.signals
        if signals is not None:  # what one heartbeat says is of one moment: no outage with sums from before it
            signals.refresh()
        self._state, pace, overdue = self._present()
        self._soon = own.urgent()
        well, obeys, _ = self._soon
        record = replace(
            own.fixed,
            at=wall(),
            pace=pace,
            overdue=overdue,
            well=well,
            all_refused=own.refused()[:MOST_REFUSED],
            sums=None if signals is None else signals.sums,
            obeys=obeys,
            retried_in_place=0 if signals is None else signals.retried(),
            in_place=() if signals is None else signals.in_place,
        )
        self._write(self._producer, render_record(fitted(record)))

    def put_back(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write records that the topic lacks; None deletes one. Raises KafkaException."""
        for key, value in records:
            if self._producer is None:
                self._producer = make_client(Producer, self._credentials.newest(self._writer))
            self._write(self._producer, value, key)

    def _write(self, producer: Producer, value: bytes | None, key: bytes | None = None) -> None:
        def landed(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                self._is_unreached |= error.code() == KafkaError._MSG_TIMED_OUT
                self._say(f"this instance's subscription cannot be published: {error.str()}")

        try:
            producer.produce(self._topic, value, key or instance_key(self._own.instance), PARTITION, on_delivery=landed)
        except BufferError:
            self._say("this instance's subscription cannot be published: the previous heartbeat still waits for Kafka")

    def take_back(self) -> None:
        """Delete this instance's record at a clean stop, so that others need not wait for three missing heartbeats."""
        if self._producer is not None:
            try:
                self._write(self._producer, None)
                self._producer.flush(FLUSH_WITHIN)
            except KafkaException as failure:
                self._say(f"this instance's subscription cannot be deleted: {failure}")


NOTES = 1
"""The partition of the policy topic where owners note what they have done, in their transactions."""
POLL = 0.5
"""Seconds of a turn without news. A stop is noticed so late; a record ends a turn at once."""
LARGE_CLUSTER, LIST_LARGE_EVERY = 20_000, 3_600.0
"""Partitions above which all topics are listed only so often (seconds)."""
LIST_AGAIN = 600.0
"""Seconds until all topics are listed again if the list did not come in time."""
NAMED_WITHIN, NAMED_TOGETHER = 20.0, 300.0
"""Seconds for the answer about one topic, and after which a look asks for no further one."""
METADATA_WITHIN = 5.0
LOOK_EVERY = 60.0
"""Seconds between two checks of the cluster's topics."""
HURRY = 5.0
"""Seconds between two checks while something is awaited: the topic, a level that a policy needs, or the end of a
removed level."""
LOOK_AGAIN = 1.0
"""Seconds between two checks while a topic may have been created just now."""
GONE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
"""Errors by which a topic does not exist any more."""
AGAIN = 1.0
"""Seconds until the thread starts again, after an error or with new credentials."""

_LOG = logging.getLogger("reconsume.policy")


class TopicSnapshot(NamedTuple):
    """The topics of the cluster at one moment.

    `left`: the level topics outside `wanted` with records that are not processed, or of which that is not known.
    `awaited`: what the newest policy lacked before Kafka was asked.
    """

    topics: frozenset[str]
    wanted: frozenset[str]
    left: Undrained
    awaited: frozenset[str] = frozenset()


class PolicyUpdate(NamedTuple):
    """The result of reading the topic since the last update.

    `caught_up`: the topic was read to its end, or does not exist. `live`: the records were written while the thread was
    reading, not before. `begun`: from now on the topic is read from its beginning. `counted`: the log has a heartbeat
    of this instance, or there is no log. `owner`: who reads the group's retries, so that this instance may not.
    `resets`: what owners have noted of resets, in the second partition of the topic.
    """

    records: tuple[ControlRecord, ...]
    look: TopicSnapshot | None
    caught_up: bool
    live: bool
    begun: bool = False
    counted: bool = True
    owner: Reader | None = None
    resets: tuple[ResetNote, ...] = ()


class PolicyListener(Protocol):
    """The receiver of the thread's updates. All methods are called on the thread."""

    def on_update(self, news: PolicyUpdate) -> None:
        """Process an update. Must return at once."""

    def wanted(self) -> frozenset[str]:
        """Return the level topics of the policy in force."""

    def awaited(self) -> frozenset[str]:
        """Return the topics for want of which a policy is not applied."""

    def doubts(self) -> bool:
        """Return whether some of those may have been created just now."""

    def hurried(self) -> bool:
        """Return whether something is awaited."""

    def unwritten(self) -> Iterable[tuple[bytes, bytes | None]]:
        """Return keys and values that the topic lacks, each once."""


class ClusterTopics:
    """The topics of the cluster with their numbers of partitions, as far as Kafka has told of them.

    All topics show the level topics that are not needed any more. Of a large cluster they take 100 MB for a moment, so
    they are listed once an hour there, and otherwise only those that are needed are asked for.
    """

    def __init__(self, policy_topic: str) -> None:
        self._topic = policy_topic
        self._counts: dict[str, int] = {}
        self._told_at: dict[str, float] = {}
        """When Kafka last told of each topic that is needed (monotonic seconds)."""
        self._list_at = 0.0
        """When all topics are to be listed (monotonic seconds)."""
        self._leaders = Leaders()

    def offsets(self, consumer: Consumer) -> OffsetLookup:
        """Return what looks up offsets, by the leaders that were known last."""
        return OffsetLookup(consumer, self._leaders)

    def ask(self, consumer: Consumer, needed: frozenset[str]) -> dict[str, int]:
        """Return the topics with their numbers of partitions: all of a small cluster, else those that are needed.

        Raises KafkaException if Kafka does not tell of the policy topic.
        """
        if time.monotonic() >= self._list_at:
            try:
                every = consumer.list_topics(timeout=METADATA_WITHIN).topics
            except KafkaException:  # a large cluster takes longer, and one that is away says so below
                self._list_at = time.monotonic() + LIST_AGAIN
            else:
                self._counts = {name: len(topic.partitions) for name, topic in every.items()}
                large = sum(self._counts.values()) > LARGE_CLUSTER
                self._list_at = time.monotonic() + LIST_LARGE_EVERY if large else 0.0
                self._told_at = dict.fromkeys(needed, time.monotonic())
                return self._counts
        order = sorted(needed, key=lambda name: (name != self._topic, self._told_at.get(name, 0.0), name))
        told = named_topics(consumer, order, NAMED_WITHIN, NAMED_TOGETHER)
        self._told_at |= dict.fromkeys((*told.described, *told.absent), time.monotonic())
        now = {name: len(topic.partitions) for name, topic in told.described.items()}
        self._counts = {name: n for name, n in self._counts.items() if name not in told.absent} | now
        unknown = needed - self._told_at.keys()
        if unknown or not {self._topic} & (told.described.keys() | told.absent):
            text = f"Kafka does not tell yet of {plural(len(unknown) or 1, 'topic')}, the policy's or another needed"
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, text))
        return self._counts


class PolicySource(NamedTuple):
    """The group, its main topics, and what this instance publishes."""

    names: Names
    topics: tuple[str, ...]
    own: InstanceInfo


class PolicyFollower(ContextThread):
    """A thread that follows the topic until it is stopped, whatever errors occur.

    `reader` and `writer` are client configurations.
    """

    def __init__(
        self,
        reader: Config,
        writer: Config,
        source: PolicySource,
        listener: PolicyListener,
        credentials: ClientCredentials | None = None,
    ) -> None:
        super().__init__("policy")
        self._reader = dict(reader)
        self._source, self._listener, self._credentials = (
            source,
            listener,
            unchanging() if credentials is None else credentials,
        )
        self._heartbeat = Heartbeat(writer, self._credentials, self._topic, source.own, self._say)
        self._stopping = StopRequest()
        self._said = ""
        self._reading = self._live = False
        self._is_stale = False
        """Whether the client has read a former topic of this name."""
        self._end = 0
        self._is_read, self._are_notes_read = False, True
        """Whether the control log was read to its end, and what owners have noted, if there is a place for that."""
        self._has_notes = False
        """Whether the topic has the partition for what owners note."""
        self._first: tuple[int, int] | None = None
        self._readers = Readers()
        self._owner: Reader | None = None
        """Who reads the group's retries, so that this instance may not. It ends then, and publishes nothing more."""
        self._is_counted = False
        """Whether the log has a heartbeat of this instance, since it is read from its beginning."""
        self._looked_at = -LOOK_EVERY
        self._gone = False
        """Whether the topic that was read exists no more."""
        self._topics = ClusterTopics(self._topic)

    @property
    def _topic(self) -> str:
        return self._source.names.policy

    def stop(self) -> None:
        """Delete this instance's subscription and end, within a few seconds. Returns at once."""
        self._stopping.set()

    def watched(self) -> list[WatchedThread]:
        return [WatchedThread("policy", self, lambda: self._stopping.turned_at, FOLLOWER_LIMIT)]

    def do_work(self) -> None:
        """Follow until stopped. After an error, read from the beginning."""
        while not self._stopping.is_set():
            try:
                self._follow()
            except KafkaException as failure:
                self._say(f"the group's policy cannot be followed: {failure}")
            except Exception:  # noqa: BLE001 - the policy must never stop the records, not even by a bug of ours
                _LOG.exception("the group's policy cannot be followed", extra={"event": "fault"})
            self._stopping.wait(AGAIN)
        self._heartbeat.take_back()

    def _follow(self) -> None:
        self._reading = self._live = self._is_stale = self._gone = self._is_counted = False
        self._readers = Readers()
        self._looked_at = -LOOK_EVERY
        consumer = new_client(Consumer, self._reader, self._credentials, self._stopping)
        if consumer is None:
            return
        try:
            while not self._stopping.is_set() and self._keys_hold(consumer) and not self._is_renewed():
                self._turn(consumer)
        finally:
            consumer.close()

    def _keys_hold(self, consumer: Consumer) -> bool:
        """Whether the clients may continue with their credentials.

        If not, both clients must be made again, and everything is read and published again.
        """
        if self._credentials.apply_to(consumer, *self._heartbeat.clients):
            return True
        self._heartbeat.renew()
        return False

    def _is_renewed(self) -> bool:
        """Whether the topic was deleted and created again: no client that knows the former one may ever read it.

        (`consumer/client_watch.py` says why.) Nor may a producer write to it.
        """
        if self._is_stale:
            self._heartbeat.renew()
        return self._is_stale

    def _turn(self, consumer: Consumer) -> None:
        if self._is_time_to_look():
            self._look(consumer)
        if self._owner is None:
            self._heartbeat.turn(there=self._reading)
            self._heartbeat.put_back(self._listener.unwritten())
        if not self._reading:
            self._stopping.wait(POLL)
            return
        self._take(consumer, next_messages(consumer, POLL))

    # --- reading -----------------------------------------------------------------------------------------------------

    def _take(self, consumer: Consumer, messages: Iterable[Message]) -> None:
        records: list[ControlRecord] = []
        live, any_came, resets = self._live, False, list[ResetNote]()
        for message in messages:
            any_came = True
            error = message.error()
            if message.partition() == NOTES:
                if error is None:
                    resets += self._reset_in(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._are_notes_read = True
                else:
                    self._stumble(consumer, error)
            elif error is None:
                offset, (kind, written_at) = message.offset() or 0, message.timestamp()
                # A time that a writer gave says nothing of now: then a heartbeat is as old as its reading.
                at = wall() if live and kind != TIMESTAMP_LOG_APPEND_TIME else written_at
                records.append(control_record(message.key(), message.value(), offset, at))
                self._hear_reader(records[-1])
                self._first = self._first or (offset + 1, written_at)
                self._is_read |= offset + 1 >= self._end
            elif error.code() == KafkaError._PARTITION_EOF:
                # A leader that was elected just now may tell an earlier end than was committed (KIP-207).
                self._is_read |= (message.offset() or 0) >= self._end
            else:
                self._stumble(consumer, error)
        if live:
            self._heartbeat.hear(records)
        caught_up = self._live or (self._is_read and self._are_notes_read)
        self._live |= caught_up and self._reading
        if self._live and not live:
            self._publish()
        if any_came:
            counted, owner = self._is_counted, self._owner
            news = PolicyUpdate(tuple(records), None, caught_up, live, counted=counted, owner=owner)
            self._listener.on_update(news._replace(resets=tuple(resets)) if resets else news)

    def _reset_in(self, message: Message) -> list[ResetNote]:
        """Return what an owner has noted of resets; nothing, if it is about something else."""
        key = message.key()
        if key is None or not key.startswith(RESET):
            return []
        note = read_resets(key, message.value())
        if isinstance(note, str):
            self._say(f"ignored in {self._topic}: {note}")
            return []
        return [note]

    def _hear_reader(self, said: ControlRecord) -> None:
        """Take in a heartbeat, which may be that of a reader next to which this instance may not read."""
        self._readers.hear(news := said.heard, said.at)
        if not self._live or not isinstance(news, (InstanceHeard, OwnerHeard)):
            return
        own = reader_of(self._source.own.instance, self._source.own.fixed, said.at)
        self._owner = self._owner or self._readers.against(own, said.at)
        self._is_counted |= self._owner is None and said.key == instance_key(own.instance)

    def _publish(self) -> None:
        """Publish the heartbeat, unless it was just published, or somebody else reads the group's retries.

        The log must have been read to its end.
        """
        own, now = self._source.own, wall()
        self._owner = self._owner or self._readers.against(reader_of(own.instance, own.fixed, now), now)
        if self._owner is None:
            self._heartbeat.tell()

    def _stumble(self, consumer: Consumer, error: KafkaError) -> None:
        """Log that the topic cannot be read. Raises KafkaException if the error is fatal.

        If the error is not retriable, stop reading: the topic is gone, or this user may not read it. A later check
        looks for it again.
        """
        self._say(f"the group's policy cannot be read: {error.str()}")
        if error.fatal():
            raise KafkaException(error)
        if not error.retriable():
            consumer.unassign()
            self._gone = error.code() in GONE
            self._reading = self._live = False

    # --- looking -----------------------------------------------------------------------------------------------------

    def _is_time_to_look(self) -> bool:
        since = time.monotonic() - self._looked_at
        if self._listener.doubts():
            return since >= LOOK_AGAIN
        return since >= (HURRY if self._listener.hurried() or not self._reading else LOOK_EVERY)

    def _look(self, consumer: Consumer) -> None:
        self._looked_at = time.monotonic()
        wanted = self._listener.wanted()  # asked first: it must not be newer than the topics below
        source = self._source
        awaited = self._listener.awaited()
        needed = wanted | awaited | {self._topic, *source.topics}
        there = counts = self._topics.ask(consumer, needed)
        leftover = leftover_levels(self._topics.offsets(consumer), source.names, source.topics, counts, wanted)
        look = TopicSnapshot(frozenset(there), wanted, leftover, awaited)
        is_grown = self._reading and not self._has_notes and counts.get(self._topic, 0) > NOTES
        if self._topic in there and (self._gone or is_grown or (self._reading and self._is_other_log(consumer))):
            self._is_stale = True
            return
        begins = self._topic in there and not self._reading
        if begins:
            self._begin(consumer, has_notes=counts[self._topic] > NOTES)
        elif self._topic not in there:
            self._say(
                f"{self._topic} is {ABSENT}: each instance applies the retry policy of its configuration, and "
                f"different configurations are not detected; `{hint('topics apply')}` creates what is missing"
            )
        caught_up, counted = self._live or not self._reading, self._is_counted or not self._reading
        if self._live:
            self._publish()
        self._listener.on_update(PolicyUpdate((), look, caught_up, False, begins, counted, self._owner))

    def _is_other_log(self, consumer: Consumer) -> bool:
        """Whether the topic is not the one whose first record was read; the client reports only that there is none.

        The last record that was read may already be of the new topic.
        """
        read = {Partition(self._topic, PARTITION): self._first} if self._first else {}
        if not recreated(self._topics.offsets(consumer), read, METADATA_WITHIN):
            return False
        self._say(f"{self._topic} was deleted and created again; it is read from its beginning")
        return True

    def _begin(self, consumer: Consumer, *, has_notes: bool) -> None:
        asked = TopicPartition(self._topic, PARTITION)
        begin, self._end = consumer.get_watermark_offsets(asked, timeout=METADATA_WITHIN, cached=False)
        # By number: if asked for "the beginning" before the leader is known, librdkafka asks again after 500 ms.
        partitions = [TopicPartition(self._topic, PARTITION, begin)]
        if has_notes:
            partitions.append(TopicPartition(self._topic, NOTES, OFFSET_BEGINNING))
        consumer.assign(partitions)
        self._has_notes, self._is_read, self._are_notes_read = has_notes, begin >= self._end, not has_notes
        self._reading, self._live = True, self._is_read and self._are_notes_read
        self._first = (begin, 0) if begin else None

    def _say(self, text: str) -> None:
        """Log what is wrong, once until it changes."""
        if text != self._said:
            self._said = text
            _LOG.warning(text, extra={"event": "policy-topic"})
