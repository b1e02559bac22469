"""A policy topic full of hostile records of every kind, on a real broker: deliveries go on, and all is named."""

from __future__ import annotations

import json
from pathlib import Path

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.hostile_policy import UNSHOWABLE, forged, hostile
from tests.support.kafka.topic_io import Out, produce
from tests.support.service.behaviours import by_name
from tests.support.sidecar.cli import for_group
from tests.support.sidecar.policy import CALM, policy_of, with_policy, write
from tests.ui.scene import dashboard
from tests.ui.web import Visitor

COUNT = 300
LONG_REASON = "x" * 900_000
MOST_LINES = 40
"""Log lines that they may cost in all."""


def test_hostile_records_of_every_kind_change_no_delivery_and_are_named_and_bounded(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    """In the log, in a terminal and on the pages; also those that come later, and with reasons of 900 KB."""
    group = with_policy(new_group())
    produce(group.bootstrap, group.names.policy, [Out(value, key) for key, value in hostile(7, COUNT)])
    write(group, None)
    service = start_service(by_name({}))
    sidecar = start_sidecar(group, service.url, overrides=CALM)
    before = sidecar.metric("reconsume_bad_policy_records_total")
    assert before > COUNT // 10
    long = {kind: forged(kind) | {"why": LONG_REASON} for kind in (b"hold/a", b"settle/orders:0:0")}
    produce(group.bootstrap, group.names.policy, [Out(json.dumps(value).encode(), key) for key, value in long.items()])
    produce(group.bootstrap, group.names.policy, [Out(value, key) for key, value in hostile(8, COUNT)])
    write(group, None)
    produce(group.bootstrap, group.main, [b"good:%d" % number for number in range(20)])
    sidecar.until(lambda: len(service.ledger.taken()) == 20, 30, "all are delivered")
    sidecar.until(
        lambda: sidecar.metric("reconsume_bad_policy_records_total") > before + COUNT // 4, 20, "they are counted"
    )
    assert {row["what"] for row in sidecar.status()["holds"]} <= {"topic=nobody-has-it"}
    assert policy_of(sidecar)["policy"]["max_deaths"] == 3
    lines = [line for line in sidecar.log().splitlines() if "polic" in line or "settlement" in line or "hold" in line]
    assert 0 < len(lines) <= MOST_LINES
    assert any("policy-bad-records" in line for line in lines)
    assert all(line.isprintable() and len(line) < 4_000 for line in lines)
    shown = [for_group(tmp_path, group, *words) for words in (["holds"], ["policy", "show"])]
    assert [result.exit_code for result in shown] == [0, 0], shown[-1].stderr
    texts = [result.output for result in shown]
    with dashboard(group, tmp_path) as scene:
        visitor = Visitor(scene)
        texts += [visitor.get(page).body.decode() for page in ("/holds", "/policy", "/part/alarms")]
    for text in texts:
        assert not [sign for sign in UNSHOWABLE if sign in text and sign != "a\nb"]
        assert all(sign.isprintable() or sign == "\n" for sign in text)
        assert len(text) < 500_000
