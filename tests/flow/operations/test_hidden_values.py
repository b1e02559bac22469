"""What a reader of the API sees without a token, where values need one: each field of each call of a real sidecar."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from typing import Any

from reconsume.topics.hold_record import HoldRecord, hold_key, render_hold
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import UNUSED, create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.service.behaviours import FAIL, Answer, by_name
from tests.support.sidecar.policy import set_policy, write
from tests.support.sidecar.process import SidecarProcess
from tests.support.view_rows import wall

MARK = "canary"
GATED = {"holds[].key_base64", "holds[].why", "messages[].text", "text"}
"""Fields that need a token. `holds[].what` names the key only to those who have one."""
CALLS = ("/status", "/v1/holds", "/v1/policy", "/v1/view/messages", "/v1/view/stats")
PROBLEM = Answer(400, (("Content-Type", "application/problem+json"),), b'{"title": "text-canary"}')
SECONDS = 60.0
ROW = (
    *(
        "v",
        "id",
        "group",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "state",
        "times",
        "redrives",
        "retries",
        "level",
    ),
    *("due", "reason", "instance", "at", "first_failed_at", "last_failed_at", "updated_at"),
)
"""A row of the view."""
POLICY = (
    *("max_reconsume_times", "ladder", "levels", "rules", "max_age", "jitter", "max_deaths", "timeout", "concurrency"),
    *("rate", "group_rate", "nack_redelivery_delay", "ordered_interval", "ordered_max_times", "ordered_ladder"),
    "ordered_exhausted",
)
"""What a policy says: settings, and nothing of records."""
PARTITION = (
    *("lane", "topic", "partition", "level", "not_fetched", "not_delivered", "refusal", "position", "in_flight"),
    *("refused_copies", "next_due_in"),
    *(
        "blocked_keys",
        "behind_records",
        "oldest_for",
        "on_hold",
        "parked_keys",
        "undelivered_for",
        "reset_left",
        "retried_in_place",
        "in_place",
    ),
)
OPEN = {
    *ROW,
    *(f"messages[].{name}" for name in ROW),
    *(f"{where}.{name}{list_}" for where in ("policy", "origins") for name in POLICY for list_ in ("", "[]")),
    *(f"partitions[].{name}" for name in PARTITION),
    *(f"holds[].{name}" for name in ("id", "what", "topic", "level", "since", "until", "who")),
    *(f"stats[].{name}" for name in ("v", "group", "minute", "topic", "level", "reason", "waiting", "committed")),
    *("stats[].dead", "stats[].redriven", "cursor", "holds_ignored"),
    *("source", "as_of", "age_seconds", "complete_since", "shortfall"),
    *(f"view.{name}" for name in ("source", "as_of", "age_seconds", "complete_since", "sums_since")),
    *(f"view.{name}" for name in ("shortfall", "problem")),
    *("mode", "who", "policy.mode", "policy.who", "policy.at", "waiting_since", "waiting_reason"),
    *("pace", "pace_since", "pace_reason", "outage", "in_flight", "files.open", "files.limit", "files.used_up"),
    *(f"concurrency.{name}" for name in ("limit", "why", "response_time", "minimum")),
    *("refused_by_group", "last_error", "keys", "hand_over"),
    *(f"{at}{name}" for at in ("", "policy.") for name in ("settings", "instances[]")),
}
"""Fields that every reader sees. The sentences among them (`last_error`, `…_reason`, `problem`) are the sidecar's and
Kafka's, about topics, brokers and classes of reasons."""


def paths_of(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Every field of a document with its value; those of a list's members under `[]`."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from paths_of(inner, f"{at}.{name}" if at else name)
    elif isinstance(value, list):
        for inner in value:
            yield from paths_of(inner, f"{at}[]")
    else:
        yield at, value


def fields_of(sidecar: SidecarProcess, path: str, *, token: bool) -> dict[str, list[Any]]:
    answer = sidecar.request("GET", path, token=token)
    assert answer.status == 200, (path, answer)
    found: dict[str, list[Any]] = {}
    for name, value in paths_of(answer.json):
        found.setdefault(name, []).append(value)
    return found


def test_each_field_of_each_read_is_open_or_needs_a_token(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Given a new field, then this fails until somebody has decided who may see it.

    No call without a token shows a key, a value, a header, a text or a reason of an operator."""
    group = create_group(new_group(), partitions=1, also=UNUSED)
    service = start_service(by_name({"poison": (PROBLEM,)}))
    sidecar = start_sidecar(group, service.url, overrides={"view": {"enabled": True}})
    own = ((f"x-{MARK}", f"header-{MARK}".encode()),)
    produce(group.bootstrap, group.main, [Out(f"poison:{MARK}".encode(), f"key-{MARK}".encode(), own)])
    set_policy(group, timeout="30s")
    now = wall()
    hold = HoldRecord(now, now + 3_600_000, f"why-{MARK}", "ann", topic=group.main, key=f"held-{MARK}".encode())
    write(group, render_hold(hold), hold_key("h1"))
    record = f"{group.main}:0:0"

    def is_shown() -> bool:
        page = sidecar.request("GET", "/v1/view/messages")
        return page.status == 200 and [row["state"] for row in page.json["messages"]] == ["DLQ"]

    sidecar.until(is_shown, SECONDS, "the view has the dead letter")
    sidecar.until(lambda: sidecar.status()["holds"] and sidecar.status()["policy"]["who"], SECONDS, "all is followed")
    sidecar.until(lambda: sidecar.request("GET", "/v1/view/stats").json["stats"], SECONDS, "the sums are there")
    seen, hidden = set[str](), set[str]()
    for path in (*CALLS, f"/v1/view/messages/{record}"):
        open_body = sidecar.request("GET", path, token=False).body.decode()
        assert MARK not in open_body, path
        assert b64encode(f"held-{MARK}".encode()).decode() not in open_body, path
        signed_in, visitor = fields_of(sidecar, path, token=True), fields_of(sidecar, path, token=False)
        seen |= signed_in.keys()
        for name, values in signed_in.items():
            if name in GATED:
                assert any(values), (path, name)
                assert not any(visitor.get(name, [])), (path, name)
                hidden.add(name)
    assert hidden == GATED
    assert seen - GATED - OPEN == set()
    (held,) = sidecar.request("GET", "/v1/holds", token=False).json["holds"]
    assert (held["what"], held["who"]) == (f"topic={group.main} key=(hidden)", "ann")


def test_a_record_that_is_retried_in_place_is_named_without_its_key(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group(), partitions=1, also=UNUSED)
    service = start_service(by_name({"poison": (FAIL,)}))
    sidecar = start_sidecar(group, service.url, overrides={"deliver": {"order": "key"}})
    produce(group.bootstrap, group.main, [Out(b"poison:0", f"key-{MARK}".encode())])

    def heads(*, token: bool) -> list[dict[str, Any]]:
        partitions = sidecar.request("GET", "/status", token=token).json["partitions"]
        return [one["in_place"] for one in partitions if one["in_place"]]

    [signed_in] = sidecar.until(lambda: heads(token=True), SECONDS, "it is retried in place")
    assert signed_in["id"] == f"{group.main}:0:0"
    assert MARK not in str(signed_in)
