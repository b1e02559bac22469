"""The control log, folded: what operators and instances have told a group, as one value.

The control log is partition 0 of the policy topic. `ControlState.apply` takes its records in their order, and is the
only fold of them: the sidecar's follower (`follower.py`), the commands, the dashboard and `doctor` (`control_log.py`)
all ask a `ControlState`.

- *The last record of a key counts*, whatever was there before: compaction would keep just that one. A record that
  cannot be read counts as none; the last readable policy stays in force.
- *Records are untrusted.* A writer may name any number of instances, holds, actions and records, so that every part has
  a bound. `Bounds` says how much of the past is kept; an instance keeps none.
- *Times* are epoch ms, and come from outside. That a hold has ended is no record, so queries about holds take the time.
  An instance is running if the log has a heartbeat of it that is younger than SILENT_AFTER, by the times at which the
  log was written.

Pure. A `ControlState` belongs to one thread.
"""

from __future__ import annotations

from base64 import b64encode
from collections import deque
from collections.abc import Collection, Mapping
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from reconsume.sidecar.core.holds import Hold, Holds
from reconsume.sidecar.core.participation import Others
from reconsume.sidecar.printable import plural
from reconsume.topics import versions
from reconsume.topics.action_record import ActionHeard, ActionRecord
from reconsume.topics.agreement import (
    MOST_DIGESTS,
    SETTINGS,
    SILENT_AFTER,
    LiveSettings,
    SettingsHeard,
    SettingsRecord,
    newest_first,
)
from reconsume.topics.decision_record import (
    COMMIT,
    DECISION,
    MOST_DECISIONS,
    MOST_RANGES,
    DecisionHeard,
    DecisionRecord,
)
from reconsume.topics.hold_record import HOLD, IDENT, MOST_HOLDS, HoldHeard, HoldRecord, lasts_too_long
from reconsume.topics.ownership import Readers
from reconsume.topics.policy_record import (
    KEY,
    BadRecord,
    Heard,
    InstanceHeard,
    NewerRecord,
    PolicyHeard,
    PolicyRecord,
    SettlementHeard,
    SettlementRecord,
    SubscriptionRecord,
    parse_record,
)
from reconsume.topics.reset_record import MOST_RESETS, MOST_TARGETS_KEPT, RESET, ResetHeard, ResetRequest

MOST_INSTANCES, MOST_BYTES = 4_096, 2 * 1024 * 1024
"""Instances that are kept, and bytes of their heartbeats or of policies. Parsed they take about twenty times as much at
worst."""
MOST_KEPT = 1_000
"""Holds that are kept, of which the first hundred are in force; and as many releases."""
MOST_OBEYED = 1_200
"""Bytes of the ids of holds in a heartbeat: a hundred of ours."""
MOST_IGNORED = 100
"""Holds that are named because no instance obeys them."""


class Bounds(NamedTuple):
    """How many policies, ended holds, dismissals and actions a `ControlState` keeps, the newest of each."""

    policies: int = 1_000
    holds: int = 200
    dismissals: int = 20_000
    actions: int = 1_000


OF_INSTANCE = Bounds(policies=1, holds=0, dismissals=0, actions=0)


T = TypeVar("T")


