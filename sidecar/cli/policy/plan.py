"""The values of `policy` commands: assignments, the plan of a change, rows of the history. Kafka is not contacted
here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import typer

from reconsume.sidecar.cli.terminal.output import Row
from reconsume.sidecar.hints import hint
from reconsume.sidecar.settings.group_policy import KEYS, dotted, flow, policy_values, rule_named_by
from reconsume.sidecar.settings.load import Loaded
from reconsume.sidecar.settings.model import Settings
from reconsume.topics.policy_record import PolicyRecord


def read_pairs(assignments: Sequence[str], unset: Sequence[str]) -> tuple[list[tuple[str, str]], frozenset[str]]:
    """Return the keys and texts to set, and the keys to drop. Raises BadParameter if one is invalid, or if there are
    none."""
    pairs = []
    for text in assignments:
        key, sign, value = text.partition("=")
        if not sign:
            raise typer.BadParameter(f"{text}: must be KEY=VALUE, like max_reconsume_times=3")
        pairs.append((key.strip(), value))
    for key in (*(key for key, _ in pairs), *unset):
        if key not in KEYS and (rule_named_by(key) is None or key in unset):
            bare = next((known for known in KEYS if dotted(known) == key), None)
            every = f"the group can set {', '.join(KEYS)}, and one rule by rules.NAME"
            hint = f"write {bare}" if bare is not None else every
            raise typer.BadParameter(f"{key}: {hint}")
    if not pairs and not unset:
        raise typer.BadParameter("nothing to set: give KEY=VALUE, or --unset KEY")
    return pairs, frozenset(unset)


def plan_of(record: PolicyRecord | None, new: Mapping[str, object], before: Settings, after: Settings) -> list[Row]:
    """Return a row for each changed key: its value changes for this configuration, or it is set or unset for all
    instances."""
    old = {} if record is None else record.policy
    values, later = policy_values(before), policy_values(after)
    changed = {key for key in KEYS if old.get(key, ...) != new.get(key, ...) or values[key] != later[key]}
    return [{"key": key, "old": values[key], "new": later[key]} for key in KEYS if key in changed]


def parked_text(after: Settings) -> str:
    """Return what becomes of the records that are parked when the group parks no more."""
    if after.queued:
        return "what is parked becomes a dead letter, unless it is settled before"
    return f"what is parked stays so, and its key with it, until it is settled (`{hint('settle --parked')}`)"


def origin_of(loaded: Loaded, key: str, record: Mapping[str, object]) -> str:
    """Return where a value comes from: the record, its key in the configuration, or the default."""
    if key in record:
        return "record"
    path = KEYS[key]
    return (loaded.layers.origin(path) if path in loaded.settings.configured else None) or "default"


def rule_rows(settings: Settings) -> Iterator[Row]:
    """Yield a row for each rule by topic and reason, in their order: the first that matches decides."""
    for rule, written in zip(settings.retry.rules, policy_values(settings)["rules"], strict=True):  # type: ignore[call-overload]
        yield {"rule": rule.name, **{key: flow(value) for key, value in written.items() if key != "name"}}
