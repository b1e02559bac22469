"""`demo --view`: run the Spark job too, read its view during the run, and check at the end that it is right."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from reconsume.sidecar.dev.demo.processes import Child, ProcessGroup
from reconsume.sidecar.errors import SetupError
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.view.query import Filters
from reconsume.sidecar.view.reader import ViewSnapshot, looking
from reconsume.sidecar.view.source import Source
from reconsume.topics.events import Event, State, latest
from reconsume.topics.view_record import ViewRow

STILL_SECONDS = 120.0
"""Seconds without any step of the job's start after which it counts as stuck. Spark needs some ten for all of it, and
compiles its first batch, which is one step; a busy machine needs several times that."""
TELL_EVERY = 15.0
"""Seconds between two lines that say how far the job is."""
SETTLE_SECONDS = 60.0
COMPARED = tuple(name for name in Event.__struct_fields__ if name not in ("text", "retries", "last_failed_at"))
"""The fields that each event has, and each row of the Spark job."""
POLL = 0.1
_ROW = msgspec.json.Decoder(ViewRow)
FIRST_BATCH = "the first batch is done"
"""What the job's log says once later events are shown at once."""


def start_job(
    crew: ProcessGroup, bootstrap: str, group: str, jars: Sequence[Path], say: Callable[[str], None]
) -> Child:
    """Start the job, and wait until its first batch is done: later events are then shown at once.

    Waits as long as there is progress. `say`: called now and then with how far the job is. Raises SetupError.
    """
    words = ("--groups", group, "--bootstrap", bootstrap, "--trigger", "1s")
    job = crew.start("view", "reconsume.spark", "run", *words, "--jars", ",".join(map(str, jars)))
    patience, began = Patience(STILL_SECONDS), time.monotonic()
    said_at = began
    while FIRST_BATCH not in job.log.read_text("utf-8", errors="replace"):
        job.check()
        now = time.monotonic()
        if patience.note(job.log.stat().st_size, now):
            raise SetupError(
                f"the view's job has not moved for {STILL_SECONDS:.0f} s, {now - began:.0f} s after its start:",
                job.log_tail(),
            )
        if now - said_at >= TELL_EVERY:
            said_at = now
            say(f"Spark starts: {now - began:.0f} s")
        time.sleep(POLL)
    return job


class Patience:
    """Wait for something as long as it moves."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._steps: object = None
        self._moved_at: float | None = None

    def note(self, steps: object, now: float) -> bool:
        """Note how far it is at `now` (seconds of a steady clock). Return whether that has not moved for too long."""
        if self._moved_at is None or steps != self._steps:
            self._steps, self._moved_at = steps, now
        return now - self._moved_at > self._seconds


class View:
    """The group's view as it is read from its topic; `reading_view` creates it."""

    def __init__(self, look: ViewSnapshot) -> None:
        self._look = look

    def read(self, wait: float = 0.0) -> None:
        """Process new rows, waiting up to `wait` seconds for them. Raises BrokerError."""
        self._look.read_turn(wait)

    def counts(self) -> Mapping[State, int]:
        """Return the number of records in each state."""
        with self._look.questions() as query:
            return {State(state): count for state, count in query.counts().items()}

    def rows(self) -> dict[str, ViewRow]:
        """Return the row of each record."""
        with self._look.questions() as query:
            rows = [_ROW.decode(value) for value in query.every_message(Filters())]
        return {row.id: row for row in rows}

    def settle(self, events: Iterable[Event]) -> list[str]:
        """Return how the view differs from the fold of all events; wait up to SETTLE_SECONDS for it to be right
        (empty)."""
        expected = fold(events)
        until = time.monotonic() + SETTLE_SECONDS
        while (wrong := differences(self.rows(), expected)) and time.monotonic() < until:
            self.read(POLL)
        return wrong


@contextmanager
def reading_view(settings: Settings) -> Iterator[View]:
    """Yield the view of the group. Raises BrokerError."""
    with looking(settings.kafka, settings.names, Source.SPARK, with_sums=False) as look:
        yield View(look)


def fold(events: Iterable[Event]) -> dict[str, Event]:
    """Return the last event of each record."""
    events_by_id: dict[str, list[Event]] = {}
    for event in events:
        events_by_id.setdefault(event.id, []).append(event)
    return {
        id_: last for id_, events_of_record in events_by_id.items() if (last := latest(events_of_record)) is not None
    }


def differences(rows: Mapping[str, ViewRow], expected: Mapping[str, Event]) -> list[str]:
    """Return a sentence for each record whose row in the view differs from its events."""
    sentences = [f"{id_}: in the view, and in no event" for id_ in rows if id_ not in expected]
    for id_, event in expected.items():
        row = rows.get(id_)
        if row is None:
            sentences.append(f"{id_}: not in the view, which should say {event.state}")
        elif wrong := [name for name in COMPARED if getattr(row, name) != getattr(event, name)]:
            sentences.append(f"{id_}: the view is wrong in {', '.join(wrong)}")
    return sentences
