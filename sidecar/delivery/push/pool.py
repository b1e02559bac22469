"""The pool: open connections, give one to each delivery, and limit the time that each may take.

The connection that became free last is used first, so that the others become idle and are closed (`deadlines.py`). What
a delivery carries is the caller's: records one by one, or what `RequestForm` says. `new_connections.py` opens few
connections at once, `deaths.py` finds out whether the service has died with a request, `responses.py` measures. All of
it runs on one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Hashable, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from reconsume.sidecar.core.counters import Histogram
from reconsume.sidecar.core.outcome import CANCELLED, NotSent
from reconsume.sidecar.core.record import Now, Partition, Record
from reconsume.sidecar.delivery.push.access import Access
from reconsume.sidecar.delivery.push.answer_room import AnswerRoom
from reconsume.sidecar.delivery.push.batch_verdicts import read_envelope_answer
from reconsume.sidecar.delivery.push.connection import Connection, Delivery, LostRequest, Wanted, is_never_reset
from reconsume.sidecar.delivery.push.deadlines import Deadlines
from reconsume.sidecar.delivery.push.deaths import DeathWatch, PoolCalls
from reconsume.sidecar.delivery.push.dial import dial
from reconsume.sidecar.delivery.push.new_connections import NewConnectionLimit
from reconsume.sidecar.delivery.push.odd_verdicts import OddVerdicts
from reconsume.sidecar.delivery.push.request import Render, with_time_left
from reconsume.sidecar.delivery.push.response_reader import Interpret, Judged, Plain, ResponseReader
from reconsume.sidecar.delivery.push.responses import NoMemory, Responses
from reconsume.sidecar.delivery.push.settings import PushSettings
from reconsume.sidecar.delivery.push.target import Target, is_no_metadata
from reconsume.sidecar.open_files import USED_UP

if TYPE_CHECKING:
    from reconsume.sidecar.core.ports import Reply

PATIENT_FROM = 8
"""Connections from which on an answer is passed on two turns of the loop later. With fewer, each answer would cost two
more wake-ups (10 us), and a close in that moment costs a request or two, which are repeated."""


class RequestForm(msgspec.Struct, frozen=True):
    """What a pool must know of what its deliveries carry: a record, a batch, a question.

    `render`: returns the request, which may have to be sent twice. `topic_of`: its main topic. `kind_of`: what its
    response time depends on. `count_records`: how many records it has. `set_timeout`: takes the ms that requests name.
    """

    render: Callable[[Any], bytes]
    topic_of: Callable[[Any], str] = attrgetter("main_topic")
    kind_of: Callable[[Any], Hashable] = lambda _record: None
    count_records: Callable[[Any], int] = lambda _record: 1
    set_timeout: Callable[[int], None] = lambda _ms: None


class Peer:
    """The service, as connections find it. `access`: needed if the target has TLS."""

    def __init__(self, target: Target, access: Access | None) -> None:
        self._target, self._access = target, access
        self.add_lines = access.lines_added if access is not None and access.adds_lines else None
        """Returns a request with the lines of its sender; None if it has none."""

    async def connect(self, connection: Connection) -> str:
        """Connect. Return why that is impossible; empty if the connection is open."""
        context = None if self._access is None else self._access.context()
        return await dial(asyncio.get_running_loop(), self._target, connection, context)

    def admits(self, transport: asyncio.Transport) -> bool:
        """Return whether what has answered may get records."""
        return not self._target.allow_remote or is_no_metadata(transport.get_extra_info("peername"))


class OpenConnections:
    """The connections of a pool. Those in `idle` have no request; `outdated` ones have former credentials, and end with
    the request that they carry. `closed`: nothing is delivered any more."""

    def __init__(self) -> None:
        self.all: set[Connection] = set()
        self.idle: list[Connection] = []
        self.outdated: set[Connection] = set()
        self.closed = False

    def end_former(self) -> None:
        """Use none again that was made with former credentials. What is out, is answered on its own."""
        for connection in tuple(self.idle):
            connection.drop()
        self.outdated = set(self.all)

    def forget_connection(self, connection: Connection) -> None:
        """Forget one that has ended. A second call is harmless."""
        self.all.discard(connection)
        self.outdated.discard(connection)
        with contextlib.suppress(ValueError):  # only an idle one is in the list
            self.idle.remove(connection)

    def established(self) -> list[Connection]:
        """Return those that are not being opened any more."""
        return [connection for connection in self.all if connection.task is None]


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
        render = Render(target, settings)
        paths = {topic: call.path for topic, call in settings.calls.items() if call.path is not None}
        self.form = RequestForm(
            render,
            kind_of=lambda record: paths.get(record.main_topic) if paths else None,
            set_timeout=render.set_timeout,
        )
        """Whoever calls `post` replaces it."""
        self.responses = Responses(render.sent)
        self._is_enveloped = settings.envelope
        self._peer = Peer(target, access)
        self._loop = loop = asyncio.get_running_loop()
        connections = self._connections = OpenConnections()
        if access is not None:
            access.at_renewal(connections.end_former)
        deadlines = self._deadlines = Deadlines(loop, settings, connections.all, self._expire)
        plain: Plain = NoMemory() if self.responses.logs_each else {}
        room = AnswerRoom(settings.answer_memory)
        self._build_reader: Callable[[Callable[[tuple[str, ...]], None]], ResponseReader] = lambda note: ResponseReader(
            settings.rules, clock, plain, note, room, deadlines.note_kept_for
        )
        calls = PoolCalls(connections.established, self._reply, self.repeat, lambda what: self.form.count_records(what))
        self.deaths = DeathWatch(loop, target, settings.connect_timeout_ms / 1000, calls)
        self._answers: list[tuple[Connection, Delivery, Judged]] = []
        """Answers that are passed on two turns later."""
        self._new_connections = NewConnectionLimit(loop, clock, self._dial)

    def set_timeout(self, ms: int) -> None:
        """Set the timeout (ms) of deliveries that begin from now on. Deliveries that are out keep theirs, and topics
        with one of their own too."""
        self.form.set_timeout(ms)
        self._deadlines.set_timeout(ms)

    @property
    def durations(self) -> Histogram:
        """Seconds from the call to the answer, for deliveries that were sent."""
        return self.responses.durations

    @property
    def odd_verdicts(self) -> OddVerdicts:
        """The responses that look like a verdict and are none."""
        return self.responses.odd_verdicts

    @property
    def connections(self) -> int:
        """Number of connections that are open or being opened."""
        return len(self._connections.all)

    def __call__(self, record: Record, reply: Reply) -> None:
        """Start one delivery; `reply` gets its outcome later, exactly once."""
        if self._connections.closed:
            self._loop.call_soon(lambda: reply(record, CANCELLED, self.clock()))
            return
        judge = partial(read_envelope_answer, record.id) if self._is_enveloped else None
        self.post((record, reply), self.form.render(record), judge)

    def post(self, delivery: Delivery, request: bytes, judge: Interpret | None) -> None:
        """Send a request that is already rendered.

        `judge` reads its answer. If `judge` is None, the answer is read as one to a bare record.
        """
        if (add_lines := self._peer.add_lines) is not None:
            request = add_lines(request)
        now = self._loop.time()
        idle = self._connections.idle
        while idle:
            connection = idle.pop()
            # The timer closes what was idle too long. After a freeze of this process a reply may come before it.
            if connection.deadline > now:
                connection.began = now
                connection.send(delivery, request, now + self._timeout_of(delivery), judge)
                return
            connection.drop()
        self._new_connections.open_connection(Wanted(delivery, request, judge))

    def recall(self, partitions: Collection[Partition], *, lost: bool) -> None:
        """Do nothing: a record is with the service, or has a connection that is being opened, or is to be."""

    def withdraw(self, is_held: Callable[[Record], bool]) -> None:
        """Do nothing, as for `recall`."""

    def close(self) -> None:
        """Take no more deliveries. Those not sent are cancelled; those sent stay until they are answered."""
        self._connections.closed = True
        self._new_connections.close()
        for connection in tuple(self._connections.all):
            connection.cancel(self._loop)

    # Called by the connections.

    def freed(self, connection: Connection, delivery: Delivery, judged: Judged) -> None:
        """Take back a connection, and pass its answer on: two turns later, where there are many.

        Then a close right behind the answer is seen. The wait is free, because they are passed on together.
        """
        if len(self._connections.all) < PATIENT_FROM:
            self._end_requests([(connection, delivery, judged)])
            self._reply(delivery, judged)
            return
        if not self._answers:
            self._loop.call_soon(self._loop.call_soon, self._pass_on)
        self._answers.append((connection, delivery, judged))

    def _pass_on(self) -> None:
        answers, self._answers = self._answers, []
        self._end_requests(answers)

        def reply_to_all() -> None:
            for _, delivery, judged in answers:
                self._reply(delivery, judged)

        if self.responses.meter is None:
            reply_to_all()
        else:
            self.responses.meter.answer_round(reply_to_all, self.clock)

    def _end_requests(self, answers: Sequence[tuple[Connection, Delivery, Judged]]) -> None:
        """Measure requests that were answered, then give their connections others, or keep them idle.

        The replies come after this and may use them. Until all are measured, all of them count as in flight.
        """
        now = self._loop.time()
        for connection, delivery, judged in answers:
            self._measure(connection, delivery[0], judged, now)
        for connection, _, _ in answers:
            self._free(connection, now)

    def _free(self, connection: Connection, now: float) -> None:
        """Give a connection another request, or keep it idle."""
        connections = self._connections
        if connection not in connections.all:  # the service has closed it meanwhile
            return
        if connections.closed or connection in connections.outdated:
            connection.drop()
            return
        waiting = self._new_connections.waiting
        if waiting and not waiting[0].until:
            following = waiting.popleft()
            connection.began = now
            due = now + self._timeout_of(following.delivery)
            connection.send(following.delivery, following.request, due, following.judge)
            return
        connection.deadline = now + self._deadlines.idle
        connections.idle.append(connection)

    def ended(self, connection: Connection, delivery: Delivery | None, judged: Judged) -> None:
        """Measure a delivery that ended together with its connection."""
        self._measure(connection, None if delivery is None else delivery[0], judged, self._loop.time())

    def _measure(self, connection: Connection, what: Any, judged: Judged, now: float) -> None:
        """Note how long a response took. `what`: None for a question of ours, no record."""
        responses = self.responses
        responses.durations.add(now - connection.began)
        if responses.are_told and what is not None:
            busy = len(self._connections.all) - len(self._connections.idle)
            responses.tell(connection, what, self.form.kind_of, judged, now, busy)

    def repeat(self, delivery: Delivery, judge: Interpret | None, until: float) -> None:
        """Send once more, on a new connection, what the service did not read on a used one.

        It has closed that one before, as after so many requests or at a reload, or it has died. That is no second
        attempt.
        """
        what, reply = delivery
        if self._connections.closed:
            self._loop.call_soon(lambda: reply(what, CANCELLED, self.clock()))
            return
        second = (what, partial(self._repeated_ended, reply))
        request = with_time_left(self.form.render(what), round((until - self._loop.time()) * 1000))
        if (add_lines := self._peer.add_lines) is not None:
            request = add_lines(request)
        self._new_connections.open_connection(Wanted(second, request, judge, until))

    def _repeated_ended(self, reply: Callable[[Any, Any, Now], None], what: Any, judged: Judged, now: Now) -> None:
        """Reply to a request that was sent twice, or find out whether the service has died."""
        if isinstance(judged, NotSent):
            self.deaths.add_lost(LostRequest((what, reply), None, 0.0, is_never_reset, judged))
        else:
            reply(what, judged, now)

    def hung_up(self, connection: Connection) -> None:
        """Note that the service has ended a connection that was idle, or whose response had not begun."""
        if connection in self._connections.all:
            self.deaths.note_end(connection)

    def lost(self, lost: LostRequest) -> None:
        """Find out whether the service has died with a request, and reply to it."""
        self.deaths.add_lost(lost)

    def _reply(self, delivery: Delivery, judged: Judged) -> None:
        delivery[1](delivery[0], judged, self.clock())

    def gone(self, connection: Connection) -> None:
        """Forget a connection. A second call is harmless."""
        self._connections.forget_connection(connection)
        if not self._connections.all:
            self._deadlines.stop_timer()

    def due(self, delivery: Delivery) -> float:
        """Return when the answer to a request that is sent now is due (loop time)."""
        return self._loop.time() + self._timeout_of(delivery)

    def _timeout_of(self, delivery: Delivery) -> float:
        """Return the seconds that a delivery may take."""
        deadlines = self._deadlines
        if not deadlines.own_timeouts:
            return deadlines.timeout
        return deadlines.own_timeouts.get(self.form.topic_of(delivery[0]), deadlines.timeout)

    def admits(self, transport: asyncio.Transport) -> bool:
        """Return whether the peer may get records."""
        return self._peer.admits(transport)

    def _expire(self, connection: Connection) -> None:
        refused = connection.task is not None
        connection.expire()
        if refused:
            self._new_connections.give_up(NotSent("connect-timeout"))

    # Connecting.
    def _dial(self, wanted: Wanted) -> Connection:
        now = self._loop.time()

        def note(kinds: tuple[str, ...]) -> None:
            delivery = connection.delivery
            if delivery is not None and delivery[0] is not None:  # None: a question of ours, not a record
                self.odd_verdicts.count_kinds(kinds, self.form.topic_of(delivery[0]))

        connection = Connection(self, self._build_reader(note), now + self._deadlines.connect)
        connection.hold(wanted.delivery, wanted.request, wanted.until, wanted.judge)
        connection.began = now
        self._connections.all.add(connection)
        connection.task = self._loop.create_task(self._connect(connection))
        self._deadlines.run_timer(now)
        return connection

    async def _connect(self, connection: Connection) -> None:
        reason = await self.deaths.reach() or await self._peer.connect(connection)
        if reason:
            connection.task = None  # else it would cancel itself
            if reason == USED_UP and (wanted := connection.take_back()) is not None:
                self._new_connections.wait_for_files(wanted)
                return
            outcome = NotSent(reason)
            connection.fail(outcome)
            # They would fare no better, and a pause must not wait for each of them.
            self._new_connections.give_up(outcome)
