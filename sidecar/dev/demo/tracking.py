"""The progress that the demo shows: the state of every order, and the attempts of a few of them. Pure: it queries
nothing.

The input is the group's events and the service's ledger, in any order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from reconsume.sidecar.dev.demo.ledger import Answered, Began, Closed, Line, Opened
from reconsume.sidecar.dev.demo.orders import Case
from reconsume.topics.events import Event, State

FOLLOWED = (Case.FLAKY, Case.LATER, Case.STUCK, Case.REFUSED, Case.POISON)
"""The cases of which one order each is followed."""


class Step(msgspec.Struct):
    """One attempt: when it was due and when it came (epoch ms), and the answer.

    The answer is the HTTP status, or the verdict if there is no status. Empty: there was no answer; None: there is none
    yet.
    """

    due: int | None = None
    came: float | None = None
    answer: str | None = None
    good: bool = False


class Track(msgspec.Struct):
    """One order as far as it is known."""

    id: str
    case: str = ""
    steps: dict[int, Step] = msgspec.field(default_factory=dict)
    level: str | None = None
    due: int = 0
    waits_for: int = 0
    """The retry that was announced last; `level` and `due` belong to it."""
    held: bool = False
    """Whether it failed and waits in place for its next attempt."""
    committed: bool = False
    dead: bool = False

    @property
    def seen(self) -> int:
        """The last attempt that reached the service, from 0; −1 if none has."""
        return max((times for times, step in self.steps.items() if step.came is not None), default=-1)


class Counts(NamedTuple):
    """The number of orders in each state; `waiting` is by level. Their sum is the number of orders produced."""

    ready: int
    in_flight: int
    waiting: dict[str, int]
    committed: int
    dead: int


class OrderTracker:
    """Tracks the orders from events and ledger lines. `in_place`: the level of failed orders, in a mode without
    retry events."""

    def __init__(self, in_place: str | None = None) -> None:
        self._in_place = in_place
        self.tracks: dict[str, Track] = {}
        self.followed: dict[str, Track] = {}
        self.began: float | None = None
        """The time when the first order reached the service, epoch ms."""
        self.down_since: float | None = None
        self._requests: dict[int, tuple[Track, int]] = {}

    def take_lines(self, lines: Iterable[Line]) -> None:
        """Process lines of the service's ledger."""
        for line in lines:
            match line:
                case Began():
                    self._began(line)
                case Answered():
                    self._answered(line)
                case Closed(at=at):
                    self.down_since = at
                case Opened():
                    self.down_since = None

    def _answered(self, line: Answered) -> None:
        track, times = self._requests.pop(line.number)
        step = track.steps[times]
        step.answer, step.good = str(line.status or line.verdict), line.verdict == "commit"
        track.committed |= step.good
        track.held = self._in_place is not None and line.verdict == "retry"

    def _began(self, line: Began) -> None:
        track = self._track(line.id)
        track.case, track.held = line.case, False
        if line.times > 0:
            self._end_step(track, line.times - 1)
        step = track.steps.setdefault(line.times, Step())
        step.came = line.at if step.came is None else step.came
        self._requests[line.number] = track, line.times
        self.began = line.at if self.began is None else self.began
        if line.case in FOLLOWED:
            self.followed.setdefault(line.case, track)

    def take_events(self, events: Iterable[Event]) -> None:
        """Process events of the group."""
        for event in events:
            track = self._track(event.id)
            if event.state is State.DLQ:
                track.dead = True
                self._end_step(track, event.times)
            elif event.state is State.WAITING_RETRY and event.times > track.waits_for:
                track.waits_for, track.level, track.due = event.times, event.level, event.due
                track.steps.setdefault(event.times, Step()).due = event.due
                self._end_step(track, event.times - 1)

    def _end_step(self, track: Track, times: int) -> None:
        """End an attempt that is counted: if the service gave no answer by now, it will not give one."""
        step = track.steps.setdefault(times, Step())
        step.answer = "" if step.answer is None else step.answer

    def _track(self, identity: str) -> Track:
        return self.tracks.setdefault(identity, Track(identity))

    def counts(self, produced: int, now: float) -> Counts:
        """Count the `produced` orders by state at `now` (epoch ms). An order whose due time is over is ready."""
        waiting: dict[str, int] = {}
        in_flight = committed = dead = 0
        for track in self.tracks.values():
            if track.dead:
                dead += 1
            elif track.committed:
                committed += 1
            elif track.waits_for <= track.seen and not track.held:
                in_flight += 1
            elif (level := self._level(track, now)) is not None:
                waiting[level] = waiting.get(level, 0) + 1
        # An order may reach the service before the producer gets the report that it was stored.
        ready = max(0, produced - sum(waiting.values()) - in_flight - committed - dead)
        return Counts(ready, in_flight, waiting, committed, dead)

    def _level(self, track: Track, now: float) -> str | None:
        """Return the level in which the order waits; None if it does not wait."""
        if track.held:
            return self._in_place
        return track.level if track.due > now else None

    def journeys(self) -> tuple[Track, ...]:
        """Return the orders that are followed, by case."""
        return tuple(self.followed[case] for case in FOLLOWED if case in self.followed)
