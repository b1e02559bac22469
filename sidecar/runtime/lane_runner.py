"""A lane with all that it runs on: its consumer's thread, its committer's thread, and the bridge between them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from reconsume.sidecar.clock import now
from reconsume.sidecar.core.ages import Wait
from reconsume.sidecar.core.lane import Lane, LaneOptions
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.ports import Delivery, Ports
from reconsume.sidecar.core.queues import AT_HAND_SHARE
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.core.status import PartitionRow, partition_rows
from reconsume.sidecar.delivery.broadcast import AllPartitions, NoCommitter
from reconsume.sidecar.kafka.admin.cluster import Connection
from reconsume.sidecar.kafka.client_config import (
    Properties,
    client_id_of,
    consumer_config,
    producer_config,
    reader_config,
    view_config,
    whole_fetches,
)
from reconsume.sidecar.kafka.clients import CredentialRegistry
from reconsume.sidecar.kafka.committer.committer import Committer
from reconsume.sidecar.kafka.committer.target_topics import KnownOutputs
from reconsume.sidecar.kafka.consumer.assignment import Assignment
from reconsume.sidecar.kafka.consumer.consumer import ConsumerThread
from reconsume.sidecar.kafka.consumer.hand_over import HEAVY
from reconsume.sidecar.kafka.consumer.log_checks import KafkaLogIds
from reconsume.sidecar.kafka.consumer.start_offsets import ReaderBefore
from reconsume.sidecar.kafka.listeners import AskRestart, no_restart
from reconsume.sidecar.kafka.messages import main_reading_of, queue_reading_of, reading_of
from reconsume.sidecar.kafka.owner_reader import OwnerReader
from reconsume.sidecar.kafka.queues.queue_thread import QueueHelp, QueueThread
from reconsume.sidecar.observability.queue_lines import log_filling
from reconsume.sidecar.observability.thread_watch import WatchedThread
from reconsume.sidecar.runtime.loop_bridge import LoopBridge

HAND_OVER_SHARE = 8
"""One part in this many of the room is handed over at a time at most. The lane is told so late that it is full; with
more, the copies of what came beyond the room could stop it if Kafka refuses them all."""
STALLED_AFTER = 30.0
"""Seconds without a turn of the consumer's thread, beyond `lock_timeout`, after which it counts as stuck."""

_LOG = logging.getLogger("reconsume.lane")


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """The task of one lane.

    `waits`: its topics and their delays in ms; empty for main topics. On main topics the retry headers of the systems
    in `understand` are read; `drains`: the main topic of each drained one. `terms`: which records the lane takes, and
    how many of them.
    """

    name: str
    group: str
    topics: tuple[str, ...]
    waits: Mapping[str, int]
    start_at: str
    lock_timeout: float
    terms: LaneOptions
    understand: tuple[str, ...] = ()
    drains: Mapping[str, str] = field(default_factory=dict)
    broadcast: bool = False
    """Whether it reads all partitions, whichever other instances read them, and keeps nothing. `group` never has a
    member or an offset."""
    read_since_ms: int | None = None
    """Of a broadcast: since when (epoch ms) records count that were written before the start."""