class Newest(dict[str, T]):
    """Records by their ids, in the order in which they were written last. Above `most` the oldest are dropped."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def put(self, ident: str, record: T | None) -> None:
        """Take in what was written last about an id; None: it was deleted."""
        self.pop(ident, None)
        if record is not None:
            self[ident] = record
            if len(self) > self._most:
                self.drop_oldest()

    def drop_oldest(self) -> None:
        """Drop the record that was written first."""
        del self[next(iter(self))]


class ControlRecord(NamedTuple):
    """One record of the control log. `at`: when it was written (epoch ms). `size`: the bytes of its value."""

    key: bytes
    heard: Heard
    offset: int
    at: int
    size: int


def control_record(key: bytes | None, value: bytes | None, offset: int, at: int) -> ControlRecord:
    """Parse a record of the control log. Never raises."""
    return ControlRecord(key or b"", parse_record(key, value), offset, at, len(value or b""))


class Entry(NamedTuple):
    """A policy as the log has it. `record` is None if it was withdrawn, or if `fault` says why it cannot be read.

    `newer`: the `v` of the newer version of Reconsume that wrote it, so that the policy is no mistake; else None.
    """

    offset: int
    record: PolicyRecord | None
    fault: str = ""
    newer: int | None = None


class Policies:
    """The policies of the log: the newest, and the last readable one wherever it is."""

    def __init__(self, most: int) -> None:
        self.readable: Entry | None = None
        """The last entry that can be read: the policy that instances follow, if it has a record."""
        self.unread: Entry | None = None
        """A newer version's policy behind it, which cannot be read."""
        self._most, self._kept, self._bytes = most, deque[tuple[Entry, int]](), 0

    @property
    def in_force(self) -> PolicyRecord | None:
        """The policy that instances follow. None if there is none, or if it was withdrawn."""
        return None if self.readable is None else self.readable.record

    @property
    def newest(self) -> Entry | None:
        """The last entry, readable or not."""
        return self._kept[-1][0] if self._kept else self.readable

    @property
    def entries(self) -> list[Entry]:
        """All that is kept, in the order of writing."""
        entries = [entry for entry, _ in self._kept]
        return entries if self.readable is None or self.readable in entries else [self.readable, *entries]

    def add(self, entry: Entry, size: int) -> None:
        """Add what was written under the policy's key, of `size` bytes."""
        if not entry.fault:
            self.readable, self.unread = entry, None
        elif entry.newer is not None:
            self.unread = entry
        self._kept.append((entry, size))
        self._bytes += size
        while self._bytes > MOST_BYTES or len(self._kept) > self._most:
            self._bytes -= self._kept.popleft()[1]


class Beat(NamedTuple):
    """The last heartbeat of an instance: where it is in the log, when it was written (epoch ms), and its bytes."""

    record: SubscriptionRecord
    offset: int
    at: int
    size: int


class Beats:
    """The last heartbeat of each instance that has not stopped cleanly. Above a bound, the oldest are dropped."""

    def __init__(self) -> None:
        self.last_at: int | None = None
        """When an instance last said that it runs or stops (epoch ms). None if none has."""
        self.changes = 0
        """How often an instance came, went, or said something else of its configuration."""
        self._beats: dict[str, Beat] = {}
        self._bytes = 0

    def add(self, instance: str, beat: Beat) -> None:
        """Add the newest heartbeat of an instance."""
        before = self._beats.get(instance)
        changes = self.changes + (before is None or _configured(before.record) != _configured(beat.record))
        self.remove(instance, beat.at)
        self._beats[instance], self.changes = beat, changes
        self._bytes += beat.size
        while self._bytes > MOST_BYTES or len(self._beats) > MOST_INSTANCES:
            self.remove(next(iter(self._beats)), beat.at)

    def remove(self, instance: str, at: int) -> None:
        """Forget an instance, which stopped cleanly at this time (epoch ms)."""
        self.last_at = at
        before = self._beats.pop(instance, None)
        self.changes += before is not None
        self._bytes -= 0 if before is None else before.size

    def known(self) -> dict[str, SubscriptionRecord]:
        """Return what each instance said last, by name. It may be silent by now."""
        return {name: beat.record for name, beat in self._beats.items()}

    def running(self, now_ms: int) -> dict[str, Beat]:
        """Return the heartbeats of the instances that run at this time, by name."""
        return {name: beat for name, beat in self._beats.items() if beat.at > now_ms - SILENT_AFTER}


def _configured(beat: SubscriptionRecord) -> tuple[object, ...]:
    return beat.settings, beat.subscription, beat.mode, beat.order, beat.batch


