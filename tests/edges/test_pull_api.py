"""The calls of pull mode on real sockets: what each gives, whom it refuses, and what the lane is told (contract §6)."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.core.lease import Fate
from sidecar.core.outcome import CANCELLED, COMMITTED, EXPIRED, NACKED, Failed, Rejected
from sidecar.core.record import Partition
from sidecar.edges.access import Access
from sidecar.edges.api import build_app
from sidecar.edges.api_pull import PATHS, no_pull_routes
from tests.sim.samples import life
from tests.support.deadline import until
from tests.support.pull_api import Ended, PullApi, pull_api, request
from tests.support.running_api import Answer, Client, Operation, serving

OTHER = Partition("orders", 1)
GARBAGE = "h1-garbage"


@pytest.fixture
def api() -> Iterator[PullApi]:
    with pull_api() as api:
        yield api


def assert_refused(answer: Answer, status: int, sentence: str = "") -> None:
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/problem+json"
    assert sentence in answer.json["detail"], answer
    assert answer.json["detail"].endswith(".")


# --- receive ---------------------------------------------------------------------------------------------------------


def test_a_received_record_carries_all_that_the_envelope_does(api: PullApi) -> None:
    api.add(
        1_024,
        key=b"\x00k",
        value=None,
        headers=[("a", b"1"), ("RECONSUMETIMES", b"9"), ("a", None)],
        life=life(2, redrives=1),
    )
    (one,) = api.receive()
    handle = one.pop("handle")
    assert len(handle) < 64
    assert one.pop("times") == 2
    assert one.pop("redrives") == 1
    assert base64.b64decode(one.pop("key_base64")) == b"\x00k"
    assert one.pop("value_base64") is None
    assert one.pop("headers") == [["a", "MQ=="], ["a", None]]
    assert one.keys() == {"id", "topic", "partition", "offset", "timestamp"}


def test_receive_gives_what_is_ready_in_order_and_at_most_max(api: PullApi) -> None:
    api.add(3, 1, 2)
    assert [one["offset"] for one in api.receive(max=2)] == [3, 1]
    assert [one["offset"] for one in api.receive(max=2)] == [2]
    assert api.receive() == []


def test_a_receive_that_waits_gets_the_first_record_that_comes(api: PullApi) -> None:
    with Client(api.place) as client:
        client.send(request("receive", {"wait": "30s"}))
        until(lambda: api.on_loop(lambda: api.leases.waiting), 5, "the call waits")
        api.add(7)
        assert [one["offset"] for one in client.answer("POST").json["records"]] == [7]


def test_receives_that_wait_are_served_in_their_order_each_once(api: PullApi) -> None:
    clients = [Client(api.place) for _ in range(3)]
    for number, client in enumerate(clients):
        client.send(request("receive", {"wait": "30s", "max": 2}))
        until(lambda: api.on_loop(lambda: api.leases.waiting) == number + 1, 5, "the call waits")  # noqa: B023
    api.add(0, 1, 2, 3, 4)
    got = [[one["offset"] for one in client.answer("POST").json["records"]] for client in clients]
    assert got == [[0, 1], [2, 3], [4]]
    for client in clients:
        client.__exit__()


def test_a_receive_that_waits_in_vain_is_empty_when_its_wait_is_over(api: PullApi) -> None:
    begin = time.monotonic()
    assert api.receive(wait="300ms") == []
    assert 0.3 <= time.monotonic() - begin < 3
    assert api.on_loop(lambda: api.leases.waiting) == 0


def test_a_caller_that_hangs_up_while_it_waits_gets_nothing_leased(api: PullApi) -> None:
    with Client(api.place) as client:
        client.send(request("receive", {"wait": "30s"}))
        until(lambda: api.on_loop(lambda: api.leases.waiting), 5, "the call waits")
    until(lambda: api.on_loop(lambda: api.leases.waiting) == 0, 5, "the hang-up is seen")
    api.add(7)
    assert [one["offset"] for one in api.receive()] == [7]


@pytest.mark.parametrize("wait", ["0s", "30s"])
def test_a_caller_that_hung_up_during_a_pause_of_the_sidecar_gets_nothing_leased(api: PullApi, wait: str) -> None:
    """The call, the hang-up and, for one that waits, the record come in the same moment."""
    paused, go_on = threading.Event(), threading.Event()

    def pause() -> None:
        paused.set()
        go_on.wait(10)

    with Client(api.place) as client:
        if wait != "0s":
            client.send(request("receive", {"wait": wait}))
            until(lambda: api.on_loop(lambda: api.leases.waiting), 5, "the call waits")
        else:
            api.add(7)
            assert client.call("GET", "/livez").status == 200  # connected, before the pause
        pausing = threading.Thread(target=api.on_loop, args=(pause,))
        pausing.start()
        assert paused.wait(5)
        if wait == "0s":
            client.send(request("receive", {"wait": wait}))
    late = threading.Thread(target=api.add, args=(8,))
    late.start()
    go_on.set()
    for thread in (pausing, late):
        thread.join(5)
    until(lambda: api.on_loop(lambda: api.leases.waiting) == 0, 5, "the call has ended")
    assert [one["offset"] for one in api.receive()] == ([7, 8] if wait == "0s" else [8])


def test_one_answer_is_bounded_in_bytes(api: PullApi) -> None:
    api.add(*range(6), value=bytes(1 << 20))
    sizes = [len(api.receive()) for _ in range(2)]
    assert sizes == [3, 3]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"max": 0}, "max must be a whole number from 1 to 1024."),
        ({"max": 1025}, "max must be"),
        ({"max": "5"}, "max must be"),
        ({"max": True}, "max must be"),
        ({"max": 1.5}, "max must be"),
        ({"max": None}, "max must be"),
        ({"invisible": "99ms"}, "invisible must be a duration from 100ms to 12h, written like 30s."),
        ({"invisible": "12h1ms"}, "invisible must be"),
        ({"invisible": 30}, "invisible must be"),
        ({"invisible": None}, "invisible must be"),
        ({"invisible": "soon"}, "invisible must be"),
        ({"wait": "61s"}, "wait must be a duration from 0s to 1m, written like 30s."),
        ({"wait": -1}, "wait must be"),
        ({"maximum": 3}, "The body has a field that this call does not know; it knows max, invisible, wait."),
    ],
)
def test_a_receive_out_of_bounds_is_refused(api: PullApi, fields: dict[str, object], sentence: str) -> None:
    api.add(0)
    assert_refused(api.call("receive", fields), 400, sentence)
    assert len(api.receive()) == 1


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("body", [b"", b"[]", b"5", b"null", b"{", b'{"max":1}x', b"\xff", b'"' * 9, b"[" * 100_000])
def test_what_is_no_json_object_is_refused(api: PullApi, name: str, body: bytes) -> None:
    assert_refused(api.call(name, body), 400, "The body must be one JSON object.")


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonp"])
def test_what_a_form_could_send_is_refused(api: PullApi, name: str, kind: str) -> None:
    assert_refused(api.call(name, {}, {"Content-Type": kind}), 400, "Content-Type: application/json")


def test_a_content_type_may_have_parameters(api: PullApi) -> None:
    assert api.call("receive", {"wait": "0s"}, {"Content-Type": "Application/JSON; charset=utf-8"}).status == 200


def test_a_receive_without_fields_has_usual_ones(api: PullApi) -> None:
    api.add(*range(40))
    answer = api.call("receive", {})
    assert len(answer.json["records"]) == 32
    assert len(api.receive()) == 8


# --- verdicts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "outcome"), [("ack", COMMITTED), ("nack", NACKED)])
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


def test_unknown_handles_alone_are_no_conflict(api: PullApi) -> None:
    answer = api.call("ack", {"handles": [GARBAGE]})
    assert (answer.status, answer.json) == (200, {"handles": [{"handle": GARBAGE, "status": "unknown"}]})


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


@pytest.mark.parametrize("handles", [None, "x", [], [1], [""], ["x" * 257], ["x"] * 1_025, {"x": 1}])
@pytest.mark.parametrize("name", ["ack", "nack"])
def test_handles_must_be_a_list_of_handles(api: PullApi, name: str, handles: object) -> None:
    assert_refused(api.call(name, {"handles": handles}), 400, "handles must be a list of 1 to 1024 handles")


@pytest.mark.parametrize("name", ["change-invisible", "reconsume-later", "dead-letter"])
@pytest.mark.parametrize("handle", [None, 5, "", ["x"], "x" * 257])
def test_handle_must_be_a_handle(api: PullApi, name: str, handle: object) -> None:
    assert_refused(api.call(name, {"handle": handle}), 400, "handle must be a text")


@pytest.mark.parametrize("name", ["change-invisible", "reconsume-later", "dead-letter"])
def test_a_handle_that_is_none_of_ours_is_not_found(api: PullApi, name: str) -> None:
    fields = {"invisible": "30s"} if name == "change-invisible" else {}
    assert_refused(api.call(name, {"handle": GARBAGE, **fields}), 404, "This is no handle of this sidecar.")


@pytest.mark.parametrize("name", PATHS[1:])
def test_a_handle_of_another_sidecar_is_fenced(api: PullApi, name: str) -> None:
    with pull_api() as other:
        other.add(0)
        handle = other.receive_one()
    fields = {"handles": [handle]} if name in ("ack", "nack") else {"handle": handle}
    if name == "change-invisible":
        fields["invisible"] = "30s"
    answer = api.call(name, fields)
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
        answer = api.call("reconsume-later", {"handle": handle, **fields})
        assert (answer.status, answer.json) == (200, {"handle": handle, "status": "ok"})
    assert api.until_ended(1) == [Ended(0, outcome)]


@pytest.mark.parametrize(("fields", "reason"), [({}, "dead-letter-asked"), ({"reason": "bad-sku"}, "bad-sku")])
def test_dead_letter_refuses_a_record_for_good(api: PullApi, fields: dict[str, object], reason: str) -> None:
    api.add(0)
    assert api.call("dead-letter", {"handle": api.receive_one(), **fields}).status == 200
    assert api.until_ended(1) == [Ended(0, Rejected(reason))]


# --- time ------------------------------------------------------------------------------------------------------------


def test_a_lease_that_nobody_answers_expires_and_its_handle_with_it(api: PullApi) -> None:
    api.add(0)
    handle = api.receive_one(invisible="100ms")
    assert api.until_ended(1) == [Ended(0, EXPIRED)]
    for name in ("ack", "nack"):
        answer = api.call(name, {"handles": [handle]})
        assert_refused(answer, 409)
        assert answer.json["handles"] == [{"handle": handle, "status": "expired"}]
    assert_refused(api.call("change-invisible", {"handle": handle, "invisible": "1m"}), 409, "expired")
    assert len(api.ended) == 1


def test_a_short_lease_ends_in_time_after_a_long_one_was_made(api: PullApi) -> None:
    api.add(0, 1, 2)
    api.receive(max=1, invisible="1h")
    api.receive(max=1, invisible="300ms")
    api.receive(max=1, invisible="100ms")
    api.until_ended(2)
    assert [one.offset for one in api.ended] == [2, 1]


def test_an_ack_that_comes_before_a_late_timer_is_late_all_the_same(api: PullApi) -> None:
    """Given a loop that stood still beyond the lease's end, then an ack in the same round commits nothing."""
    api.add(0)
    handle = api.receive_one(invisible="100ms")

    def late() -> str:
        time.sleep(0.2)  # what is measured is that nothing else ran in between
        return api.leases.settle(handle, Fate.ACKED, COMMITTED)

    assert api.on_loop(late) == "expired"
    assert api.until_ended(1) == [Ended(0, EXPIRED)]