class LaneRunner:
    """One running lane. Made on the event loop. `observe` gets the result and the seconds of each transaction."""

    def __init__(
        self,
        plan: LaneSpec,
        policy: Policy,
        kafka: Properties,
        dispatcher: Dispatcher,
        delivery: Delivery,
        observe: Callable[[str, float], None],
        registry: CredentialRegistry,
        outputs: KnownOutputs | None = None,
        ask_restart: AskRestart = no_restart,
    ) -> None:
        self.plan = plan
        self.policy = policy
        self._waits = waits_of(plan.waits, policy)
        has_queues = policy.has_queues and not plan.waits
        self.driver = LoopBridge(asyncio.get_running_loop())
        self.assignment: Assignment
        self.committer: Committer | NoCommitter
        client = client_id_of(plan.group, policy.instance)
        credentials = registry.register(f"consumer-{plan.group}")
        if plan.broadcast:
            everything = AllPartitions(self.driver, lock_timeout=plan.lock_timeout, read_since_ms=plan.read_since_ms)
            self.assignment, self.committer = everything, NoCommitter(everything, self.driver.committed)
        else:
            classic = kafka.get("group.protocol", "classic") == "classic"
            # In relay mode the service reads the ready topic in the main group, and the sidecar does not.
            other = reader_config(kafka, policy.names.group, client)
            reads_ready = bool(plan.waits) and not policy.relay
            before = ReaderBefore(lambda: credentials.newest(other), [policy.names.ready]) if reads_ready else None
            self.assignment = Assignment(
                self.driver,
                start_at=plan.start_at,
                lock_timeout=plan.lock_timeout,
                stepwise=classic,
                before=before,
                log_ids=KafkaLogIds(lambda: Connection(credentials.newest(kafka), f"{client}-ids")),
                # A level is read from its beginning by the client that it has; no restart is needed.
                ask_restart=no_restart if plan.waits else ask_restart,
            )
            self.committer = Committer(
                producer_config(
                    kafka, f"{policy.names.group}-{plan.name}-{policy.instance}", client, locates=has_queues
                ),
                reader_config(kafka, plan.group, client),
                self.assignment,
                self.driver.committed,
                observe,
                registry,
                self.driver.member_refused,
                outputs,
            )
        self.consumer = ConsumerThread(
            consumer_config(kafka, plan.group, client, own=bool(plan.waits) or policy.relay),
            plan.topics,
            self.driver,
            self.assignment,
            reading_of(policy) if plan.waits else main_reading_of(plan.understand, plan.drains),
            credentials,
            min(HEAVY, plan.terms.room // HAND_OVER_SHARE),
            ask_restart,
        )
        due_offsets, self.consumer.looks.tell_ends = self.consumer.looks.due_offsets, self.driver.ended
        due_offsets.waits, due_offsets.tell = lambda: self._waits, self.driver.looked
        self.queues: QueueThread | None = None
        if has_queues and isinstance(self.committer, Committer):
            ids = KafkaLogIds(lambda: Connection(credentials.newest(kafka), f"{client}-queue-ids"))
            missing = self.committer.look_up_missing
            self.queues = QueueThread(
                whole_fetches(view_config(kafka, plan.group, client)),
                self.driver,
                registry,
                plan.terms.room // AT_HAND_SHARE,
                QueueHelp(lambda: self.policy, missing, ids, ask_restart, self._repeat_takeover),
            )
        self.owner_reader = OwnerReader(
            lambda: credentials.newest(kafka),
            plan.group,
            f"{client}-notes",
            lambda: self.policy.names.policy,
            lambda: queue_reading_of(lambda: self.policy) if has_queues else reading_of(self.policy),
            self.driver,
        )
        ports = Ports(
            self.consumer,
            delivery,
            self.committer.submit,
            self.driver.wake,
            delivery.recall,
            tell,
            self.queues,
            log_filling,
            delivery.withdraw,
            self.consumer.repeat_takeover,
            self.owner_reader,
        )
        terms = plan.terms._replace(proves_room=not plan.broadcast)
        self.lane = self.driver.lane = Lane(policy, self._waits, ports, dispatcher, terms)

    async def start(self, known: Callable[[], Awaitable[None]]) -> None:
        """Make the producer, then subscribe.

        `known` returns when the policy that decides about the records is known.
        """
        # First `init_transactions`: it ends what a predecessor left open.
        self.committer.start()
        while not self.committer.ready.is_set():
            await asyncio.sleep(0.01)
        await known()
        if self.queues is not None:
            self.queues.start()
        self.consumer.start()

    def apply_policy(self, policy: Policy, waits: Mapping[str, int]) -> None:
        """Apply another policy. A retry lane reads the topics of `waits`, with their delays in ms, from now on."""
        # No topic is removed: one that is not read any more may stay assigned until the rebalance is over.
        self._waits = {**self._waits, **waits_of(waits, policy)}
        self.policy = policy
        self.lane.apply_policy(policy, self._waits)
        if waits:
            self.consumer.subscribe(tuple(waits))

    def wait_for_deliveries(self, timeout: float) -> None:
        """From now on, let a partition that is taken away wait for its deliveries for so many seconds."""
        self.consumer.wait_for_deliveries(timeout)

    def expect_queues(self) -> None:
        """Take it that the group has a ladder, even if the policy that is applied has none."""
        if self.queues is not None:
            self.queues.expect_queues()

    def _repeat_takeover(self, queue: Partition) -> None:
        """Have the main partition of a queue taken over once more: the queue that it had was deleted."""
        ordered = self.policy.names.ordered
        self.consumer.repeat_takeover(
            {Partition(topic, queue.number) for topic in self.plan.topics if ordered(topic) == queue.topic}
        )

    def take_part(self, member: bool) -> None:
        """Join the group, or give all partitions up in order and leave it."""
        self.consumer.take_part(member)

    @property
    def started(self) -> bool:
        """Whether the lane consumes, or would as a member of the group."""
        return self.consumer.is_alive() and self.assignment.placed

    @property
    def last_error(self) -> str:
        """The last error from Kafka, to either thread; empty if there was none."""
        queues = "" if self.queues is None else self.queues.last_error
        return self.committer.last_error or self.consumer.last_error or queues or self.consumer.looks.problem

    @property
    def lacks_room(self) -> bool:
        """Whether the brokers refuse the longest progress."""
        return self.driver.lacks_room

    @property
    def refused(self) -> str:
        """Why the consumer group does not take this instance; empty if it does, or was not asked yet."""
        return self.assignment.group.refused

    def status(self) -> list[PartitionRow]:
        """Return the present state of each partition."""
        moment = now()
        oldest = None if self.lane.queues is None else self.lane.queues.oldest()
        facts = self.lane.shown.facts(moment)
        return partition_rows(facts, self.driver.ages.waits(facts, moment), moment, oldest)

    def waits(self) -> dict[Partition, Wait]:
        """Return what the oldest record of each partition waits for."""
        moment = now()
        return self.driver.ages.waits(self.lane.shown.facts(moment), moment)

    def ends(self) -> Mapping[Partition, int]:
        """Return where each partition ended a few seconds ago, with what transactions hold back that are open."""
        return self.consumer.looks.highs

    def look_up_missing(self, wanted: frozenset[str]) -> frozenset[str] | None:
        """Return which of these topics are missing; None if Kafka does not tell. Blocks: not for the event loop."""
        return self.committer.look_up_missing(wanted)

    def partition_counts(self, wanted: frozenset[str]) -> dict[str, int]:
        """Return how many partitions these topics have, as far as Kafka tells. Blocks: not for the event loop."""
        return self.committer.partition_counts(wanted)

    def watched(self) -> list[WatchedThread]:
        """Return the lane's threads. A committer that keeps nothing has none."""
        name, consumer, committer = self.plan.name, self.consumer, self.committer
        limit = STALLED_AFTER + self.assignment.lock_timeout
        threads = [
            WatchedThread(f"consumer-{name}", consumer, lambda: consumer.last_poll_at, limit, lambda: consumer.failure)
        ]
        if (queues := self.queues) is not None:
            threads += [
                WatchedThread(f"queues-{name}", queues, lambda: queues.turned_at, limit, lambda: queues.failure)
            ]
        reader = self.owner_reader
        threads.append(WatchedThread(f"notes-{name}", reader, lambda: reader.turned_at, limit, lambda: reader.failure))
        if isinstance(committer, Committer):
            threads.append(WatchedThread(f"committer-{name}", committer, lambda: committer.turned_at))
        return threads

    async def drain(self, timeout: float, leave_within: float = 1.0) -> int:
        """Give all partitions up in order within `timeout` seconds, and leave the group within `leave_within` more.

        Returns how many records, at most, were answered but not committed to Kafka.
        """
        before = self.lane.shown.unsaved_at_loss()
        self.consumer.stop(timeout)
        deadline = time.monotonic() + timeout + leave_within
        while self.consumer.is_alive() and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        if self.queues is not None:
            self.queues.stop()
        self.owner_reader.stop()
        self.committer.stop()
        return self.lane.shown.unsaved() - before


def tell(what: str, partition: Partition, number: int, offset: int) -> None:
    """Log an event of a lane (port `Notice`)."""
    where = {"partition": str(partition), "offset": offset}
    match what:
        case "crashing-record":
            text = "%s: the record at %d goes to the DLQ: only it was with the service at %d crashes in a row"
            _LOG.warning(text, partition, offset, number, extra={"event": "crashing-record", "deaths": number, **where})
        case "taken-up":
            text = "%s: continues at %d after its owner crashed, %d in a row"
            _LOG.warning(text, partition, offset, number, extra={"event": "taken-up", "deaths": number, **where})
        case "notes-lost":
            text = (
                "%s: the notes of what was settled before its turn are gone, as the policy topic was recreated; it "
                "goes on at %d, and what was settled may be delivered"
            )
            _LOG.error(text, partition, offset, extra={"event": "notes-lost", **where})
        case "notes-former":
            text = "%s: %d notes are about a former topic of this name: they mean nothing, and are deleted"
            _LOG.warning(text, partition, number, extra={"event": "notes-former", "notes": number, **where})
        case "position-reset":
            text = "%s: an operator has reset the position; it goes on at %d, in retry cycle %d"
            _LOG.info(text, partition, offset, number, extra={"event": "position-reset", "cycle": number, **where})
        case "blocked":
            text = "%s: stops at %d, because Kafka refuses copies of its records, %d of them; other partitions go on"
            extra = {"event": "partition-blocked", "copies": number, **where}
            _LOG.warning(text, partition, offset, number, extra=extra)
        case _:
            text = "%s: goes on at %d: Kafka accepts copies of its records again"
            _LOG.info(text, partition, offset, extra={"event": "partition-unblocked", **where})


def waits_of(delays: Mapping[str, int], policy: Policy) -> dict[str, int]:
    """Return how long records wait in each topic (ms): its delay, divided by the speed of the policy."""
    return {topic: policy.sped_up(delay) for topic, delay in delays.items()}
