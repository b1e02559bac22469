"""Move a group's position in a topic while the group runs, as an operation (contract 10.11): plan, request, follow.

The command, the API and the dashboard's form build a `WantedReset` and carry out a `MovePosition`:

1. `plan` asks Kafka for watermarks, offsets by time, progress and what owners have noted of earlier resets. No record
   is read, so a plan for millions takes as long as one for ten. It counts offsets, which are upper bounds of records.
2. `run` looks again whether what the plan is based on has changed, writes one request to the control log, and follows
   the notes of the owners until each partition's note names it. It may end at any time: the owners carry it out.
3. What was skipped can be exported afterwards, any number of times: the notes name the offsets.

Every call blocks and ends within seconds, but for `run`, which ends when all is carried out, after
`CARRIED_OUT_WITHIN_MS`, or once `stop` is set.
"""

from __future__ import annotations

import enum
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from reconsume.sidecar.clock import wall
from reconsume.sidecar.core.offset_ranges import OffsetRanges
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.errors import BrokerError, ContractError, RecordError
from reconsume.sidecar.group_policy.control_log import ControlLog
from reconsume.sidecar.group_policy.queries import live_queries, name_of
from reconsume.sidecar.group_policy.state import ControlState
from reconsume.sidecar.hints import absent, hint, not_ours
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import PartitionName, Span
from reconsume.sidecar.kafka.consumer.log_checks import NO_ID
from reconsume.sidecar.kafka.policy_topic import NotesLog
from reconsume.sidecar.operation import Outcome, Plan, Report, Row, Status
from reconsume.sidecar.printable import plural, printable
from reconsume.sidecar.settings import Settings
from reconsume.topics.durations import parse_duration
from reconsume.topics.names import Names
from reconsume.topics.partition import Partition
from reconsume.topics.position_ranges import MOST_RANGES, RESET, PartitionResets, ResetRange, topic_digest
from reconsume.topics.reset_record import MOST_TARGETS, ResetRequest, ResetTarget, render_reset, reset_key

if TYPE_CHECKING:
    from reconsume.sidecar.group_policy.skipped_records import SkippedRecords

LOOK_EVERY_S = 0.5
"""Seconds between two looks at what the owners have noted."""
EARLIEST, LATEST = "earliest", "latest"
CHANGED = "another reset was carried out, or the topic was recreated, since this plan was made: plan it again"
FORMS = "earliest, latest, an offset, a duration back such as 2h, or a time with its zone such as 2026-11-30T10:00:00Z"
STATE_COLUMNS = ("partition", "target", "state", "again_at_most", "skipped_at_most")
COLUMNS = ("partition", "direction", "position", "target", "again_at_most", "skipped_at_most", "left_of_earlier", "log")


class Direction(enum.StrEnum):
    """Which way a position moves."""

    BACK = "backwards"
    FORTH = "forwards"
    NONE = "none"


class Target(NamedTuple):
    """Where a position is moved to: an `offset`, or the first record at or after a time (`at`, epoch ms); with neither
    the `text` says it, `earliest` or `latest`."""

    text: str
    offset: int | None = None
    at: int | None = None


def read_target(text: str, now_ms: int) -> Target:
    """Return what a text means. `now_ms`: epoch ms. Raises ContractError, with a sentence, if it means nothing."""
    if text in (EARLIEST, LATEST):
        return Target(text)
    if text.isascii() and text.isdecimal() and len(text) <= 18:
        return Target(text, offset=int(text))
    at: int | None = None
    with suppress(ValueError):
        at = now_ms - parse_duration(text)
    if at is None:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ContractError(f"{printable(text[:40])} is no target: give {FORMS}") from None
        if moment.tzinfo is None:
            raise ContractError(f"the time {printable(text[:40])} has no zone: write Z or +02:00 behind it")
        at = round(moment.timestamp() * 1000)
    if at > now_ms:
        raise ContractError(f"{printable(text[:40])} is in the future: give {LATEST} to skip all that is there")
    return Target(text, at=max(0, at))


