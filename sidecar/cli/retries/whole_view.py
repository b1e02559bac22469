"""The view of a command: read once, to its end, into a temporary file, with a progress bar and what must be said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from reconsume.sidecar.cli.retries.rows import source_lines
from reconsume.sidecar.cli.terminal.output import talk
from reconsume.sidecar.cli.terminal.progress import progress_bar
from reconsume.sidecar.clock import wall
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.view.snapshot import ViewSnapshot, looking
from reconsume.sidecar.view.source import Source
from reconsume.sidecar.view.store import BOUND


@contextmanager
def whole_view(settings: Settings, source: Source, most: int | None) -> Iterator[ViewSnapshot]:
    """Yield the view, read to its end; print what it is made from, how old it is, and what it lacks.

    `most`: the events to read at most; the bound of a copy where it is not given.
    """
    limit = BOUND.records if most is None else most
    with looking(settings.kafka, settings.names, source, limit) as look:
        what = "events" if look.source is Source.EVENTS else "records of the view"
        with progress_bar(what) as progress:
            look.read_all(progress)
        for line in source_lines(look.source, look.as_of, look.since, look.shortfall, wall()):
            talk(line)
        if look.bad:
            talk(f"warning: {look.bad} {what} are no such, and passed over")
        yield look