class KnownSettings:
    """The settings of the log by their digest, and when each was written last (epoch ms)."""

    def __init__(self) -> None:
        self.records: dict[str, SettingsRecord] = {}
        self.written_at: dict[str, int] = {}

    def add(self, digest: str, record: SettingsRecord | None, at: int, named: Collection[str]) -> None:
        """Take in settings; None: they were deleted. Above the bound, the oldest go that no heartbeat names."""
        self.records.pop(digest, None)
        self.written_at.pop(digest, None)
        if record is None:
            return
        self.records[digest], self.written_at[digest] = record, at
        if len(self.records) > MOST_DIGESTS:
            least = min(self.records, key=lambda one: (one in named, self.records[one].rank, one))
            del self.records[least], self.written_at[least]


class HoldsInForce(NamedTuple):
    """The holds in force, by id in the order in which they were written; and why others are not obeyed, in sentences.

    `newer`: the ids of those that a newer version wrote.
    """

    records: Mapping[str, HoldRecord]
    ignored: tuple[str, ...] = ()
    newer: tuple[str, ...] = ()

    @property
    def holds(self) -> Holds:
        """The same, as the lanes obey them."""
        return Holds([Hold(ident, **record.selectors) for ident, record in self.records.items()])

    def some_ids(self) -> tuple[str, ...]:
        """Return the ids of the first holds that fit in a heartbeat."""
        ids, room = list[str](), MOST_OBEYED
        for ident in self.records:
            room -= len(ident) + len('"",')
            if room < 0:
                break
            ids.append(ident)
        return tuple(ids)


def rows_of(records: Mapping[str, HoldRecord]) -> list[dict[str, object]]:
    """Return holds by id as rows of types that JSON has."""
    return [
        {
            "id": ident,
            "what": record.what,
            "topic": record.topic,
            "level": record.level,
            "key_base64": None if record.key is None else b64encode(record.key).decode(),
            "since": record.since,
            "until": record.until,
            "who": record.who,
            "why": record.why,
        }
        for ident, record in records.items()
    ]


class HoldsHeard:
    """The holds of the log, and their releases. A hold that is written again keeps its turn."""

    def __init__(self, most_ended: int) -> None:
        self.live: dict[str, HoldRecord] = {}
        """The holds that were not released, by id. Some may be over."""
        self.released = Newest[HoldRecord](MOST_KEPT)
        """The newest releases, by id: for a topic that was recreated without them."""
        self.history = Newest[HoldRecord](most_ended)
        """The newest holds, ended ones too, by id. A release stays, even if the hold is written again."""
        self.newer: set[str] = set()
        """The ids of holds that a newer version wrote."""
        self._ignored: dict[str, tuple[str, int]] = {}
        """Why a hold is not obeyed, and until when that matters (epoch ms)."""

    def add(self, ident: str, record: HoldRecord | None, now_ms: int) -> None:
        """Take in a hold or its release; None: it was deleted."""
        self._ignored.pop(ident, None)
        self.newer.discard(ident)
        if record is None or record.released:
            self.live.pop(ident, None)
            self.released.put(ident, record)
        if record is None:
            return
        known = self.history.get(ident, record)
        self.history.put(ident, known if known.released and not record.released else record)
        if record.released:
            return
        if lasts_too_long(record, now_ms):
            self.live.pop(ident, None)
            self.ignore(ident, f"hold {ident} by {record.who} would last more than 7 d", record.until)
        elif ident in self.live or self._has_room(now_ms):
            self.live[ident] = record
        elif record.until > now_ms:
            self.ignore(ident, f"hold {ident} by {record.who}: {MOST_KEPT} holds are known already", record.until)

    def _has_room(self, now_ms: int) -> bool:
        if len(self.live) >= MOST_KEPT:
            for ident in self.over(now_ms):
                self.live.pop(ident, None)
        return len(self.live) < MOST_KEPT

    def ignore(self, ident: str, why: str, until_ms: int) -> None:
        """Note why a hold is not obeyed, in one sentence."""
        if len(self._ignored) < MOST_IGNORED:
            self._ignored[ident] = why, until_ms

    def over(self, now_ms: int) -> list[str]:
        """Return the ids of holds and releases whose end is past."""
        return [
            ident for told in (self.live, self.released) for ident, record in told.items() if record.until <= now_ms
        ]

    def in_force(self, now_ms: int) -> HoldsInForce:
        """Return the holds that are to be obeyed at this time."""
        return in_force_of(self.live, self.ignored(now_ms), now_ms)._replace(newer=tuple(sorted(self.newer)))

    def ignored(self, now_ms: int) -> list[str]:
        """Return why other holds are not obeyed, in sentences."""
        return [why for why, until_ms in self._ignored.values() if until_ms > now_ms]


