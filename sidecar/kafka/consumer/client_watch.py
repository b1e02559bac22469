"""Find out when a client is of no more use, whatever it is told (librdkafka 2.16).

- It is *overtaken*: it takes part in no further rebalance (`membership.py`).
- It is *unknown*: the group has put it out. It has learned that, but neither gives its partitions up nor joins again.
- It is *cut off*: it knows no broker any more, while the cluster answers others (`kafka/cut_off.py`).

These come of rebalances and of brokers that restart, which are everyday events: a new client replaces it within the
process.

- It is *deaf* to a partition: there is something to read, and nothing comes. A topic that is deleted and created again
  begins with a leader epoch of 0. A client that knows a higher one of the topic before takes all that the cluster says
  of its leaders for out of date (`rd_kafka_toppar_leader_update`), and fetches nothing. No seek, pause, assignment or
  subscription changes that; the epochs are kept as long as the client. The process restarts in place for it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from confluent_kafka import OFFSET_STORED, Consumer

from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.consumer.assignment import Assignment
from reconsume.sidecar.kafka.consumer.client_assignment import OwnedPartition
from reconsume.sidecar.kafka.consumer.log_checks import LogIds, no_log_ids
from reconsume.sidecar.kafka.consumer.looks import named
from reconsume.sidecar.kafka.consumer.membership import member_of, metadata_of
from reconsume.sidecar.kafka.listeners import AskRestart, RestartCause, RestartReason, no_restart

DEAF_AFTER = 2
"""Looks in a row, of ten seconds each, behind the first: 20 to 30 s. A fetch takes half a second, and a leader that has
moved one or two."""
UNKNOWN_AFTER = 2
"""Turns of the looks (3 s each) in a row. The callback for a lost membership comes with the next poll."""
REST = 60.0
"""Seconds after an overtaken client was replaced until the next may be; doubled each time. If the sign was mistaken,
that costs few rebalances. An unknown member is replaced each time: it reads what others own."""
LONGEST_REST = 600.0
CALM = 3_600.0
"""Seconds after which the rests begin anew."""

_LOG = logging.getLogger("reconsume.consumer")


class Useless(StrEnum):
    """Why a client is of no more use."""

    OVERTAKEN = "overtaken"
    UNKNOWN = "unknown"
    CUT_OFF = "cut-off"


class ClientWatch:
    """The watch over one consumer's client, on its thread. `log_ids`: tells which logs topics have."""

    def __init__(self, log_ids: LogIds = no_log_ids, ask_restart: AskRestart = no_restart) -> None:
        self._log_ids, self._ask_restart = log_ids, ask_restart
        self.replaced: Counter[str] = Counter()
        """How many clients were replaced, by why."""
        self._silence = Silence()
        self._outside = 0
        self._emptied = self._choked = False
        self._rest = Rest()

    def emptied(self) -> None:
        """Note that all that the client had fetched has been taken."""
        self._emptied = True

    def choked(self) -> None:
        """Note that for want of room nothing is fetched."""
        self._choked = True

    def why_replace(
        self, consumer: Consumer, assignment: Assignment, now: float, *, is_cut_off: bool = False
    ) -> Useless | None:
        """Return why the client must be replaced, which is logged; None if it need not be.

        Call this in each turn of the looks. `now`: steady seconds.
        """
        owned_partitions = list(assignment.owned_partitions.values())
        if is_cut_off:
            why = Useless.CUT_OFF
        elif assignment.in_group and self._is_outside(consumer, owned_partitions):
            why = Useless.UNKNOWN
        elif assignment.group.overtaken and self._rest.is_over(now):
            why = Useless.OVERTAKEN
        else:
            return None
        about = named([owned.partition for owned in owned_partitions])
        _LOG.warning(TEXTS[why], about, extra={"event": "client-replaced", "why": str(why)})
        self.replaced[why] += 1
        self._outside, self._silence = 0, Silence()
        return why

    def _is_outside(self, consumer: Consumer, owned_partitions: Collection[OwnedPartition]) -> bool:
        outside = bool(owned_partitions) and member_of(metadata_of(consumer)) == ""
        self._outside = self._outside + 1 if outside else 0
        return self._outside >= UNKNOWN_AFTER

    def look_for_deaf(self, assignment: Assignment, ends: Mapping[Partition, int]) -> None:
        """Ask for a restart in place for partitions to which the client is deaf; `ends` as in `deaf_partitions`."""
        topics = {partition.topic for partition in self.deaf_partitions(assignment, ends)}
        logs = self._log_ids(topics) if topics else {}
        for topic in sorted(topics):
            self._ask_restart(RestartCause(RestartReason.CLIENT_DEAF, topic, "/".join(logs.get(topic, ()))))

    def deaf_partitions(self, assignment: Assignment, ends: Mapping[Partition, int]) -> list[Partition]:
        """Return the partitions to which the client is deaf. Call this with each look at the ends.

        `ends`: where partitions end, by a request of just now.
        """
        # What was fetched of a partition may still lie behind that of others, and a pause throws it away.
        whole, self._emptied, self._choked = self._emptied and not self._choked, False, False
        if not whole:
            return []
        owned_partitions, waiting = assignment.owned_partitions.values(), assignment.client.waiting
        return self._silence.find_deaf((owned for owned in owned_partitions if owned.partition not in waiting), ends)


TEXTS = {
    Useless.OVERTAKEN: "the group moved on while this instance gave partitions up, and its client would take part in "
    "no further rebalance: the group is joined anew, with a new client (it has %s)",
    Useless.UNKNOWN: "the group does not know this member any more, and its client does not join again: all is "
    "dropped, and the group is joined anew, with a new client (it had %s)",
    Useless.CUT_OFF: "this client reaches no broker any more, while Kafka answers others: all is dropped, and a new "
    "client reads on (it had %s)",
}


class Rest:
    """The pause until the next overtaken client may be replaced."""

    def __init__(self) -> None:
        self._seconds = REST / 2
        self._began = -2 * CALM

    def is_over(self, now: float) -> bool:
        """Return whether it is over at a steady time (seconds); if so, the next one begins."""
        since = now - self._began
        if since < self._seconds:
            return False
        self._seconds = REST if since > CALM else min(2 * self._seconds, LONGEST_REST)
        self._began = now
        return True


class _Arrived(NamedTuple):
    """What has come of a partition until a look. It changes with each message, seek and assignment."""

    epoch: int
    seek_count: int
    arrivals: int


class Silence:
    """The partitions of which nothing came from one look to the next, and for how many looks in a row."""

    def __init__(self) -> None:
        self._last: dict[Partition, tuple[_Arrived, int]] = {}

    def find_deaf(self, owned_partitions: Iterable[OwnedPartition], ends: Mapping[Partition, int]) -> list[Partition]:
        """Return the partitions that are deaf. `ends`: of those whose leader has just answered."""
        looked: dict[Partition, tuple[_Arrived, int]] = {}
        for owned in owned_partitions:
            if owned.wanted.is_fetched and owned.partition in ends and _has_news(owned, ends[owned.partition]):
                arrived = _Arrived(owned.epoch, owned.seek_count, owned.arrivals)
                before, looks = self._last.get(owned.partition, (arrived, -1))
                looked[owned.partition] = arrived, looks + 1 if before == arrived else 0
        self._last = looked
        return [source for source, (_, looks) in looked.items() if looks >= DEAF_AFTER]


def _has_news(owned: OwnedPartition, end: int) -> bool:
    """Return whether the client has to say something of a partition: records, a first end, or a log that is shorter."""
    if owned.awaits is not None:
        return owned.awaits.offset != OFFSET_STORED
    return end != owned.position
