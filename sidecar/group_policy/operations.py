"""What an operator does with a group's control log: hold, release, set a policy, note an action.

The command line, the API and the dashboard call the same operations. Each looks at the log again just before it writes,
because others write too, and reads on until it has seen its own record. Raises ContractError if something may not be or
the topic does not exist, and BrokerError if Kafka does not answer or a record is not known to be written.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from msgspec.structs import replace

from reconsume.sidecar.clock import utc, wall
from reconsume.sidecar.errors import BrokerError, ContractError, ReconsumeError, RecordError
from reconsume.sidecar.group_policy.control_log import ControlLog
from reconsume.sidecar.group_policy.state import ControlState, Entry, HoldsInForce, rows_of
from reconsume.sidecar.hints import hint, not_ours
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.operation import EpochMs, Outcome, Plan, Report, Row, Status, Tally
from reconsume.sidecar.printable import plural, printable
from reconsume.topics.action_record import (
    LONGEST_ERROR,
    LONGEST_WHAT,
    MOST_ACTIONS,
    ActionRecord,
    action_key,
    render_action,
)
from reconsume.topics.durations import render_duration
from reconsume.topics.hold_record import (
    LONGEST_HOLD_MS,
    LONGEST_WHY,
    MOST_HOLDS,
    HoldRecord,
    fault_of_hold,
    hold_key,
    parse_hold,
    read_key,
    read_level,
    render_hold,
)
from reconsume.topics.names import Names
from reconsume.topics.policy_record import KEY, ObeysTold, PolicyRecord, render_record

CONFIRMED_WITHIN, LOOK_EVERY = 10.0, 0.25
"""Seconds in which every live instance must say that it obeys, and between two looks whether it does."""
HOLD_COLUMNS = ("id", "what", "ends_in", "until", "who", "why")
MOST_REMARKS = 5
FULL = f"{MOST_HOLDS} holds are in force already"


class HoldsChanged(NamedTuple):
    """Holds that were begun or released, by id, as they are in the log. `state`: the log up to there.

    `at`: the offset of the last record of them. `live`: the instances that are to obey.
    """

    records: Mapping[str, HoldRecord]
    at: int
    state: ControlState
    live: frozenset[str]


class HoldStore:
    """The holds of one group."""

    def __init__(self, cluster: Cluster, names: Names) -> None:
        self._log = ControlLog(cluster, names)

    def read(self) -> HoldsInForce:
        """Return the holds that are in force now."""
        return self._log.read().holds.in_force(wall())

    def begin(self, planned: HoldRecord) -> HoldsChanged:
        """Write a hold that lasts from now as long as planned. Holds that are over are deleted.

        Raises ContractError if instances would not obey it, because too many are in force; then none is written.
        """
        at = wall()
        record = replace(planned, since=at, until=at + planned.until - planned.since)
        state, ident = self._log.read(), secrets.token_hex(4)
        if len(state.holds.in_force(wall()).records) >= MOST_HOLDS:
            raise ContractError(f"{FULL}: `{hint('release')}` ends one")
        over = state.holds.over(wall())[:MOST_HOLDS]
        changed = self._write({ident: record}, over, state)
        now_ms = wall()  # a short hold may be over before it was seen
        is_obeyed = record.until <= now_ms or ident in state.holds.in_force(now_ms).records
        if not is_obeyed:  # others have begun one at the same time
            self._log.write({hold_key(ident): None})
            raise ContractError(f"{FULL}: `{hint('release')}` ends one")
        return changed

    def release(self, idents: Collection[str], who: str, newer: Collection[str] = ()) -> HoldsChanged:
        """End holds that are in force, and delete those of a `newer` version.

        Raises RecordError for one that is not in force.
        """
        state, at = self._log.read(), wall()
        there = state.holds.in_force(at)
        expect_holds(idents, there)
        ended = {ident: replace(there.records[ident], released_by=who, released_at=at) for ident in idents}
        return self._write(ended, newer, state)

    def _write(self, records: Mapping[str, HoldRecord], deleted: Collection[str], state: ControlState) -> HoldsChanged:
        """Write holds or releases, by id, delete others, and read on until these were seen."""
        values = {hold_key(ident): render_hold(record) for ident, record in records.items()}
        offsets = self._log.write({**dict.fromkeys(map(hold_key, deleted)), **values})
        at = max(offsets.values(), default=0)
        live = self._log.live_instances(state)
        self._log.read_on(state)
        return HoldsChanged(records, at, state, live)

    def unconfirmed(self, changed: HoldsChanged, within: float = CONFIRMED_WITHIN) -> tuple[str, ...]:
        """Wait until every live instance says that it obeys what has changed; return those that did not in time.

        An instance that stops meanwhile is not waited for.
        """
        deadline, waited = time.monotonic() + within, changed.live
        while True:
            beats = changed.state.beats.running(wall())
            waited = frozenset(
                name for name in waited if name in beats and not has_confirmed(beats[name].record.obeys, changed)
            )
            if not waited or time.monotonic() > deadline:
                return tuple(sorted(waited))
            time.sleep(LOOK_EVERY)
            self._log.read_on(changed.state)


def has_confirmed(obeys: ObeysTold | None, changed: HoldsChanged) -> bool:
    """Return whether an instance that obeys this has taken in what has changed, and obeys it."""
    if obeys is None or obeys.read_to <= changed.at:
        return False
    now_ms = wall()
    return all(
        (ident in obeys.holds) != record.released for ident, record in changed.records.items() if record.until > now_ms
    )


class BeginHold:
    """Hold records, as an operation. `planned`: as `planned_hold` has returned it. `remarks`: for its user.

    `confirmed_within`: seconds in which every live instance must say that it obeys.
    """

    action = "hold"

    def __init__(
        self, store: HoldStore, planned: HoldRecord, remarks: Sequence[str] = (), confirmed_within: float = 0.0
    ) -> None:
        self._store, self._planned, self._remarks, self._within = store, planned, remarks, confirmed_within
        self.why = planned.why
        self.written: HoldsChanged | None = None
        self._silent = tuple[str, ...]()

    @property
    def what(self) -> str:
        """What is held; once it is written with the id."""
        return " ".join([*(() if self.written is None else self.written.records), self._planned.what])

    @property
    def changed(self) -> int:
        """1 once the hold is written."""
        return int(self.written is not None)

    def plan(self, _report: Report) -> Plan:
        """Show the hold, and which others nobody obeys. Raises BrokerError and ContractError."""
        row = {name: value for name, value in hold_row("", self._planned).items() if name != "id"}
        question = f"Hold {self.what} for {row['ends_in']}?"
        remarks = [*ignored_remarks(self._store.read()), *self._remarks]
        return Plan(HOLD_COLUMNS[1:], [row], question, "nothing was written", remarks)

    def run(self, _report: Report, _stop: threading.Event) -> None:
        """Write it. Raises BrokerError, and ContractError if instances would not obey it."""
        self.written = self._store.begin(self._planned)
        self._silent = self._store.unconfirmed(self.written, self._within)

    def outcome(self) -> Outcome:
        """Return the hold as it is written: PARTLY if an instance has not confirmed it."""
        assert self.written is not None
        ((ident, record),) = self.written.records.items()
        written = f"hold {ident} is written, until {utc(record.until)} or `{hint(f'release {ident}')}`"
        sentence, status = confirmation(self.written, self._silent, "obeyed", self._within)
        return Outcome([hold_row(ident, record)], [written, sentence], status)


class ReleaseHolds:
    """End holds before their time, as an operation: these, or `everything`, also what a newer version wrote.

    `confirmed_within`: as of BeginHold.
    """

    action, why = "release", ""

    def __init__(
        self,
        store: HoldStore,
        idents: Collection[str],
        who: str,
        *,
        everything: bool = False,
        confirmed_within: float = 0.0,
    ) -> None:
        self._store, self._who, self._everything, self._within = store, who, everything, confirmed_within
        self._idents, self._newer = tuple(dict.fromkeys(idents)), tuple[str, ...]()
        self.what = ", ".join(self._idents)
        self.written: HoldsChanged | None = None
        self._silent = tuple[str, ...]()

    @property
    def changed(self) -> int:
        """How many holds were released."""
        return 0 if self.written is None else len(self._idents) + len(self._newer)

    def plan(self, _report: Report) -> Plan:
        """Find the holds. Raises RecordError if one is not in force, BrokerError and ContractError."""
        there = self._store.read()
        if self._everything:
            self._idents, self._newer = tuple(there.records), there.newer
        expect_holds(self._idents, there)
        named = [f"{ident} {there.records[ident].what}" for ident in self._idents]
        self.what = ", ".join([*named, *self._newer])
        rows = [hold_row(ident, there.records[ident]) for ident in self._idents]
        remarks = [f"a newer version wrote {', '.join(self._newer)}"] if self._newer else []
        question = f"Release {plural(len(named) + len(self._newer), 'hold')}?" if self.what else ""
        return Plan(HOLD_COLUMNS, rows, question, "no hold is in force" if not self.what else "", remarks)

    def run(self, _report: Report, _stop: threading.Event) -> None:
        """Write the releases. Raises RecordError if a hold is not in force, BrokerError and ContractError."""
        self.written = self._store.release(self._idents, self._who, self._newer)
        self._silent = self._store.unconfirmed(self.written, self._within)

    def outcome(self) -> Outcome:
        """Say how many holds are released: PARTLY if an instance has not confirmed it."""
        assert self.written is not None
        sentence, status = confirmation(self.written, self._silent, "released", self._within)
        return Outcome([], [f"released {plural(self.changed, 'hold')}", sentence], status)


def confirmation(changed: HoldsChanged, silent: Sequence[str], what: str, within: float) -> tuple[str, Status]:
    """Return in one sentence who has confirmed a change, and the exit status. `what`: what they do, in one word."""
    if not changed.live:
        return "no instance is running; those that start read it before they deliver", Status.DONE
    if silent:
        names = ", ".join(silent)
        text = f"warning: not confirmed within {within:.0f} s that it is {what}, by {names}: look at these instances"
        return text, Status.PARTLY
    return f"{what} by {plural(len(changed.live), 'instance')}", Status.DONE


def ignored_remarks(there: HoldsInForce) -> list[str]:
    """Return a warning for each of the first holds that no instance obeys."""
    return [f"warning: not obeyed: {printable(why)}" for why in there.ignored[:MOST_REMARKS]]


def hold_row(ident: str, record: HoldRecord) -> Row:
    """Return a hold as a row."""
    (row,) = rows_of({ident: record})
    ends_in = render_duration(max(0, record.until - wall()) // 1000 * 1000)
    return {**row, "until": EpochMs(record.until), "ends_in": ends_in}


def expect_holds(idents: Collection[str], there: HoldsInForce) -> None:
    """Raise RecordError for an id of no hold that is in force."""
    if unknown := [ident for ident in idents if ident not in there.records]:
        raise RecordError(f"no hold {unknown[0][:64]} is in force; `{hint('holds')}` lists them")


def planned_hold(
    named: Mapping[str, str | None],
    *,
    everything: bool,
    lasts: int,
    why: str,
    who: str,
    topics: Sequence[str],
) -> HoldRecord:
    """Return the hold that somebody asks for, beginning now, by a command, a call or a form.

    `named`: what is to be held, as texts: a topic, a level, a key, or a key_base64; all that is given must fit. A
    missing one, or None, means any. `everything`: hold all, where none is given. `lasts`: ms. `topics`: the group's
    main topics. Raises ContractError, with a sentence, if the hold may not be.
    """
    if everything == any(text is not None for text in named.values()):
        raise ContractError("give a topic, a level or a key, or hold all alone")
    if not 1_000 <= lasts <= LONGEST_HOLD_MS:
        raise ContractError("a hold lasts from 1s to 7d")
    if not why.strip() or len(why) > LONGEST_WHY:
        raise ContractError(f"the reason must have 1 to {LONGEST_WHY} characters")
    topic, level = named.get("topic"), named.get("level")
    if topic is not None and topic not in topics:  # it would hold nothing
        raise ContractError(not_ours(topic, topics))
    try:
        key = read_key(named.get("key"), named.get("key_base64"))
        level = None if level is None else read_level(level)
    except ValueError as fault:
        raise ContractError(str(fault)) from None
    at = wall()
    record = HoldRecord(at, at + lasts, why, who, topic, level, key, everything)
    read = fault_of_hold(record) or parse_hold(render_hold(record))  # the second knows how long each text may be
    if isinstance(read, str):
        raise ContractError(read)
    return read


class PolicyWritten(NamedTuple):
    """The offset of a policy that was written, and who has written others just before, which it has replaced."""

    offset: int
    replaced: tuple[str, ...]


def write_policy(log: ControlLog, record: PolicyRecord, basis: ControlState) -> PolicyWritten:
    """Write a policy whose plan was made by the state `basis`.

    Raises ContractError if another policy was written since then: then nothing is written, or the other one is in
    force.
    """
    before = basis.policies.newest
    log.read_on(basis)
    if (now := basis.policies.newest) != before:
        raise ContractError(f"{_said(now)} since this plan was made: nothing was written; run the command again")
    otherwise = "the policy is not written, as far as is known"
    offset = log.write({KEY: render_record(record)}, otherwise)[KEY]
    log.read_on(basis)
    followed = basis.policies.readable
    if followed is None or followed.offset < offset:
        raise BrokerError(f"the policy is written at offset {offset}, and could not be read again")
    if followed.offset > offset:
        raise ContractError(f"the policy is written at offset {offset}, but {_said(followed)} after it, and applies")
    first = -1 if before is None else before.offset
    others = [entry for entry in basis.policies.entries if first < entry.offset < offset]
    return PolicyWritten(offset, tuple(_author(entry) for entry in others))


def _said(entry: Entry | None) -> str:
    """Return who has written a policy, as the beginning of a sentence."""
    if entry is None:
        return "the policy topic was recreated"
    return f"{_author(entry)} has written a policy (offset {entry.offset})"


def _author(entry: Entry) -> str:
    return "somebody" if entry.record is None else printable(entry.record.who)


class ActionStore:
    """The actions of one group (contract 10.6). `warn` gets a sentence if a record could not be written.

    Its records are for people. If one cannot be written, the command says so and goes on, because in an incident the
    redrive counts more than its record. The events of a redrive and the decisions of a settlement name their author all
    the same.
    """

    def __init__(self, cluster: Cluster, names: Names, warn: Callable[[str], None]) -> None:
        self._log, self._warn = ControlLog(cluster, names), warn

    @contextmanager
    def noted(self, action: str, who: str, what: str = "", why: str = "") -> Iterator[Tally]:
        """Write that an action begins, and how it ended, whatever ends the block. The block fills in the tally.

        An error of the block is kept as the reason, and raised again.
        """
        cut = printable(what)
        cut = cut if len(cut) <= LONGEST_WHAT else f"{cut[: LONGEST_WHAT - 1]}…"
        record = ActionRecord(action, who, wall(), cut, why)
        ident, tally, error = secrets.token_hex(8), Tally(), ""
        is_begun = self._write({action_key(ident): render_action(record)})
        try:
            yield tally
        except KeyboardInterrupt:
            error = "interrupted"
            raise
        except Exception as fault:
            error = printable(str(fault) or type(fault).__name__)[:LONGEST_ERROR]
            raise
        finally:
            if is_begun:
                ended = replace(record, ended=wall(), records=tally.records, error=error)
                self._write({**self._too_many(), action_key(ident): render_action(ended)})

    def _write(self, records: Mapping[bytes, bytes | None]) -> bool:
        try:
            if not self._log.is_there():
                self._warn(f"warning: this is not in the list of actions: {self._log.names.policy} does not exist")
                return False
            self._log.write(records)
        except ReconsumeError as fault:
            self._warn(f"warning: this is not in the list of actions: {fault}")
            return False
        return True

    def _too_many(self) -> dict[bytes, None]:
        """Return the keys of the actions that are to be deleted: all but the last MOST_ACTIONS that were written."""
        try:
            return dict.fromkeys(action_key(ident) for ident in list(self._log.read().actions)[:-MOST_ACTIONS])
        except ReconsumeError as fault:
            self._warn(f"warning: old actions stay in the list: {fault}")
            return {}