def in_force_of(live: Mapping[str, HoldRecord], ignored: list[str], now_ms: int) -> HoldsInForce:
    """Return the first of these holds that are not over, as many as may be in force at a time."""
    lasting = [(ident, record) for ident, record in live.items() if record.until > now_ms]
    if (beyond := len(lasting) - MOST_HOLDS) > 0:
        ignored = [f"{plural(beyond, 'hold')} left out: {MOST_HOLDS} are in force at a time", *ignored]
    return HoldsInForce(dict(lasting[:MOST_HOLDS]), tuple(ignored))


class ControlState:
    """Everything that a control log says. Its parts answer the queries."""

    def __init__(self, bounds: Bounds = Bounds()) -> None:  # noqa: B008 - a value
        self.policies = Policies(bounds.policies)
        self.beats = Beats()
        """The heartbeats of sidecars."""
        self.readers = Readers()
        """Who reads the group's retries: sidecars and Spark queries."""
        self.settings = KnownSettings()
        self.holds = HoldsHeard(bounds.holds)
        self.dismissals = Newest[SettlementRecord](bounds.dismissals)
        """The dismissals of dead letters, by the record's id."""
        self.decisions: dict[str, DecisionRecord] = {}
        """The open decisions about waiting records, by id, in the order of the log, whose time is their `at`."""
        self.actions = Newest[ActionRecord](bounds.actions)
        self.resets = Newest[ResetRequest](MOST_RESETS)
        """The newest requests to move positions, by id, in the order of the log, whose time is their `at`."""
        self.next_offset = 0
        """The offset after the last record."""
        self.said_to = 0
        """The offset after the last policy or hold."""
        self.written_at = 0
        """When the last record was written (epoch ms)."""

    def apply(self, said: ControlRecord, now_ms: int) -> str:
        """Take in the next record. Return why a decision is not carried out, in one sentence; otherwise empty."""
        self.next_offset, self.written_at = said.offset + 1, said.at
        self.readers.hear(news := said.heard, said.at)
        match news:
            case PolicyHeard(record=policy):
                self.policies.add(Entry(said.offset, policy), said.size)
                self.said_to = self.next_offset
            case InstanceHeard(instance=instance, record=None):
                self.beats.remove(instance, said.at)
            case InstanceHeard(instance=instance, record=SubscriptionRecord(query=None) as beat):
                self.beats.add(instance, Beat(beat, said.offset, said.at, said.size))
            case SettingsHeard(digest=digest, record=settings):
                self._hear_settings(digest, settings, said.at)
            case NewerRecord() | BadRecord():
                self._hear_unreadable(said, news)
            case _:
                return self._hear_operator(news, said.at, now_ms)
        return ""

    def _hear_operator(self, news: Heard, at: int, now_ms: int) -> str:
        """Take in what an operator decides. Return why nobody carries it out; empty if somebody may. `at`: when it was
        written."""
        match news:
            case HoldHeard(id=ident, record=hold):
                self.holds.add(ident, hold, now_ms)
                self.said_to = self.next_offset
            case SettlementHeard(id=ident, record=settlement):
                is_dismissal = settlement is not None and settlement.how == COMMIT and bool(settlement.position)
                self.dismissals.put(ident, settlement if is_dismissal else None)
            case DecisionHeard(id=ident, record=decision):
                return self._hear_decision(ident, decision, at, now_ms)
            case ActionHeard(id=ident, record=action):
                self.actions.put(ident, action)
            case ResetHeard(id=ident, record=reset):
                self.resets.put(ident, reset and replace(reset, at=at))
                while sum(len(one.targets) for one in self.resets.values()) > MOST_TARGETS_KEPT:
                    self.resets.drop_oldest()
        return ""

    def live_settings(self, now_ms: int) -> tuple[LiveSettings, ...]:
        """Return the settings of the instances that run at this time, those first that apply to all of them."""
        named = {name: beat.record.settings for name, beat in self.beats.running(now_ms).items()}
        return newest_first(self.settings.records, named)

    def has_decision_room(self, ranges: int) -> bool:
        """Return whether one more decision may be open, with so many ranges."""
        taken = sum(len(one.ranges) for one in self.decisions.values())
        return len(self.decisions) < MOST_DECISIONS and taken + ranges <= MOST_RANGES

    def _hear_settings(self, digest: str, record: SettingsRecord | None, at: int) -> None:
        named = {beat.settings for beat in self.beats.known().values()}
        self.settings.add(digest, record, at, named)

    def _hear_decision(self, ident: str, record: DecisionRecord | None, at: int, now_ms: int) -> str:
        """Take in a decision; None: it has ended. Return why nobody carries it out; empty if somebody may."""
        self.decisions.pop(ident, None)
        if record is None:
            return ""
        if not self.has_decision_room(len(record.ranges)):
            self.decisions = {one: open_ for one, open_ in self.decisions.items() if not open_.is_over(now_ms)}
        if not self.has_decision_room(len(record.ranges)):
            return f"{MOST_DECISIONS} decisions, or {MOST_RANGES} of their ranges, are open"
        self.decisions[ident] = replace(record, at=at)
        return ""

    def _hear_unreadable(self, said: ControlRecord, bad: NewerRecord | BadRecord) -> None:
        """Take in a record that cannot be read: it counts as none, as the last record of its key counts."""
        ident = said.key.partition(b"/")[2].decode("ascii", errors="replace")
        if isinstance(bad, NewerRecord):
            if bad.instance is None:
                self.policies.add(Entry(said.offset, None, versions.sentence(bad.v), bad.v), said.size)
        elif said.key == KEY:
            self.policies.add(Entry(said.offset, None, bad.text), said.size)
        elif said.key.startswith(SETTINGS):
            self._hear_settings(ident, None, said.at)
        elif said.key.startswith(DECISION):
            self.decisions.pop(ident, None)
        elif said.key.startswith(RESET):
            self.resets.pop(ident, None)
        elif said.key.startswith(HOLD):
            self.holds.live.pop(ident, None)
            self.holds.ignore(ident, bad.text, 2**63)
            if bad.newer and IDENT.fullmatch(ident) and len(self.holds.newer) < MOST_KEPT:
                self.holds.newer.add(ident)


class Peers:
    """What an instance makes of the heartbeats of one log: whether others are well, and have said so behind its own."""

    def __init__(self, instance: str) -> None:
        self._instance = instance
        self._not_well_at: int | None = None
        """The offset of the heartbeat by which this instance said that it does not work. None: it said no such
        thing."""

    def hear(self, instance: str, beat: SubscriptionRecord | None, offset: int, *, live: bool) -> None:
        """Take in a heartbeat. One that was not read `live` may be of a process before this one."""
        if instance != self._instance:
            return
        if beat is None or beat.well is not False:
            self._not_well_at = None
        elif live and self._not_well_at is None:
            self._not_well_at = offset

    def others(self, beats: Beats, now_ms: int) -> Others:
        """Return whether other instances are well, and whether one has said so behind our own "not well"."""
        well = [
            beat.offset
            for name, beat in beats.running(now_ms).items()
            if name != self._instance and beat.record.well is not False
        ]
        return Others(bool(well), self._not_well_at is not None and max(well, default=-1) > self._not_well_at)
