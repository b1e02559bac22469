"""What a user is about to do: kept on the server until it is done once, by the user who planned it.

The form only names the plan. So nobody can change its content, and a form that is sent twice does nothing the second
time.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from typing import Generic, Protocol, TypeVar

from reconsume.sidecar.errors import ReconsumeError
from reconsume.sidecar.ui.audit_log import Actor

MOST_KEPT = 32
PLAN_AGE = 900.0
"""Seconds for which a plan may be carried out; after that its numbers are out of date."""


class RefusedError(ReconsumeError):
    """An action that cannot be done now; the text is one sentence."""


class Planned(Protocol):
    """A plan. `made`: monotonic seconds."""

    @property
    def id(self) -> str: ...

    @property
    def actor(self) -> Actor: ...

    @property
    def made(self) -> float: ...


P = TypeVar("P", bound=Planned)


class Plans(Generic[P]):
    """The plans of one kind, the newest MOST_KEPT. The caller holds a lock."""

    def __init__(self) -> None:
        self._plans: OrderedDict[str, P] = OrderedDict()

    def put(self, plan: P) -> None:
        """Keep a plan, and drop the oldest one if there are too many."""
        self._plans[plan.id] = plan
        while len(self._plans) > MOST_KEPT:
            self._plans.popitem(last=False)

    def find(self, plan_id: str, actor: Actor) -> P:
        """Return a plan that may be carried out by this user. Raises RefusedError."""
        plan = self._plans.get(plan_id)
        if plan is None or plan.actor[:2] != actor[:2] or time.monotonic() - plan.made > PLAN_AGE:
            raise RefusedError("the plan is used up or too old: make a new dry run")
        return plan

    def drop(self, plan_id: str) -> None:
        """Let a plan be carried out no more."""
        self._plans.pop(plan_id, None)


def new_id() -> str:
    """Return the name of a new plan, which nobody can guess."""
    return secrets.token_urlsafe(16)
