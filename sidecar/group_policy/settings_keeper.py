"""Keep the settings that are in force in this instance, and say in the log which are and why; on the event loop.

`SettingsKeeper` asks `agreement.choose` whenever something has changed that its choice depends on. A policy, or the
settings of other instances, come into force as a whole or not at all: not if a value is wrong, if a level or queue
topic is missing, or, with `policy_mode: strict`, if the policy differs from the configuration. The topics are looked at
again every 5 s meanwhile.

`OwnSettings` keeps the record of this instance's own settings in the log (contract 10.7): it writes the record if the
log, read to its end, has none, once a day again, and after a recreation of the topic with the rank that it had.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Collection, Sequence

from reconsume.sidecar.group_policy.agreement import (
    Difference,
    InForce,
    choose,
    differences_of,
    named,
)
from reconsume.sidecar.group_policy.state import ControlState, KnownSettings, Policies
from reconsume.sidecar.hints import ABSENT
from reconsume.sidecar.settings.group_policy import (
    agreed_values,
    differences,
    flow,
    follows_instances,
    levels_of,
    mend_levels,
    mismatches,
    queues_of,
)
from reconsume.sidecar.settings.model import Settings
from reconsume.topics.agreement import (
    KEPT_FOR,
    WRITTEN_EVERY,
    LiveSettings,
    SettingsRecord,
    digest_of,
    next_rank,
    render_settings,
    settings_key,
)

SURE_AFTER_LOOKS = 2
"""Looks at the cluster that must miss a topic, each after what needs it came, until it counts as missing: it may have
been created a moment ago, and a broker hears of that later than who created it."""
MOST_NAMED = 30
"""Level topics that one sentence names. There are 18 by default, and a policy record may ask for thousands."""
AGAIN_MS = 60_000
"""ms after which a record that did not come back is written again."""

_LOG = logging.getLogger("reconsume.policy")


class SettingsKeeper:
    """The settings in force. Begins with the configuration, `file`."""

    def __init__(self, file: Settings) -> None:
        self.file, self.in_force = file, InForce(file)
        self.refusal: tuple[str, ...] = ()
        """The reasons why this instance may not start, in strict mode."""
        self.topics: frozenset[str] = frozenset()
        """The topics of the cluster that were seen last."""
        self.awaited: frozenset[str] = frozenset()
        """The topics for want of which a policy or settings are not in force."""
        self._missed_by = Counter[str]()
        """How many looks have missed each awaited topic."""
        self._considered: object = None
        """What the last choice was made of. None: none was made yet."""

    @property
    def waits(self) -> bool:
        """Whether something newer is not in force, which another look at the topics may change."""
        return bool(self.in_force.refused or self.in_force.skipped)

    def doubts(self) -> bool:
        """Whether some of the awaited topics may have been created just now. Then nothing new comes into force yet."""
        return any(self._missed_by[topic] < SURE_AFTER_LOOKS for topic in self.awaited)

    def see(self, topics: frozenset[str], awaited: frozenset[str]) -> None:
        """Take in the topics of the cluster. `awaited`: as it was before Kafka was asked."""
        self.topics = topics
        self._missed_by = Counter({topic: self._missed_by[topic] + 1 for topic in awaited - topics})

    def consider(self, policies: Policies, candidates: Sequence[LiveSettings]) -> InForce | None:
        """Decide what is in force now. Return what was before if settings have changed, otherwise None."""
        inputs = (policies.readable, policies.unread, [one.digest for one in candidates], self.topics)
        if self.refusal or (inputs == self._considered and not self.waits):
            self._name_instances(candidates)
            return None
        self.awaited, before = frozenset(), self.in_force
        chosen = choose(self.file, (policies.readable, before.policy), candidates, self._against)
        if self.refusal or self.doubts():
            return None
        self._considered = inputs
        if chosen is None:
            chosen = before._replace(refused=("neither the newest policy nor the one before it can be in force",))
        if policies.unread is not None:
            text = f"{policies.unread.fault}; set the policy again, or finish the roll-out"
            chosen = chosen._replace(refused=(text,))
        self.in_force = chosen
        _log_refused(before, chosen, policies)
        _log_skipped(before, chosen, candidates)
        return before if _log_change(before, chosen) else None

    def _name_instances(self, candidates: Sequence[LiveSettings]) -> None:
        """Keep up to date which instances have the settings in force."""
        agreed = self.in_force.agreed
        now = next((one for one in candidates if agreed is not None and one.digest == agreed.digest), None)
        if now is not None:
            self.in_force = self.in_force._replace(agreed=now)

    def _against(self, settings: Settings) -> tuple[str, ...]:
        """Return the reasons why the settings may not come into force."""
        if self.file.policy_mode == "strict" and (differing := mismatches(self.file, settings)):
            if self._considered is None:
                self.refusal = differing
            return differing
        needed, present = (levels_of(one) | queues_of(one) for one in (settings, self.in_force.settings))
        missing = needed - present - self.topics
        self.awaited |= missing
        if not missing:
            return ()
        names = ", ".join(sorted(missing)[:MOST_NAMED])
        names += f" and {more} more" if (more := len(missing) - MOST_NAMED) > 0 else ""
        kind = "queue" if settings.queued else "level"
        return (f"its {kind} topics are {ABSENT}: {names}; create them: {mend_levels(settings)}",)


def _log_refused(before: InForce, now: InForce, policies: Policies) -> None:
    """Log why the newest policy is not applied, once until the reasons change."""
    if now.refused and now.refused != before.refused:
        record = policies.in_force
        who = "no record" if record is None else record.who
        who = who if policies.unread is None else "a newer version"
        text = "the group's policy by %s is not applied, the previous one stays in force: %s"
        _LOG.error(text, who, "; ".join(now.refused), extra={"event": "policy-refused"})


def _log_skipped(before: InForce, now: InForce, candidates: Sequence[LiveSettings]) -> None:
    """Log which settings of other instances are not applied and why, once until the reasons change."""
    for one in candidates:
        why = now.skipped.get(one.digest)
        if why is not None and why != before.skipped.get(one.digest):
            _LOG.error(
                "settings %s of %s cannot be applied here, other instances may: %s",
                one.digest,
                named(one.instances),
                "; ".join(why),
                extra={"event": "settings-refused", "about": [one.digest]},
            )


def _log_change(before: InForce, now: InForce) -> bool:
    """Log which values change and by whom. Return whether any does."""
    changes = differences(before.settings, now.settings)
    if not changes:
        return False
    shown = ", ".join(f"{change.key} {flow(change.old)} → {flow(change.new)}" for change in changes)
    if now.policy != before.policy:
        who = "no record" if now.record is None else now.record.who
        _LOG.info("the group's policy changed, by %s: %s", who, shown, extra={"event": "policy"})
        return True
    whose = "this configuration"
    if now.agreed is not None:
        whose = f"the newest settings of the group, {now.agreed.digest} of {named(now.agreed.instances)}"
    _LOG.info("the settings in force changed, by %s: %s", whose, shown, extra={"event": "settings"})
    return True


class OwnSettings:
    """The record of this instance's own settings. `digest` is empty if no other instance follows it."""

    def __init__(self, file: Settings) -> None:
        self._values = agreed_values(file)
        self.digest = digest_of(self._values) if follows_instances(file) else ""
        self._rank: int | None = None
        """The rank that the log gave it: a recreated log gets the same again."""
        self._sent: dict[bytes, int] = {}
        """When each record was sent (epoch ms), until it is old enough to be sent again."""
        self._unwritten: deque[tuple[bytes, bytes | None]] = deque()

    def forget_sent(self) -> None:
        """Note that the log is read from its beginning: it may be another one."""
        self._sent.clear()

    def keep_written(self, known: KnownSettings, needed: Collection[str], now_ms: int) -> None:
        """Have written what the log, read to its end, lacks, and deleted what nobody has needed for 30 days.

        `needed`: the digests that heartbeats name. `now_ms`: by the clock of the log.
        """
        if not self.digest:
            return
        record = known.records.get(self.digest)
        self._rank = self._rank if record is None else record.rank
        if record is None or now_ms - known.written_at[self.digest] > WRITTEN_EVERY:
            rank = next_rank(known.records) if self._rank is None else self._rank
            self._send(self.digest, render_settings(SettingsRecord(self._values, rank)), now_ms)
        for digest, at in known.written_at.items():
            if now_ms - at > KEPT_FOR and digest not in needed and digest != self.digest:
                self._send(digest, None, now_ms)

    def _send(self, digest: str, value: bytes | None, now_ms: int) -> None:
        key = settings_key(digest)
        self._sent = {sent: at for sent, at in self._sent.items() if now_ms - at < AGAIN_MS}
        if key not in self._sent:
            self._sent[key] = now_ms
            self._unwritten.append((key, value))

    def unwritten(self) -> list[tuple[bytes, bytes | None]]:
        """Return the keys and values that are to be written to the topic, each once. For the topic's thread."""
        records = []
        while self._unwritten:
            records.append(self._unwritten.popleft())
        return records


