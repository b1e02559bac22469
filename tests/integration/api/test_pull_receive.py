"""Receiving: what a record carries, waits, bounds, and what is no call."""

from __future__ import annotations

import base64
import threading
import time
from contextlib import ExitStack

import pytest

from reconsume.sidecar.api.pull import PATHS, RECEIVE
from reconsume.sidecar.http.protocol import Limits
from tests.sim.samples import life
from tests.support.deadline import until
from tests.support.service.pull_api import PullApi, pull_api, request
from tests.support.service.pull_calls import assert_refused
from tests.support.sidecar.running_api import Client


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
    assert one.pop("nacks") == 0
    assert "T" in one.pop("expires_at")
    assert one.pop("idempotency_key") == "billing/orders:0:7/1"
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


def test_callers_that_wait_take_no_place_from_an_answer_and_one_too_many_is_told_so() -> None:
    """Given more waiting callers than connections, then an ack is taken; a further caller comes again in a second."""
    many = 40
    with (
        pull_api(most_waiting=many, limits=Limits(connections=8, reserve=1, waiting_path=RECEIVE)) as api,
        ExitStack() as stack,
    ):
        api.add(7)
        handle = api.receive_one()
        for _ in range(many):
            stack.enter_context(Client(api.place)).send(request("receive", {"wait": "30s"}))
        until(lambda: api.on_loop(lambda: api.leases.waiting) == many, 5, "all wait")
        assert api.call("ack", {"handles": [handle]}).status == 200
        refused = api.call("receive", {"wait": "30s"})
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert "As many callers wait as may" in refused.json["detail"]


def test_a_receive_that_waits_in_vain_is_empty_when_its_wait_is_over(api: PullApi) -> None:
    begin = time.monotonic()
    assert api.receive(wait="300ms") == []
    assert time.monotonic() - begin >= 0.3
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
        go_on.wait(60)

    with Client(api.place) as client:
        if wait != "0s":
            client.send(request("receive", {"wait": wait}))
            until(lambda: api.on_loop(lambda: api.leases.waiting), 5, "the call waits")
        else:
            api.add(7)
            assert client.call("GET", "/livez").status == 200  # connected, before the pause
        pausing = threading.Thread(target=api.on_loop, args=(pause,))
        pausing.start()
        assert paused.wait(60)
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
    assert_refused(api.call(name, {}, {"Content-Type": kind}), 415, "Content-Type: application/json")


def test_a_content_type_may_have_parameters(api: PullApi) -> None:
    assert api.call("receive", {"wait": "0s"}, {"Content-Type": "Application/JSON; charset=utf-8"}).status == 200


def test_a_receive_without_fields_has_usual_ones(api: PullApi) -> None:
    api.add(*range(40))
    answer = api.call("receive", {})
    assert len(answer.json["records"]) == 32
    assert len(api.receive()) == 8