class WantedReset(NamedTuple):
    """What somebody asks for. `partition`: one partition; None: all."""

    topic: str
    partition: int | None
    to: Target
    why: str
    who: str


class PartitionNow(NamedTuple):
    """What is known of a partition when a reset is planned. `target`: the offset to move to.

    `progress`: None if the group has never committed anything there. `resets`: the earlier ones, as owners have noted
    them; None if there was none.
    """

    number: int
    span: Span
    progress: Progress | None
    resets: PartitionResets | None
    target: int

    @property
    def position(self) -> int:
        """The offset below which everything is done."""
        return self.span.begin if self.progress is None else max(self.span.begin, self.progress.next)

    @property
    def begun(self) -> int:
        """The offset behind all that is known to have begun, as its owner sees it (`core/position_reset.py`).
        Deliveries in flight may be behind it."""
        own = self.progress
        if own is None:
            return self.position
        reach = 0 if own.reach is None else own.reach + 1
        return max(self.position, OffsetRanges.of(own.done).end, reach, *(one.end for one in self.ranges))

    @property
    def direction(self) -> Direction:
        """Which way the position moves, as far as is known before its owner does it."""
        if self.target < self.begun:
            return Direction.BACK
        return Direction.FORTH if self.target > self.position else Direction.NONE

    @property
    def redelivered(self) -> int:
        """The offsets that are delivered again, of which deliveries in flight may add some."""
        return self.begun - self.target if self.direction is Direction.BACK else 0

    @property
    def skipped(self) -> int:
        """The offsets that are never delivered."""
        if self.direction is not Direction.FORTH:
            return 0
        done = () if self.progress is None else OffsetRanges.of(self.progress.done).within(self.position, self.target)
        return self.target - self.position - len(done)

    @property
    def undelivered(self) -> int:
        """The offsets of an earlier reset's range that were not delivered yet."""
        end = max((one.end for one in self.ranges), default=0)
        return max(0, end - self.position)

    @property
    def ranges(self) -> Sequence[ResetRange]:
        return () if self.resets is None else self.resets.ranges

    @property
    def last(self) -> str:
        """The id of the reset that was carried out last; empty if none was."""
        return "" if self.resets is None else self.resets.last_reset

    def is_full(self, now_ms: int) -> bool:
        """Whether one more range would be too many. `now_ms`: epoch ms."""
        if self.resets is None or self.direction is not Direction.BACK:
            return False
        return (
            len(self.resets.with_range(ResetRange(self.target, self.begun, self.resets.cycle + 1, now_ms)))
            > MOST_RANGES
        )

    def row(self) -> Row:
        """Return it as a row of the plan."""
        return {
            "partition": self.number,
            "direction": str(self.direction),
            "position": self.position,
            "target": self.target,
            "again_at_most": self.redelivered,
            "skipped_at_most": self.skipped,
            "left_of_earlier": self.undelivered,
            "log": f"{self.span.begin}–{self.span.end}",
        }


class ResetBasis(NamedTuple):
    """What a plan is based on. `topic_id`: as in the request (`LogId.topic`)."""

    topic_id: str
    partitions: tuple[PartitionNow, ...]

    def has_changed(self, now: ResetBasis) -> bool:
        """Whether, by what Kafka says now, the topic was recreated or one of these partitions was reset again."""
        lasts = {one.number: one.last for one in now.partitions}
        return self.topic_id != now.topic_id or any(lasts.get(one.number) != one.last for one in self.partitions)


class TargetState(enum.StrEnum):
    """What became of a reset in one partition."""

    WAITING = "waiting"
    """Its owner has not carried it out yet."""
    DONE = "done"
    OVERTAKEN = "another reset was carried out first"
    RECREATED = "the topic was recreated"
    TOO_LATE = "not carried out within 1h"


