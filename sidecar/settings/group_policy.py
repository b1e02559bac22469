"""The group's policy as settings: which keys apply to all instances, and how they change a configuration.

The keys are the rows of the table that are marked `in_policy`; there is no other list of them. All of them can change
while records are in flight. Their values are read by the same rows as the file's, so a bad value is refused with the
same sentence. The policy's controller (sidecar/group_policy), `policy set`, `policy show`, `doctor` and the dashboard
call this. Everything here is pure; settings never change, `overridden` makes new ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

import yaml

from reconsume.sidecar.hints import hint
from reconsume.sidecar.settings.load import Layers
from reconsume.sidecar.settings.model import LEAVES, Settings, values_of
from reconsume.sidecar.settings.table import written

IN_POLICY = [path for path, row in LEAVES.items() if row.in_policy]
KEYS = {path[-1]: path for path in sorted(IN_POLICY, key=lambda path: path[0] != "retry")}
"""Keys that can be set for the whole group, each with the path of the setting that it replaces; retries first."""
AGREED = tuple(key for key, path in KEYS.items() if LEAVES[path].is_agreed)
"""Those on whose values all instances agree where no policy sets them (contract 10.7)."""
WIDTH = 1_000_000
"""Columns of a line. It is so large that no value is folded."""
GROUP = "the group's policy"
"""The origin of the values that the policy record gives."""


class Origin(StrEnum):
    """Where a value in force comes from: the same words everywhere."""

    POLICY = "policy"
    INSTANCES = "instances"
    FILE = "file"
    DEFAULT = "default"


class Difference(NamedTuple):
    """A key whose value differs between two configurations. Both values are as written in YAML."""

    key: str
    old: object
    new: object


def policy_values(settings: Settings) -> dict[str, object]:
    """Return the policy of a configuration, as it is written in YAML."""
    values = values_of(settings)
    return {key: values[path] for key, path in KEYS.items()}


def agreed_values(settings: Settings) -> dict[str, object]:
    """Return what a configuration says of the agreed keys, as it is written in YAML."""
    values = policy_values(settings)
    return {key: values[key] for key in AGREED}


def follows_instances(settings: Settings) -> bool:
    """Return whether an instance with this configuration follows the settings of others, and is followed by them."""
    return settings.policy_mode == "agreed" and not settings.deliver.broadcast


def overridden(settings: Settings, values: Mapping[str, object], origin: str = GROUP) -> Settings:
    """Return the settings with the group's values over their own. Unknown keys are ignored.

    Raises ConfigError with a sentence for each value that would also be wrong in a file.
    """
    layers = Layers(written(settings))
    for key, value in values.items():
        if key in KEYS:
            layers.put(KEYS[key], value, origin)
    return layers.checked()


def read_assignments(settings: Settings, pairs: Iterable[tuple[str, str]], origin: str) -> dict[str, object]:
    """Return the values of `KEY=VALUE` texts, as written in YAML. `settings`: those in force. Raises ConfigError if one
    is wrong."""
    layers, changed = Layers(written(settings)), set()
    for key, text in pairs:
        layers.assign(KEYS[key], text, origin)
        changed.add(key)
    values = policy_values(layers.checked())
    return {key: values[key] for key in KEYS if key in changed}


def differences(old: Settings, new: Settings) -> tuple[Difference, ...]:
    """Return each key of the policy whose value differs."""
    before, after = policy_values(old), policy_values(new)
    return tuple(Difference(key, before[key], after[key]) for key in KEYS if before[key] != after[key])


def mismatches(settings: Settings, group: Settings) -> tuple[str, ...]:
    """Return a sentence for each key with different values in the configuration and in the group's policy."""
    return tuple(
        f"{dotted(key)}: the configuration says {flow(mine)} and the group's policy says {flow(theirs)}; "
        "write the group's value into the configuration, or have the group follow: "
        + hint(f"policy set '{key}={flow(mine)}'")
        for key, mine, theirs in differences(settings, group)
    )


def origins(settings: Settings, policy: Collection[str], agreed: Collection[str] = ()) -> dict[str, Origin]:
    """Return where each value in force comes from.

    `policy`: the keys that the group's policy sets; `agreed`: those that the settings of instances set. `file` includes
    the environment and `--set`.
    """

    def origin(key: str) -> Origin:
        if key in policy:
            return Origin.POLICY
        if key in agreed:
            return Origin.INSTANCES
        return Origin.FILE if KEYS[key] in settings.configured else Origin.DEFAULT

    return {key: origin(key) for key in KEYS}


def dotted(key: str) -> str:
    """Return the setting that a key of the policy replaces, as users write it."""
    return ".".join(KEYS[key])


def flow(value: object) -> str:
    """Return a value on one line, in the form that YAML and `policy set` accept."""
    text = yaml.safe_dump(value, default_flow_style=True, width=WIDTH, allow_unicode=True, sort_keys=False)
    return text.removesuffix("...\n").strip()


def levels_of(settings: Settings) -> frozenset[str]:
    """Return the level topics that the settings need."""
    return frozenset(settings.names.levels_of(settings.delays, settings.topic_names))


def queues_of(settings: Settings) -> frozenset[str]:
    """Return the queue topics that the settings need."""
    return frozenset(settings.names.queues_of(settings.topic_names) if settings.queued else ())


def mend_levels(settings: Settings) -> str:
    """Return the command that creates the level or queue topics of these settings, whatever the file says."""
    values = policy_values(settings)
    if settings.queued:
        ladder = flow(values["ordered_ladder"])
        return hint(f"topics apply --set 'retry.ordered_ladder={ladder}' --set retry.ordered_max_times=null")
    ladder, levels = flow(values["ladder"]), flow(values["levels"])
    return hint(f"topics apply --set 'retry.ladder={ladder}' --set 'retry.levels={levels}'")
