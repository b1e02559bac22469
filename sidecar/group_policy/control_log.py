"""Read and write a group's control log, for commands, the API, the dashboard and `doctor`.

The control log is partition 0 of the policy topic. It is read as a whole into a `ControlState`, and read on from there.
Writes wait until every in-sync replica has the records. All calls block, end within seconds, and raise BrokerError
otherwise. A running sidecar follows the log on a thread of its own (`follower.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from confluent_kafka import KafkaError, Message, Producer

from reconsume.sidecar.clock import wall
from reconsume.sidecar.errors import BrokerError, ContractError
from reconsume.sidecar.group_policy.state import ControlState, control_record
from reconsume.sidecar.hints import absent
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import ConsumerGroup, Member
from reconsume.sidecar.kafka.client_config import client_id_of, teller_config
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.errors import ANSWER_SECONDS, FIRST_ANSWER_SECONDS
from reconsume.sidecar.kafka.scan import Bounds, Fetches, ScanClient
from reconsume.topics.names import Names
from reconsume.topics.owner_notes import PARTITION as OWNERS_PARTITION
from reconsume.topics.partition import Partition
from reconsume.topics.policy_record import PARTITION
from reconsume.topics.position_ranges import RESET, PartitionResets, ResetNote, Resets, read_resets, topic_digest

CLIENT = "reconsume-control"
MOST_UNSENT = 20_000
"""Records that wait for the brokers at a time: all decisions of a group, and their events."""


class ControlLog:
    """The control log of one group."""

    def __init__(
        self, kafka: Mapping[str, str], names: Names, client: str = CLIENT, cluster: Cluster | None = None
    ) -> None:
        """`cluster`: a connection that others use as well; None: one of its own."""
        self.cluster, self.names = cluster or Cluster(kafka, client), names
        self._kafka, self._client = kafka, client

    def read(self, within: float = ANSWER_SECONDS) -> ControlState:
        """Return what the log says. Raises ContractError if the policy topic does not exist.

        Raises BrokerError if the log cannot be read to its end within `within` seconds.
        """
        state = self.read_if_there(within)
        if state is None:
            raise ContractError(absent([self.names.policy]))
        return state

    def read_if_there(self, within: float = FIRST_ANSWER_SECONDS) -> ControlState | None:
        """Return what the log says; None if the policy topic does not exist. Raises BrokerError."""
        if not self.is_there():
            return None
        state = ControlState()
        self.read_on(state, within)
        return state

    def is_there(self) -> bool:
        """Whether the policy topic exists. Raises BrokerError."""
        return bool(self.cluster.existing([self.names.policy]))

    def read_on(self, state: ControlState, within: float = ANSWER_SECONDS) -> None:
        """Apply what was written since the last record of the state. Raises BrokerError."""
        for message in self.messages(state.next_offset, within):
            said = control_record(message.key(), message.value(), message.offset() or 0, message.timestamp()[1])
            state.apply(said, wall())

    def live_instances(self, state: ControlState) -> frozenset[str]:
        """Return the instances that are to obey: those that run by their heartbeats and are members of the group.

        Where this user may not see the group's members, all that run. Raises BrokerError.
        """
        running = state.beats.running(wall())
        if not running:
            return frozenset()
        groups = self.cluster.groups((self.names.group, self.names.retry_group))
        if self.names.group not in groups:
            return frozenset(running)
        return frozenset(name for name in running if members_of(name, groups))

    def messages(self, begin: int, within: float, partition: int = PARTITION) -> Iterator[Message]:
        """Yield the committed records of a partition from an offset on, up to its end now. Raises BrokerError."""
        spans = self.cluster.spans([(self.names.policy, partition)])
        wanted = {source: span._replace(begin=max(begin, span.begin)) for source, span in spans.items()}
        if wanted and all(span.begin >= span.end for span in wanted.values()):
            return  # nothing is new, which costs no client: a hold looks four times a second
        with ScanClient(self._kafka, self.names.retry_group, self._client, Fetches.LITTLE) as client:
            yield from client.scan(wanted, Bounds(seconds=within), expected=self.names.policy)

    def write(
        self,
        records: Mapping[bytes, bytes | None],
        otherwise: str = "nothing is known to be written",
        partition: int = PARTITION,
    ) -> dict[bytes, int]:
        """Write records, by key; None deletes one. Return the offset of each.

        Raises BrokerError, with the sentence `otherwise`, unless every in-sync replica has all of them.
        """
        with RecordWriter(self._kafka, self._client) as writer:
            for key, value in records.items():
                writer.send(self.names.policy, key, value, partition)
            return writer.confirm(otherwise)


class ResetLog:
    """What owners have noted of resets, by main partition, read on at each call. Used by one thread.

    It is in the partition of the policy topic that only owners write to, and a topic of an earlier version lacks that.
    """

    def __init__(self, log: ControlLog) -> None:
        self.resets: dict[Partition, PartitionResets] = {}
        """Whatever topic of the name they are about: `of_present` compares."""
        self._log, self._next, self._is_there = log, 0, False

    def read_on(self, within: float = ANSWER_SECONDS) -> None:
        """Read what was written since the last call. Raises BrokerError, and DeniedError if a right is missing."""
        policy = self._log.names.policy
        if not self._is_there:
            topic = self._log.cluster.existing([policy]).get(policy)
            self._is_there = topic is not None and topic.partitions > OWNERS_PARTITION
        if not self._is_there:
            return
        for message in self._log.messages(self._next, within, OWNERS_PARTITION):
            self._next = (message.offset() or 0) + 1
            key = message.key() or b""
            note = read_resets(key, message.value()) if key.startswith(RESET) else ""
            if isinstance(note, ResetNote):
                if note.resets is None:
                    self.resets.pop(note.partition, None)
                else:
                    self.resets[note.partition] = note.resets

    def of_present(self) -> Resets:
        """Return the resets of the topics as they are now: a recreated topic has had none. Raises BrokerError."""
        if not self.resets:
            return {}
        topics, _ = self._log.cluster.topics({source.topic for source in self.resets})
        return {
            source: resets
            for source, resets in self.resets.items()
            if source.topic in topics and topic_digest(topics[source.topic].id) == resets.topic
        }


def read_present_resets(kafka: Mapping[str, str], names: Names, client: str = CLIENT) -> Resets:
    """Return what resets say of the records of a group now; nothing without a policy topic. Raises BrokerError."""
    log = ResetLog(ControlLog(kafka, names, client))
    log.read_on()
    return log.of_present()


def members_of(instance: str, groups: Mapping[str, ConsumerGroup]) -> list[tuple[str, Member]]:
    """Return the members of the consumer groups that are this instance, each with its group."""
    members = ((group, member) for group, described in groups.items() for member in described.members)
    return [(group, member) for group, member in members if member.client == client_id_of(group, instance)]


class RecordWriter:
    """Writes a few records and waits until they are written. It is a context manager, whose end closes its client."""

    def __init__(self, kafka: Mapping[str, str], client: str) -> None:
        config = {**teller_config(kafka, client), "message.timeout.ms": int(ANSWER_SECONDS * 1000), "log_level": 0}
        self._producer = make_client(Producer, {**config, "queue.buffering.max.messages": MOST_UNSENT})
        self._faults: list[str] = []
        self._offsets: dict[bytes, int] = {}

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the client at once, although whoever keeps an error keeps the frames in which it was used."""
        self._producer.close()

    def send(self, topic: str, key: bytes, value: bytes | None, partition: int = PARTITION) -> None:
        """Send a record; None deletes the key. `confirm` says whether it was written."""

        def landed(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._faults.append(error.str())
            else:
                self._offsets[key] = message.offset() or 0

        self._producer.produce(topic, value, key, partition, on_delivery=landed)

    def confirm(self, otherwise: str) -> dict[bytes, int]:
        """Wait until every in-sync replica has what was sent, and return the offset of each key.

        Raises BrokerError, with the sentence `otherwise`, if a record is not known to be written.
        """
        unsent = self._producer.flush(ANSWER_SECONDS + 1)
        faults, self._faults = self._faults, []
        offsets, self._offsets = self._offsets, {}
        if faults or unsent:
            raise BrokerError(f"{otherwise}: {faults[0] if faults else 'the broker has not answered'}")
        return offsets
