"""Dismissals from the dashboard: planned, then carried out once, by the functions of `settle --commit`.

A dismissal cannot be taken back, so its plan says how many it is for, and a reason must be given. The letters are read
again when it is carried out: what was redriven meanwhile stays as it is.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import NamedTuple

from reconsume.sidecar.clock import wall
from reconsume.sidecar.dlq.dismissal import Dismissed, dismiss, expect_room, fault_of, fault_of_why
from reconsume.sidecar.dlq.letters import Eligibility, Letter
from reconsume.sidecar.dlq.settlements import Settlements
from reconsume.sidecar.errors import ContractError
from reconsume.sidecar.ui.audit_log import Actor, AuditLog
from reconsume.sidecar.ui.letter_form import BadFormError, LetterSearch, audit_facts
from reconsume.sidecar.ui.letter_queries import LetterQueries, until
from reconsume.sidecar.ui.plans import Plans, RefusedError, new_id
from reconsume.sidecar.ui.queries import Queries

MOST_AT_ONCE = 1_000
MOST_NAMED = 20


class Remaining(NamedTuple):
    """What a dismissal leaves: the noun that is counted, in the singular, and why."""

    noun: str
    why: str


UNDISMISSED = {
    Eligibility.REDRIVEN: Remaining("dead letter", "redriven before"),
    Eligibility.COPY: Remaining("copy", "of another one"),
    Eligibility.DISMISSED: Remaining("dead letter", "dismissed before"),
}
UNNAMED = Remaining("dead letter", "without readable headers")


class DismissalPlan(NamedTuple):
    """Dead letters that are about to be dismissed. `made`: monotonic seconds.

    `reasons`: how many, by reason. `ids`: the first of them. `remaining`: how many are not dismissed, by why. `cut`:
    older letters were not looked at.
    """

    id: str
    actor: Actor
    search: LetterSearch
    reasons: Counter[str]
    ids: tuple[str, ...]
    remaining: Counter[Remaining]
    made: float
    cut: bool = False

    @property
    def ready(self) -> int:
        """The number of letters that would be dismissed."""
        return self.reasons.total()


class Dismissals:
    """The dismissals of this dashboard. Any thread may call it."""

    def __init__(self, looks: Queries, letters: LetterQueries, audit: AuditLog) -> None:
        self._looks, self._letters, self._audit = looks, letters, audit
        self._plans: Plans[DismissalPlan] = Plans()
        self._lock = threading.Lock()

    def plan(self, query: LetterSearch, actor: Actor) -> DismissalPlan:
        """Find what would be dismissed; nothing is written. Raises RefusedError, BrokerError, ContractError,
        SetupError."""
        query = until(query, wall())
        self._audit.write("dismissal-plan", actor, filter=audit_facts(query))
        good, remaining, cut = self._find(query)
        if good:
            self._room(len(good))
        plan = DismissalPlan(
            new_id(), actor, query, Counter(letter.reason for letter in good),
            tuple(letter.id for letter in good[:MOST_NAMED]), remaining, time.monotonic(), cut,
        )  # fmt: skip
        with self._lock:
            self._plans.put(plan)
        return plan

    def carry_out(self, plan_id: str, why: str, actor: Actor) -> Dismissed:
        """Dismiss the letters of a plan, which cannot be used again.

        Raises BadFormError without a good reason, RefusedError, BrokerError, ContractError, SetupError.
        """
        if fault := fault_of_why(why):
            raise BadFormError(fault)
        with self._lock:
            plan = self._plans.find(plan_id, actor)
            self._audit.write("dismiss", actor, filter=audit_facts(plan.search), letters=plan.ready, why=why)
            self._plans.drop(plan_id)
        with self._audit.ending("dismiss", actor, dismissed=0) as end:
            done = self._dismiss(plan, why)
            end |= {"dismissed": len(done.ids), "error": done.event_fault}
        return done

    def _dismiss(self, plan: DismissalPlan, why: str) -> Dismissed:
        good, *_ = self._find(plan.search)
        if not good:
            return Dismissed((), ())
        settled = self._room(len(good))
        by = f"{plan.actor.who}@ui"
        return dismiss(self._looks.letters, good, settled, why, by)

    def _room(self, more: int) -> Settlements:
        try:
            return expect_room(self._looks.letters, more)
        except ContractError as fault:
            raise RefusedError(str(fault)) from fault

    def _find(self, query: LetterSearch) -> tuple[list[Letter], Counter[Remaining], bool]:
        """Return the letters that can be dismissed, how many cannot, by why, and whether older ones were not read."""
        matches = self._letters.every(query, MOST_AT_ONCE)
        if matches.matched > MOST_AT_ONCE:
            raise RefusedError(f"{matches.matched} match, and at most {MOST_AT_ONCE} are dismissed at once: narrow it")
        good, remaining = list[Letter](), Counter[Remaining]()
        for letter, verdict in matches.letters:
            if verdict is Eligibility.DISMISSED or fault_of(letter, verdict):
                remaining[UNDISMISSED.get(verdict, UNNAMED)] += 1
            else:
                good.append(letter)
        return good, remaining, matches.cut
