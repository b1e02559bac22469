"""The shop's behaviour for an order: it fails in the ways in which services fail. Pure, the same in every mode."""

from __future__ import annotations

from typing import NamedTuple

from reconsume.sidecar.dev.demo.ledger import Verdict
from reconsume.sidecar.dev.demo.orders import Case

SLOW_SECONDS = 0.8
STUCK_SECONDS = 10.0
"""Seconds; longer than the demo lets a delivery take."""
FLAKY_FAILURES = 2


class Answer(NamedTuple):
    """The shop's answer to an order, after `after` seconds. `delay` and `reason` are set only if it asks for more."""

    status: int
    verdict: Verdict
    after: float = 0
    delay: str = ""
    reason: str = ""

    @property
    def fields(self) -> dict[str, str]:
        """`delay` and `reason`, those that are set."""
        return {name: text for name, text in (("delay", self.delay), ("reason", self.reason)) if text}


OK = Answer(200, "commit")
# The verdict is explicit: a bare 500 could also mean that the shop itself is broken, which counts as an outage.
BROKEN = Answer(500, "retry", reason="payment-failed")


def answer_to(case: str, times: int) -> Answer:
    """Return the answer to an order that has been retried `times` times."""
    match case:
        case Case.SLOW:
            return OK._replace(after=SLOW_SECONDS)
        case Case.FLAKY:
            return BROKEN if times < FLAKY_FAILURES else OK
        case Case.LATER if times == 0:
            return Answer(200, "retry", delay="3s", reason="out-of-stock")
        case Case.STUCK if times == 0:
            return OK._replace(after=STUCK_SECONDS)
        case Case.REFUSED:
            return Answer(422, "dead-letter", reason="unknown-sku")
        case Case.POISON:
            return BROKEN
        case _:
            return OK
