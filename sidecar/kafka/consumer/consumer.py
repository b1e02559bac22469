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

from reconsume.sidecar.core.partition import WantedFetch
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.client_config import fetches_whole, whole_fetches
from reconsume.sidecar.kafka.consumer.assignment import Assignment
from reconsume.sidecar.kafka.consumer.batches import HEAVY
from reconsume.sidecar.kafka.consumer.client_watch import ClientWatch, Useless
from reconsume.sidecar.kafka.consumer.hand_over import HandedOver, HandOver
from reconsume.sidecar.kafka.consumer.listeners import RecordListener
from reconsume.sidecar.kafka.consumer.looks import Looks, named
from reconsume.sidecar.kafka.consumer.lost_positions import lost_positions
from reconsume.sidecar.kafka.consumer.owned_partition import with_edges
from reconsume.sidecar.kafka.credentials.new_client import new_client
from reconsume.sidecar.kafka.credentials.registry import ClientCredentials, unchanging
from reconsume.sidecar.kafka.messages import Reading
from reconsume.sidecar.kafka.restart_cause import AskRestart, RestartCause, RestartReason, no_restart

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


class ConsumerThread(threading.Thread):
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
        super().__init__(name=f"consumer-{config['group.id']}", daemon=True)
        self.assignment = assignment
        self.failure: BaseException | None = None
        """The exception that ended the thread; None if there was none."""
        self.last_error = ""
        self.last_poll_at = time.monotonic()
        """When the loop last began a turn (monotonic seconds), for the liveness probe."""
        self.looks = Looks(log_ids=assignment.starts.log_ids)
        self.client_watch = ClientWatch()
        self._ask_restart = ask_restart
        self._poll = POLL
        self._config = dict(config)
        self._credentials = unchanging() if credentials is None else credentials
        self._topics: Sequence[str] = list(topics)
        """Replaced as a whole, by any thread."""
        self._changed_at = 0.0
        """When they were replaced (monotonic seconds)."""
        self._handler = handler
        self._hand_overs = HandOver(assignment.owned_partitions, reading, heavy, gaps=fetches_whole(config))
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._full_since: float | None = None
        self._stopping = threading.Event()
        self._member = threading.Event()
        self._member.set()
        self._has_client = False

    # --- called from other threads -----------------------------------------------------------------------------------

    def want_fetch(self, partition: Partition, wanted: WantedFetch) -> None:
        """Fetch a partition as the lane wants it (port `Fetch`)."""
        self._commands.put(lambda: self._take_wanted(partition, wanted))

    def repeat_takeover(self, partitions: Collection[Partition]) -> None:
        """Begin with partitions once more, at the group's progress, as if they were assigned just now."""
        self._commands.put(lambda: self.assignment.repeat_takeover(self._consumer, partitions))

    def subscribe(self, topics: Sequence[str]) -> None:
        """Read these topics from now on. Partitions of other topics are given up in order.

        The group learns it as soon as the client takes it.
        """
        if set(topics) != set(self._topics):
            self._topics, self._changed_at = list(topics), time.monotonic()

    def take_part(self, member: bool) -> None:
        """Be a member of the group from now on, or give everything up in order and leave it. A thread begins as one."""
        (self._member.set if member else self._member.clear)()

    def wait_for_deliveries(self, timeout: float) -> None:
        """From now on, let a partition that is taken away wait for its deliveries for so many seconds."""
        if not self._stopping.is_set():
            self.assignment.lock_timeout = timeout

    def stop(self, timeout: float) -> None:
        """Give everything up in order within `timeout` seconds, leave the group and end. Returns at once."""
        self._stopping.set()
        self.assignment.lock_timeout = timeout

    # --- the loop ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Poll until stopped, or until an error ends the thread."""
        try:
            while not self._stopping.is_set():
                if self._member.is_set():
                    self._poll_once()
                else:
                    self._stay_outside()
            self._leave()
        except BaseException as failure:  # noqa: BLE001 - a thread that fails must end the process, whatever the cause
            _LOG.exception("the consumer thread has ended", extra={"event": "thread-ended"})
            self.failure = failure

    def _begin(self) -> None:
        """Make a client with the newest credentials, and join; do nothing if a stop comes first."""
        made = new_client(Consumer, self._config, self._credentials, self._stopping, self._count_turn)
        if made is not None:
            self._consumer, self._has_client = made, True
            self.assignment.join(self._consumer, self._topics)

    def _count_turn(self) -> None:
        self.last_poll_at = time.monotonic()

    def _begin_anew(self) -> None:
        """Give everything up in order, as in a rebalance, and join again with a new client."""
        self._leave()
        self._begin()

    def _leave(self) -> None:
        """Give everything up in order, and leave the group together with the client."""
        if self._has_client:
            self.assignment.leave(self._consumer)
            self._close()

    def _close(self) -> None:
        """End the client. It may call back."""
        if self._has_client:
            # No other method: after its last partition librdkafka may never return from one, with the interpreter's
            # lock held.
            self._consumer.close()
            self.assignment.closed()
            self._has_client, self._full_since = False, None

    def _stay_outside(self) -> None:
        self._leave()
        self.last_poll_at = time.monotonic()
        self._run_commands()  # they are about partitions that are gone
        if self._credentials.due:  # others wait until each client has them
            self._credentials.adopt(self._config)
        self._member.wait(OUTSIDE)

    def _subscribe(self) -> bool:
        """Subscribe to other topics, if the client takes that now. False: a stop has come, and there is no client."""
        if self.assignment.group.may_subscribe(self._consumer):
            self.assignment.join(self._consumer, self._topics)
        elif not self.assignment.owned_partitions and time.monotonic() - self._changed_at > UNJOINED:
            self._begin_anew()
        return self._has_client

    def _poll_once(self) -> None:
        self.last_poll_at = time.monotonic()
        if not self._has_client:
            self._begin()
            return
        if not self._credentials.apply_to(self._consumer):
            self._begin_anew()
            return
        if self._topics is not self.assignment.topics and not self._subscribe():
            return
        self.assignment.answer(self._consumer)
        self.assignment.request_offsets(self._consumer, self.last_poll_at)
        self._run_commands()
        if self.looks.is_time(self.last_poll_at) and (useless := self._look(self.last_poll_at)) is not None:
            self._replace_client(useless)
            return
        if self._handler.full():
            self._wait_for_room()
            return
        self._full_since = None
        if self.assignment.client.is_choked:
            self._choke(False)
        taken = self._hand_overs.take(self._consumer, self._poll, self.looks.due_offsets.waits())
        if not taken.messages:
            self.client_watch.emptied()
        self._give(taken)

    def _look(self, now: float) -> Useless | None:
        """Look at the logs, at the group, and at the client; return why it must be replaced. `now`: steady seconds."""
        begins = self.looks.begins
        if begins:
            self.assignment.group.look(self._consumer)
        owned_partitions = self.assignment.owned_partitions
        self._poll = POLL if any(not owned.wanted.is_fetched for owned in owned_partitions.values()) else QUIET_POLL
        logs = self.assignment.starts.lookup(self._consumer)
        self.assignment.take_up_recreated(self._consumer, self.looks.ask(logs, owned_partitions, now))
        if begins:
            self._report_deafness(self.client_watch.deaf_partitions(self.assignment, self.looks.answered))
        return self.client_watch.look(self._consumer, self.assignment, now)

    def _report_deafness(self, deaf: Collection[Partition]) -> None:
        """Ask for a restart in place for partitions of which the client reads nothing, although it could."""
        topics = {partition.topic for partition in deaf}
        logs = self.assignment.starts.log_ids(topics) if topics else {}
        for topic in sorted(topics):
            incarnation = "/".join(logs.get(topic, ()))
            self._ask_restart(RestartCause(RestartReason.CLIENT_DEAF, topic, incarnation))

    def _replace_client(self, why: Useless) -> None:
        if why is Useless.UNKNOWN:  # nothing of what is under way can be committed, and others may have it
            self.assignment.abandon()
            self._close()
        self._begin_anew()

    def _run_commands(self) -> None:
        while not self._commands.empty():  # only this thread takes them
            self._commands.get_nowait()()
        if self._has_client:
            self.assignment.reconcile(self._consumer)

    def _wait_for_room(self) -> None:
        if self.assignment.client.is_choked:
            messages = self._consumer.consume(1, 10 * NAP)  # records that were on their way, and rebalances
            if not self._hand_overs.put_off(messages):
                self._hand_over(messages)
        elif self._full_since is None:
            self._full_since = time.monotonic()
        elif time.monotonic() - self._full_since < CHOKED_AFTER:
            self._stopping.wait(NAP)
        else:
            self._choke(True)

    def _choke(self, is_choked: bool) -> None:
        self.client_watch.choked()
        self.assignment.choke(self._consumer, is_choked)

    def _take_wanted(self, partition: Partition, wanted: WantedFetch) -> None:
        if not wanted.is_fetched:
            self._poll = POLL
        self.assignment.take_wanted(self._consumer, partition, wanted)

    # --- records -----------------------------------------------------------------------------------------------------

    def _hand_over(self, messages: Iterable[Message]) -> None:
        self._give(self._hand_overs.collect(messages, self.looks.due_offsets.waits()))

    def _give(self, handed_over: HandedOver) -> None:
        if handed_over.runs:
            levels, owned_partitions = self.looks.due_offsets.waits(), self.assignment.owned_partitions
            runs = [
                with_edges(self._consumer, owned_partitions[run.partition], run)
                if run.partition.topic in levels
                else run
                for run in handed_over.runs
            ]
            self._handler.received(runs, handed_over.weight)
        if handed_over.firsts:
            self._hand_overs.forget(handed_over.firsts)
            self.assignment.learn(self._consumer, handed_over.firsts)
        if handed_over.gap is not None:
            self._fetch_whole(handed_over.gap)
        elif handed_over.errors:  # after the records before them: an error may say that the log is cut there
            self._on_errors(handed_over.errors)

    def _fetch_whole(self, source: Partition) -> None:
        """Fetch more at a time from now on, as transactions may write where offsets are missing; with a new client."""
        text = "%s[%s] has gaps, as transactions leave them: the group is joined anew, to fetch more at a time"
        _LOG.info(text, *source, extra={"event": "fetches-whole"})
        self._config, self._hand_overs.gaps = whole_fetches(self._config), True
        self._begin_anew()

    def _on_errors(self, errors: Iterable[tuple[Message, KafkaError]]) -> None:
        positions = lost_positions(self.assignment.owned_partitions, errors)
        self.assignment.without_offset(self._consumer, positions.unstarted)
        if positions.lost:
            self.last_error = f"the offsets are not in the logs: {named(positions.lost)}"
            self.assignment.out_of_range(self._consumer, positions.lost)
        for error in positions.others:
            self._on_error(error)

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED and not self.assignment.in_group:
            return  # the client looks for a group's coordinator even if it never joins one
        self.last_error = f"{error.name()}: {error.str()}"
        if error.fatal():
            raise KafkaException(error)
        self.assignment.group.hear(error.code(), self.last_error)
        _LOG.warning("%s", self.last_error, extra={"event": "kafka-error"})
