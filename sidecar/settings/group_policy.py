"""The group's policy as settings: which keys apply to all instances, and how they change a configuration.

The code that checks the file also checks these values. A bad value is therefore refused with the same sentence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.hints import hint
from reconsume.sidecar.settings.faults import sentence
from reconsume.sidecar.settings.fields import field_at, leaves, written
from reconsume.sidecar.settings.layers import Layers, assign
from reconsume.sidecar.settings.load import validate
from reconsume.sidecar.settings.model import Settings
from reconsume.sidecar.settings.rule_edits import edited, rule_named_by

KEYS: dict[str, tuple[str, str]] = {
    "max_reconsume_times": ("retry", "max_reconsume_times"),
    "ladder": ("retry", "ladder"),
    "levels": ("retry", "levels"),
    "rules": ("retry", "rules"),
    "max_age": ("retry", "max_age"),
    "jitter": ("retry", "jitter"),
    "ordered_interval": ("retry", "ordered_interval"),
    "ordered_max_times": ("retry", "ordered_max_times"),
    "ordered_ladder": ("retry", "ordered_ladder"),
    "ordered_exhausted": ("retry", "ordered_exhausted"),
    "nack_redelivery_delay": ("retry", "nack_redelivery_delay"),
    "max_deaths": ("retry", "max_deaths"),
    "timeout": ("deliver", "timeout"),
    "concurrency": ("deliver", "concurrency"),
    "rate": ("deliver", "rate"),
    "group_rate": ("deliver", "group_rate"),
}
"""Keys that can be set for the whole group, each with the setting that it replaces. All of them can change while
records are in flight."""

RULES = "rules"
"""The key of the rules. One of them is changed by `rules.NAME`."""
GROUP = "the group's policy"
"""The origin of the values that the policy record gives."""


class Difference(NamedTuple):
    """A key whose value differs between two configurations. Both values are as written in YAML."""

    key: str
    old: object
    new: object


def policy_values(settings: Settings) -> dict[str, object]:
    """Return the policy of a configuration, as it is written in YAML."""
    return {key: written(field_of(key), value_at(settings, path)) for key, path in KEYS.items()}


def overridden(settings: Settings, values: Mapping[str, object], origin: str = GROUP) -> Settings:
    """Return the settings with the group's values over their own. Unknown keys are ignored.

    Raises ConfigError with a sentence for each value that would also be wrong in a file.
    """
    layers = Layers(tree_of(settings))
    for key, value in values.items():
        if key in KEYS:
            layers.put(KEYS[key], value, origin)
    return checked(layers)


def read_assignments(settings: Settings, pairs: Iterable[tuple[str, str]], origin: str) -> dict[str, object]:
    """Return the values of `KEY=VALUE` texts, as written in YAML. Raises ConfigError if one is wrong.

    `settings`: those in force, whose rules a key `rules.NAME` changes.
    """
    layers, changed = Layers(tree_of(settings)), set()
    for key, text in pairs:
        if (name := rule_named_by(key)) is None:
            assign(layers, KEYS[key], text, origin)
            changed.add(key)
        else:
            _change_rule(layers, name, text, origin)
            changed.add(RULES)
    values = policy_values(checked(layers))
    return {key: values[key] for key in KEYS if key in changed}


def _change_rule(layers: Layers, name: str, text: str, origin: str) -> None:
    rules = layers.tree["retry"]["rules"]
    try:
        layers.put(KEYS[RULES], edited(rules, name, text), origin)
    except ValueError as fault:
        layers.faults.append(f"rules.{name}: {fault} ({origin})")


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


def origins(settings: Settings, record: Mapping[str, object]) -> dict[str, str]:
    """Return where each value of the policy in force comes from: `record`, `file` or `default`.

    `file` includes the environment and `--set`.
    """
    origin_by_key: dict[str, str] = {}
    for key, (section, name) in KEYS.items():
        in_file = section in settings.model_fields_set and name in getattr(settings, section).model_fields_set
        origin_by_key[key] = "record" if key in record else "file" if in_file else "default"
    return origin_by_key


def dotted(key: str) -> str:
    """Return the setting that a key of the policy replaces, as users write it."""
    return ".".join(KEYS[key])


def flow(value: object) -> str:
    """Return a value on one line, in the form that YAML and `policy set` accept."""
    match value:
        case None:
            return "null"
        case list():
            return f"[{', '.join(flow(item) for item in value)}]"
        case dict():
            return "{" + ", ".join(f"{name}: {flow(item)}" for name, item in value.items()) + "}"
        case _:
            return str(value)


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


def checked(layers: Layers) -> Settings:
    """Return the settings of a tree. Raises ConfigError with every fault."""
    settings, faults = validate(layers.tree)
    problems = layers.faults + [sentence(fault, layers) for fault in faults]
    if settings is None or problems:
        raise ConfigError(problems)
    return settings


def tree_of(settings: Settings) -> dict[str, Any]:
    """Return the settings as the tree of a file in which every key is written."""
    layers = Layers()
    for path, field in leaves():
        layers.put(path, written(field, value_at(settings, path)), "")
    return layers.tree


def value_at(settings: Settings, path: tuple[str, ...]) -> Any:
    """Return the value of one setting."""
    value: Any = settings
    for name in path:
        value = getattr(value, name)
    return value


def field_of(key: str) -> FieldInfo:
    """Return the field that a key of the policy replaces."""
    field = field_at(KEYS[key])
    assert field is not None  # a test checks that each key has a field
    return field