class ResetProgress(NamedTuple):
    """What became of a reset, by partition. `redelivered`, `skipped`: the offsets, where it was carried out."""

    ident: str
    request: ResetRequest
    states: Mapping[int, TargetState]
    redelivered: Mapping[int, int] = {}
    skipped: Mapping[int, tuple[tuple[int, int], ...]] = {}

    @property
    def is_over(self) -> bool:
        """Whether nothing more will become of it."""
        return TargetState.WAITING not in self.states.values()

    def count(self, state: TargetState) -> int:
        """Return how many partitions are in a state."""
        return sum(one is state for one in self.states.values())

    def rows(self) -> list[Row]:
        """Return a row for each partition."""
        return [
            {
                "partition": one.partition,
                "target": one.target,
                "state": str(self.states[one.partition]),
                "again_at_most": self.redelivered.get(one.partition, 0),
                "skipped_at_most": sum(end - begin for begin, end in self.skipped.get(one.partition, ())),
            }
            for one in self.request.targets
        ]


class PositionStore:
    """What reads and writes the resets of one group. One thread uses it at a time."""

    def __init__(self, cluster: Cluster, names: Names) -> None:
        self.cluster, self._names, self._log = cluster, names, ControlLog(cluster, names)
        self._notes = NotesLog(cluster, names, RESET)

    def state(self) -> ControlState:
        """Return the control log. Raises ContractError if it has no room for notes, and BrokerError."""
        self._log.expect_notes("a reset")
        return self._log.read()

    def topic_id(self, topic: str) -> tuple[str, int]:
        """Return the id of a main topic, as notes have it, and its number of partitions.

        Raises ContractError if the topic does not exist or the brokers have no ids of topics.
        """
        described = self.cluster.existing([topic]).get(topic)
        if described is None:
            raise ContractError(absent([topic]))
        if described.id in ("", NO_ID):
            raise ContractError("the brokers have no ids of topics (Kafka 2.8 and later do), which a reset needs")
        return topic_digest(described.id), described.partitions

    def basis(self, wanted: WantedReset) -> ResetBasis:
        """Return what Kafka says of the partitions now. Raises ContractError, with a sentence, and BrokerError."""
        topic_id, count = self.topic_id(wanted.topic)
        if wanted.partition is not None and wanted.partition >= count:
            raise ContractError(
                f"{wanted.topic} has no partition {wanted.partition}: it has {plural(count, 'partition')}"
            )
        if wanted.to.offset is not None and wanted.partition is None and count > 1:
            raise ContractError("an offset means one partition: say which one")
        numbers = range(count) if wanted.partition is None else [wanted.partition]
        if len(numbers) > MOST_TARGETS:
            raise ContractError(f"a reset moves {MOST_TARGETS} partitions at most: say which one")
        sources = [Partition(wanted.topic, number) for number in numbers]
        progress = self.cluster.progress(self._names.group, sources)
        spans = self.cluster.spans(sources, committed=False)
        targets = self._targets(wanted.to, spans)
        self._notes.read_on()
        return ResetBasis(
            topic_id,
            tuple(
                PartitionNow(
                    source.number,
                    spans[source],
                    progress.get(source),
                    self._notes.resets_of(source, topic_id),
                    targets[source],
                )
                for source in sources
            ),
        )

    def _targets(self, to: Target, spans: Mapping[PartitionName, Span]) -> dict[PartitionName, int]:
        """Return the offset of each partition. Raises ContractError if an offset is outside the log."""
        if to.at is not None:
            first = self.cluster.offsets(spans, to.at, committed=False)
            return {one: spans[one].end if at.offset < 0 else at.offset for one, at in first.items()}
        if to.offset is None:
            return {one: span.begin if to.text == EARLIEST else span.end for one, span in spans.items()}
        for (topic, number), span in spans.items():
            if not span.begin <= to.offset <= span.end:
                bounds = f"it begins at {span.begin} and ends at {span.end}"
                raise ContractError(f"offset {to.offset} is outside {topic}[{number}]: {bounds}")
        return dict.fromkeys(spans, to.offset)

    def write(self, request: ResetRequest) -> tuple[str, ResetRequest]:
        """Write a request, and read on until it was seen. Return its id. Raises BrokerError."""
        ident = secrets.token_hex(4)
        self._log.write({reset_key(ident): render_reset(request)}, "the reset is not written, as far as is known")
        state = self._log.read()
        if ident not in state.resets:
            raise BrokerError(f"reset {ident} is written, and could not be read again")
        return ident, state.resets[ident]

    def left_of(self, positions: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return how many offsets of reset ranges lie at or above these positions, of each partition that has such."""
        self._notes.read_on()
        known = self._notes.present_resets()
        ends = {source: max((end for _, end, _ in known[source].segments()), default=0) for source in known}
        return {source: ends[source] - at for source, at in positions.items() if ends.get(source, 0) > at}

    def live_instances(self, state: ControlState) -> frozenset[str]:
        """Return the instances that would carry a reset out. Raises BrokerError."""
        return self._log.live_instances(state)

    def find(self, ident: str) -> ResetRequest:
        """Return the request with this id. Raises RecordError if there is none."""
        if (request := self.state().resets.get(ident)) is None:
            raise RecordError(f"there is no reset {printable(ident[:64])}: the newest 100 are kept")
        return request

    def progress_of(self, ident: str, request: ResetRequest) -> ResetProgress:
        """Return what became of a request. Raises BrokerError."""
        self._notes.read_on()
        described = self.cluster.existing([request.topic]).get(request.topic)
        is_same = described is not None and topic_digest(described.id) == request.id
        is_late, states = request.is_over(wall()), dict[int, TargetState]()
        redelivered, skipped = dict[int, int](), dict[int, tuple[tuple[int, int], ...]]()
        for one in request.targets:
            number = one.partition
            known = self._notes.resets_of(Partition(request.topic, number), request.id)
            if known is not None and ident in known.resets:
                states[number] = TargetState.DONE
                if known.last_reset == ident:
                    skipped[number] = known.skipped
                    newest = known.ranges[-1] if known.ranges and not known.skipped else None
                    redelivered[number] = (
                        newest.end - newest.start if newest is not None and newest.start == one.target else 0
                    )
            elif not is_same:
                states[number] = TargetState.RECREATED
            elif ("" if known is None else known.last_reset) != one.based_on:
                states[number] = TargetState.OVERTAKEN
            else:
                states[number] = TargetState.TOO_LATE if is_late else TargetState.WAITING
        return ResetProgress(ident, request, states, redelivered, skipped)

    def follow(
        self, reached: ResetProgress, export: SkippedRecords | None, report: Report, stop: threading.Event
    ) -> ResetProgress:
        """Wait until a reset is over in each partition, or `stop` is set, and return what became of it.

        What it has skipped is exported then. Raises BrokerError, and OSError if the export cannot be written.
        """
        while True:
            reached = self.progress_of(reached.ident, reached.request)
            report(len(reached.states) - reached.count(TargetState.WAITING), len(reached.states))
            if reached.is_over or stop.wait(LOOK_EVERY_S):
                break
        if export is not None and reached.is_over and not stop.is_set():
            export.write(reached, report, stop)
        return reached


def expect_movable(settings: Settings) -> None:
    """Raise ContractError if the group keeps no position that a reset could move."""
    if settings.deliver.broadcast:
        raise ContractError("a broadcast keeps no position that could be moved")
    if settings.deliver.mode == "relay":
        raise ContractError("in relay mode the service reads the main topics itself: move the position of its consumer")
    if settings.deliver.mode == "spark":
        raise ContractError("a Spark query consumes this group, and its checkpoint says where it begins")


def expect_no_query(state: ControlState, now_ms: int) -> None:
    """Raise ContractError if a Spark query reads the group now."""
    if queries := live_queries(state, now_ms):
        names = ", ".join(name_of(query) for query in queries[:3])
        raise ContractError(f"the Spark query {names} reads the group, and keeps its own position: stop it first")


class MovePosition:
    """Move the position of a group, as an operation. `say` gets a line with the id once the request is written.

    `export`: writes the records that were skipped once all is carried out; None: nobody asked for them.
    """

    action = "reset"

    def __init__(
        self,
        store: PositionStore,
        settings: Settings,
        wanted: WantedReset,
        say: Callable[[str], None] = lambda _line: None,
        export: SkippedRecords | None = None,
    ) -> None:
        self._store, self._settings, self._wanted, self._say, self._export = store, settings, wanted, say, export
        self._basis: ResetBasis | None = None
        self.reached: ResetProgress | None = None
        self.why = wanted.why

    @property
    def what(self) -> str:
        """What is moved, and to where; once it is written with the id."""
        of = "" if self._wanted.partition is None else f"[{self._wanted.partition}]"
        moved = f"{self._wanted.topic}{of} to {self._wanted.to.text}"
        return moved if self.reached is None else f"{self.reached.ident} {moved}"

    @property
    def changed(self) -> int:
        """How many partitions were moved."""
        return 0 if self.reached is None else self.reached.count(TargetState.DONE)

    def plan(self, _report: Report) -> Plan:
        """Ask Kafka where the positions are, and where they would be. Raises ContractError, with a sentence."""
        wanted, now_ms = self._wanted, wall()
        if wanted.topic not in self._settings.topic_names:
            raise ContractError(not_ours(wanted.topic, self._settings.topic_names))
        expect_movable(self._settings)
        expect_no_query(state := self._store.state(), now_ms)
        basis = self._store.basis(wanted)
        # Deliveries of the last second are not committed yet: only where the log ends there is certainly nothing to do.
        moved = tuple(
            one for one in basis.partitions if one.direction is not Direction.NONE or one.position < one.span.end
        )
        self._basis = basis._replace(partitions=moved)
        if full := [one.number for one in moved if one.is_full(now_ms)]:
            raise ContractError(
                f"partition {full[0]} of {wanted.topic} has {MOST_RANGES} ranges of earlier resets, and no room for "
                "another: a range ends when its records have left the topic, or lies inside a later one"
            )
        rows = [one.row() for one in basis.partitions]
        if not moved:
            return Plan(COLUMNS, rows, "", "each position is there already: nothing was written")
        return Plan(COLUMNS, rows, self._question(moved), "nothing was written", self._remarks(state, moved))

    def _question(self, moved: Sequence[PartitionNow]) -> str:
        back = [one for one in moved if one.direction is Direction.BACK]
        forth = [one for one in moved if one.direction is Direction.FORTH]
        effects = []
        if back:
            redelivered = sum(one.redelivered for one in back)
            effects.append(f"deliver at most {plural(redelivered, 'record')} of {plural(len(back), 'partition')} again")
        if forth:
            skipped = sum(one.skipped for one in forth)
            effects.append(f"skip at most {plural(skipped, 'record')} of {plural(len(forth), 'partition')}")
        text = ", and ".join(effects) or "what has begun since"
        return f"Move {self._wanted.topic} to {self._wanted.to.text}: {text}?"

    def _remarks(self, state: ControlState, moved: Sequence[PartitionNow]) -> list[str]:
        remarks = [
            "positions and bounds of the log are exact; numbers of records count offsets, of which some may hold no "
            "record, and what is in flight now adds to them"
        ]
        if any(one.direction is Direction.BACK for one in moved):
            remarks += [
                "records that are delivered again begin a new retry cycle; their waiting retries end without a "
                "delivery, and their dead letters stay, superseded: no redrive takes them",
                "fresh records of these partitions come behind the records that are delivered again",
            ]
        if undelivered := sum(one.undelivered for one in moved):
            records = f"at most {plural(undelivered, 'record')} of an earlier reset"
            is_latest = self._wanted.to.text == LATEST
            remarks.append(
                f"warning: {records} are skipped, undelivered"
                if is_latest
                else f"{records} are not delivered yet, and will be"
            )
        if any(one.direction is Direction.FORTH for one in moved) and self._export is None:
            remarks.append(f"`{hint('reset --follow ID --export FILE')}` then writes what was skipped")
        if not self._store.live_instances(state):
            remarks.append("warning: no instance is running: the first ones that start within 1h carry it out")
        return remarks

    def run(self, report: Report, stop: threading.Event) -> None:
        """Write the request and follow it until each partition is moved, `stop` is set, or its hour is over.

        Raises ContractError if what the plan is based on has changed, so that nothing was written, and BrokerError.
        """
        self.write()
        self.reached = self._store.follow(self.written, self._export, report, stop)

    def write(self) -> None:
        """Write the request, and follow nothing. Raises as `run` does."""
        assert self._basis is not None, "it was planned"
        store, wanted, basis = self._store, self._wanted, self._basis
        if basis.has_changed(store.basis(wanted)):
            raise ContractError(f"nothing was written: {CHANGED}")
        targets = tuple(ResetTarget(one.number, one.target, one.last) for one in basis.partitions)
        to, is_latest = wanted.to.text[:64], wanted.to.text == LATEST
        request = ResetRequest(wanted.topic, basis.topic_id, targets, wanted.who, wanted.why, wall(), to, is_latest)
        ident, request = store.write(request)
        states = dict.fromkeys((one.partition for one in targets), TargetState.WAITING)
        self.reached = ResetProgress(ident, request, states)
        self._say(f"{ident} is written: the owners move {plural(len(targets), 'partition')}")

    @property
    def written(self) -> ResetProgress:
        """What became of the reset that was written."""
        assert self.reached is not None, "it was written"
        return self.reached

    def outcome(self) -> Outcome:
        """Return what became of each partition: FAILED if none was moved because something came first, PARTLY if some
        are not moved yet."""
        return outcome_of(self.written, self._export)


class FollowReset:
    """Follow a reset that was written before, as an operation, and export what it has skipped. It changes nothing."""

    action, why, changed = "reset", "", 0

    def __init__(self, store: PositionStore, ident: str, export: SkippedRecords | None = None) -> None:
        self._store, self.what, self._export = store, ident, export
        self._reached: ResetProgress | None = None

    @property
    def reached(self) -> ResetProgress:
        """What became of the reset so far."""
        assert self._reached is not None, "it was planned"
        return self._reached

    def plan(self, _report: Report) -> Plan:
        """Find the request. Raises RecordError if there is none, ContractError and BrokerError."""
        self._reached = self._store.progress_of(self.what, self._store.find(self.what))
        return Plan(STATE_COLUMNS, self.reached.rows(), f"Follow {self.what}?", "")

    def run(self, report: Report, stop: threading.Event) -> None:
        """Wait until all is carried out. Raises BrokerError, and OSError if the export cannot be written."""
        self._reached = self._store.follow(self.reached, self._export, report, stop)

    def outcome(self) -> Outcome:
        """Return what became of each partition."""
        return outcome_of(self.reached, self._export)


def outcome_of(reached: ResetProgress, export: SkippedRecords | None) -> Outcome:
    """Return what became of a reset, and of the export of what it has skipped."""
    moved, waiting = reached.count(TargetState.DONE), reached.count(TargetState.WAITING)
    sentences = [f"moved {moved} of {plural(len(reached.states), 'partition')}"]
    for state in (TargetState.OVERTAKEN, TargetState.RECREATED, TargetState.TOO_LATE):
        if count := reached.count(state):
            sentences.append(f"{plural(count, 'partition')} not moved: {state}")
    if waiting:
        sentences.append(f"{plural(waiting, 'partition')} to be moved by the owners within the hour")
    is_exported = export is None or export.is_complete
    if export is not None:
        sentences += export.sentences
    if waiting or not is_exported:
        sentences.append(f"`{hint(f'reset --follow {reached.ident}')}` follows it, and exports with --export FILE")
    if moved == len(reached.states) and is_exported:
        return Outcome(reached.rows(), sentences)
    return Outcome(reached.rows(), sentences, Status.PARTLY if moved or waiting else Status.FAILED)
