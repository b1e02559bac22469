"""Follow the control log on the event loop: what this instance obeys, and what it makes of the other instances.

What the topic's thread reads arrives by `on_update`, and is applied to one `ControlState` (`FollowedLog`). Then
`SettingsKeeper` decides which settings are in force (`settings_keeper.py`), `HoldKeeper` which holds
(`hold_keeper.py`), and `ResetKeeper` which resets (`reset_keeper.py`); the lanes are told what has changed. `StartGate`
lets them begin. After an error the log is read again from its beginning, into a new `ControlState`; what was known
stays in force until the log was read to its end. All runs on the event loop, but for what is said to be called on the
topic's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from reconsume.sidecar.clock import now
from reconsume.sidecar.core.holds import Holds
from reconsume.sidecar.core.participation import Others
from reconsume.sidecar.core.position_reset import ResetOrder
from reconsume.sidecar.core.record import Now
from reconsume.sidecar.group_policy.agreement import InForce
from reconsume.sidecar.group_policy.follower import PolicyUpdate, TopicSnapshot
from reconsume.sidecar.group_policy.hold_keeper import HoldKeeper
from reconsume.sidecar.group_policy.levels import DrainingLevels
from reconsume.sidecar.group_policy.reset_keeper import ResetKeeper
from reconsume.sidecar.group_policy.settings_keeper import DifferenceLog, OwnSettings, SettingsKeeper
from reconsume.sidecar.group_policy.state import OF_INSTANCE, ControlRecord, ControlState, Peers
from reconsume.sidecar.printable import plural
from reconsume.sidecar.settings.group_policy import follows_instances, levels_of, policy_values
from reconsume.sidecar.settings.model import Settings
from reconsume.topics import versions
from reconsume.topics.agreement import SILENT_AFTER, LiveSettings
from reconsume.topics.decision_record import DecisionHeard, DecisionRecord
from reconsume.topics.hold_record import HoldHeard
from reconsume.topics.ownership import Reader
from reconsume.topics.policy_record import (
    BadRecord,
    InstanceHeard,
    NewerRecord,
    ObeysTold,
    PolicyHeard,
)
from reconsume.topics.position_ranges import Resets

_LOG = logging.getLogger("reconsume.policy")

KNOWN_WITHIN = 30.0
"""Seconds that the lanes wait for the group's settings and holds at the start. Then they deliver by the configuration's
values, because a policy topic without a leader must not stop the records. In strict mode they keep waiting."""

UNKNOWN = (
    "the group's settings and holds are not known yet; until then the configuration applies here alone, and what is "
    "held may be delivered"
)
COUNTED_WITHIN = 5.0
"""Seconds that the lanes wait then until the log has this instance's heartbeat, so that no Spark query can begin to
read the group's retries at the same time. If the heartbeat cannot be written, a query may: then this instance ends as
soon as it sees that."""

MISSING_MS = 180_000
"""ms without a heartbeat of its own in the log after which an instance says so: the others count it as gone."""

ORDERED_LADDER = "ordered_ladder"
"""The key of the ladder that keeps the order. One that was ended is there as null, or among what was."""


class Lanes(Protocol):
    """The parts of the sidecar that follow the group's policy, holds and decisions. Called on the event loop."""

    def apply(self, settings: Settings, leftovers: Collection[str]) -> None:
        """Use these settings, and also read these level topics."""

    def obey(self, holds: Holds) -> None:
        """Deliver nothing that these holds keep back."""

    def decide(self, decisions: Mapping[str, DecisionRecord]) -> None:
        """Carry out these decisions about waiting records, by their ids, and no others."""

    def rewrite_notes(self) -> None:
        """Write what is noted of partitions again: the policy topic may be another one."""

    def reset(self, orders: tuple[ResetOrder, ...], known: Resets) -> None:
        """Carry out these resets of positions, and deliver no copy that those which are `known` have superseded."""

    def expect_queues(self) -> None:
        """Hear that the group's policy has begun, changed or ended a ladder that keeps the order."""


