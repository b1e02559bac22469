"""Follow the control log on a thread, and publish this instance there.

The thread reads both partitions of the policy topic from their beginning, writes heartbeats (`heartbeat.py`), and
checks every minute the topics of the cluster: which of them exist, and which level topics outside the policy still hold
waiting records. It never blocks the records. Without the topic, or without Kafka, the configuration's values stay in
force and the thread tries again. What it reads goes to its listener, the `PolicyController` on the event loop. All of
this file runs on the thread.

`LogReading` is one reading of the topic, from its beginning to the end of the client. The log is *live* once it was
read up to where it ended when the reading began, with the notes of owners. A new reading begins after an error, with
new credentials, and with a new client where the topic was deleted and created again: no client that knows the former
topic may ever read it (`consumer/client_watch.py` says why), nor may a producer write to it.

No heartbeat is written before the log is live, nor while a Spark query reads the group's retries
(`topics/ownership.py`). The log's order decides: if another reader was first, the listener hears of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from reconsume.sidecar.background import ContextThread
from reconsume.sidecar.clock import wall
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.group_policy.heartbeat import Heartbeat, InstanceInfo
from reconsume.sidecar.group_policy.levels import Undrained, leftover_levels
from reconsume.sidecar.group_policy.state import ControlRecord, control_record
from reconsume.sidecar.hints import ABSENT, hint
from reconsume.sidecar.kafka.client_config import Config
from reconsume.sidecar.kafka.clients import ClientCredentials, new_client, unchanging
from reconsume.sidecar.kafka.consumer.log_checks import Leaders, OffsetLookup, recreated
from reconsume.sidecar.kafka.errors import named_topics
from reconsume.sidecar.kafka.scan import next_messages
from reconsume.sidecar.observability.thread_watch import FOLLOWER_LIMIT, StopRequest, WatchedThread
from reconsume.sidecar.printable import plural
from reconsume.topics.names import Names
from reconsume.topics.owner_notes import PARTITION as NOTES
from reconsume.topics.ownership import Reader, Readers, reader_of
from reconsume.topics.policy_record import PARTITION, InstanceHeard, OwnerHeard, instance_key
from reconsume.topics.position_ranges import RESET, ResetNote, read_resets

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


class LogReading:
    """One reading of the topic from its beginning. `begin`, `end`: the control log's watermarks when it began.

    `has_notes`: the topic has the partition for what owners note. Invariant: `is_live` implies that the control log was
    read up to `end`, and the notes to their end.
    """

    def __init__(self, own: InstanceInfo, begin: int, end: int, *, has_notes: bool) -> None:
        self.has_notes = has_notes
        self.is_live = False
        self.is_counted = False
        """Whether the log has a heartbeat of this instance, written since the log is live."""
        self.first = (begin, 0) if begin else None
        """The offset behind the first record that was read, and its time, by which the log is recognised."""
        self._own, self._end, self._readers = own, end, Readers()
        self._is_log_read = begin >= end
        self._are_notes_read = not has_notes

    @property
    def is_complete(self) -> bool:
        """Whether everything was read that was there at the beginning."""
        return self._is_log_read and self._are_notes_read

    def hear(self, message: Message) -> ControlRecord:
        """Take in a record of the control log, and return it."""
        offset, (kind, written_at) = message.offset() or 0, message.timestamp()
        # A time that a writer gave says nothing of now: then a heartbeat is as old as its reading.
        at = wall() if self.is_live and kind != TIMESTAMP_LOG_APPEND_TIME else written_at
        said = control_record(message.key(), message.value(), offset, at)
        self._readers.hear(said.heard, said.at)
        self.first = self.first or (offset + 1, written_at)
        self._is_log_read |= offset + 1 >= self._end
        return said

    def hear_end(self, message: Message) -> None:
        """Note that the end of a partition was reached."""
        if message.partition() == NOTES:
            self._are_notes_read = True
        else:  # a leader that was elected just now may tell an earlier end than was committed (KIP-207)
            self._is_log_read |= (message.offset() or 0) >= self._end

    def owner_by(self, said: ControlRecord) -> Reader | None:
        """Return who reads the group's retries next to which this instance may not, by a record of the live log."""
        if not self.is_live or not isinstance(said.heard, (InstanceHeard, OwnerHeard)):
            return None
        owner = self.owner_at(said.at)
        self.is_counted |= owner is None and said.key == instance_key(self._own.instance)
        return owner

    def owner_at(self, now_ms: int) -> Reader | None:
        """Return the same as the log is now."""
        return self._readers.against(reader_of(self._own.instance, self._own.fixed, now_ms), now_ms)


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
        self._reader, self._source, self._listener = dict(reader), source, listener
        self._credentials = unchanging() if credentials is None else credentials
        self._heartbeat = Heartbeat(writer, self._credentials, self._topic, source.own, self._say)
        self._topics = ClusterTopics(self._topic)
        self._stopping = StopRequest()
        self._said = ""
        self._log: LogReading | None = None
        """None while the topic is not read: it does not exist, or this user may not read it."""
        self._is_gone = False
        """Whether the topic that this client has read exists no more."""
        self._owner: Reader | None = None
        """Who reads the group's retries, so that this instance may not. It ends then, and publishes nothing more."""
        self._looked_at = -LOOK_EVERY

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
        """Follow with one client, until it must be replaced."""
        self._log, self._is_gone, self._looked_at = None, False, -LOOK_EVERY
        consumer = new_client(Consumer, self._reader, self._credentials, self._stopping)
        if consumer is None:
            return
        try:
            is_usable = True
            while is_usable and not self._stopping.is_set():
                # Both clients are replaced together, and everything is read and published again.
                are_keys_newest = self._credentials.apply_to(consumer, *self._heartbeat.clients)
                is_usable = are_keys_newest and self._turn(consumer)
            if not is_usable:
                self._heartbeat.renew()
        finally:
            consumer.close()

    def _turn(self, consumer: Consumer) -> bool:
        """Look, publish and read for a moment. Return whether the client can be used on."""
        if self._is_time_to_look() and not self._look(consumer):
            return False
        if self._owner is None:
            self._heartbeat.turn(there=self._log is not None)
            self._heartbeat.put_back(self._listener.unwritten())
        if self._log is None:
            self._stopping.wait(POLL)
        else:
            self._take(self._log, consumer, next_messages(consumer, POLL))
        return True

    # --- reading -----------------------------------------------------------------------------------------------------

    def _take(self, log: LogReading, consumer: Consumer, messages: Iterable[Message]) -> None:
        records, resets, is_any = list[ControlRecord](), list[ResetNote](), False
        was_live = log.is_live
        for message in messages:
            is_any = True
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                log.hear_end(message)
            elif error is not None:
                self._stumble(consumer, error)
            elif message.partition() == NOTES:
                resets += self._resets_in(message)
            else:
                records.append(log.hear(message))
                self._owner = self._owner or log.owner_by(records[-1])
        if was_live:
            self._heartbeat.hear(records)
        elif log.is_complete and log is self._log:
            log.is_live = True
            self._publish(log)
        if is_any:
            news = PolicyUpdate(tuple(records), None, log.is_complete, was_live, resets=tuple(resets))
            self._listener.on_update(news._replace(counted=log.is_counted, owner=self._owner))

    def _resets_in(self, message: Message) -> list[ResetNote]:
        """Return what an owner has noted of resets; nothing, if it is about something else."""
        key = message.key()
        if key is None or not key.startswith(RESET):
            return []
        note = read_resets(key, message.value())
        if isinstance(note, str):
            self._say(f"ignored in {self._topic}: {note}")
            return []
        return [note]

    def _publish(self, log: LogReading) -> None:
        """Publish the heartbeat, unless it was just published, or somebody else reads the group's retries."""
        self._owner = self._owner or log.owner_at(wall())
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
            self._log, self._is_gone = None, error.code() in GONE

    # --- looking -----------------------------------------------------------------------------------------------------

    def _is_time_to_look(self) -> bool:
        since = time.monotonic() - self._looked_at
        if self._listener.doubts():
            return since >= LOOK_AGAIN
        return since >= (HURRY if self._listener.hurried() or self._log is None else LOOK_EVERY)

    def _look(self, consumer: Consumer) -> bool:
        """Check the topics of the cluster, and begin to read the log if it is there.

        Return False if the log is not the one that was read: it was recreated, or has more partitions now.
        """
        self._looked_at, source = time.monotonic(), self._source
        wanted = self._listener.wanted()  # asked first: it must not be newer than the topics below
        awaited = self._listener.awaited()
        there = self._topics.ask(consumer, wanted | awaited | {self._topic, *source.topics})
        leftover = leftover_levels(self._topics.offsets(consumer), source.names, source.topics, there, wanted)
        has_notes, is_begun = there.get(self._topic, 0) > NOTES, False
        if self._topic not in there:
            self._say(
                f"{self._topic} is {ABSENT}: each instance applies the retry policy of its configuration, and "
                f"different configurations are not detected; `{hint('topics apply')}` creates what is missing"
            )
        elif self._is_gone or (self._log is not None and self._is_other_log(consumer, self._log, has_notes)):
            return False
        elif self._log is None:
            self._log, is_begun = self._begin(consumer, has_notes=has_notes), True
        log = self._log
        if log is not None and log.is_live:
            self._publish(log)
        look = TopicSnapshot(frozenset(there), wanted, leftover, awaited)
        caught_up, counted = log is None or log.is_live, log is None or log.is_counted
        self._listener.on_update(PolicyUpdate((), look, caught_up, False, is_begun, counted, self._owner))
        return True

    def _is_other_log(self, consumer: Consumer, log: LogReading, has_notes: bool) -> bool:
        """Whether the topic is not the one whose first record was read; the client reports only that there is none.

        The last record that was read may already be of the new topic.
        """
        if has_notes and not log.has_notes:
            return True
        read = {Partition(self._topic, PARTITION): log.first} if log.first else {}
        if not recreated(self._topics.offsets(consumer), read, METADATA_WITHIN):
            return False
        self._say(f"{self._topic} was deleted and created again; it is read from its beginning")
        return True

    def _begin(self, consumer: Consumer, *, has_notes: bool) -> LogReading:
        asked = TopicPartition(self._topic, PARTITION)
        begin, end = consumer.get_watermark_offsets(asked, timeout=METADATA_WITHIN, cached=False)
        # By number: if asked for "the beginning" before the leader is known, librdkafka asks again after 500 ms.
        partitions = [TopicPartition(self._topic, PARTITION, begin)]
        if has_notes:
            partitions.append(TopicPartition(self._topic, NOTES, OFFSET_BEGINNING))
        consumer.assign(partitions)
        log = LogReading(self._source.own, begin, end, has_notes=has_notes)
        log.is_live = log.is_complete
        return log

    def _say(self, text: str) -> None:
        """Log what is wrong, once until it changes."""
        if text != self._said:
            self._said = text
            _LOG.warning(text, extra={"event": "policy-topic"})
