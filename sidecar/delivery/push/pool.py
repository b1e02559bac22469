"""The pool: open connections, give one to each delivery, and limit the time that each may take.

The connection that became free last is used first, so that the others become idle and are closed. One timer checks all
connections, when the earliest deadline has come. A timer for each request would cost as much as the request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Hashable
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

from reconsume.sidecar.core.counters import Histogram
from reconsume.sidecar.core.outcome import CANCELLED, COMMITTED, NotSent
from reconsume.sidecar.core.record import Now, Partition, Record
from reconsume.sidecar.delivery.push.access import Access
from reconsume.sidecar.delivery.push.answer_room import AnswerRoom
from reconsume.sidecar.delivery.push.batch_verdicts import Verdicts, read_envelope_answer
from reconsume.sidecar.delivery.push.connection import Connection, Delivery, LostRequest, Wanted, is_never_reset
from reconsume.sidecar.delivery.push.deaths import DeathWatch, PoolCalls
from reconsume.sidecar.delivery.push.delivery_log import NoMemory, log_deliveries, logs_deliveries
from reconsume.sidecar.delivery.push.dial import dial
from reconsume.sidecar.delivery.push.new_connections import NewConnectionLimit
from reconsume.sidecar.delivery.push.odd_verdicts import OddVerdicts
from reconsume.sidecar.delivery.push.request import Render, with_time_left
from reconsume.sidecar.delivery.push.response_reader import Interpret, Judged, Plain, ResponseReader
from reconsume.sidecar.delivery.push.settings import PushSettings
from reconsume.sidecar.delivery.push.target import Target, is_no_metadata
from reconsume.sidecar.open_files import USED_UP

if TYPE_CHECKING:
    from reconsume.sidecar.core.ports import Reply


class ResponseMeter(Protocol):
    """Measures responses where the number in flight follows the service (`Dispatcher`)."""

    @property
    def auto(self) -> object | None:
        """What follows the service; None while the number is fixed."""

    def responded(self, kind: Hashable, sent_ms: float, now_ms: float, in_flight: int, outcome: object) -> None:
        """Note a response: the kind of its request, when that was sent and answered (ms of the loop's clock), how many
        were in flight, and what it means."""


LOOK_EVERY = 0.05
"""Seconds between two checks of the deadlines, at least. A timeout may be noticed this much late."""
PATIENT_FROM = 8
"""Connections from which on an answer is passed on two turns of the loop later. With fewer, each answer would cost two
more wake-ups (10 us), and a close in that moment costs a request or two, which are repeated."""
LONGEST_IDLE = 60.0
"""Seconds for which an idle connection is kept at most, whatever the service says."""
GRAIN = 0.001
"""Seconds that the loop's clock may be behind: it counts milliseconds, and stands still while callbacks run. A check
comes so much later, or a timeout would end before its time."""
DURATION_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0, 900.0)
"""Seconds. The last bound is the usual `consume_timeout`."""


class Push:
    """Deliver records by HTTP POST; implements `core.ports.Delivery`. Made and called on one running event loop.

    The caller bounds how many deliveries are outstanding. Connections are opened when they are needed, one for each
    delivery, and few at once (`new_connections.py`).
    """

    def __init__(
        self, target: Target, settings: PushSettings, clock: Callable[[], Now], access: Access | None = None
    ) -> None:
        """`access`: what requests and connections carry of the sidecar's own; needed if the target has TLS."""
        self.clock = clock
        self.durations = Histogram(DURATION_BOUNDS)
        """Seconds from the call to the answer, for deliveries that were sent."""
        self._envelope = settings.envelope
        self._rules = settings.rules
        self.odd_verdicts = OddVerdicts()
        self._logs_each = logs_deliveries()
        self._plain: Plain = NoMemory() if self._logs_each else {}
        self._room = AnswerRoom(settings.answer_memory)
        self._target, self._access = target, access
        self._add_lines = access.lines_added if access is not None and access.adds_lines else None
        if access is not None:
            access.at_renewal(self._renew)
        render = self._record_render = Render(target, settings)
        self.sent = render.sent
        """Returns what a request with a record is, for people."""
        self.render: Callable[[Any], bytes] = render
        """Renders what a delivery carries. Whoever calls `post` sets it: a request may have to be sent twice."""
        self.topic_of: Callable[[Any], str] = attrgetter("main_topic")
        """Returns the main topic of what a delivery carries. Whoever calls `post` sets it too."""
        paths = {topic: call.path for topic, call in settings.calls.items() if call.path is not None}
        self.kind_of: Callable[[Any], Hashable] = lambda record: paths.get(record.main_topic) if paths else None
        """Returns what the response time of a delivery depends on: its path. Whoever calls `post` sets it too."""
        self.meter: ResponseMeter | None = None
        """Told of each response, before its outcome is passed on; None where records are not pushed by a dispatcher."""
        self._own_timeouts = {
            topic: call.timeout_ms / 1000 for topic, call in settings.calls.items() if call.timeout_ms is not None
        }
        """Seconds, of the topics that have a timeout of their own."""
        self._settings = settings
        self._idle_time = settings.idle_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._all: set[Connection] = set()
        self._idle: list[Connection] = []
        self._outdated: set[Connection] = set()
        """Connections with former credentials, which end with the request that they carry."""
        self.count_records: Callable[[Any], int] = lambda _what: 1
        """Returns how many records a delivery carries. Whoever calls `post` sets it too."""
        calls = PoolCalls(self._open_connections, self._reply, self.repeat, lambda what: self.count_records(what))
        self.deaths = DeathWatch(self._loop, target, settings.connect_timeout_ms / 1000, calls)
        self._answers: list[tuple[Connection, Delivery, Judged]] = []
        """Answers that are passed on two turns later."""
        self._new_connections = NewConnectionLimit(self._loop, clock, self._dial)
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.set_timeout(settings.timeout_ms)

    def set_timeout(self, ms: int) -> None:
        """Set the timeout (ms) of deliveries that begin from now on. Deliveries that are out keep theirs, and topics
        with one of their own too."""
        self._timeout = ms / 1000
        self._record_render.set_timeout(ms)
        self._shortest = min((self._timeout, *self._own_timeouts.values()))
        self._connect_timeout = min(self._settings.connect_timeout_ms / 1000, self._shortest)
        self._look_every = min(LOOK_EVERY, self._shortest / 4, self._settings.idle_ms / 4000)
        if self._timer is not None:  # a deadline may come before the next check now
            self._timer.cancel()
            self._look_later(self._time())

    @property
    def connections(self) -> int:
        """Number of connections that are open or being opened."""
        return len(self._all)

    def __call__(self, record: Record, reply: Reply) -> None:
        """Start one delivery; `reply` gets its outcome later, exactly once."""
        if self._closed:
            self._loop.call_soon(lambda: reply(record, CANCELLED, self.clock()))
            return
        judge = partial(read_envelope_answer, record.id) if self._envelope else None
        self.post((record, reply), self.render(record), judge)

    def post(self, delivery: Delivery, request: bytes, judge: Interpret | None) -> None:
        """Send a request that is already rendered.

        `judge` reads its answer. If `judge` is None, the answer is read as one to a bare record.
        """
        if self._add_lines is not None:
            request = self._add_lines(request)
        now = self._time()
        idle = self._idle
        while idle:
            connection = idle.pop()
            # The timer closes what was idle too long. After a freeze of this process a reply may come before it.
            if connection.deadline > now:
                connection.began = now
                connection.send(delivery, request, now + self._timeout_of(delivery), judge)
                return
            connection.drop()
        self._new_connections.open(Wanted(delivery, request, judge))

    def recall(self, partitions: Collection[Partition], *, lost: bool) -> None:
        """Do nothing: a record is with the service, or has a connection that is being opened, or is to be."""

    def withdraw(self, is_held: Callable[[Record], bool]) -> None:
        """Do nothing, as for `recall`."""

    def close(self) -> None:
        """Take no more deliveries. Those not sent are cancelled; those sent stay until they are answered."""
        self._closed = True
        self._new_connections.close()
        for connection in tuple(self._all):
            connection.cancel(self._loop)

    def _renew(self) -> None:
        """Use no connection again that was made with former credentials. What is out, is answered on its own."""
        for connection in tuple(self._idle):
            connection.drop()
        self._outdated = set(self._all)

    # Called by the connections.

    def freed(self, connection: Connection, delivery: Delivery, judged: Judged) -> None:
        """Take back a connection, and pass its answer on: two turns later, where there are many.

        Then a close right behind the answer is seen. The wait is free, because they are passed on together.
        """
        if len(self._all) < PATIENT_FROM:
            self._free(connection, delivery, judged)
            delivery[1](delivery[0], judged, self.clock())
            return
        if not self._answers:
            self._loop.call_soon(self._loop.call_soon, self._pass_on)
        self._answers.append((connection, delivery, judged))

    def _pass_on(self) -> None:
        answers, self._answers = self._answers, []
        for connection, delivery, judged in answers:
            self._free(connection, delivery, judged)
            delivery[1](delivery[0], judged, self.clock())

    def _free(self, connection: Connection, delivery: Delivery, judged: Judged) -> None:
        """Give the connection another request, or keep it idle. The reply comes after this and may use it."""
        now = self._time()
        self.durations.add(now - connection.began)
        if self._logs_each or ((meter := self.meter) is not None and meter.auto is not None):
            self._tell(connection, delivery[0], judged, now)
        if connection not in self._all:  # the service has closed it meanwhile
            return
        if self._closed or connection in self._outdated:
            connection.drop()
            return
        waiting = self._new_connections.waiting
        if waiting and not waiting[0].until:
            following = waiting.popleft()
            connection.began = now
            due = now + self._timeout_of(following.delivery)
            connection.send(following.delivery, following.request, due, following.judge)
            return
        connection.deadline = now + self._idle_time
        self._idle.append(connection)

    def ended(self, connection: Connection, delivery: Delivery | None, judged: Judged) -> None:
        """Measure a delivery that ended together with its connection."""
        now = self._time()
        self.durations.add(now - connection.began)
        if delivery is not None:
            self._tell(connection, delivery[0], judged, now)

    def _tell(self, connection: Connection, what: Any, judged: Judged, now: float) -> None:
        """Tell the meter and the log how long a response took. `what`: None for a question of ours, no record."""
        if what is None:
            return
        if self.meter is not None and self.meter.auto is not None:
            busy = len(self._all) - len(self._idle)
            outcome = COMMITTED if isinstance(judged, Verdicts) else judged
            self.meter.responded(self.kind_of(what), connection.began * 1000, now * 1000, busy, outcome)
        if self._logs_each:
            records = [what] if isinstance(what, Record) else what.records
            path = self.sent(records[0]).path
            log_deliveries(records, path, connection.status, (now - connection.began) * 1000)

    def repeat(self, delivery: Delivery, judge: Interpret | None, until: float) -> None:
        """Send once more, on a new connection, what the service did not read on a used one.

        It has closed that one before, as after so many requests or at a reload, or it has died. That is no second
        attempt.
        """
        what, reply = delivery
        if self._closed:
            self._loop.call_soon(lambda: reply(what, CANCELLED, self.clock()))
            return
        second = (what, partial(self._repeated_ended, reply))
        request = with_time_left(self.render(what), round((until - self._time()) * 1000))
        if self._add_lines is not None:
            request = self._add_lines(request)
        self._new_connections.open(Wanted(second, request, judge, until))

    def _repeated_ended(self, reply: Callable[[Any, Any, Now], None], what: Any, judged: Judged, now: Now) -> None:
        """Reply to a request that was sent twice, or find out whether the service has died."""
        if isinstance(judged, NotSent):
            self.deaths.add_lost(LostRequest((what, reply), None, 0.0, is_never_reset, judged))
        else:
            reply(what, judged, now)

    def hung_up(self, connection: Connection) -> None:
        """Note that the service has ended a connection that was idle, or whose response had not begun."""
        if connection in self._all:
            self.deaths.note_end(connection)

    def lost(self, lost: LostRequest) -> None:
        """Find out whether the service has died with a request, and reply to it."""
        self.deaths.add_lost(lost)

    def _note_kept_for(self, seconds: int) -> None:
        """Use no connection again that the service may be about to close: it closes idle ones after so many seconds."""
        # Contract 1.8: less a second, which a request may need on its way; of a very short time less a half.
        self._idle_time = min(LONGEST_IDLE, max(seconds - 1, seconds / 2))

    def _open_connections(self) -> list[Connection]:
        return [connection for connection in self._all if connection.task is None]

    def _reply(self, delivery: Delivery, judged: Judged) -> None:
        delivery[1](delivery[0], judged, self.clock())

    def gone(self, connection: Connection) -> None:
        """Forget a connection. A second call is harmless."""
        self._all.discard(connection)
        self._outdated.discard(connection)
        with contextlib.suppress(ValueError):  # only an idle one is in the list
            self._idle.remove(connection)
        if not self._all and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def due(self, delivery: Delivery) -> float:
        """Return when the answer to a request that is sent now is due (loop time)."""
        return self._time() + self._timeout_of(delivery)

    def _timeout_of(self, delivery: Delivery) -> float:
        """Return the seconds that a delivery may take."""
        if not self._own_timeouts:
            return self._timeout
        return self._own_timeouts.get(self.topic_of(delivery[0]), self._timeout)

    def admits(self, transport: asyncio.Transport) -> bool:
        """Return whether the peer may get records."""
        return not self._target.allow_remote or is_no_metadata(transport.get_extra_info("peername"))

    # Deadlines.
    def _look_later(self, now: float) -> None:
        # A wake-up for nothing costs as much as a delivery's, so the next check is at the earliest deadline there is or
        # may come: that of a request, a connection or an idle time that begins now.
        soonest = now + min(self._shortest, self._connect_timeout, self._idle_time)
        soonest = min(soonest, min(connection.deadline for connection in self._all))
        self._timer = self._loop.call_later(max(self._look_every, soonest - now + GRAIN), self._look)

    def _look(self) -> None:
        """Expire the connections that are past their deadline."""
        self._timer = None
        now = self._time()
        for connection in tuple(self._all):
            if connection.deadline <= now:
                self._expire(connection)
        if self._all and self._timer is None:  # a reply may have opened a connection and set the timer
            self._look_later(now)

    def _expire(self, connection: Connection) -> None:
        refused = connection.task is not None
        connection.expire()
        if refused:
            self._new_connections.give_up(NotSent("connect-timeout"))

    # Connecting.
    def _dial(self, wanted: Wanted) -> Connection:
        now = self._time()

        def note(kinds: tuple[str, ...]) -> None:
            delivery = connection.delivery
            if delivery is not None and delivery[0] is not None:  # None: a question of ours, not a record
                self.odd_verdicts.note(kinds, self.topic_of(delivery[0]))

        reading = ResponseReader(self._rules, self.clock, self._plain, note, self._room, self._note_kept_for)
        connection = Connection(self, reading, now + self._connect_timeout)
        connection.hold(wanted.delivery, wanted.request, wanted.until, wanted.judge)
        connection.began = now
        self._all.add(connection)
        connection.task = self._loop.create_task(self._connect(connection))
        if self._timer is None:
            self._look_later(now)
        return connection

    async def _connect(self, connection: Connection) -> None:
        context = None if self._access is None else self._access.context()
        reason = await self.deaths.reach() or await dial(self._loop, self._target, connection, context)
        if reason:
            connection.task = None  # else it would cancel itself
            if reason == USED_UP and (wanted := connection.take_back()) is not None:
                self._new_connections.wait_for_files(wanted)
                return
            outcome = NotSent(reason)
            connection.fail(outcome)
            # They would fare no better, and a pause must not wait for each of them.
            self._new_connections.give_up(outcome)