class StartGate:
    """What the lanes wait for at the start. `within`: seconds, but for an instance that `is_strict`.

    `owner`: the Spark query that reads the group's retries, so that this instance may not and ends.
    """

    def __init__(self, within: float, *, is_strict: bool) -> None:
        self.owner: Reader | None = None
        self._within, self._is_strict = within, is_strict
        self._known, self._counted = asyncio.Event(), asyncio.Event()

    @property
    def is_known(self) -> bool:
        """Whether the group's settings are in force, or there are none. Any thread may ask."""
        return self._known.is_set()

    def note_known(self) -> None:
        """Note that they are."""
        self._known.set()

    def note_readers(self, news: PolicyUpdate) -> None:
        """Note whether the log has a heartbeat of this instance, and whether another one reads the group's retries."""
        self.owner = self.owner or news.owner
        if news.counted:
            self._counted.set()

    async def wait_known(self) -> None:
        """Wait until the group's settings are in force, or there are none.

        Outside strict mode, the wait ends after `within` seconds. It never ends if this instance may not start: in
        strict mode for its configuration, and while a Spark query reads the group's retries.
        """
        if self._is_strict:
            await self._known.wait()
        else:
            try:
                await asyncio.wait_for(self._known.wait(), self._within)
            except TimeoutError:
                _LOG.warning(UNKNOWN, extra={"event": "settings-unknown"})
                return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._counted.wait(), COUNTED_WITHIN)
        if self.owner is not None:
            await asyncio.Event().wait()