def test_a_changed_lease_has_a_new_handle_and_the_old_one_is_fenced(api: PullApi) -> None:
    api.add(0)
    old = api.receive_one(invisible="1h")
    new = api.call("change-invisible", {"handle": old, "invisible": "2h"}).json["handle"]
    assert new != old
    assert api.call("ack", {"handles": [old]}).json["handles"] == [{"handle": old, "status": "fenced"}]
    assert_refused(api.call("change-invisible", {"handle": old, "invisible": "2h"}), 409)
    assert api.call("ack", {"handles": [new]}).status == 200
    assert_refused(api.call("change-invisible", {"handle": new, "invisible": "2h"}), 409)
    assert api.until_ended(1) == [Ended(0, COMMITTED)]


def test_a_changed_lease_ends_by_its_new_time_alone(api: PullApi) -> None:
    api.add(0, 1)
    longer, shorter = (one["handle"] for one in api.receive(invisible="300ms"))
    assert api.call("change-invisible", {"handle": longer, "invisible": "1h"}).status == 200
    assert api.call("change-invisible", {"handle": shorter, "invisible": "600ms"}).status == 200
    begin = time.monotonic()
    assert api.until_ended(1) == [Ended(1, EXPIRED)]
    assert time.monotonic() - begin > 0.5


