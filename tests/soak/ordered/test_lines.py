"""How the soak judges order by key: what keeps the promise passes, and each way to break it is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.soak.ordered.lines import WAKES, Story, violations
from tests.soak.pod import Stood
from tests.support.proof.ledger import FAILED, TOOK, Delivery

A, B, C = "t:0:1", "t:0:2", "t:0:3"
LINE = {"k in t[0]": (A, B, C)}


def sent(ident: str, received: int, means: str = TOOK, times: int = 0, lasts: int = 5, pod: str = "pod") -> Delivery:
    headers = ((":path", f"/events/{pod}"),)
    return Delivery(0, received, ident, times, 0, "", b"k", b"", headers, "", means, received + lasts)


def story(*deliveries: Delivery, **more: Any) -> Story:
    by_id: dict[str, list[Delivery]] = {}
    for one in deliveries:
        by_id.setdefault(one.id, []).append(one)
    return Story(LINE, by_id, **more)


def test_a_head_that_fails_and_followers_that_wait_for_it_are_in_order() -> None:
    deliveries = (
        sent(A, 0, FAILED),
        sent(A, 1_000, FAILED, 1),
        sent(A, 2_000, times=2),
        sent(B, 2_010),
        sent(C, 2_020),
    )
    assert list(violations(story(*deliveries, counts={A: [1, 2, 2]}))) == []


def test_what_is_delivered_again_by_a_new_owner_is_in_order() -> None:
    assert list(violations(story(sent(A, 0), sent(B, 10), sent(A, 6_000), sent(B, 6_010), sent(C, 6_020)))) == []


def test_a_dead_letter_and_what_a_person_ended_let_the_next_go() -> None:
    deliveries = (sent(A, 0, FAILED), sent(C, 50))
    assert list(violations(story(*deliveries, ended={A: 20, B: 40}))) == []


BREACHES: Mapping[str, tuple[Sequence[Delivery], Mapping[str, Any], str]] = {
    "the next one before the head's end": (
        (sent(A, 0, FAILED), sent(B, 10), sent(A, 1_000, times=1), sent(C, 1_010)),
        {},
        f"overtaken: {B}",
    ),
    "over one that was settled before the head": (
        (sent(A, 0, FAILED), sent(C, 10), sent(A, 1_000, times=1)),
        {"ended": {B: 5}},
        f"overtaken: {C}",
    ),
    "two at once": ((sent(A, 0, lasts=20), sent(B, 10), sent(C, 40)), {}, f"together: {B}"),
    "one record twice at once": ((sent(A, 0, lasts=20), sent(A, 10), sent(B, 40), sent(C, 50)), {}, f"together: {A}"),
    "no end": ((sent(A, 0), sent(B, 10, FAILED)), {"ended": {C: 20}}, f"lost: {B}"),
    "an attempt that is not counted": (
        (sent(A, 0, FAILED), sent(A, 10, FAILED, 1), sent(A, 20, times=2), sent(B, 30), sent(C, 40)),
        {"counts": {A: [2]}},
        f"counted: {A} was counted [2]",
    ),
    "a count without a failure": (
        (sent(A, 0, FAILED), sent(A, 20, times=2), sent(B, 30), sent(C, 40)),
        {"counts": {A: [1, 2]}},
        f"counted: {A} was counted for [1]",
    ),
}


@pytest.mark.parametrize(("deliveries", "more", "said"), BREACHES.values(), ids=BREACHES)
def test_each_breach_is_named(deliveries: Sequence[Delivery], more: Mapping[str, Any], said: str) -> None:
    found = list(violations(story(*deliveries, **more)))
    assert any(said in text for text in found), found


def test_only_what_a_pod_sends_just_after_it_stood_still_is_excused() -> None:
    stood = [Stood("slow", 100, 20_000)]
    owner = (sent(A, 9_000), sent(B, 9_010), sent(C, 9_020))
    assert list(violations(story(sent(A, 20_010, pod="slow", lasts=50), *owner, stood=stood))) == []
    late = sent(A, 20_001 + WAKES, FAILED, pod="slow")
    assert list(violations(story(late, sent(B, late.received + 1), sent(C, 50_000), stood=stood))) != []
    other = (sent(B, 20_010, pod="other"), sent(A, 30_000), sent(C, 40_000))
    assert [text for text in violations(story(*other, stood=stood)) if "overtaken" in text] != []


def test_what_a_pod_took_as_it_had_just_stood_still_lets_its_own_next_one_go() -> None:
    """A new owner delivers both again: only that delivery of the first one is not excused."""
    stood = [Stood("slow", 0, 100)]
    again = (sent(A, 9_000), sent(B, 9_010), sent(C, 9_020))
    before = (sent(A, 150, pod="slow"), sent(B, 101 + WAKES, pod="slow"))
    assert list(violations(story(*before, *again, stood=stood))) == []
    others = (sent(A, 150, pod="slow"), sent(B, 101 + WAKES, pod="other"))
    assert [text for text in violations(story(*others, *again, stood=stood)) if "overtaken" in text] != []
