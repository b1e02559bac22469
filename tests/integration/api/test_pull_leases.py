"""The time of a lease, what the lane asks of it, and who may call."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from reconsume.sidecar.api.app import build_app
from reconsume.sidecar.api.pull import PATHS, no_pull_routes
from reconsume.sidecar.core.outcome import CANCELLED, COMMITTED, EXPIRED
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.delivery.pull.lease_table import LeaseEnd
from reconsume.sidecar.http.access import Access
from tests.support.deadline import until
from tests.support.service.pull_api import Ended, PullApi, pull_api, request
from tests.support.service.pull_calls import OTHER, assert_refused
from tests.support.sidecar.running_api import Client, Operation, serving

# --- time ------------------------------------------------------------------------------------------------------------


def test_a_lease_that_nobody_answers_expires_and_its_handle_with_it(api: PullApi) -> None:
    api.add(0)
    handle = api.receive_one(invisible="100ms")
    assert api.until_ended(1) == [Ended(0, EXPIRED)]
    for name in PATHS[1:]:
        fields = {"invisible": "1m"} if name == "change-invisible" else {}
        answer = api.call(name, {"handles": [handle], **fields})
        assert_refused(answer, 409)
        assert answer.json["handles"] == [{"handle": handle, "status": "expired"}]
    assert len(api.ended) == 1


def test_a_short_lease_ends_in_time_after_a_long_one_was_made(api: PullApi) -> None:
    api.add(0, 1, 2)
    api.receive(max=1, invisible="1h")
    api.receive(max=1, invisible="3s")
    api.receive(max=1, invisible="100ms")
    api.until_ended(2)
    assert [one.offset for one in api.ended] == [2, 1]


def test_an_ack_that_comes_before_a_late_timer_is_late_all_the_same(api: PullApi) -> None:
    """Given a loop that stood still beyond the lease's end, then an ack in the same round commits nothing."""
    api.add(0)
    handle = api.receive_one(invisible="100ms")

    def late() -> str:
        time.sleep(0.2)  # what is measured is that nothing else ran in between
        return api.leases.settle(handle, LeaseEnd.ACKED, COMMITTED)

    assert api.on_loop(late) == "expired"
    assert api.until_ended(1) == [Ended(0, EXPIRED)]


def test_a_changed_lease_has_a_new_handle_and_the_old_one_is_fenced(api: PullApi) -> None:
    api.add(0)
    old = api.receive_one(invisible="1h")
    (entry,) = api.call("change-invisible", {"handles": [old], "invisible": "2h"}).json["handles"]
    new, ends = entry.pop("new_handle"), datetime.fromisoformat(entry.pop("expires_at"))
    assert (entry, new != old) == ({"handle": old, "status": "ok"}, True)
    assert abs(ends - datetime.now(UTC) - timedelta(hours=2)) < timedelta(minutes=1)
    assert api.call("ack", {"handles": [old]}).json["handles"] == [{"handle": old, "status": "fenced"}]
    assert_refused(api.call("change-invisible", {"handles": [old], "invisible": "2h"}), 409)
    assert api.call("ack", {"handles": [new]}).status == 200
    assert_refused(api.call("change-invisible", {"handles": [new], "invisible": "2h"}), 409)
    assert api.until_ended(1) == [Ended(0, COMMITTED)]


def test_a_changed_lease_ends_by_its_new_time_alone(api: PullApi) -> None:
    api.add(0, 1)
    longer, shorter = (one["handle"] for one in api.receive(invisible="300ms"))
    assert api.call("change-invisible", {"handles": [longer], "invisible": "1h"}).status == 200
    assert api.call("change-invisible", {"handles": [shorter], "invisible": "600ms"}).status == 200
    begin = time.monotonic()
    assert api.until_ended(1) == [Ended(1, EXPIRED)]
    assert time.monotonic() - begin > 0.5


def test_of_several_leases_each_has_its_own_new_handle_and_one_that_is_over_has_none(api: PullApi) -> None:
    api.add(0, 1, 2)
    first, second, third = (one["handle"] for one in api.receive())
    assert api.call("ack", {"handles": [second]}).status == 200
    answer = api.call("change-invisible", {"handles": [first, second, third], "invisible": "1h"})
    assert_refused(answer, 409)
    entries = answer.json["handles"]
    assert [one["status"] for one in entries] == ["ok", "fenced", "ok"]
    assert "new_handle" not in entries[1]
    new = [entries[0]["new_handle"], entries[2]["new_handle"]]
    assert [one["status"] for one in api.call("ack", {"handles": new}).json["handles"]] == ["ok", "ok"]
    assert api.until_ended(3) == [Ended(offset, COMMITTED) for offset in range(3)]


