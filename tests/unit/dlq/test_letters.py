"""Which dead letters a redrive takes, what it leaves and why, and what it writes for each."""

from __future__ import annotations

import hashlib
import json

import pytest

from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.dlq.letters import Eligibility, Filter, Letter, RedriveRequest, edited, read_letter, redrive
from reconsume.sidecar.dlq.redrive_history import RedriveHistory, RedrivenRange, eligibility
from reconsume.topics.dead_letter_headers import DEAD_LETTER, EDITED, dead_letter_headers
from reconsume.topics.events import Event, State, decode_event
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import (
    RECONSUMETIMES,
    RETRY_DUE_AT,
    RETRY_REDRIVES,
    RETRY_TOPIC,
    Headers,
    RetryState,
)
from tests.sim.samples import WALL, life, policy, record

POLICY = policy(topics=("orders", "invoices"))
DLQ = Partition("billing-DLQ", 0)
OWN: Headers = [("a", b"1"), ("a", None), ("é", b"\xff")]
NOTHING = RedriveHistory("id", 0)


def letter(
    offset: int = 0, *, redrives: int = 0, timestamp: int = WALL, found: RetryState | None = None, own: Headers = OWN
) -> Letter:
    """A dead letter as it is read."""
    one = found or life(16, redrives=redrives)
    headers = [*own, *render_retry_headers(one, "billing", "billing-DLQ"), *dead_letter_headers(one, "billing", 17)]
    return read_letter(record(offset, source=DLQ, timestamp=timestamp, headers=headers), POLICY)


def test_a_letter_goes_to_the_ready_topic_with_a_new_life_and_all_else_as_it_was() -> None:
    copy, told = redrive(letter(redrives=1), POLICY, WALL + 9).writes
    ours = dict(copy.headers)
    assert (copy.topic, copy.key, copy.value) == ("billing-RETRY", b"k", b"v")
    assert copy.headers[:3] == OWN
    assert (ours[RECONSUMETIMES], ours[RETRY_REDRIVES]) == (b"0", b"2")
    assert (ours[RETRY_TOPIC], ours[RETRY_DUE_AT]) == (b"billing-RETRY", b"%d" % (WALL + 9))
    assert not DEAD_LETTER & ours.keys()
    event = decode_event(told.value)
    assert isinstance(event, Event)
    assert (event.state, event.times, event.redrives, event.due) == (State.REDRIVEN, 0, 2, WALL + 9)
    assert (event.first_failed_at, event.reason, told.key) == (WALL - 3, "http-500", b"orders:0:7")


@pytest.mark.parametrize(
    ("asked", "takes"),
    [
        (Filter(), True),
        (Filter(ids=("orders:0:7",)), True),
        (Filter(ids=("billing-DLQ:0:5",)), True),
        (Filter(ids=("orders:0:8",)), False),
        (Filter(reasons=("timeout", "http-500")), True),
        (Filter(reasons=("http-500: no",)), False),
        (Filter(topics=("orders",)), True),
        (Filter(topics=("invoices",)), False),
        (Filter(headers=(("a", None),)), True),
        (Filter(headers=(("a", "1"),)), True),
        (Filter(headers=(("a", "2"),)), False),
        (Filter(headers=(("a", "1"), ("b", None))), False),
        (Filter(since=WALL), True),
        (Filter(since=WALL + 1), False),
        (Filter(until=WALL), False),
        (Filter(until=WALL + 1, reasons=("http-500",)), True),
        (Filter(below=1), True),
        (Filter(below=0), False),
    ],
)
def test_a_filter_takes_what_meets_all_its_conditions(asked: Filter, takes: bool) -> None:
    assert asked.selects(letter(5)) is takes


def test_what_a_redrive_leaves_is_named() -> None:
    wish = RedriveRequest(most_redrives=2)
    broken = read_letter(record(source=DLQ, headers=[("REAL_TOPIC", b"orders")]), POLICY)
    condemned = letter(found=RetryState("billing-RETRY-10s:0:3", "billing-RETRY-10s", reason="bad-header"))
    foreign = letter(found=RetryState("other:0:3", "other"))
    past = RedriveHistory("id", WALL - 5, (RedrivenRange(Filter(), 3, ("orders",)),))
    assert eligibility(letter(4), wish, past) is Eligibility.READY
    assert eligibility(letter(2), wish, past) is Eligibility.REDRIVEN
    assert eligibility(letter(4, redrives=1), wish, past) is Eligibility.READY
    assert eligibility(letter(4, redrives=2), wish, past) is Eligibility.QUARANTINED
    assert eligibility(letter(4, timestamp=WALL - 6), wish, past) is Eligibility.FORGOTTEN
    assert eligibility(letter(4, timestamp=WALL - 6), RedriveRequest(forgotten=True), past) is Eligibility.READY
    assert [eligibility(one, wish, past) for one in (broken, condemned, foreign)] == [Eligibility.UNFIT] * 3
    assert eligibility(letter(4), RedriveRequest(Filter(ids=("x",))), past) is None


def test_a_record_that_died_with_broken_headers_still_has_its_id_and_reason() -> None:
    """`dlq list` must be able to say what it is, although no sidecar would deliver it."""
    found = letter(found=RetryState("billing-RETRY-10s:0:3", "billing-RETRY-10s", reason="bad-header: twice"))
    assert (found.id, found.reason) == ("billing-RETRY-10s:0:3", "bad-header")
    assert "no main topic" in found.fault


def test_unreadable_headers_are_a_fault_and_no_crash() -> None:
    from msgspec.structs import replace

    found = read_letter(replace(record(3, source=DLQ), headers=None), POLICY)
    assert (found.id, found.retry_state, eligibility(found, RedriveRequest(), NOTHING)) == (
        "billing-DLQ:0:3",
        None,
        Eligibility.UNFIT,
    )


def test_an_edited_letter_keeps_its_headers_and_says_who_changed_it() -> None:
    changed = edited(letter(), b"new", "ann", WALL)
    copy, _ = redrive(changed, POLICY, WALL).writes
    assert copy.value == b"new"
    own = [header for header in copy.headers if header[0] in ("a", "é", EDITED)]
    assert own[:-1] == OWN
    assert json.loads(own[-1][1] or b"") == {
        "v": 1,
        "who": "ann",
        "at": WALL,
        "was": hashlib.sha256(b"v").hexdigest(),
        "is": hashlib.sha256(b"new").hexdigest(),
    }
