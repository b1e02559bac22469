"""A lane's consumer: one thread that always polls, turns messages into records and hands them to the event loop.

Every call of the client is made on this thread: consume, pause, seek, resume, and the callbacks of `assignment.py`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from queue import SimpleQueue

from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from reconsume.sidecar.background import ContextThread
from reconsume.sidecar.core.partition import WantedFetch
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.client_config import fetches_whole, whole_fetches
from reconsume.sidecar.kafka.clients import ClientCredentials, new_client, unchanging
from reconsume.sidecar.kafka.consumer.assignment import Assignment
from reconsume.sidecar.kafka.consumer.client_assignment import with_edges
from reconsume.sidecar.kafka.consumer.client_watch import ClientWatch, Useless
from reconsume.sidecar.kafka.consumer.hand_over import HEAVY, HandedOver, HandOver, lost_positions
from reconsume.sidecar.kafka.consumer.looks import Looks, named
from reconsume.sidecar.kafka.cut_off import CutOffWatch
from reconsume.sidecar.kafka.listeners import AskRestart, RecordListener, no_restart
from reconsume.sidecar.kafka.messages import Reading

POLL = 0.1
"""Seconds that a command waits at most while some partition is paused: `delay_queue.RESUME_EARLY_MS` counts on it."""
QUIET_POLL = 0.2
"""The same while none is: nothing is to be resumed. The client itself wakes so often, and each turn costs CPU."""
NAP = 0.002
"""Seconds between two checks for room. At 100 000 records/s a queue of 6 000 is never empty meanwhile."""
UNJOINED = 5.0
"""Seconds after which a client that is no member is replaced by one that subscribes to other topics. With none of its
topics in the cluster it would never become a member."""
OUTSIDE = 0.1
"""Seconds until a thread that is to be no member looks again whether it is to end, or to join."""
CHOKED_AFTER = 0.25
"""Seconds without room before all partitions are paused, so that polling, and with it rebalances, can go on."""

_LOG = logging.getLogger("reconsume.consumer")


class Demands:
    """What other threads demand of a consumer's thread: topics to read, membership, commands, and its end."""

    def __init__(self, topics: Sequence[str]) -> None:
        self.topics: Sequence[str] = list(topics)
        """Replaced as a whole."""
        self.changed_at = 0.0
        """When they were replaced (monotonic seconds)."""
        self.commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.stopping = threading.Event()
        self.member = threading.Event()
        self.member.set()

    def subscribe(self, topics: Sequence[str]) -> None:
        """Demand other topics, if they are others."""
        if set(topics) != set(self.topics):
            self.topics, self.changed_at = list(topics), time.monotonic()


class LaneClient:
    """The client of one lane's consumer; used on the consumer's thread. `consumer`: None while there is none."""

    def __init__(self, config: Mapping[str, object], credentials: ClientCredentials | None) -> None:
        self.consumer: Consumer | None = None
        self._config = dict(config)
        self._credentials = unchanging() if credentials is None else credentials
        self._cut_off_watch = CutOffWatch()

    def make(self, stopping: threading.Event, each_try: Callable[[], None]) -> Consumer | None:
        """Make a client with the newest credentials, and return it; None if a stop comes first."""
        self.consumer = new_client(Consumer, self._config, self._credentials, stopping, each_try)
        return self.consumer

    def is_valid(self, consumer: Consumer) -> bool:
        """Give the client the newest credentials; False: another one must be made for that."""
        return self._credentials.apply_to(consumer)

    def keep_up(self) -> None:
        """Take newer credentials although there is no client: others wait until each client has them."""
        if self._credentials.due:
            self._credentials.adopt(self._config)

    def is_cut_off(self, *, is_answered: bool) -> bool:
        """Return whether the client has lost the cluster for good (`CutOffWatch`). `is_answered`: by other requests."""
        if is_answered or self.consumer is None:
            self._cut_off_watch.heard()
            return False
        return self._cut_off_watch.look([self.consumer], self._credentials.newest(self._config))

    def fetch_whole(self) -> None:
        """Have the next client fetch more at a time."""
        self._config = whole_fetches(self._config)

    def close(self) -> None:
        """End the client, if there is one. It may call back."""
        if self.consumer is not None:
            # No other method: after its last partition librdkafka may never return from one, with the interpreter's
            # lock held.
            self.consumer.close()
            self.consumer = None