@pytest.mark.parametrize("invisible", ["99ms", "13h", 5, None])
def test_a_lease_cannot_be_changed_out_of_bounds(api: PullApi, invisible: object) -> None:
    api.add(0)
    handle = api.receive_one()
    assert_refused(
        api.call("change-invisible", {"handles": [handle], "invisible": invisible}), 400, "invisible must be"
    )
    assert_refused(api.call("change-invisible", {"handles": [handle]}), 400, "invisible must be")
    assert api.call("ack", {"handles": [handle]}).status == 200


# --- what the lane asks ----------------------------------------------------------------------------------------------


def test_a_revoked_partition_takes_back_what_was_not_received_and_its_leases_count(api: PullApi) -> None:
    api.add(0, 1)
    api.add(2, source=OTHER)
    handle = api.receive(max=1)[0]["handle"]
    api.on_loop(lambda: api.leases.recall([Partition("orders", 0)], lost=False))
    assert api.until_ended(1) == [Ended(1, CANCELLED)]
    assert api.call("ack", {"handles": [handle]}).status == 200
    assert [one["offset"] for one in api.receive()] == [2]


def test_the_leases_of_a_lost_partition_are_fenced_and_commit_nothing(api: PullApi) -> None:
    api.add(0)
    handle = api.receive_one()
    api.on_loop(lambda: api.leases.recall([Partition("orders", 0)], lost=True))
    assert api.until_ended(1) == [Ended(0, CANCELLED)]
    answer = api.call("ack", {"handles": [handle]})
    assert_refused(answer, 409)
    assert answer.json["handles"][0]["status"] == "fenced"
    assert len(api.ended) == 1


def test_a_recall_never_replies_from_inside(api: PullApi) -> None:
    api.add(0)

    def recall() -> int:
        api.leases.recall([Partition("orders", 0)], lost=False)
        return len(api.ended)

    assert api.on_loop(recall) == 0
    assert api.until_ended(1) == [Ended(0, CANCELLED)]


def test_a_drain_ends_the_waits_gives_back_what_is_ready_and_still_takes_verdicts(api: PullApi) -> None:
    api.add(0)
    handle = api.receive_one()
    with Client(api.place) as client:
        client.send(request("receive", {"wait": "60s"}))
        until(lambda: api.on_loop(lambda: api.leases.waiting), 5, "the call waits")
        api.on_loop(api.leases.close)
        assert client.answer("POST").json == {"records": []}
    assert_refused(api.call("receive", {"wait": "60s"}), 503, "drains")
    api.add(1)
    assert api.until_ended(1) == [Ended(1, CANCELLED)]
    assert api.call("ack", {"handles": [handle]}).status == 200
    assert api.until_ended(2)[0] == Ended(0, COMMITTED)


def test_what_is_ready_at_a_drain_is_given_back(api: PullApi) -> None:
    api.add(0)
    api.on_loop(api.leases.close)
    assert api.until_ended(1) == [Ended(0, CANCELLED)]


# --- who may call, and where -----------------------------------------------------------------------------------------


def test_all_calls_work_over_a_unix_socket(tmp_path: Path) -> None:
    with pull_api(f"unix:{tmp_path}/api.sock") as api:
        api.add(0)
        assert api.call("ack", {"handles": [api.receive_one()]}).status == 200
        assert api.until_ended(1) == [Ended(0, COMMITTED)]


@pytest.mark.parametrize("over", ["tcp", "unix"])
def test_every_call_changes_something_and_needs_the_token(tmp_path: Path, over: str) -> None:
    token = tmp_path / "token"
    token.write_text("a-secret-long-enough\n")
    with pull_api("127.0.0.1:0" if over == "tcp" else f"unix:{tmp_path}/api.sock", Access(token)) as api:
        for name in PATHS:
            assert_refused(api.call(name, {}), 401)
        api.add(0)
        answer = api.call("receive", {"wait": "0s"}, {"Authorization": "Bearer a-secret-long-enough"})
        assert len(answer.json["records"]) == 1


def test_a_body_over_a_mebibyte_is_too_large(api: PullApi) -> None:
    assert_refused(api.call("ack", b" " * (1 << 20) + b"{}"), 413)


@pytest.mark.parametrize("name", PATHS)
def test_in_other_modes_each_call_says_which_mode_it_is_for(name: str) -> None:
    app = build_app(Operation(), lambda: b"", Access(), calls=no_pull_routes("relay"))
    with serving(app) as place, Client(place) as client:
        client.send(request(name, {}))
        assert_refused(client.answer("POST"), 404, "This call is for pull mode, and this sidecar runs with")
