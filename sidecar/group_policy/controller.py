"""Decide on the event loop which policy is in force, and compare this instance's subscription with the others.

What the topic's thread reads arrives by `on_update`, and is applied to one `ControlState`. A policy is applied as a
whole or not at all. If it is invalid, or its level topics are missing, the current one stays in force, and `/status`
shows why. After an error the log is read again from its beginning, into a new `ControlState`; the policy and the holds
that were known stay in force meanwhile.

`HoldKeeper` does the same for holds. In force is what the control log says, and what this instance knows and a
recreated log lacks. A release is final: the last record of a key counts, so a hold that a frozen instance writes again
over its release is in force until an instance that knows of the release has written that again, which each does at
once. Each instance goes by its own clock. All runs on the event loop, but for what is said to be called on the topic's
thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from typing import Protocol, TypeAlias

from reconsume.sidecar.clock import now
from reconsume.sidecar.core.holds import Holds
from reconsume.sidecar.core.participation import Others
from reconsume.sidecar.core.record import Now
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.group_policy.follower import PolicyUpdate, TopicSnapshot
from reconsume.sidecar.group_policy.levels import DrainingLevels
from reconsume.sidecar.group_policy.state import (
    OF_INSTANCE,
    ControlRecord,
    ControlState,
    HoldsHeard,
    HoldsInForce,
    Peers,
    in_force_of,
    rows_of,
)
from reconsume.sidecar.hints import ABSENT
from reconsume.sidecar.printable import plural
from reconsume.sidecar.settings.group_policy import (
    differences,
    flow,
    levels_of,
    mend_levels,
    mismatches,
    origins,
    overridden,
    policy_values,
    queues_of,
)
from reconsume.sidecar.settings.model import Settings
from reconsume.topics import versions
from reconsume.topics.durations import render_duration
from reconsume.topics.hold_record import HoldHeard, HoldRecord, hold_key, render_hold
from reconsume.topics.policy_record import (
    BadRecord,
    InstanceHeard,
    NewerRecord,
    ObeysTold,
    PolicyHeard,
    PolicyRecord,
    SettlementHeard,
    SettlementRecord,
)

LOOK_AT_LEAST_S = 5.0
"""Seconds between two looks whether a hold is over, at most: the wall clock may be set meanwhile."""

Obey: TypeAlias = Callable[[Holds], None]

_LOG = logging.getLogger("reconsume.policy")


class HoldKeeper:
    """The holds in force. `obey` has the lanes take them in."""

    def __init__(self, obey: Obey, clock: Callable[[], Now]) -> None:
        self.in_force = HoldsInForce({})
        self._obey, self._clock = obey, clock
        self._heard = HoldsHeard(0)
        """What the log has said since it was read from its beginning."""
        self._known: dict[str, HoldRecord] = {}
        """Holds and releases that the log said before that, and has not said since, by id."""
        self._unwritten: deque[tuple[bytes, bytes]] = deque()
        self._sent: set[str] = set()
        """The ids of what was written again, each once until the log is read from its beginning."""
        self._timer: asyncio.TimerHandle | None = None

    # --- what the log says -------------------------------------------------------------------------------------------

    def begin(self, heard: HoldsHeard) -> None:
        """Note that the log is read from its beginning into `heard`: it may be another one."""
        self._known |= self._heard.released | self._heard.live
        self._heard = heard
        self._sent.clear()

    def hear(self, ident: str, record: HoldRecord | None) -> None:
        """Note what the log said of a hold, after `heard` has taken it in; `take` obeys it."""
        release = self._heard.released.get(ident) or self._known.get(ident)
        if record is None or record.released:
            self._known.pop(ident, None)
        elif release is not None and release.released:
            self._write_again(ident, release)
        else:
            self._known.pop(ident, None)

    def take(self, *, caught_up: bool) -> None:
        """Obey what was heard. `caught_up`: the log was read to its end."""
        wall = self._clock().wall_ms
        self._known = {ident: record for ident, record in self._known.items() if record.until > wall}
        if caught_up:
            for ident, record in self._known.items():
                if ident not in self._sent:
                    self._write_again(ident, record)
        self._look()

    def _write_again(self, ident: str, record: HoldRecord) -> None:
        self._sent.add(ident)
        self._unwritten.append((hold_key(ident), render_hold(record)))

    def unwritten(self) -> list[tuple[bytes, bytes]]:
        """Return the keys and values that are to be written to the topic, each once. For the topic's thread."""
        records = []
        while self._unwritten:
            records.append(self._unwritten.popleft())
        return records

    def status(self) -> dict[str, object]:
        """Return the holds' part of `/status`."""
        return {"holds": rows_of(self.in_force.records), "holds_ignored": next(iter(self.in_force.ignored), "")}

    def since(self) -> list[int]:
        """Return when each hold in force began (epoch ms)."""
        return [record.since for record in self.in_force.records.values()]

    # --- what is in force --------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Obey what is in force now, and look again when that changes."""
        wall, before = self._clock().wall_ms, self.in_force
        known = {ident: record for ident, record in self._known.items() if not record.released}
        self.in_force = in_force_of(known | self._heard.live, self._heard.ignored(wall), wall)
        if before.records != self.in_force.records:
            self._log_changes(before, wall)
            self._obey(self.in_force.holds)
        if self.in_force.ignored and before.ignored[:1] != self.in_force.ignored[:1]:
            _LOG.warning("%s", self.in_force.ignored[0], extra={"event": "hold-ignored"})
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.in_force.records or self.in_force.ignored:
            end = min((record.until for record in self.in_force.records.values()), default=2**63)
            wait_s = min(max(0, end - wall) / 1000, LOOK_AT_LEAST_S)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._look)

    def _log_changes(self, before: HoldsInForce, wall: int) -> None:
        for ident, record in self.in_force.records.items():
            if ident not in before.records:
                text = "hold %s by %s: %s gets no delivery for %s, because %s"
                lasts = render_duration(max(0, record.until - wall) // 1000 * 1000)
                extra = {"event": "hold", "hold": ident, "about": [ident], "who": record.who, "until": record.until}
                _LOG.warning(text, ident, record.who, record.what, lasts, record.why, extra=extra)
        for ident, record in before.records.items():
            if ident not in self.in_force.records:
                text = "hold %s is over: %s may be delivered again"
                _LOG.warning(text, ident, record.what, extra={"event": "hold-over", "hold": ident, "about": [ident]})


KNOWN_WITHIN = 30.0
"""Seconds that the lanes wait for the group's policy and holds at the start. Then they deliver by the configuration's
values, because a policy topic without a leader must not stop the records. In strict mode they keep waiting."""
SURE_AFTER_LOOKS = 2
"""Looks at the cluster that must miss a topic, each after the policy that needs it came, until it counts as missing: it
may have been created a moment ago, and a broker hears of that later than who created it."""
MOST_NAMED = 30
"""Level topics that one sentence names. There are 18 by default, and a policy record may ask for thousands."""

ORDERED_LADDER = "ordered_ladder"
"""The key of the ladder that keeps the order. One that was ended is there as null, or among what was."""


class Lanes(Protocol):
    """The parts of the sidecar that follow the group's policy, holds and decisions. Called on the event loop."""

    def apply(self, settings: Settings, leftovers: Collection[str]) -> None:
        """Use these settings, and also read these level topics."""

    def obey(self, holds: Holds) -> None:
        """Deliver nothing that these holds keep back."""

    def settle(self, ident: str, settlement: SettlementRecord | None) -> None:
        """Take in what a person has decided about the record with this id; None: it is there no more."""

    def expect_queues(self) -> None:
        """Hear that the group's policy has begun, changed or ended a ladder that keeps the order."""


class PolicyController:
    """The policy in force in this instance. The topic's thread calls `on_update`, and asks the four others."""

    def __init__(
        self,
        settings: Settings,
        instance: str,
        lanes: Lanes,
        known_within: float = KNOWN_WITHIN,
        clock: Callable[[], Now] = now,
    ) -> None:
        """Begin with the configuration."""
        self.settings = settings
        """The settings in force: the configuration, with the group's values over it."""
        self.record: PolicyRecord | None = None
        """The group's policy that is in force. None if the configuration's values are."""
        self._record_at: int | None = None
        """Its offset in the control log."""
        self.refused: tuple[str, ...] = ()
        """The reasons why the group's newest policy is not in force."""
        self.refusal: tuple[str, ...] = ()
        """The reasons why this instance may not start, in strict mode."""
        self.bad_records = 0
        self.subscription = {topic.name: topic.tags for topic in settings.topics}
        self.obeys: ObeysTold | None = None
        """What this instance obeys of what operators say. Any thread may read it. None: the log was not read yet."""
        self.holds = HoldKeeper(lanes.obey, clock)
        self._file, self._lanes, self._known_within, self._clock = settings, lanes, known_within, clock
        self._state = ControlState(OF_INSTANCE)
        self.holds.begin(self._state.holds)
        self._policies = self._state.policies
        """Those by which this instance goes: of the log as it is read now, once that has told of one."""
        self._log_ahead: int | None = None
        """ms by which the log's clock is ahead of the steady one here. None: no record was read live yet."""
        self._peers = Peers(instance, self.subscription)
        self._subscriptions = SubscriptionLog(self._peers)
        self._draining = DrainingLevels(settings.names, frozenset(settings.topic_names))
        self._topics = self._awaited = frozenset[str]()
        self._missed_by = Counter[str]()
        """How many looks have missed each awaited topic."""
        self._known = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def wait_known(self) -> None:
        """Wait until the group's policy is in force, or there is none.

        Outside strict mode, the wait ends after `known_within` seconds. In strict mode it never ends if this instance
        may not start.
        """
        if self._file.policy_mode == "strict":
            await self._known.wait()
            return
        try:
            await asyncio.wait_for(self._known.wait(), self._known_within)
        except TimeoutError:
            text = (
                "the group's policy and holds are not known yet; until then the policy of the configuration applies, "
                "and what is held may be delivered"
            )
            _LOG.warning(text, extra={"event": "policy-unknown"})

    # --- called on the thread of the topic ---------------------------------------------------------------------------

    def on_update(self, news: PolicyUpdate) -> None:
        """Process an update on the event loop."""
        self._loop.call_soon_threadsafe(self._take, news)

    def wanted(self) -> frozenset[str]:
        """Return the level topics of the policy in force. Empty until that is known, so that all are checked."""
        return levels_of(self.settings) if self._known.is_set() else frozenset()

    def awaited(self) -> frozenset[str]:
        """Return the topics for want of which the newest policy is not applied."""
        return self._awaited

    def doubts(self) -> bool:
        """Whether to check the topics at once: some that the newest policy needs may have been created just now."""
        return any(self._missed_by[topic] < SURE_AFTER_LOOKS for topic in self._awaited)

    def hurried(self) -> bool:
        """Whether to check the topics again soon.

        A policy waits to be applied, a removed level still holds records, or Kafka did not say which levels do.
        """
        is_refused = self.refused and self._policies.unread is None
        return bool(is_refused or self._draining.levels) or self._draining.is_unsure

    def unwritten(self) -> list[tuple[bytes, bytes]]:
        """Return the holds that the topic lacks, as it was recreated."""
        return self.holds.unwritten()

    # --- what is shown -----------------------------------------------------------------------------------------------

    def policy(self) -> dict[str, object]:
        """Return the answer to `GET /v1/policy`."""
        record = self.record
        return {
            "group": self._file.group,
            "mode": self._file.policy_mode,
            "policy": policy_values(self.settings),
            "origins": origins(self._file, {} if record is None else record.policy),
            "who": None if record is None else record.who,
            "at": None if record is None else record.at,
            "was": {} if record is None else record.was,
            "refused": list(self.refused),
        }

    def status(self) -> dict[str, object]:
        """Return the policy's part of `/status`."""
        return {
            "policy": {
                "mode": self._file.policy_mode,
                "who": None if self.record is None else self.record.who,
                "at": None if self.record is None else self.record.at,
                "refused": list(self.refused),
                "removed_levels": sorted(self._draining.levels),
                "removed_topics": self._draining.removed_topics(),
            },
            **self.holds.status(),
            "subscriptions_differ": [
                {"instance": name, "subscription": dict(subscription)}
                for name, subscription in self._differing().items()
            ],
        }

    @property
    def removed_levels(self) -> int:
        """The number of levels that are read although the policy or the configuration has lost them."""
        return len(self._draining.levels)

    def others(self) -> Others:
        """Return whether other instances are well, by their heartbeats."""
        return self._peers.others(self._state.beats, self._log_now())

    def subscriptions_differ(self) -> bool:
        """Whether another instance wants other records."""
        return bool(self._differing())

    def _differing(self) -> Mapping[str, Mapping[str, str]]:
        return self._peers.differing(self._state.beats, self._log_now())

    # --- on the loop -------------------------------------------------------------------------------------------------

    def _log_now(self) -> int:
        """Return the time now by the clock of the log, so that all instances agree who is silent (epoch ms)."""
        here = self._clock()
        return here.wall_ms if self._log_ahead is None else here.steady_ms + self._log_ahead

    def _take(self, news: PolicyUpdate) -> None:
        if news.begun:
            self._begin_again()
        for said in news.records:
            self._hear(said, news.live)
        if news.records and news.live:
            self._log_ahead = self._state.written_at - self._clock().steady_ms
        self.holds.take(caught_up=news.caught_up)
        bad = [said.heard.text for said in news.records if isinstance(said.heard, BadRecord)]
        if bad:
            text = "ignored in the policy topic: %s; the first: %s"
            _LOG.warning(text, plural(len(bad), "record"), bad[0], extra={"event": "policy-bad-records"})
        if news.look is not None:
            self._see(news.look)
        if news.caught_up or (self._known.is_set() and news.look is not None):
            self._subscriptions.compare(self._differing())
            self._consider()
        if news.caught_up:
            self._note_obeyed()

    def _note_obeyed(self) -> None:
        self.obeys = ObeysTold(self._state.said_to, self.holds.in_force.some_ids(), self._record_at)

    def _begin_again(self) -> None:
        """Note that the log is read from its first record: it may be another one, without what was heard.

        A decision that is not said again is not carried out. A person who reads of it decides again.
        """
        before, self._state, self._log_ahead = self._state, ControlState(OF_INSTANCE), None
        self.obeys = None  # its offsets are those of the log before
        self.holds.begin(self._state.holds)
        self._peers.begin()
        for ident in before.decisions.waiting:
            self._lanes.settle(ident, None)

    def _hear(self, said: ControlRecord, live: bool) -> None:
        waiting = self._state.decisions.waiting
        before = waiting.get(said.heard.id) if isinstance(said.heard, SettlementHeard) else None
        fault = self._state.apply(said, self._clock().wall_ms)
        match said.heard:
            case PolicyHeard(record=record):
                self._policies = self._state.policies
                if record is not None and ORDERED_LADDER in {*record.policy, *record.was}:
                    self._lanes.expect_queues()
            case InstanceHeard(instance=instance, record=beat):
                self._peers.hear(instance, beat, said.offset, live=live)
            case NewerRecord(instance=None):
                self._policies.unread = self._state.policies.unread
            case NewerRecord(v=v, instance=str(name)):
                self._subscriptions.name_newer(name, v)
            case BadRecord():
                self.bad_records += 1
            case SettlementHeard(id=ident) if fault:
                self.bad_records += 1
                extra = {"event": "settlement-ignored", "about": [ident]}
                _LOG.warning("the settlement of %s is not carried out: %s", ident, fault, extra=extra)
            case SettlementHeard(id=ident) if waiting.get(ident) is not before:
                self._lanes.settle(ident, waiting.get(ident))
            case HoldHeard(id=ident, record=hold):
                self.holds.hear(ident, hold)

    def _see(self, look: TopicSnapshot) -> None:
        self._topics, self._draining.is_unsure = look.topics, bool(look.left.unknown)
        self._missed_by = Counter({topic: self._missed_by[topic] + 1 for topic in look.awaited - look.topics})
        if look.wanted != self.wanted():  # a level that left the policy meanwhile was not checked
            return
        empty = self._draining.see(look.left)
        if empty is not None and self._known.is_set():
            self._draining.log_empty(empty)
            self._read_draining()

    def _read_draining(self) -> None:
        self._draining.log()
        self._lanes.apply(self.settings, self._draining.levels)

    def _consider(self) -> None:
        """Apply the group's newest policy that can be read, unless there is a reason against it."""
        problems = () if self.refusal else self._problems()
        if self.refusal or self.doubts():
            return
        if (unread := self._policies.unread) is not None:
            problems = (f"{unread.fault}; set the policy again, or finish the roll-out",)
        if problems:
            self._refuse(problems)
        self.refused = problems
        self._begin()

    def _problems(self) -> tuple[str, ...]:
        """Apply the newest policy that can be read, or return the reasons against it."""
        self._awaited = frozenset()
        try:
            record = self._policies.in_force
            settings = overridden(self._file, {} if record is None else record.policy)
        except ConfigError as fault:
            return tuple(fault.problems)
        against = self._against(settings)
        if against and self._file.policy_mode == "strict" and not self._known.is_set():
            self.refusal = () if self.doubts() else against
        elif not against:
            self._go_on_by(settings)
        return against

    def _against(self, settings: Settings) -> tuple[str, ...]:
        """Return the reasons why the settings may not come into force."""
        if self._file.policy_mode == "strict" and (differing := mismatches(self._file, settings)):
            return differing
        needed, present = (levels_of(one) | queues_of(one) for one in (settings, self.settings))
        self._awaited = missing = needed - present - self._topics
        if not missing:
            return ()
        names = ", ".join(sorted(missing)[:MOST_NAMED]) + (
            f" and {more} more" if (more := len(missing) - MOST_NAMED) > 0 else ""
        )
        kind = "queue" if settings.queued else "level"
        return (f"its {kind} topics are {ABSENT}: {names}; create them: {mend_levels(settings)}",)

    def _refuse(self, problems: tuple[str, ...]) -> None:
        """Log why the newest policy is not applied, once until the reasons change."""
        if problems != self.refused:
            record = self._policies.in_force
            who = "no record" if record is None else record.who
            who = who if self._policies.unread is None else "a newer version"
            _LOG.error(
                "the group's policy by %s is not applied, the previous one stays in force: %s",
                who,
                "; ".join(problems),
                extra={"event": "policy-refused"},
            )

    def _go_on_by(self, settings: Settings) -> None:
        changes = differences(self.settings, settings)
        self.record = self._policies.in_force
        readable = self._policies.readable
        self._record_at = None if readable is None or readable.record is None else readable.offset
        if not changes:
            return
        who = "no record" if self.record is None else self.record.who
        told = ", ".join(f"{change.key} {flow(change.old)} → {flow(change.new)}" for change in changes)
        _LOG.info("the group's policy changed, by %s: %s", who, told, extra={"event": "policy"})
        if self._known.is_set():  # levels that leave the policy are read until a snapshot finds them empty
            self._draining.leave(levels_of(self.settings) & self._topics)
        self._draining.rejoin(levels_of(settings))
        self.settings = settings
        self._lanes.apply(settings, self._draining.levels)

    def _begin(self) -> None:
        if not self._known.is_set():
            self._known.set()
            self._draining.rejoin(levels_of(self.settings))
            self._read_draining()


class SubscriptionLog:
    """Logs when instances of the group want different records, and when they agree again. Remembers what it logged."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._differing: Mapping[str, Mapping[str, str]] = {}
        self._newer_logged = False
        """Whether it was logged that heartbeats of a newer version cannot be read. Each instance sends one a minute."""

    def compare(self, differing: Mapping[str, Mapping[str, str]]) -> None:
        """Log once that another instance wants other records, and once that all agree again."""
        if differing and differing != self._differing:
            name, other = next(iter(differing.items()))
            _LOG.warning(
                "instances of one group want different records: here %s, %s %s; give all of them the same topics and "
                "tags, or each its own group (%d differ)",
                flow(self._peers.own),
                name,
                flow(dict(other)),
                len(differing),
                extra={"event": "subscriptions-differ"},
            )
        elif self._differing and not differing:
            _LOG.info("all instances want the same records again", extra={"event": "subscriptions-agree"})
        self._differing = differing

    def name_newer(self, instance: str, v: int) -> None:
        """Log once that the heartbeats of an instance are of a newer version, `v`, and not compared."""
        if not self._newer_logged:
            self._newer_logged = True
            text, extra = "subscriptions of newer instances are not compared; %s", {"event": "policy-newer-instances"}
            _LOG.info(text, f"{instance}: {versions.sentence(v)}", extra=extra)