class ConsumerThread(ContextThread):
    """The thread that reads one lane's topics.

    `reading`: None on the main lane, unless it reads foreign headers. `heavy`: bytes after which a hand-over ends.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        topics: Sequence[str],
        handler: RecordListener,
        assignment: Assignment,
        reading: Reading | None,
        credentials: ClientCredentials | None = None,
        heavy: int = HEAVY,
        ask_restart: AskRestart = no_restart,
    ) -> None:
        super().__init__(f"consumer-{config['group.id']}")
        self.assignment = assignment
        self.failure: BaseException | None = None
        """The exception that ended the thread; None if there was none."""
        self.last_error = ""
        self.last_poll_at = time.monotonic()
        """When the loop last began a turn (monotonic seconds), for the liveness probe."""
        self.looks = Looks(log_ids=assignment.starts.log_ids)
        self.client_watch = ClientWatch(assignment.starts.log_ids, ask_restart)
        self._client = LaneClient(config, credentials)
        self._demands = Demands(topics)
        self._poll = POLL
        self._handler = handler
        self._hand_overs = HandOver(assignment.owned_partitions, reading, heavy, gaps=fetches_whole(config))
        self._full_since: float | None = None

    # --- called from other threads -----------------------------------------------------------------------------------

    def want_fetch(self, partition: Partition, wanted: WantedFetch) -> None:
        """Fetch a partition as the lane wants it (port `Fetch`)."""
        self._demands.commands.put(lambda: self._take_wanted(partition, wanted))

    def repeat_takeover(self, partitions: Collection[Partition]) -> None:
        """Begin with partitions once more, at the group's progress, as if they were assigned just now."""
        self._demands.commands.put(lambda: self._repeat_takeover(partitions))

    def subscribe(self, topics: Sequence[str]) -> None:
        """Read these topics from now on. Partitions of other topics are given up in order.

        The group learns it as soon as the client takes it.
        """
        self._demands.subscribe(topics)

    def take_part(self, member: bool) -> None:
        """Be a member of the group from now on, or give everything up in order and leave it. A thread begins as one."""
        (self._demands.member.set if member else self._demands.member.clear)()

    def wait_for_deliveries(self, timeout: float) -> None:
        """From now on, let a partition that is taken away wait for its deliveries for so many seconds."""
        if not self._demands.stopping.is_set():
            self.assignment.lock_timeout = timeout

    def stop(self, timeout: float) -> None:
        """Give everything up in order within `timeout` seconds, leave the group and end. Returns at once."""
        self._demands.stopping.set()
        self.assignment.lock_timeout = timeout

    # --- the loop ----------------------------------------------------------------------------------------------------

    def do_work(self) -> None:
        """Poll until stopped, or until an error ends the thread."""
        try:
            while not self._demands.stopping.is_set():
                if self._demands.member.is_set():
                    self._poll_once()
                else:
                    self._stay_outside()
            self._leave()
        except BaseException as failure:  # noqa: BLE001 - a thread that fails must end the process, whatever the cause
            _LOG.exception("the consumer thread has ended", extra={"event": "thread-ended"})
            self.failure = failure

    def _join_group(self) -> None:
        """Make a client with the newest credentials, and join; do nothing if a stop comes first."""
        if (consumer := self._client.make(self._demands.stopping, self._count_turn)) is not None:
            self.assignment.join(consumer, self._demands.topics)

    def _count_turn(self) -> None:
        self.last_poll_at = time.monotonic()

    def _begin_anew(self) -> None:
        """Give everything up in order, as in a rebalance, and join again with a new client."""
        self._leave()
        self._join_group()

    def _leave(self) -> None:
        """Give everything up in order, and leave the group together with the client."""
        if self._client.consumer is not None:
            self.assignment.leave(self._client.consumer)
            self._close()

    def _close(self) -> None:
        if self._client.consumer is not None:
            self._client.close()
            self.assignment.closed()
            self._full_since = None

    def _stay_outside(self) -> None:
        self._leave()
        self.last_poll_at = time.monotonic()
        self._run_commands()  # they are about partitions that are gone
        self._client.keep_up()
        self._demands.member.wait(OUTSIDE)

    def _subscribe(self, consumer: Consumer) -> bool:
        """Subscribe to other topics, if the client takes that now; False: it was replaced for that."""
        if self.assignment.group.may_subscribe(consumer):
            self.assignment.join(consumer, self._demands.topics)
        elif not self.assignment.owned_partitions and time.monotonic() - self._demands.changed_at > UNJOINED:
            self._begin_anew()
            return False
        return True

    def _poll_once(self) -> None:
        self.last_poll_at = time.monotonic()
        if (consumer := self._client.consumer) is None:
            self._join_group()
            return
        if not self._client.is_valid(consumer):
            self._begin_anew()
            return
        if self._demands.topics is not self.assignment.topics and not self._subscribe(consumer):
            return
        self.assignment.answer(consumer)
        self.assignment.request_offsets(consumer, self.last_poll_at)
        self._run_commands()
        at = self.last_poll_at
        if self.looks.is_time(at) and (useless := self._check_client(consumer, at)) is not None:
            self._replace_client(useless)
            return
        if self._handler.full():
            self._wait_for_room(consumer)
            return
        self._full_since = None
        if self.assignment.client.is_choked:
            self._choke(consumer, False)
        taken = self._hand_overs.next_hand_over(consumer, self._poll, self.looks.due_offsets.waits())
        if not taken.messages:
            self.client_watch.emptied()
        self._give(consumer, taken)

    def _check_client(self, consumer: Consumer, now: float) -> Useless | None:
        """Look at the logs, at the group, and at the client; return why it must be replaced. `now`: steady seconds."""
        begins = self.looks.begins
        if begins:
            self.assignment.group.note_generation(consumer)
        owned_partitions = self.assignment.owned_partitions
        is_any_paused = any(not owned.wanted.is_fetched for owned in owned_partitions.values())
        self._poll = POLL if is_any_paused else QUIET_POLL
        logs = self.assignment.starts.lookup(consumer)
        self.assignment.take_up_recreated(consumer, self.looks.ask(logs, owned_partitions, now))
        if begins:
            self.client_watch.look_for_deaf(self.assignment, self.looks.answered)
        is_cut_off = begins and self._client.is_cut_off(is_answered=bool(self.looks.answered))
        return self.client_watch.why_replace(consumer, self.assignment, now, is_cut_off=is_cut_off)

    def _replace_client(self, why: Useless) -> None:
        # Nothing of what is under way can be committed, and others may have it.
        if why is not Useless.OVERTAKEN and self.assignment.in_group:
            self.assignment.abandon()
            self._close()
        self._begin_anew()

    def _run_commands(self) -> None:
        while not self._demands.commands.empty():  # only this thread takes them
            self._demands.commands.get_nowait()()
        if self._client.consumer is not None:
            self.assignment.reconcile(self._client.consumer)

    def _wait_for_room(self, consumer: Consumer) -> None:
        if self.assignment.client.is_choked:
            messages = consumer.consume(1, 10 * NAP)  # records that were on their way, and rebalances
            if not self._hand_overs.put_off(messages):
                self._hand_over(consumer, messages)
        elif self._full_since is None:
            self._full_since = time.monotonic()
        elif time.monotonic() - self._full_since < CHOKED_AFTER:
            self._demands.stopping.wait(NAP)
        else:
            self._choke(consumer, True)

    def _choke(self, consumer: Consumer, is_choked: bool) -> None:
        self.client_watch.choked()
        self.assignment.choke(consumer, is_choked)

    def _take_wanted(self, partition: Partition, wanted: WantedFetch) -> None:
        if not wanted.is_fetched:
            self._poll = POLL
        if self._client.consumer is not None:
            self.assignment.take_wanted(self._client.consumer, partition, wanted)

    def _repeat_takeover(self, partitions: Collection[Partition]) -> None:
        if self._client.consumer is not None:
            self.assignment.repeat_takeover(self._client.consumer, partitions)

    # --- records -----------------------------------------------------------------------------------------------------

    def _hand_over(self, consumer: Consumer, messages: Iterable[Message]) -> None:
        self._give(consumer, self._hand_overs.collect(messages, self.looks.due_offsets.waits()))

    def _give(self, consumer: Consumer, handed_over: HandedOver) -> None:
        if handed_over.runs:
            levels, owned_partitions = self.looks.due_offsets.waits(), self.assignment.owned_partitions
            runs = [
                with_edges(consumer, owned_partitions[run.partition], run) if run.partition.topic in levels else run
                for run in handed_over.runs
            ]
            self._handler.received(runs, handed_over.weight)
        if handed_over.firsts:
            self._hand_overs.forget_partitions(handed_over.firsts)
            self.assignment.learn(consumer, handed_over.firsts)
        if handed_over.gap is not None:
            self._fetch_whole(handed_over.gap)
        elif handed_over.errors:  # after the records before them: an error may say that the log is cut there
            self._on_errors(consumer, handed_over.errors)

    def _fetch_whole(self, source: Partition) -> None:
        """Fetch more at a time from now on, as transactions may write where offsets are missing; with a new client."""
        text = "%s[%s] has gaps, as transactions leave them: the group is joined anew, to fetch more at a time"
        _LOG.info(text, *source, extra={"event": "fetches-whole"})
        self._client.fetch_whole()
        self._hand_overs.gaps = True
        self._begin_anew()

    def _on_errors(self, consumer: Consumer, errors: Iterable[tuple[Message, KafkaError]]) -> None:
        positions = lost_positions(self.assignment.owned_partitions, errors)
        self.assignment.without_offset(consumer, positions.unstarted)
        if positions.lost:
            self.last_error = f"the offsets are not in the logs: {named(positions.lost)}"
            self.assignment.out_of_range(consumer, positions.lost)
        for error in positions.others:
            self._on_error(error)

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED and not self.assignment.in_group:
            return  # the client looks for a group's coordinator even if it never joins one
        self.last_error = f"{error.name()}: {error.str()}"
        if error.fatal():
            raise KafkaException(error)
        self.assignment.group.note_client_error(error.code(), self.last_error)
        _LOG.warning("%s", self.last_error, extra={"event": "kafka-error"})
