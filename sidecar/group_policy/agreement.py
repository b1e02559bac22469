"""Which settings are in force in a group, where each value comes from, and how its instances differ. Pure.

Three layers are laid over each other (contract 10.7): the configuration of one instance, the newest settings among the
live instances (`topics/agreement.py` ranks them), and the group's policy. All agreed keys come from one configuration,
never a mixture; the policy applies over them, key by key. `choose` skips settings that cannot be applied here, and
leaves a policy that cannot be applied out of force. The sidecar (`settings_keeper.py`) says what is against it here;
commands, `doctor` and the dashboard (`group_settings`) know of no such reason but a value that no instance reads.

`differences_of` compares what live instances say of themselves, for the event `instances-differ` and for `doctor`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.group_policy.state import Beat, ControlState, Entry
from reconsume.sidecar.settings.group_policy import (
    AGREED,
    KEYS,
    Origin,
    agreed_values,
    flow,
    follows_instances,
    origins,
    overridden,
)
from reconsume.sidecar.settings.model import LEAVES, Settings
from reconsume.topics.agreement import LiveSettings, SettingsRecord, digest_of
from reconsume.topics.policy_record import PolicyRecord, SubscriptionRecord, heartbeat_subscription

Judge: TypeAlias = Callable[[Settings], tuple[str, ...]]
"""Returns why settings cannot be in force here, in sentences."""

MOST_NAMED = 3
"""Instances that one sentence names."""


class InForce(NamedTuple):
    """What is in force: `settings`, which are the file with `agreed` and `policy` over it.

    `agreed`: the settings of live instances; None if no others apply. `refused`: why the newest policy is not in force.
    `skipped`: why newer settings of instances are not, by their digest.
    """

    settings: Settings
    policy: Entry | None = None
    agreed: LiveSettings | None = None
    refused: tuple[str, ...] = ()
    skipped: Mapping[str, tuple[str, ...]] = {}

    @property
    def record(self) -> PolicyRecord | None:
        """The policy in force."""
        return None if self.policy is None else self.policy.record

    def origins(self, file: Settings) -> dict[str, Origin]:
        """Return where each value comes from. `file`: the configuration below; `instances` have another one."""
        policy = {} if self.record is None else self.record.policy
        is_own = self.agreed is None or self.agreed.digest == digest_of(agreed_values(file))
        return origins(file, policy, () if is_own else AGREED)


def choose(
    file: Settings,
    policies: Sequence[Entry | None],
    candidates: Sequence[LiveSettings],
    judge: Judge = lambda _: (),
) -> InForce | None:
    """Return what is to be in force; None if nothing can be.

    `policies`: the newest, and those that stay in force if it cannot be. `candidates`: the settings of live instances,
    the newest first; without any that can be applied the file alone counts.
    """
    skipped = dict[str, tuple[str, ...]]()
    for agreed in (*candidates, None):
        refused = tuple[str, ...]()
        for policy in policies:
            settings, faults = _layered(file, agreed, policy, judge)
            if settings is not None:
                return InForce(settings, policy, agreed, refused, skipped)
            refused = refused or faults
        if agreed is not None:
            skipped[agreed.digest] = refused
    return None


def _layered(
    file: Settings, agreed: LiveSettings | None, policy: Entry | None, judge: Judge
) -> tuple[Settings | None, tuple[str, ...]]:
    """Return the layers as settings, or why they cannot be in force."""
    values = {} if agreed is None else values_of(agreed.record)
    record = None if policy is None else policy.record
    try:
        settings = overridden(file, {**values, **({} if record is None else record.policy)})
    except ConfigError as fault:
        return None, tuple(fault.problems)
    against = judge(settings)
    return (None, against) if against else (settings, ())


def values_of(record: SettingsRecord) -> dict[str, object]:
    """Return the agreed values of a settings record. A version that does not know a key acts by its default."""
    return {key: record.values.get(key, LEAVES[KEYS[key]].default) for key in AGREED}


def group_settings(file: Settings, state: ControlState | None, now_ms: int, *, with_policy: bool = True) -> InForce:
    """Return what is in force in the group by its control log, as an instance with this configuration sees it.

    A policy that cannot be applied is not in force, as in an instance that starts now. `now_ms`: epoch ms.
    `with_policy`: False for what would be in force without the group's policy.
    """
    if state is None:
        return InForce(file)
    candidates = state.live_settings(now_ms) if follows_instances(file) else ()
    policies = (state.policies.readable, None) if with_policy else (None,)
    return choose(file, policies, candidates) or InForce(file)


class Difference(NamedTuple):
    """A key for which live instances have different values, each with the instances that have it.

    `origin`: which layer's value applies to all of them, `applied`; None if each goes by its own. `since`: epoch ms.
    """

    key: str
    values: tuple[tuple[object, tuple[str, ...]], ...]
    since: int
    origin: Origin | None = None
    applied: object = None

    @property
    def sentence(self) -> str:
        """The difference in words."""
        values = " and ".join(f"{flow(value)} at {named(instances)}" for value, instances in self.values)
        if self.origin is None:
            return f"{self.key} is {values}: each goes by its own"
        return f"{self.key} is {values}: {flow(self.applied)} applies to all ({self.origin})"

    def row(self) -> dict[str, object]:
        """Return the difference as types that JSON has."""
        return {
            "key": self.key,
            "values": [{"value": value, "instances": list(instances)} for value, instances in self.values],
            "applies": None if self.origin is None else {"value": self.applied, "origin": str(self.origin)},
            "since": self.since,
        }


def differences_of(
    running: Mapping[str, Beat], records: Mapping[str, SettingsRecord], in_force: InForce
) -> tuple[Difference, ...]:
    """Return how the live instances differ: in agreed values, and in what decides which records each of them takes.

    `running`: their heartbeats. `records`: the settings of the log, by digest.
    """
    policy = {} if in_force.record is None else in_force.record.policy
    applied = {**({} if in_force.agreed is None else values_of(in_force.agreed.record)), **policy}
    having = _grouped({name: beat.record.settings for name, beat in running.items() if beat.record.settings in records})
    values = {digest: values_of(records[digest]) for digest in having}
    differing = []
    for key in AGREED if len(having) > 1 else ():
        value_of = {name: values[digest][key] for digest, names in having.items() for name in names}
        origin = Origin.POLICY if key in policy else Origin.INSTANCES
        differing += _differing(key, value_of, running, *((origin, applied[key]) if key in applied else ()))
    differing += _differing("tags", {name: spelled(beat.record) for name, beat in running.items()}, running)
    for key in ("mode", "order", "batch"):
        own = {name: getattr(beat.record, key) for name, beat in running.items()}
        differing += _differing(key, {name: value for name, value in own.items() if value}, running)
    return tuple(differing)


def _differing(
    key: str,
    value_of: Mapping[str, object],
    running: Mapping[str, Beat],
    origin: Origin | None = None,
    applied: object = None,
) -> list[Difference]:
    """Return the difference of one key, if there is one. `value_of`: the value of each instance that names one."""
    having = _grouped(value_of)
    if len(having) < 2:
        return []
    starts = [min(running[name].record.started or running[name].at for name in names) for names in having.values()]
    values = tuple((value_of[names[0]], tuple(names)) for names in having.values())
    return [Difference(key, values, max(starts), origin, applied)]


def _grouped(value_of: Mapping[str, object]) -> dict[str, list[str]]:
    """Return the instances by what they tell, which is the text of their value."""
    having: dict[str, list[str]] = {}
    for name in sorted(value_of):
        value = value_of[name]
        having.setdefault(value if isinstance(value, str) else json.dumps(value, sort_keys=True), []).append(name)
    return having


def spelled(beat: SubscriptionRecord) -> str:
    """Return what an instance subscribes to in words: `invoices, orders (A||B)`."""
    subscription, _ = heartbeat_subscription(beat.subscription)
    words = ", ".join(topic if tags == "*" else f"{topic} ({tags})" for topic, tags in subscription.items())
    return f"{words} and others ({beat.subscribed})" if beat.subscribed else words


def named(instances: Iterable[str]) -> str:
    """Return the names of instances for a sentence: the first ones, and how many more there are."""
    names = sorted(instances)
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
