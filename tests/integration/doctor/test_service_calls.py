"""The doctor calls the service by the sidecar's own client, and a trial says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reconsume.sidecar.core.pace.refusals import SAID_ELSEWHERE, hint_of, quoted
from reconsume.sidecar.core.record import Now
from reconsume.sidecar.doctor.checks.instances import beating, instances, standing
from reconsume.sidecar.doctor.checks.service import delivered_to_each, service
from reconsume.sidecar.doctor.findings import Status
from reconsume.sidecar.group_policy.signs import TEXTS
from reconsume.topics.policy_record import PaceTold, RefusedTold, SubscriptionRecord
from tests.support.service.stub_service import Behaviour, StubService, answer
from tests.support.sidecar.settings import good

JSON = "Content-Type: application/json"


@pytest.mark.parametrize(
    ("behaviour", "status", "says"),
    [
        (answer(200), Status.OK, "answered: commit"),
        (answer(200, "Reconsume-Verdict: dead-letter; reason=trial"), Status.OK, "answered: dead_letter"),
        (answer(200, "Reconsume-Verdict: retry"), Status.OK, "answered: retry"),
        (answer(404), Status.FAIL, "http-404: every record would fail"),
        (answer(405), Status.FAIL, "http-405: every record would fail"),
        (answer(415, JSON, body=b'{"message": "no JSON"}'), Status.FAIL, "http-415: no JSON: every record would fail"),
        (answer(200, "Content-Type: text/html", body=b"<html>sign in"), Status.WARN, "a page of HTML"),
        (answer(500), Status.WARN, "http-500: a retry for a real one"),
        (answer(422), Status.WARN, "http-422"),
    ],
)
def test_a_trial_finds_what_the_first_real_record_would_meet(
    tmp_path: Path, behaviour: Behaviour, status: Status, says: str
) -> None:
    with StubService([behaviour]) as stub:
        settings = good(tmp_path, f"deliver.url={stub.url}")
        [found] = delivered_to_each(settings)
    assert (found.status, says in found.finding) == (status, True), found
    [request] = stub.requests
    head = request.partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert head[0] == b"POST /events HTTP/1.1"
    assert b"Reconsume-Trial: 1" in head
    assert b"Reconsume-Topic: orders" in head


def test_each_path_gets_a_trial_of_its_own(tmp_path: Path) -> None:
    topics = "topics=[orders, {name: bills, path: '/bills?by=kafka'}, fees, {name: taxes, path: /taxes}]"
    with StubService([answer(200), answer(404), answer(200)]) as stub:
        found = delivered_to_each(good(tmp_path, f"deliver.url={stub.url}", topics))
    assert [one.status for one in found] == [Status.OK, Status.FAIL, Status.OK]
    assert [one.finding.partition(":")[0] for one in found] == ["orders", "bills", "taxes"]
    paths = [request.split(b" ")[1] for request in stub.requests]
    assert paths == [b"/events", b"/bills?by=kafka", b"/taxes"]


@pytest.mark.parametrize(
    ("sets", "kind", "begins"),
    [
        ((), b"application/json", b'{"reconsume":'),
        (("deliver.content_type=text/plain",), b"text/plain", b'{"reconsume":'),
        (("topics=[{name: orders, content_type: text/csv}]",), b"text/csv", b'{"reconsume":'),
        (("deliver.envelope=true",), b"application/vnd.reconsume+json", b'{"group":"billing","records":[{"id":'),
        (("deliver.batch.max_size=8",), b"application/vnd.reconsume+json", b'{"group":"billing","records":[{"id":'),
    ],
)
def test_a_trial_is_sent_in_the_form_of_real_records(
    tmp_path: Path, sets: tuple[str, ...], kind: bytes, begins: bytes
) -> None:
    """Given batches or envelopes, then a service that takes no such body is found, and one that does is well."""
    with StubService([answer(200, JSON, body=b'{"verdict": "dead-letter"}')]) as stub:
        settings = good(tmp_path, f"deliver.url={stub.url}", "deliver.verdicts=header", *sets)
        [found] = delivered_to_each(settings)
    assert (found.status, found.finding) == (Status.OK, "the made-up record was answered: commit"), "no body is read"
    head, _, body = stub.requests[0].partition(b"\r\n\r\n")
    assert b"Content-Type: " + kind in head
    assert body.replace(b" ", b"").startswith(begins)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 415, 422])
def test_a_trial_gives_the_hint_that_a_running_instance_would_give(tmp_path: Path, status: int) -> None:
    with StubService([answer(status)]) as stub:
        settings = good(tmp_path, f"deliver.url={stub.url}")
        [found] = delivered_to_each(settings)
    assert found.mend.endswith(hint_of(status)), found


def test_a_service_that_rejects_every_record_is_a_failure_of_its_instance_and_of_the_heartbeat() -> None:
    """Given an entry of `all_refused`, then the check names topic, status and what was sent, with the likely fix."""
    sent = {"method": "POST", "path": "/events", "content_type": "text/csv"}
    entry = {"topic": "orders", "status": 415, "since": AT.wall_ms - 65_000, "deliveries": 12, "sent": sent}
    entry["hint"] = hint_of(415, quoted("JSON, please"))
    [here] = standing({"instance": "pod-1", "partitions": [], "waiting_since": None, "all_refused": [entry]}, AT)
    told = RefusedTold("orders", 415, AT.wall_ms - 65_000, *sent.values(), said=True)
    record = SubscriptionRecord({"orders": "*"}, AT.wall_ms - 1_000, None, all_refused=(told,))
    [beat] = beating("pod-1", record, AT)
    for found in (here, beat):
        assert found.status is Status.FAIL
        assert (
            "pod-1: all refused: the service answers 415 to every record of orders, for 1m5s: sent: POST"
            in found.finding
        )
        assert "POST /events text/csv" in found.finding
    assert here.mend == f"the service says: JSON, please; {hint_of(415)}"
    assert beat.mend == f"{SAID_ELSEWHERE}; {hint_of(415)}", "a heartbeat has no text of the service"


def test_a_trial_that_reaches_nobody_fails(tmp_path: Path) -> None:
    settings = good(tmp_path, "deliver.url=http://127.0.0.1:1/")
    [found] = delivered_to_each(settings)
    assert (found.status, found.finding.startswith("the made-up record could not be sent")) == (Status.FAIL, True)


@pytest.mark.parametrize(
    ("behaviour", "worst"), [(answer(200), Status.OK), (answer(503), Status.WARN), (lambda _: False, Status.WARN)]
)
def test_the_health_url_is_asked_as_the_sidecar_asks_it(tmp_path: Path, behaviour: Behaviour, worst: Status) -> None:
    with StubService([behaviour]) as stub:
        found = service(good(tmp_path, f"deliver.url={stub.url}", f"deliver.health_url={stub.url}").deliver)
    assert [one.status for one in found] == [worst]


def test_a_health_url_that_is_slower_than_its_timeout_stops_every_delivery_and_fails(tmp_path: Path) -> None:
    def hangs(talk: object) -> bool:
        talk.leaving.wait(20)  # type: ignore[attr-defined]
        return False

    with StubService([hangs]) as stub:
        sets = (f"deliver.url={stub.url}", f"deliver.health_url={stub.url}", "deliver.health_timeout=100ms")
        [found] = service(good(tmp_path, *sets).deliver)
    assert (found.status, "timeout" in found.finding) == (Status.FAIL, True), found


AT = Now(10_000_000, 0)


def lowered(kind: str) -> str:
    """The text of a sign as a part of a sentence."""
    return f"{TEXTS[kind][0].lower()}{TEXTS[kind][1:]}"


def heartbeat(state: str, *, overdue: int = 0, well: bool | None = None) -> SubscriptionRecord:
    pace = PaceTold(state, AT.wall_ms - 65_000, 0, 1, "connection refused")
    return SubscriptionRecord({"orders": "*"}, AT.wall_ms, pace, overdue, well=well)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (heartbeat("open"), []),
        (
            heartbeat("outage"),
            ["pod-1: outage: now only probes are delivered, for 1m5s: connection refused"],
        ),
        (heartbeat("throttled"), [f"pod-1: {lowered('throttled')}, for 1m5s: connection refused"]),
        (heartbeat("open", overdue=120_000), [f"pod-1: {lowered('overdue')}, for 2m"]),
        (heartbeat("open", well=True), []),
        (
            heartbeat("open", well=False),
            [f"pod-1: {lowered('away')}"],
        ),
        (
            heartbeat("outage", well=False),
            ["pod-1: outage: now only probes are delivered, for 1m5s: connection refused"],
        ),
        (
            heartbeat("waiting", well=False),
            [f"pod-1: {lowered('waiting')}, for 1m5s: connection refused"],
        ),
    ],
)
def test_a_heartbeat_tells_of_an_outage_and_since_when(record: SubscriptionRecord, says: list[str]) -> None:
    assert [found.finding for found in beating("pod-1", record, AT)] == says


@pytest.mark.parametrize(("state", "says"), [("outage", 1), ("throttled", 1), ("waiting", 1), ("open", 0)])
def test_what_its_status_says_is_not_said_again_by_its_heartbeat(state: str, says: int) -> None:
    since, reason = AT.wall_ms - 65_000, "connection refused"
    status = {"instance": "pod-1", "partitions": [], "pace": state, "pace_since": since, "pace_reason": reason}
    if state == "waiting":
        status |= {"pace": "open", "waiting_since": since, "waiting_reason": reason}
    record = heartbeat(state, well=state == "open")
    other = list(beating("pod-1", record, AT, "pod-2"))
    assert [*beating("pod-1", record, AT, "pod-1"), *standing(status, AT)] == other[:says]


def test_the_status_of_the_instance_here_tells_what_has_stopped() -> None:
    stopped = {
        "topic": "orders",
        "partition": 3,
        "refusal": "too many of its copies are refused",
        "refused_copies": 65,
    }
    found = list(standing({"instance": "pod-1", "partitions": [stopped], "missing_topics": ["a"], "pace": "open"}, AT))
    assert [one.finding for one in found] == [
        "pod-1: nothing of orders[3] is delivered: too many of its copies are refused",
        "pod-1 waits for topics: a",
    ]
    [kept_out] = standing({"instance": "pod-1", "partitions": [], "refused_by_group": "GROUP_MAX_SIZE_REACHED: x"}, AT)
    assert kept_out.status is Status.FAIL
    assert kept_out.finding == "pod-1 reads nothing, as its group does not take it: GROUP_MAX_SIZE_REACHED: x"
    refused = {"topic": "orders", "partition": 3, "refusal": "", "refused_copies": 2}
    [warned] = standing({"instance": "pod-1", "partitions": [refused]}, AT)
    assert (warned.status, "2 records" in warned.finding) == (Status.WARN, True)


def test_the_status_of_the_instance_here_tells_that_its_files_are_used_up() -> None:
    status = {"instance": "pod-1", "partitions": [], "pace": "open"}
    [warned] = standing({**status, "files": {"open": 897, "limit": 1024, "used_up": True}}, AT)
    assert (warned.status, warned.finding[:42]) == (Status.WARN, "pod-1 has 897 open files, of 1024 allowed:")
    assert not list(standing({**status, "files": {"open": 400, "limit": 1024, "used_up": False}}, AT))


def test_the_status_of_the_instance_here_tells_that_it_waits_and_what_is_odd_in_answers() -> None:
    status = {"instance": "pod-1", "partitions": [], "state": "waiting for the service"}
    waiting = {"waiting_since": AT.wall_ms - 65_000, "waiting_reason": "no connection to http://127.0.0.1:8080/"}
    [waits] = standing({**status, **waiting, "odd_verdicts": {"no-id": 0}}, AT)
    assert waits.status is Status.WARN
    assert waits.finding == (f"pod-1: {lowered('waiting')}, for 1m5s: no connection to http://127.0.0.1:8080/")
    [starts] = standing({**status, **waiting, "state": "starting"}, AT)
    assert starts.finding == "pod-1 has not started: it waits for Kafka", "its service was not asked yet"
    odd = {"unknown-word": 12, "header": 3, "no-id": 0}
    [warned] = standing({"instance": "pod-1", "partitions": [], "waiting_since": None, "odd_verdicts": odd}, AT)
    assert warned.finding.endswith("look like verdicts and are none: header (3), unknown-word (12)")


@pytest.mark.parametrize(("group", "worst"), [("billing", Status.FAIL), ("shipping", Status.NOT_CHECKED)])
def test_the_instance_here_counts_only_for_its_own_group(group: str, worst: Status, tmp_path: Path) -> None:
    """Given a sidecar in an outage on the usual port, then another group's doctor does not report its outage."""
    status = {"group": "billing", "instance": "pod-0", "partitions": [], "pace": "outage", "pace_since": 0}
    with StubService([answer(200, JSON, body=json.dumps(status).encode())]) as stub:
        port = int(stub.url.rpartition(":")[2].partition("/")[0])
        settings = good(tmp_path, f"group={group}", f"api.listen=127.0.0.1:{port}")
        found = instances(None, settings, Now(1_000, 1_000))
    assert [finding.status for finding in found] == [worst]
