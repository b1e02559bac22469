"""Decide on the event loop which policy is in force, and compare this instance's subscription with the others.

What the topic's thread reads arrives by `on_update`. A policy is applied as a whole or not at all. If it is invalid, or
its level topics are missing, the current one stays in force, and `/status` shows why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

from sidecar.clock import now
from sidecar.core.participation import Others
from sidecar.core.progress_codec import FAR_PROGRESS
from sidecar.core.record import Now
from sidecar.errors import ConfigError
from sidecar.group_policy.follower import PolicyUpdate, TopicSnapshot
from sidecar.group_policy.heard_settlements import HeardSettlements, Settle
from sidecar.group_policy.heartbeat_reader import GroupMembers
from sidecar.group_policy.hold_keeper import HoldKeeper, Obey
from sidecar.settings.group_policy import (
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
from sidecar.settings.model import Settings
from topics import versions
from topics.hold_record import HoldHeard
from topics.policy_record import (
    BadRecord,
    Heard,
    InstanceHeard,
    NewerRecord,
    PolicyHeard,
    PolicyRecord,
    SettlementHeard,
    SettlementRecord,
)
from topics.removed import removed_topics

KNOWN_WITHIN = 30.0
"""Seconds that the lanes wait for the group's policy and holds at the start. Then they deliver by the configuration's
values, because a policy topic without a leader must not stop the records. In strict mode they keep waiting."""
FORMS_EVERY = 10.0
"""Seconds between two checks whether all instances still read the newest form of progress, while it is written."""
MOST_NAMED = 30
"""Level topics that one sentence names. There are 18 by default, and a policy record may ask for thousands."""

Apply = Callable[[Settings, Collection[str]], None]
"""Have the lanes use these settings, and also read these level topics."""

_LOG = logging.getLogger("reconsume.policy")


class PolicyController:
    """The policy in force in this instance. The topic's thread calls `on_update`, `wanted` and `hurried`."""

    def __init__(
        self,
        settings: Settings,
        instance: str,
        apply: Apply,
        known_within: float = KNOWN_WITHIN,
        allow_far: Callable[[bool], None] = lambda _allowed: None,
        obey: Obey = lambda _holds: None,
        clock: Callable[[], Now] = now,
        forms_every: float = FORMS_EVERY,
        settle: Settle = lambda _ident, _record: None,
    ) -> None:
        """Begin with the configuration.

        `allow_far`: take in whether all instances read progress of any distance. `obey`: deliver nothing that is held.
        `settle`: take in what a person has decided about a record that waits.
        """
        self.settings = settings
        """The settings in force: the configuration, with the group's values over it."""
        self.record: PolicyRecord | None = None
        """The group's policy that is in force. None if the configuration's values are."""
        self.refused: tuple[str, ...] = ()
        """The reasons why the group's newest policy is not in force."""
        self.refusal: tuple[str, ...] = ()
        """The reasons why this instance may not start, in strict mode."""
        self.bad_records = 0
        self.subscription = {topic.name: topic.tags for topic in settings.topics}
        self._file, self._apply, self._known_within = settings, apply, known_within
        self._clock, self._forms_every = clock, forms_every
        self._allow_far, self._far = allow_far, False
        self._settlements = HeardSettlements(settle)
        self._forms_timed = False
        self._forms_told = False
        """Whether a heartbeat may have changed which forms of records all instances read."""
        self._newest: PolicyRecord | None = None
        self._newer: int | None = None
        """The `v` of the group's newest policy if a newer version of Reconsume wrote it. Nothing of it can be read."""
        self._topics = self._awaited = frozenset[str]()
        self._left: frozenset[str] = frozenset()
        self._unsure = False
        """Whether Kafka did not say of each level whether it holds records."""
        self.holds = HoldKeeper(obey, clock)
        self._known = asyncio.Event()
        self._members = GroupMembers(instance, self.subscription)
        self._differing: Mapping[str, Mapping[str, str]] = {}
        self._newer_told = False
        """Whether it was logged that heartbeats of a newer version cannot be read. Each instance sends one a minute."""
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

    def hurried(self) -> bool:
        """Whether to check the topics again soon.

        A policy waits to be applied, a removed level still holds records, or Kafka did not say which levels do.
        """
        return bool((self.refused and self._newer is None) or self._left) or self._unsure

    def unwritten(self) -> list[tuple[bytes, bytes]]:
        """Return the holds that the topic lacks, as it was made anew."""
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
                "removed_levels": sorted(self._left),
                "removed_topics": self._removed_topics(),
            },
            **self.holds.status(),
            "subscriptions_differ": [
                {"instance": name, "subscription": dict(subscription)}
                for name, subscription in self._members.differing(self._clock()).items()
            ],
        }

    @property
    def removed_levels(self) -> int:
        """The number of levels that are read although the policy or the configuration has lost them."""
        return len(self._left)

    def others(self) -> Others:
        """Return whether other instances are well, by their heartbeats."""
        return self._members.others(self._clock())

    def without_queues(self) -> list[str]:
        """Return the live instances that do not read queue topics, by their heartbeats."""
        return self._members.without_queues(now())

    def subscriptions_differ(self) -> bool:
        """Whether another instance wants other records."""
        return bool(self._members.differing(self._clock()))

    # --- on the loop -------------------------------------------------------------------------------------------------

    def _take(self, news: PolicyUpdate) -> None:
        if news.begun:
            self.holds.begin()
            self._settlements.begin()
        for heard in news.heard:
            self._hear(heard, news.live)
        self.holds.take(caught_up=news.caught_up)
        bad = [heard.text for heard in news.heard if isinstance(heard, BadRecord)]
        if bad:
            text = "%d records of the policy topic are ignored; the first: %s"
            _LOG.warning(text, len(bad), bad[0], extra={"event": "policy-bad-records"})
        if news.look is not None:
            self._see(news.look)
        if news.look is not None or self._forms_told:
            self._agree_on_forms()
        if news.caught_up or (self._known.is_set() and news.look is not None):
            self._compare()
            self._consider()

    def _compare(self) -> None:
        """Log once that another instance wants other records, and once that all agree again."""
        differing = self._members.differing(self._clock())
        if differing and differing != self._differing:
            name, other = next(iter(differing.items()))
            _LOG.warning(
                "instances of one group want different records: here %s, %s %s; give all of them the same topics and "
                "tags, or each its own group (%d differ)",
                flow(self.subscription),
                name,
                flow(dict(other)),
                len(differing),
                extra={"event": "subscriptions-differ"},
            )
        elif self._differing and not differing:
            _LOG.info("all instances want the same records again", extra={"event": "subscriptions-agree"})
        self._differing = differing

    def _agree_on_forms(self) -> None:
        self._forms_told = False
        far = self._members.all_read(FAR_PROGRESS, self._clock())
        if far != self._far:
            self._far = far
            self._allow_far(far)
        if far and not self._forms_timed:  # heartbeats may cease, and then there is no news
            self._forms_timed = True
            self._loop.call_later(self._forms_every, self._check_forms)

    def _check_forms(self) -> None:
        self._forms_timed = False
        self._agree_on_forms()

    def _hear_newer(self, instance: str, v: int) -> None:
        if not self._newer_told:
            self._newer_told = True
            text, extra = "subscriptions of newer instances are not compared; %s", {"event": "policy-newer-instances"}
            _LOG.info(text, f"{instance}: {versions.sentence(v)}", extra=extra)

    def _hear(self, heard: Heard, live: bool) -> None:
        match heard:
            case PolicyHeard(record=record):
                self._newest, self._newer = record, None
            case InstanceHeard(instance=instance, record=subscribed):
                self._members.hear(instance, subscribed, self._clock(), live=live)
                if not self._far or subscribed is None or FAR_PROGRESS not in (subscribed.reads or ()):
                    self._forms_told = True
            case NewerRecord(v=v, instance=None):
                self._newer = v
            case NewerRecord(v=v, instance=str(name)):
                self._hear_newer(name, v)
            case BadRecord():
                self.bad_records += 1
                self._members.miss(self._clock())
            case SettlementHeard(id=ident, record=settlement):
                self._hear_settlement(ident, settlement)
            case HoldHeard(id=ident, record=hold):
                self.holds.hear(ident, hold)

    def _hear_settlement(self, ident: str, settlement: SettlementRecord | None) -> None:
        if why := self._settlements.hear(ident, settlement):
            self.bad_records += 1
            extra = {"event": "settlement-ignored", "about": [ident]}
            _LOG.warning("the settlement of %s is not carried out: %s", ident, why, extra=extra)

    def _see(self, look: TopicSnapshot) -> None:
        self._topics, self._unsure = look.topics, bool(look.left.unknown)
        left = look.left.holding | (self._left & look.left.unknown)
        # A level that left the policy after the snapshot began was not checked in it.
        if look.wanted != self.wanted() or left == self._left:
            return
        gone, self._left = self._left - left, left
        if self._known.is_set():
            if gone:
                text, extra = "levels outside the policy are empty and no longer read: %s", {"event": "levels-empty"}
                _LOG.info(text, ", ".join(sorted(gone)), extra=extra)
            self._read_leftovers()

    def _removed_topics(self) -> list[str]:
        """Return the main topics that left the configuration and whose own levels still hold retries."""
        return removed_topics(self._file.names, self._left, self._file.topic_names)

    def _read_leftovers(self) -> None:
        if self._left:
            names = ", ".join(sorted(self._left))
            text, extra = "levels outside the policy are read until they are empty: %s", {"event": "levels-left"}
            _LOG.info(text, names, extra=extra)
        if removed := self._removed_topics():
            text = "retries of topics that left the configuration are passed on, and become dead letters in the end: %s"
            _LOG.warning(text, ", ".join(removed), extra={"event": "topics-removed", "about": removed})
        self._apply(self.settings, self._left)

    def _consider(self) -> None:
        """Apply the group's newest policy that can be read, unless there is a reason against it."""
        problems = () if self.refusal else self._problems()
        if self.refusal:
            return
        if self._newer is not None:
            problems = (f"{versions.sentence(self._newer)}; set the policy anew, or finish the roll-out",)
        if problems:
            self._refuse(problems)
        self.refused = problems
        self._begin()

    def _problems(self) -> tuple[str, ...]:
        """Apply the newest policy that can be read, or return the reasons against it."""
        try:
            settings = overridden(self._file, {} if self._newest is None else self._newest.policy)
        except ConfigError as fault:
            return tuple(fault.problems)
        against = self._against(settings)
        if against and self._file.policy_mode == "strict" and not self._known.is_set():
            self.refusal = against
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
        return (f"its {kind} topics are missing: {names}; create them: {mend_levels(settings)}",)

    def _refuse(self, problems: tuple[str, ...]) -> None:
        """Log why the newest policy is not applied, once until the reasons change."""
        if problems != self.refused:
            who = "no record" if self._newest is None else self._newest.who
            who = who if self._newer is None else "a newer version"
            _LOG.error(
                "the group's policy by %s is not applied, the previous one stays in force: %s",
                who,
                "; ".join(problems),
                extra={"event": "policy-refused"},
            )

    def _go_on_by(self, settings: Settings) -> None:
        changes = differences(self.settings, settings)
        self.record = self._newest
        if not changes:
            return
        who = "no record" if self.record is None else self.record.who
        told = ", ".join(f"{change.key} {flow(change.old)} → {flow(change.new)}" for change in changes)
        _LOG.info("the group's policy changed, by %s: %s", who, told, extra={"event": "policy"})
        if self._known.is_set():  # levels that leave the policy are read until a snapshot finds them empty
            self._left |= levels_of(self.settings) & self._topics
        self._left -= levels_of(settings)
        self.settings = settings
        self._apply(settings, self._left)

    def _begin(self) -> None:
        if not self._known.is_set():
            self._known.set()
            self._left -= levels_of(self.settings)
            self._read_leftovers()
