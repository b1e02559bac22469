"""Whether the view says what the events say, at rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from reconsume.topics.events import RANKS, State
from tests.soak_view.groups import Group
from tests.support.kafka.view_topics import view_of


def faults(bootstrap: str, group: Group) -> Iterator[str]:
    """Yield what is wrong with a group's view; nothing if all is well."""
    if not group.there:
        return
    least, most = group.bounds()
    view = view_of(bootstrap, group.names.group)
    if group.complete:
        yield from differences("row", view, most)
        return
    for identity in least.keys() | view.keys():
        row = view.get(identity)
        if row is None or identity not in most:
            yield f"row {identity}: {row} in a view of events that say {least.get(identity)}"
        elif not order(least.get(identity)) <= order(row) <= order(most[identity]):
            yield f"row {identity}: {row}, between {least.get(identity)} and {most[identity]}"


def differences(what: str, found: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is not the same."""
    for key in found.keys() | expected.keys():
        if found.get(key) != expected.get(key):
            yield f"{what} {key}: {found.get(key)}, and the events say {expected.get(key)}"


def order(row: Mapping[str, Any] | None) -> tuple[int, ...]:
    """The place of a state among those of its record."""
    return (
        (-1,)
        if row is None
        else (row.get("cycle", 0), row["redrives"], row["times"], RANKS[State(row["state"])], row["at"])
    )
