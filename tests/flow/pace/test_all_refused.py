"""A service that rejects every record, on a real broker: log and `/status` say what was sent, until it takes one."""

from __future__ import annotations

from typing import Any

from reconsume.sidecar.core.pace.refusals import hint_of, quoted
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.service.behaviours import Answer, by_name
from tests.support.sidecar.process import SidecarProcess

REFUSES = Answer(415, (("Content-Type", "application/json"),), b'{"detail": "JSON, please"}')


def refused(sidecar: SidecarProcess) -> list[dict[str, Any]]:
    """`all_refused` in `/status`."""
    entries: list[dict[str, Any]] = sidecar.request("GET", "/status").json["all_refused"]
    return entries


def test_a_service_that_rejects_everything_is_named_until_it_takes_a_record(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Given ten records that are all answered 415, then there is one entry and one line; after a success, no entry."""
    group = create_group(new_group(1, (1_000,)), partitions=1)
    service = start_service(by_name({"bad": (REFUSES,)}))
    sidecar = start_sidecar(group, service.url, overrides={"retry": {"max_reconsume_times": 1}})
    assert refused(sidecar) == []
    produce(group.bootstrap, group.main, [Out(b"bad", b"key")] * 10)
    sidecar.until(lambda: refused(sidecar), 60, "it is found out")
    # Each of the ten has one retry: then the count stands.
    sidecar.until(lambda: refused(sidecar)[0]["deliveries"] == 20, 60, "all failed")
    [found] = refused(sidecar)
    assert found.pop("since") > 0
    assert found == {
        "topic": group.main,
        "status": 415,
        "deliveries": 20,
        "sent": {"method": "POST", "path": "/events", "content_type": "application/octet-stream"},
        "text": "JSON, please",
        "hint": hint_of(415, quoted("JSON, please")),
    }
    produce(group.bootstrap, group.main, [Out(b"good", b"key")])
    sidecar.until(lambda: refused(sidecar) == [], 60, "it is over")
    sidecar.stop()
    [line] = [line for line in sidecar.log().splitlines() if "all-refused" in line]
    for word in (group.main, "415", "POST /events", "application/octet-stream", hint_of(415)):
        assert word in line, word
