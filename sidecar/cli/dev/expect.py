"""`dev expect`: wait for the end of a record, compare it with what a test expects, and print the record's journey.

A record's end is its newest event: COMMIT, DLQ, or a retry without a due time (parked). A record that succeeded at
once has no event; the group's progress says that it is done. Progress is read first and the events afterwards, up to
where they ended when progress was read: the transaction that made the progress also wrote the event.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from reconsume.sidecar.cli.find import is_done
from reconsume.sidecar.cli.retries.rows import CUT, JOURNEY, for_people, journey
from reconsume.sidecar.cli.terminal.arguments import duration, record_id
from reconsume.sidecar.cli.terminal.exit_codes import DONE, FAILED
from reconsume.sidecar.cli.terminal.kafka_settings import settings_for_kafka
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import talk
from reconsume.sidecar.errors import ConfigError, RecordError
from reconsume.sidecar.hints import not_ours
from reconsume.sidecar.operation import no_report
from reconsume.sidecar.printable import plural
from reconsume.topics.durations import render_duration
from reconsume.topics.events import Event, State

if TYPE_CHECKING:
    from reconsume.sidecar.kafka.admin.cluster import Cluster
    from reconsume.sidecar.settings import Settings

LOOK_EVERY = 0.2
"""Seconds between two looks."""
MOST_EVENTS = 500_000
"""Events that a look reads at most: some two seconds of one core."""
CLIENT = "reconsume-dev-expect"
DONE_END, DEAD_END, PARKED_END = "done", "dead", "parked"


class End(NamedTuple):
    """How a record has ended, and after how many retries."""

    name: str
    retries: int

    def __str__(self) -> str:
        return f"{self.name} after {plural(self.retries, 'retry')}"


def expect(
    options: Options,
    record: Annotated[str, typer.Argument(metavar="ID", help="The record's id, like orders:0:17.", callback=record_id)],
    done: Annotated[bool, typer.Option("--done", help="The service accepts the record.")] = False,
    dead: Annotated[bool, typer.Option("--dead", help="The record becomes a dead letter.")] = False,
    parked: Annotated[bool, typer.Option("--parked", help="The record is parked in the queue of its key.")] = False,
    retries: Annotated[
        int | None, typer.Option("--retries", min=0, help="Exactly so many retries until then; any number by default.")
    ] = None,
    within: Annotated[str, typer.Option("--within", metavar="DURATION", help="How long to wait.")] = "20s",
) -> int:
    """Wait for the end of a record and compare it with what you expect.

    Prints the record's journey. Ends with 0 if the record ends as expected within the time, and with 1 if it ends
    otherwise, has not ended, or does not exist.

    \b
    Examples:
      reconsume dev expect orders:0:17 --retries 2 --dead --within 20s -c reconsume.yaml
      reconsume dev expect orders:0:18 --done
    """
    chosen = [name for name, is_given in ((DONE_END, done), (DEAD_END, dead), (PARKED_END, parked)) if is_given]
    if len(chosen) != 1:
        raise typer.BadParameter("give one of --done, --dead and --parked: how is the record to end?")
    wait_s = duration(within, "--within") / 1000
    settings = settings_for_kafka(options)
    if settings.deliver.broadcast:
        raise ConfigError(["deliver.broadcast: a broadcast keeps nothing of a record, so nothing can be expected"])
    in_memory = settings.deliver.order != "none" and not settings.queued
    if in_memory and retries is not None and not dead:
        raise typer.BadParameter("--retries: this group retries in place, and only a dead letter tells how often")
    [wanted] = chosen
    until = time.monotonic() + wait_s
    end_finder = EndFinder(settings, record, until)
    end = end_finder.look()
    while end is None and time.monotonic() < until:
        time.sleep(LOOK_EVERY)
        end = end_finder.look()
    rows = (for_people(row, options.output.format) for row in journey(end_finder.events))
    options.output.rows(JOURNEY, rows, CUT)
    expected = wanted if retries is None else str(End(wanted, retries))
    if end is None:
        talk(f"{record} has not ended within {render_duration(int(wait_s * 1000))}; expected: {expected}")
        return FAILED
    if end.name != wanted or retries not in (None, end.retries):
        talk(f"{record} is {end}; expected: {expected}")
        return FAILED
    talk(f"{record} is {end}, as expected" if retries is not None else f"{record} is {end.name}, as expected")
    return DONE


class EndFinder:
    """Looks at one record again and again. Raises RecordError at the first look if there is no such record.

    `events`: the record's events as of the last look, in their order.
    """

    def __init__(self, settings: Settings, ident: str, until: float) -> None:
        """`until`: monotonic time (seconds) up to which a look may wait for an open transaction."""
        from reconsume.sidecar.kafka.admin.cluster import Cluster  # imports the Kafka client, which is slow

        self.events: Sequence[Event] = ()
        self._settings, self._ident, self._until = settings, ident, until
        self._cluster: Cluster = Cluster(settings.kafka, CLIENT)
        self._is_known = False

    def look(self) -> End | None:
        """Return how the record has ended; None if it has not. Raises BrokerError, ContractError and RecordError."""
        from reconsume.sidecar.view.journey import read_journey

        settings, ident = self._settings, self._ident
        has_passed = is_done(settings, ident)
        if has_passed:
            self._await_events()
        record_journey = read_journey(self._cluster, settings.names, ident, None, MOST_EVENTS, no_report)
        if record_journey.missing and not record_journey.events:
            raise RecordError(f"the events of {ident} cannot be read: {record_journey.missing}")
        self.events = record_journey.events
        if self.events:
            return end_of(self.events[-1])
        if has_passed:
            return End(DONE_END, 0)
        if not self._is_known:
            self._expect_record()
        return None

    def _await_events(self) -> None:
        """Wait until readers see all events that are written by now: the end of a transaction comes a moment later."""
        topic = self._cluster.existing([self._settings.names.events]).get(self._settings.names.events)
        if topic is None:
            return  # the reader of the journey says so
        written = self._cluster.spans(topic.led, committed=False)
        while any(written[one].end > span.end for one, span in self._cluster.spans(topic.led).items()):
            if time.monotonic() > self._until:
                raise RecordError(f"{self._ident}: its events cannot be read: a transaction is open in {topic.name}")
            time.sleep(LOOK_EVERY / 4)

    def _expect_record(self) -> None:
        topic, number, offset = self._ident.rsplit(":", 2)
        if topic not in self._settings.topic_names:
            raise RecordError(not_ours(topic, self._settings.topic_names))
        there = self._cluster.existing([topic]).get(topic)
        has_partition = there is not None and int(number) < there.partitions
        ends = self._cluster.spans([(topic, int(number))], committed=False) if has_partition else {}
        if not any(int(offset) < span.end for span in ends.values()):
            raise RecordError(f"there is no record {self._ident}")
        self._is_known = True


def end_of(event: Event) -> End | None:
    """Return how a record has ended, by its newest event; None if it goes on."""
    match event.state:
        case State.COMMIT:
            return End(DONE_END, event.times)
        case State.DLQ | State.DISMISSED:
            return End(DEAD_END, event.times)
        case State.WAITING_RETRY if event.parked is True:
            return End(PARKED_END, event.times)
        case _:
            return None
