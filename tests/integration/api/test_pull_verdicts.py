"""Verdicts on leases: ack, nack, later, dead letter."""

from __future__ import annotations

import pytest

from reconsume.sidecar.api.pull import PATHS
from reconsume.sidecar.core.outcome import COMMITTED, NACKED, Failed, Rejected
from tests.support.service.pull_api import Ended, PullApi, pull_api
from tests.support.service.pull_calls import GARBAGE, assert_refused


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("ack", COMMITTED),
        ("nack", NACKED),
        ("reconsume-later", Failed("retry-asked", asked=True)),
        ("dead-letter", Rejected("dead-letter-asked")),
    ],
)
def test_a_verdict_on_several_handles_says_what_became_of_each(api: PullApi, name: str, outcome: object) -> None:
    api.add(0, 1)
    handles = [one["handle"] for one in api.receive()]
    told = [{"handle": handle, "status": "ok"} for handle in handles]
    answer = api.call(name, {"handles": handles})
    assert (answer.status, answer.json) == (200, {"handles": told})
    assert api.until_ended(2) == [Ended(0, outcome), Ended(1, outcome)]
    again = api.call(name, {"handles": handles})
    assert (again.status, again.json) == (200, {"handles": told})
    assert len(api.ended) == 2


def test_one_lease_that_is_over_makes_a_conflict_and_the_others_count(api: PullApi) -> None:
    api.add(0, 1)
    first, second = (one["handle"] for one in api.receive())
    assert api.call("nack", {"handles": [first]}).status == 200
    answer = api.call("ack", {"handles": [second, first, GARBAGE]})
    assert_refused(answer, 409)
    assert [one["status"] for one in answer.json["handles"]] == ["ok", "fenced", "unknown"]
    assert api.until_ended(2) == [Ended(0, NACKED), Ended(1, COMMITTED)]


def test_a_handle_twice_in_one_call_is_harmless(api: PullApi) -> None:
    api.add(0)
    handle = api.receive_one()
    answer = api.call("ack", {"handles": [handle, handle]})
    assert [one["status"] for one in answer.json["handles"]] == ["ok", "ok"]
    assert api.until_ended(1) == [Ended(0, COMMITTED)]


def test_as_many_handles_as_one_receive_can_give_fit_into_one_call(api: PullApi) -> None:
    """Given a head and a long body that come in one read, then the body is not taken for head."""
    api.add(*range(1_024))
    handles = [one["handle"] for one in api.receive(max=1_024)]
    answer = api.call("ack", {"handles": handles})
    assert [one["status"] for one in answer.json["handles"]] == ["ok"] * 1_024
    assert len(api.until_ended(1_024)) == 1_024


NEEDED: dict[str, dict[str, object]] = {"change-invisible": {"invisible": "30s"}}


@pytest.mark.parametrize("handles", [None, "x", [], [1], [""], ["x" * 257], ["x"] * 1_025, {"x": 1}])
@pytest.mark.parametrize("name", PATHS[1:])
def test_every_call_takes_a_list_of_handles(api: PullApi, name: str, handles: object) -> None:
    answer = api.call(name, {"handles": handles, **NEEDED.get(name, {})})
    assert_refused(answer, 400, "handles must be a list of 1 to 1024 handles")


@pytest.mark.parametrize("name", PATHS[1:])
def test_a_single_handle_is_a_field_that_no_call_knows(api: PullApi, name: str) -> None:
    assert_refused(api.call(name, {"handle": GARBAGE}), 400, "it knows handles")


@pytest.mark.parametrize("name", PATHS[1:])
def test_unknown_handles_alone_are_no_conflict(api: PullApi, name: str) -> None:
    answer = api.call(name, {"handles": [GARBAGE], **NEEDED.get(name, {})})
    assert (answer.status, answer.json) == (200, {"handles": [{"handle": GARBAGE, "status": "unknown"}]})


@pytest.mark.parametrize("name", PATHS[1:])
def test_a_handle_of_another_sidecar_is_fenced(api: PullApi, name: str) -> None:
    with pull_api() as other:
        other.add(0)
        handle = other.receive_one()
    answer = api.call(name, {"handles": [handle], **NEEDED.get(name, {})})
    assert_refused(answer, 409)
    assert answer.json["handles"] == [{"handle": handle, "status": "fenced"}]
    assert api.leases.fenced == 1


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({}, Failed("retry-asked", asked=True)),
        ({"delay": "90s"}, Failed("retry-asked", delay=90_000, asked=True)),
        ({"level": 3}, Failed("retry-asked", level=3, asked=True)),
        ({"level": -1, "reason": "busy"}, Failed("busy", level=-1, asked=True)),
        ({"delay": "soon", "level": [], "reason": 5}, Failed("retry-asked", asked=True)),
        ({"reason": "the shop is closed"}, Failed("retry-asked", "the shop is closed", asked=True)),
    ],
)
def test_reconsume_later_spends_a_retry_and_is_read_like_a_push_answer(
    api: PullApi, fields: dict[str, object], outcome: Failed
) -> None:
    api.add(0)
    handle = api.receive_one()
    for _ in range(2):
        answer = api.call("reconsume-later", {"handles": [handle], **fields})
        assert (answer.status, answer.json) == (200, {"handles": [{"handle": handle, "status": "ok"}]})
    assert api.until_ended(1) == [Ended(0, outcome)]


@pytest.mark.parametrize(("fields", "reason"), [({}, "dead-letter-asked"), ({"reason": "bad-sku"}, "bad-sku")])
def test_dead_letter_refuses_records_for_good(api: PullApi, fields: dict[str, object], reason: str) -> None:
    api.add(0, 1)
    handles = [one["handle"] for one in api.receive()]
    assert api.call("dead-letter", {"handles": handles, **fields}).status == 200
    assert api.until_ended(2) == [Ended(0, Rejected(reason)), Ended(1, Rejected(reason))]
