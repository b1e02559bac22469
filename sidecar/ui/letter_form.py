"""The search form of dead letters, and the selection of several of them. Pure: fields of a form in, filters out.

Every text of a form may come from an attacker. What cannot be meant is refused with one sentence, and nothing is done.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from reconsume.sidecar.dlq import letters
from reconsume.sidecar.dlq.dead_letters import position_in
from reconsume.sidecar.dlq.letters import FILTER_FIELDS, Eligibility, Filter, fault_of_text, filter_of
from reconsume.sidecar.errors import ReconsumeError

CONDITIONS = tuple(field.name for field in FILTER_FIELDS if field.name != "header")
"""Conditions that the form has, one text each."""
INPUTS: Mapping[str, str] = {"contains": "text", "id": "record"}
"""Names that the inputs of fields have on the page. By its own name an input would hide a member of its form from
scripts (`form.contains()`, `form.id`). Links use the field's own name; both are understood."""
EXACT = frozenset({"key", "contains"})
"""Fields whose blanks count: a key may begin with one."""
SINCE: Mapping[str, int] = {"1h": 3_600_000, "6h": 21_600_000, "1d": 86_400_000, "7d": 604_800_000}
OPEN = "open"
# A redrive from a list of another state than ready is refused: a state changes, so it is no condition of a filter, and
# the redrive would take letters that the list does not show.
STATES: Mapping[str, frozenset[Eligibility]] = {
    OPEN: letters.OPEN,
    **{str(state): frozenset({state}) for state in Eligibility},
    "all": frozenset(Eligibility),
}
"""What can be chosen as the state of dead letters. `open`, the default: those that nobody has redriven or
dismissed, without copies, about which nothing is left to decide."""
MOST_PICKED = 100
"""Letters that can be ticked at once: as many as a page shows."""
ALL, PICKED = "all", "picked"
SLOWEST, FASTEST = 0.01, 100_000.0
"""Dead letters a second that can be asked for."""


class BadFormError(Exception):
    """Raised if a form says what cannot be meant. The message is one sentence."""


class RefusedError(ReconsumeError):
    """An action that cannot be done now; the text is one sentence."""


class LetterSearch(NamedTuple):
    """A search for dead letters. `fields`: the fields of its form that have a value, to show the form again."""

    fields: Mapping[str, str]
    filter: Filter
    states: frozenset[Eligibility]

    @property
    def facts(self) -> dict[str, object]:
        """The conditions of the search for the audit log."""
        conditions = {field.name: list(getattr(self.filter, field.member)) for field in FILTER_FIELDS}
        facts = {**conditions, "since": self.filter.since, "state": self.fields.get("state", "")}
        return {name: value for name, value in facts.items() if value}


def parse_search(form: Mapping[str, str], now: int) -> LetterSearch:
    """Return the search that a form asks for at `now` (epoch ms). Raises BadFormError."""
    if doubled := [name for name, shown in INPUTS.items() if form.get(name) and form.get(shown)]:
        raise BadFormError(f"give {doubled[0]} or {INPUTS[doubled[0]]}, not both: they are one field")
    fields = dict[str, str]()
    for name in ("state", *CONDITIONS, "since"):
        text = form.get(name) or form.get(INPUTS.get(name, name), "")
        if text := text if name in EXACT else text.strip():
            fields[name] = text
    since, state = fields.get("since", ""), fields.get("state", OPEN)
    try:
        conditions = filter_of(
            {name: (fields[name],) for name in CONDITIONS if name in fields}, now - SINCE[since] if since else 0
        )
        return LetterSearch(fields, conditions, STATES[state])
    except ValueError as fault:
        raise BadFormError(str(fault)) from None
    except KeyError:
        known = f"the age is one of {', '.join(SINCE)}, and the state one of {', '.join(STATES)}"
        raise BadFormError(known) from None


def parse_selection(
    form: Mapping[str, str], positions: Collection[str], topics: Collection[str], now: int
) -> LetterSearch:
    """Return the dead letters that an action is for: those at the ticked `positions`, or all that match the form.

    `topics`: the group's dead letter topics. Raises BadFormError, also if it is not clear which of the two is meant.
    """
    scope = form.get("scope", PICKED if positions else ALL)
    if scope not in (ALL, PICKED):
        raise BadFormError("choose whether it is for all that match, or for the ticked ones")
    if scope == ALL:
        if positions:
            raise BadFormError("some are ticked, and it says all that match: choose one of the two")
        return parse_search(form, now)
    if not positions:
        raise BadFormError("tick at least one dead letter, or choose all that match")
    if len(positions) > MOST_PICKED:
        raise BadFormError(f"at most {MOST_PICKED} can be ticked at once")
    for position in positions:
        if fault_of_text(position) or position_in(position, topics) is None:
            raise BadFormError(f"{position[:80]!r} is no place in a dead letter topic of this group")
    return LetterSearch({}, filter_of({"id": tuple(positions)}), frozenset(Eligibility))


def parse_rate(text: str) -> float | None:
    """Return the dead letters a second that a form asks for; None if it names no number. Raises BadFormError."""
    if not (text := text.strip()):
        return None
    try:
        rate = float(text) if text.isascii() and len(text) <= 16 else 0.0
    except ValueError:
        rate = 0.0
    if not SLOWEST <= rate <= FASTEST:
        raise BadFormError(f"the rate is a number from {SLOWEST} to {FASTEST:.0f} a second, or empty")
    return rate
