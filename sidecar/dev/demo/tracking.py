"""What the demo shows while it runs: where every order stands, and the way of a few of them. Pure: told, not asking.

Told by the group's events and the service's ledger, in whatever order they arrive.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from sidecar.dev.demo.ledger import Answered, Began, Closed, Line, Opened
from sidecar.dev.demo.orders import Case
from topics.events import Event, State

FOLLOWED = (Case.FLAKY, Case.LATER, Case.STUCK, Case.REFUSED, Case.POISON)
"""The cases of which one order each is followed."""


class Step(msgspec.Struct):
    """One attempt: when it was due and when it came (epoch ms), and the answer: its status where HTTP says it, else
    the verdict; empty: there was none, None: none yet."""

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
    """The retry that was last announced; `level` and `due` are its own."""
    held: bool = False
    """It failed, and waits in place for its next attempt."""
    committed: bool = False
    dead: bool = False

    @property
    def seen(self) -> int:
        """The last attempt that reached the service, from 0; −1 when none has."""
        return max((times for times, step in self.steps.items() if step.came is not None), default=-1)


class Counts(NamedTuple):
    """How many orders stand where; `waiting` by level, as it is written. Together they are all that were produced."""

    ready: int
    in_flight: int
    waiting: dict[str, int]
    committed: int
    dead: int


class OrderTracker:
    """Folds what it is told. `in_place`: what orders wait for that have failed, where no event tells of it."""

    def __init__(self, in_place: str | None = None) -> None:
        self._in_place = in_place
        self.tracks: dict[str, Track] = {}
        self.followed: dict[str, Track] = {}
        self.began: float | None = None
        """When the first order reached the service, epoch ms."""
        self.down_since: float | None = None
        self._requests: dict[int, tuple[Track, int]] = {}

    def seen(self, lines: Iterable[Line]) -> None:
        """Take in what the service wrote."""
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

    def told(self, events: Iterable[Event]) -> None:
        """Take in the group's events."""
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
        """The attempt is counted: if the service gave no answer by now, it will not."""
        step = track.steps.setdefault(times, Step())
        step.answer = "" if step.answer is None else step.answer

    def _track(self, identity: str) -> Track:
        return self.tracks.setdefault(identity, Track(identity))

    def counts(self, produced: int, now: float) -> Counts:
        """Where the `produced` orders stand at `now` (epoch ms); one whose due time is over is ready."""
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
        # An order may be seen at the service before the producer hears that it was stored.
        ready = max(0, produced - sum(waiting.values()) - in_flight - committed - dead)
        return Counts(ready, in_flight, waiting, committed, dead)

    def _level(self, track: Track, now: float) -> str | None:
        """What the order waits for, if it does."""
        if track.held:
            return self._in_place
        return track.level if track.due > now else None

    def journeys(self) -> tuple[Track, ...]:
        """The orders that are followed, by case."""
        return tuple(self.followed[case] for case in FOLLOWED if case in self.followed)
