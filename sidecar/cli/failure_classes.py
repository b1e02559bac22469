"""What follows from each class of failure, by the functions that decide about deliveries. For `explain --reason`.

A class is the first word of RETRY_REASON. For a class that a delivery can have, `outcome_of` returns the outcome that
the delivery itself would report, a status by the same function; `decide` says what follows. The other classes are of
dead letters that no delivery has alone: those have the function that makes them, or a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from reconsume.sidecar.core.decide import NACKED as NACKED_TOO_OFTEN
from reconsume.sidecar.core.decide import NackWait, dead_letter_crashing, dead_letter_unreadable, decide
from reconsume.sidecar.core.forecast import START, Judge, fresh_record, is_no_attempt
from reconsume.sidecar.core.outcome import (
    CANCELLED,
    EXPIRED,
    NACKED,
    WITHDRAWN,
    Committed,
    Expired,
    Failed,
    Nacked,
    NotSent,
    Outcome,
    Postponed,
    Rejected,
    Throttled,
)
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.delivery.push.batch_request import is_lost, is_too_large, may_be_one_record
from reconsume.sidecar.delivery.push.batch_verdicts import WholeRefused
from reconsume.sidecar.delivery.verdict import ASKED_DEAD_LETTER, USUAL_POSTPONEMENT, VerdictRules, status_of
from reconsume.sidecar.settings import Settings
from reconsume.topics.durations import render_duration
from reconsume.topics.expiry import EXPIRED as EXPIRED_AGE
from reconsume.topics.retry_rules import LEASE_EXPIRED, RELEASED
from reconsume.topics.transitions import BY_OPERATOR, UNKNOWN_TOPIC

POSTPONED, CRASHED = "postponed", "crashed-service"
UNREADABLE = frozenset({"bad-header", "headers-unreadable"})
NOT_BY_A_DELIVERY = {
    EXPIRED_AGE: "it is the end of a record whose next retry would come after retry.max_age, or after `expires`",
    UNKNOWN_TOPIC: "it is the end of a copy whose main topic no instance consumes for retry.unknown_topic",
    BY_OPERATOR: "it is what an operator has decided about a record",
}
"""Classes of dead letters that no delivery has alone."""
STATUS = re.compile(r"[1-5][0-9]{2}", re.ASCII)
NOT_SENT = frozenset(
    {"connection-refused", "no-such-socket", "no-such-host", "connect-timeout", "forbidden-address", "not-sent"}
)
"""Reasons of deliveries of which no request was sent, beside those of TLS; a test compares them with the client's."""


def judge_of(settings: Settings, policy: Policy, reason: str) -> Judge:
    """Return what decides about deliveries that all end with the class `reason`.

    It is the function that the lane calls, with the outcome that a delivery of this class has.
    """
    if reason in UNREADABLE:
        return lambda record, now: dead_letter_unreadable(replace(record, fault=reason), policy, now)
    if reason == CRASHED:
        return lambda record, now: dead_letter_crashing(record, policy.max_deaths or 0, policy, now)
    outcome = outcome_of(settings, reason)
    return lambda record, now: decide(record, outcome, policy, now)


def outcome_of(settings: Settings, reason: str) -> Outcome:
    """Return the outcome of a delivery whose failure has the class `reason`."""
    status = reason.removeprefix("http-")
    deliver = settings.deliver
    if deliver.mode == "push" and status != reason and STATUS.fullmatch(status):
        rules = VerdictRules(
            dead_letter_statuses=frozenset(deliver.dead_letter_statuses),
            throttle_statuses=frozenset(deliver.throttle_statuses),
        )
        return status_of(int(status), (), rules, START)
    if reason in NOT_SENT or reason.startswith("tls-"):
        return NotSent(reason)
    return OF_CLASS.get(reason) or Failed(reason)


OF_CLASS: dict[str, Outcome] = {
    LEASE_EXPIRED: EXPIRED,
    RELEASED: Expired(RELEASED),
    NACKED_TOO_OFTEN: NACKED,
    POSTPONED: Postponed(USUAL_POSTPONEMENT),
    ASKED_DEAD_LETTER: Rejected(ASKED_DEAD_LETTER),
    "cancelled": CANCELLED,
    "withdrawn": WITHDRAWN,
}
"""The outcome of each class that is not a failure by a status, of a request or by a word of the service's own."""


def sentence_of(settings: Settings, policy: Policy, main: str, reason: str) -> str:
    """Return in one sentence what follows from a class by which no retry is used up; empty for a failure."""
    if reason in NOT_BY_A_DELIVERY:
        return f"{reason} is not the end of a delivery: {NOT_BY_A_DELIVERY[reason]}"
    if reason in UNREADABLE or reason == CRASHED:
        return ""
    outcome = outcome_of(settings, reason)
    if isinstance(outcome, Committed):
        return f"{reason} is not a failure: the record is done"
    decision = decide(fresh_record(main), outcome, policy, START)
    if not is_no_attempt(decision) and not (isinstance(decision, NackWait) and policy.nack_max_times is None):
        return ""
    match outcome:
        case Nacked():
            follows = f"the record comes back after {render_duration(policy.nack_delay_ms)}"
        case Postponed():
            limit = render_duration(settings.retry.postpone_limit)
            return (
                "postponed is not an attempt: the record comes again when the service asked for it, and no retry is "
                f"used up; after {limit} of that (retry.postpone_limit) it is a failure, as shown"
            )
        case Throttled():
            follows = "the record is delivered later, and deliveries slow down"
        case NotSent():
            follows = "no request was sent; an outage begins"
        case _:
            follows = "the delivery was withdrawn before it ended"
    return f"{reason} is not an attempt: {follows}; no retry is used up"


def after_the_limit(settings: Settings, policy: Policy) -> Judge:
    """Return what decides about a record that its service has postponed for longer than it may, each time."""
    outcome, limit = OF_CLASS[POSTPONED], settings.retry.postpone_limit
    return lambda record, now: decide(replace(record, postponed_at_ms=now - limit), outcome, policy, now)


def is_by_rules(settings: Settings, reason: str) -> bool:
    """Return whether rules and ladder decide about a class: a dead letter of other causes asks neither."""
    return reason not in UNREADABLE and reason != CRASHED and not isinstance(outcome_of(settings, reason), Rejected)


def notes_of_class(settings: Settings, reason: str) -> Iterator[str]:
    """Yield what must be known of a class of failures, a sentence each."""
    batch, max_deaths = settings.deliver.batch, settings.retry.max_deaths
    if reason == CRASHED:
        yield f"the record was alone in flight at {max_deaths} deaths in a row (retry.max_deaths)"
    elif reason not in UNREADABLE and isinstance(outcome_of(settings, reason), Rejected):
        yield f"{reason} asks for the DLQ: no retry is made, and no rule is asked"
    elif batch.max_size > 1 and is_lost(outcome_of(settings, reason)):
        yield "a batch whose connection is lost is sent again in halves, in the same attempt, until a record is alone"
    elif batch.max_size > 1 and STATUS.fullmatch(status := reason.removeprefix("http-")):
        refused = WholeRefused(int(status), outcome_of(settings, reason))
        if is_too_large(refused) or (batch.on_failure == "split" and may_be_one_record(refused)):
            yield "a batch that is answered so is sent again in halves, in the same attempt, until a record is alone"
