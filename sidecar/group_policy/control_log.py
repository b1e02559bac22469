"""Read and write a group's control log, for commands, the API, the dashboard, `doctor` and Spark queries.

The control log is partition 0 of the policy topic. It is read as a whole into a `ControlState`, and read on from there.
Writes wait until every in-sync replica has the records. All calls block, end within seconds, and raise BrokerError
otherwise. A running sidecar follows the log on a thread of its own (`follower.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaError, Message, Producer

from reconsume.sidecar.clock import wall
from reconsume.sidecar.errors import BrokerError, ContractError
from reconsume.sidecar.group_policy.state import ControlState, control_record
from reconsume.sidecar.hints import absent, hint
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import ConsumerGroup, Member
from reconsume.sidecar.kafka.client_config import client_id_of, teller_config
from reconsume.sidecar.kafka.clients import return_client, take_client
from reconsume.sidecar.kafka.errors import ANSWER_SECONDS, FIRST_ANSWER_SECONDS
from reconsume.sidecar.kafka.policy_topic import messages_from
from reconsume.topics.names import Names
from reconsume.topics.owner_notes import PARTITION as NOTES
from reconsume.topics.policy_record import PARTITION

MOST_UNSENT = 20_000
"""Records that wait for the brokers at a time: all decisions of a group, and their events."""


class ControlLog:
    """The control log of one group. `cluster`: the connection of the caller, who reads more than this."""

    def __init__(self, cluster: Cluster, names: Names) -> None:
        self.cluster, self.names = cluster, names

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

    def expect_notes(self, why: str) -> None:
        """Raise ContractError if the policy topic does not exist, or has no room for the notes of owners.

        `why`: what needs them.
        """
        topic = self.cluster.existing([self.names.policy]).get(self.names.policy)
        if topic is None:
            raise ContractError(absent([self.names.policy]))
        if topic.partitions <= NOTES:
            text = f"{topic.name} has one partition, and {why} needs two: `{hint('topics apply')}` adds it"
            raise ContractError(text)

    def read_on(self, state: ControlState, within: float = ANSWER_SECONDS, end: int | None = None) -> None:
        """Apply what was written since the last record of the state, up to the offset `end`. Raises BrokerError."""
        for message in messages_from(self.cluster, self.names, PARTITION, state.next_offset, within, end):
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

    def write(
        self,
        records: Mapping[bytes, bytes | None],
        otherwise: str = "nothing is known to be written",
        partition: int = PARTITION,
    ) -> dict[bytes, int]:
        """Write records, by key; None deletes one. Return the offset of each.

        Raises BrokerError, with the sentence `otherwise`, unless every in-sync replica has all of them.
        """
        with RecordWriter(self.cluster) as writer:
            for key, value in records.items():
                writer.send(self.names.policy, key, value, partition)
            return writer.confirm(otherwise)


def members_of(instance: str, groups: Mapping[str, ConsumerGroup]) -> list[tuple[str, Member]]:
    """Return the members of the consumer groups that are this instance, each with its group."""
    members = ((group, member) for group, described in groups.items() for member in described.members)
    return [(group, member) for group, member in members if member.client == client_id_of(group, instance)]


class RecordWriter:
    """Writes a few records and waits until they are written. It is a context manager, whose end returns its client
    (`return_client`)."""

    def __init__(self, cluster: Cluster) -> None:
        self._config = {
            **teller_config(cluster.kafka, cluster.client_id),
            "message.timeout.ms": int(ANSWER_SECONDS * 1000),
            "log_level": 0,
            "queue.buffering.max.messages": MOST_UNSENT,
        }
        self._producer = take_client(Producer, self._config)
        self._is_usable = True
        self._faults: list[str] = []
        self._offsets: dict[bytes, int] = {}

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._is_usable = self._is_usable and kind is None
        self.close()

    def close(self) -> None:
        """Return the client. Nothing that is unwritten is waited for."""
        if not self._is_usable:
            self._producer.purge()
        # Whoever keeps an error keeps the frames in which the client was used: so it is closed, and not only dropped.
        return_client(self._producer, self._config, is_usable=self._is_usable)

    def send(self, topic: str, key: bytes, value: bytes | None, partition: int = PARTITION) -> None:
        """Send a record; None deletes the key. `confirm` says whether it was written."""

        def landed(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._faults.append(error.str())
            else:
                self._offsets[key] = message.offset() or 0

        self._producer.produce(topic, value, key, partition, on_delivery=landed)

    def confirm(self, otherwise: str, within: float = ANSWER_SECONDS + 1) -> dict[bytes, int]:
        """Wait until every in-sync replica has what was sent, and return the offset of each key.

        Raises BrokerError, with the sentence `otherwise`, if a record is not known to be written in `within` seconds.
        """
        unsent = self._producer.flush(within)
        faults, self._faults = self._faults, []
        offsets, self._offsets = self._offsets, {}
        if faults or unsent:
            self._is_usable = False
            raise BrokerError(f"{otherwise}: {faults[0] if faults else 'the broker has not answered'}")
        return offsets