@pytest.mark.parametrize("invisible", ["99ms", "13h", 5, None])
def test_a_lease_cannot_be_changed_out_of_bounds(api: PullApi, invisible: object) -> None:
    api.add(0)
    handle = api.receive_one()
    assert_refused(api.call("change-invisible", {"handle": handle, "invisible": invisible}), 400, "invisible must be")
    assert_refused(api.call("change-invisible", {"handle": handle}), 400, "invisible must be")
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
    token.write_text("secret\n")
    with pull_api("127.0.0.1:0" if over == "tcp" else f"unix:{tmp_path}/api.sock", Access(token)) as api:
        for name in PATHS:
            assert_refused(api.call(name, {}), 401)
        api.add(0)
        answer = api.call("receive", {"wait": "0s"}, {"Authorization": "Bearer secret"})
        assert len(answer.json["records"]) == 1


def test_a_body_over_a_mebibyte_is_too_large(api: PullApi) -> None:
    assert_refused(api.call("ack", b" " * (1 << 20) + b"{}"), 413)


@pytest.mark.parametrize("name", PATHS)
def test_in_other_modes_each_call_says_which_mode_it_is_for(name: str) -> None:
    app = build_app(Operation(), lambda: b"", Access(), calls=no_pull_routes("relay"))
    with serving(app) as place, Client(place) as client:
        client.send(request(name, {}))
        assert_refused(client.answer("POST"), 404, "This call is for pull mode, and this sidecar runs with")
