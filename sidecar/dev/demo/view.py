"""`demo --view`: run the Spark job too, read its view during the run, and check at the end that it is right."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from sidecar.dev.demo.processes import Child, ProcessGroup
from sidecar.errors import SetupError
from sidecar.settings import Settings
from sidecar.view.snapshot import ViewSnapshot, looking
from sidecar.view.source import Source
from topics.events import Event, State, latest
from topics.view_record import ViewRow, view_order

START_SECONDS = 120.0
"""Seconds; Spark needs some ten, and compiles its first batch. A busy machine needs several times that."""
SETTLE_SECONDS = 60.0
POLL = 0.1
FIRST_BATCH = "view/commits/0"
"""The file in the checkpoint that exists once the first batch of the view is done."""


def start_job(crew: ProcessGroup, home: Path, bootstrap: str, group: str, jars: Sequence[Path]) -> Child:
    """Start the job, and wait until its first batch is done: later events are then shown at once. Raises SetupError."""
    checkpoint = home / "checkpoint"
    words = ("--groups", group, "--bootstrap", bootstrap, "--checkpoint", str(checkpoint), "--trigger", "1s")
    job = crew.start("view", "spark", "run", *words, "--jars", ",".join(map(str, jars)))
    until = time.monotonic() + START_SECONDS
    while not (checkpoint / FIRST_BATCH).exists():
        job.check()
        if time.monotonic() > until:
            raise SetupError(f"the view's job did not start within {START_SECONDS:.0f} s:\n{job.log_tail()}")
        time.sleep(POLL)
    return job


class View:
    """The group's view as it is read from its topic; `reading_view` creates it."""

    def __init__(self, look: ViewSnapshot) -> None:
        self._look = look
        self._rows: dict[str, ViewRow] = {}

    def read(self, wait: float = 0.0) -> None:
        """Process new rows, waiting up to `wait` seconds for them. Raises BrokerError."""
        for item in self._look.turn(wait):
            row = item.heard
            if isinstance(row, ViewRow) and (row.id not in self._rows or newer(row, self._rows[row.id])):
                self._rows[row.id] = row

    def counts(self) -> Mapping[State, int]:
        """Return the number of records in each state."""
        return Counter(row.state for row in self._rows.values())

    def settle(self, events: Iterable[Event]) -> list[str]:
        """Return how the view differs from the fold of all events; wait up to SETTLE_SECONDS for it to be right
        (empty)."""
        expected = fold(events)
        until = time.monotonic() + SETTLE_SECONDS
        while (found := differences(self._rows, expected)) and time.monotonic() < until:
            self.read(POLL)
        return found


@contextmanager
def reading_view(settings: Settings) -> Iterator[View]:
    """Yield the view of the group. Raises BrokerError."""
    with looking(settings.kafka, settings.names, Source.SPARK) as look:
        yield View(look)


def newer(row: ViewRow, known: ViewRow) -> bool:
    """Whether the first row is the greater of the two."""
    return view_order(row) > view_order(known)


def fold(events: Iterable[Event]) -> dict[str, Event]:
    """Return the last event of each record."""
    lives: dict[str, list[Event]] = {}
    for event in events:
        lives.setdefault(event.id, []).append(event)
    return {id_: last for id_, life in lives.items() if (last := latest(life)) is not None}


def differences(rows: Mapping[str, ViewRow], expected: Mapping[str, Event]) -> list[str]:
    """Return a sentence for each record whose row in the view differs from its events."""
    found = [f"{id_}: in the view, and in no event" for id_ in rows if id_ not in expected]
    for id_, event in expected.items():
        row = rows.get(id_)
        if row is None:
            found.append(f"{id_}: not in the view, which should say {event.state}")
        elif wrong := [name for name in Event.__struct_fields__ if getattr(row, name) != getattr(event, name)]:
            found.append(f"{id_}: the view is wrong in {', '.join(wrong)}")
    return found
