"""Change one rule of `retry.rules` by its name: `rules.busy={reasons: [http-409]}`, or null to remove it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reconsume.sidecar.settings.yaml_text import read_yaml

PREFIX = "rules."
"""What stands before a rule's name in a key."""


def rule_named_by(key: str) -> str | None:
    """Return the name of the rule that a key changes; None if it is no such key."""
    name = key.removeprefix(PREFIX)
    return name if name != key and name else None


def edited(rules: Sequence[dict[str, Any]], name: str, text: str) -> list[dict[str, Any]]:
    """Return the rules, as written in YAML, with one of them replaced where it stands, added at the end or removed.

    Raises ValueError with a sentence if the text is no mapping, or there is no rule of this name to remove.
    """
    document = read_yaml(text)
    if document.faults:
        raise ValueError(document.faults[0])
    names = [rule["name"] for rule in rules]
    if document.value is None:
        if name not in names:
            raise ValueError(f"there is no rule of this name to remove; the rules are: {', '.join(names) or 'none'}")
        return [rule for rule in rules if rule["name"] != name]
    if not isinstance(document.value, dict):
        raise ValueError("must be a rule, like {reasons: [http-409], ladder: [1m]}, or null to remove it")
    rule = {**document.value, "name": name}
    return [rule if old["name"] == name else old for old in rules] + ([] if name in names else [rule])