class DifferenceLog:
    """How the live instances differ. Logs it once until it changes, and once that all agree again."""

    def __init__(self) -> None:
        self.differences: tuple[Difference, ...] = ()
        self._compared: object = None

    def compare(self, state: ControlState, now_ms: int, in_force: InForce) -> None:
        """Compare the live instances, if anything has changed. `now_ms`: by the clock of the log."""
        running = state.beats.running(now_ms)
        compared = (state.beats.changes, running.keys(), in_force.policy, in_force.agreed)
        if compared == self._compared:
            return
        self._compared = compared
        before, self.differences = self.differences, differences_of(running, state.settings.records, in_force)
        if self.differences and _values_of(self.differences) != _values_of(before):
            agreed = in_force.agreed
            whose = "" if agreed is None else f"; settings {agreed.digest} of {named(agreed.instances)} are the newest"
            _LOG.warning(
                "the instances of the group differ: %s%s; give all of them one configuration (a roll-out passes)",
                "; ".join(difference.sentence for difference in self.differences),
                whose,
                extra={"event": "instances-differ", "since": min(one.since for one in self.differences)},
            )
        elif before and not self.differences:
            _LOG.info("all instances of the group agree again", extra={"event": "instances-agree"})


def _values_of(differences: Sequence[Difference]) -> list[tuple[str, list[str]]]:
    return [(one.key, sorted(flow(value) for value, _ in one.values)) for one in differences]