class FollowedLog:
    """The control log as this instance has read it. `own`: what it says there of its own settings."""

    def __init__(self, instance: str, own: OwnSettings, clock: Callable[[], Now]) -> None:
        self.state, self.own = ControlState(OF_INSTANCE), own
        self.policies = self.state.policies
        """Those by which this instance goes: of the log as it is read now, once that has told of one."""
        self.bad_records = 0
        self._instance, self._clock = instance, clock
        self._peers = Peers(instance)
        self._ahead: int | None = None
        """ms by which the log's clock is ahead of the steady one here. None: no record was read live yet."""
        self.is_read = False
        """Whether the log was read to its end, since it is read from its beginning."""
        self._live: tuple[LiveSettings, ...] = ()
        self._newer_logged = False
        """Whether it was logged that heartbeats of a newer version cannot be read. Each instance sends one a minute."""
        self._missing_since: int | None = clock().steady_ms
        """Since when the log lacks a heartbeat of this instance (steady ms). None: it has one, or that was logged."""

    def forget_positions(self) -> None:
        """Note that the log is read from its first record. It may be another log."""
        self.state, self._ahead, self.is_read = ControlState(OF_INSTANCE), None, False
        self._peers = Peers(self._instance)
        self.own.forget_sent()

    def hear(self, said: ControlRecord, *, live: bool) -> str:
        """Take in a record. Return why a decision is not carried out, in one sentence; otherwise empty."""
        fault = self.state.apply(said, self._clock().wall_ms)
        match said.heard:
            case PolicyHeard():
                self.policies = self.state.policies
            case InstanceHeard(instance=instance, record=beat):
                self._peers.hear(instance, beat, said.offset, live=live)
            case NewerRecord(instance=None):
                self.policies.unread = self.state.policies.unread
            case NewerRecord(v=v, instance=str(name)) if not self._newer_logged:
                self._newer_logged = True
                text, extra = "newer instances are not compared; %s", {"event": "policy-newer-instances"}
                _LOG.info(text, f"{name}: {versions.sentence(v)}", extra=extra)
        if isinstance(said.heard, BadRecord) or fault:
            self.bad_records += 1
        return fault

    def note_end(self, *, live: bool, caught_up: bool) -> None:
        """Note that records were heard. `live`: they were written while the log was followed."""
        if live:
            self._ahead = self.state.written_at - self._clock().steady_ms
        self.is_read |= caught_up

    def keep_own_written(self) -> None:
        """Have the log, read to its end, say what the settings of this instance are."""
        needed = {beat.settings for beat in self.state.beats.known().values()}
        self.own.keep_written(self.state.settings, needed, self.now())

    def now(self) -> int:
        """Return the time now by the clock of the log, so that all instances agree who is silent (epoch ms)."""
        here = self._clock()
        return here.wall_ms if self._ahead is None else here.steady_ms + self._ahead

    def look_for_own(self) -> None:
        """Log once that no heartbeat of this instance came back, though it was looked for each minute."""
        here = self._clock().steady_ms
        if self._instance in self.state.beats.running(self.now()):
            self._missing_since = here
        elif self._missing_since is not None and here - self._missing_since >= MISSING_MS:
            self._missing_since = None
            text = (
                "no heartbeat of this instance came back from the policy topic for %s s: no other instance follows its "
                "settings; look at its right to write there"
            )
            _LOG.warning(text, MISSING_MS // 1000, extra={"event": "heartbeat-missing"})

    def live_settings(self) -> tuple[LiveSettings, ...]:
        """Return the settings of the live instances, the newest first; while the log is read again, those before."""
        if self.is_read:
            self._live = self.state.live_settings(self.now())
        return self._live

    def others(self) -> Others:
        """Return whether other instances are well, by their heartbeats."""
        return self._peers.others(self.state.beats, self.now())

    def next_silence(self) -> float | None:
        """Return in how many seconds the next instance counts as gone if it says no more; None if none runs."""
        at = min((beat.at for beat in self.state.beats.running(self.now()).values()), default=None)
        return None if at is None else max(0, at + SILENT_AFTER - self.now()) / 1000


class PolicyController:
    """The policy in force in this instance. The topic's thread calls `on_update`, and asks the five others."""

    def __init__(
        self,
        settings: Settings,
        instance: str,
        lanes: Lanes,
        known_within: float = KNOWN_WITHIN,
        clock: Callable[[], Now] = now,
    ) -> None:
        """Begin with the configuration."""
        self.holds = HoldKeeper(lanes.obey, clock)
        self.obeys: ObeysTold | None = None
        """What this instance obeys of what operators say. Any thread may read it. None: the log was not read yet."""
        self._chosen = SettingsKeeper(settings)
        self.start = StartGate(known_within, is_strict=settings.policy_mode == "strict")
        self._lanes = lanes
        self._log = FollowedLog(instance, OwnSettings(settings), clock)
        self.holds.begin(self._log.state.holds)
        self.resets = ResetKeeper(lanes.reset)
        self._decided: Mapping[str, DecisionRecord] = {}
        """The decisions of which the lanes know."""
        self._differing = DifferenceLog()
        self._draining = DrainingLevels(settings.names, frozenset(settings.topic_names))
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    # --- called on the thread of the topic ---------------------------------------------------------------------------

    def on_update(self, news: PolicyUpdate) -> None:
        """Process an update on the event loop."""
        self._loop.call_soon_threadsafe(self._take, news)

    def wanted(self) -> frozenset[str]:
        """Return the level topics of the policy in force. Empty until that is known, so that all are checked."""
        return levels_of(self.settings) if self.start.is_known else frozenset()

    def awaited(self) -> frozenset[str]:
        """Return the topics for want of which the newest policy or settings are not applied."""
        return self._chosen.awaited

    def doubts(self) -> bool:
        """Whether to check the topics at once: some that the newest policy needs may have been created just now."""
        return self._chosen.doubts()

    def hurried(self) -> bool:
        """Whether to check the topics again soon.

        A policy or settings wait to be applied, a removed level still holds records, or Kafka did not say which do.
        """
        is_refused = self._chosen.waits and self._log.policies.unread is None
        return bool(is_refused or self._draining.levels) or self._draining.is_unsure

    def unwritten(self) -> Iterable[tuple[bytes, bytes | None]]:
        """Return the settings and holds that the topic lacks."""
        return [*self._log.own.unwritten(), *self.holds.unwritten()]

    # --- what is shown -----------------------------------------------------------------------------------------------

    @property
    def in_force(self) -> InForce:
        """The settings in force, and whose they are."""
        return self._chosen.in_force

    @property
    def settings(self) -> Settings:
        """The settings in force: the configuration, with those of the group over it. Any thread may read them."""
        return self._chosen.in_force.settings

    @property
    def refused(self) -> tuple[str, ...]:
        """The reasons why the group's newest policy is not in force."""
        return self._chosen.in_force.refused

    @property
    def refusal(self) -> tuple[str, ...]:
        """The reasons why this instance may not start, in strict mode."""
        return self._chosen.refusal

    @property
    def bad_records(self) -> int:
        """How many records of the log could not be read."""
        return self._log.bad_records

    def policy(self) -> dict[str, object]:
        """Return the answer to `GET /v1/policy`."""
        record, file = self.in_force.record, self._chosen.file
        return {
            "group": file.group,
            "mode": file.policy_mode,
            "policy": policy_values(self.settings),
            "origins": self.in_force.origins(file),
            "who": None if record is None else record.who,
            "at": None if record is None else record.at,
            "was": {} if record is None else record.was,
            "refused": list(self.refused),
            **self._agreement(),
        }

    def _agreement(self) -> dict[str, object]:
        agreed, skipped = self.in_force.agreed, self.in_force.skipped
        return {
            "settings": None if agreed is None else agreed.digest,
            "instances": [] if agreed is None else list(agreed.instances),
            "settings_refused": [{"settings": digest, "reasons": list(why)} for digest, why in skipped.items()],
        }

    def status(self) -> dict[str, object]:
        """Return the policy's part of `/status`."""
        record = self.in_force.record
        return {
            "policy": {
                "mode": self._chosen.file.policy_mode,
                "who": None if record is None else record.who,
                "at": None if record is None else record.at,
                "refused": list(self.refused),
                "removed_levels": sorted(self._draining.levels),
                "removed_topics": self._draining.removed_topics(),
                **self._agreement(),
            },
            **self.holds.status(),
            "instances_differ": [difference.row() for difference in self._differing.differences],
        }

    @property
    def removed_levels(self) -> int:
        """The number of levels that are read although the policy or the configuration has lost them."""
        return len(self._draining.levels)

    def others(self) -> Others:
        """Return whether other instances are well, by their heartbeats."""
        return self._log.others()

    def instances_differ(self) -> bool:
        """Whether the live instances differ in what they want or how they are configured."""
        return bool(self._differing.differences)

    # --- on the loop -------------------------------------------------------------------------------------------------

    def _take(self, news: PolicyUpdate) -> None:
        if news.begun:
            self._forget_positions()
        self.start.note_readers(news)
        for said in news.records:
            self._hear(said, news.live)
        self._log.note_end(live=bool(news.records) and news.live, caught_up=news.caught_up)
        self.holds.take(caught_up=news.caught_up)
        if self._log.is_read:
            self._tell_decisions()
        self.resets.take(news.resets, self._log.state.resets, self._log.now(), caught_up=news.caught_up)
        bad = [said.heard.text for said in news.records if isinstance(said.heard, BadRecord)]
        if bad:
            text = "ignored in the policy topic: %s; the first: %s"
            _LOG.warning(text, plural(len(bad), "record"), bad[0], extra={"event": "policy-bad-records"})
        if news.look is not None:
            self._see(news.look)
        if news.caught_up or (self.start.is_known and news.look is not None):
            self._consider()
        if news.caught_up:
            self._log.keep_own_written()
            self._note_obeyed()

    def _forget_positions(self) -> None:
        self._log.forget_positions()
        self.obeys = None  # its offsets are those of the log before
        self.holds.begin(self._log.state.holds)
        self.resets.begin()

    def _tell_decisions(self) -> None:
        """Tell the lanes what is decided, by the log as it was read to its end: what is not said again has ended."""
        if self._decided != self._log.state.decisions:
            self._decided = dict(self._log.state.decisions)
            self._lanes.decide(self._decided)
        if self.obeys is None:  # the log was read from its beginning
            self._lanes.rewrite_notes()

    def _hear(self, said: ControlRecord, live: bool) -> None:
        fault = self._log.hear(said, live=live)
        match said.heard:
            case PolicyHeard(record=record):
                if record is not None and ORDERED_LADDER in {*record.policy, *record.was}:
                    self._lanes.expect_queues()
            case HoldHeard(id=ident, record=hold):
                self.holds.hear(ident, hold)
            case DecisionHeard(id=ident) if fault:
                extra = {"event": "settlement-ignored", "about": [ident]}
                _LOG.warning("the decision %s is not carried out: %s", ident, fault, extra=extra)

    def _see(self, look: TopicSnapshot) -> None:
        self._chosen.see(look.topics, look.awaited)
        self._draining.is_unsure = bool(look.left.unknown)
        if look.wanted != self.wanted():  # a level that left the policy meanwhile was not checked
            return
        empty = self._draining.see(look.left)
        if empty is not None and self.start.is_known:
            self._draining.log_empty(empty)
            self._read_draining()

    def _read_draining(self) -> None:
        self._draining.log()
        self._lanes.apply(self.settings, self._draining.levels)

    def _consider(self) -> None:
        """Apply the newest policy and settings that can be, unless there is a reason against it."""
        candidates = self._log.live_settings() if follows_instances(self._chosen.file) else ()
        before = self._chosen.consider(self._log.policies, candidates)
        if self.refusal or self.doubts():
            return
        if before is not None:
            if self.start.is_known:  # levels that leave the policy are read until a snapshot finds them empty
                self._draining.leave(levels_of(before.settings) & self._chosen.topics)
            self._draining.rejoin(levels_of(self.settings))
            self._lanes.apply(self.settings, self._draining.levels)
        if not self.start.is_known:
            self.start.note_known()
            self._draining.rejoin(levels_of(self.settings))
            self._read_draining()
        if self._log.is_read:
            self._log.look_for_own()
            self._differing.compare(self._log.state, self._log.now(), self.in_force)
            self._note_obeyed()
            self._look_again(candidates)

    def _note_obeyed(self) -> None:
        policy, agreed = self.in_force.policy, self.in_force.agreed
        policy_at = None if policy is None or policy.record is None else policy.offset
        digest = "" if agreed is None else agreed.digest
        self.obeys = ObeysTold(self._log.state.said_to, self.holds.in_force.some_ids(), policy_at, digest)

    def _look_again(self, candidates: Collection[LiveSettings]) -> None:
        """Look again when an instance counts as gone, if that may change something here."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._differing.differences or any(one.digest != self._log.own.digest for one in candidates):
            wait_s = self._log.next_silence()
            if wait_s is not None:
                self._timer = self._loop.call_later(wait_s + 0.01, self._consider)
