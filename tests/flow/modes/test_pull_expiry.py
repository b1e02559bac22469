"""A rule that names `lease-expired`, on a real broker: `explain` and the waits of the copies agree (contract 6.6)."""

from __future__ import annotations

import json
from pathlib import Path

from reconsume.topics import retry_headers as wire
from reconsume.topics.durations import parse_duration
from tests.flow.conftest import FreshGroup, StartSidecar
from tests.support.deadline import until
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.proof.ledger import Ledger
from tests.support.service.puller import PULL, Puller
from tests.support.sidecar.cli import reconsume

RULES = {"rules": [{"name": "dead-worker", "reasons": ["lease-expired"], "ladder": ["1s", "2s"]}]}


def test_an_expired_lease_waits_for_the_ladder_of_the_rule_that_names_it_as_explain_says(
    new_group: FreshGroup, start_sidecar: StartSidecar, folder: Path
) -> None:
    group = create_group(new_group(), partitions=1)
    ledger = Ledger(folder / "expiry-ledger.jsonl")
    sidecar = start_sidecar(group, "", overrides={**PULL, "retry": RULES})
    explained = reconsume("explain", "-c", str(folder / group.group / "pod-0.yaml"), "--reason", "lease-expired")
    waits = [parse_duration(json.loads(line)["waits"]) for line in explained.stdout.splitlines()][1:-1]
    produce(group.bootstrap, group.main, [Out(b"order", b"k")])
    puller, attempts = Puller(sidecar, ledger), []

    def received_last() -> bool:
        for one in puller.receive(1, "300ms", "100ms"):
            attempts.append(one.times)
            if one.times == 2:
                assert puller.ack(one) == ["ok"]
        return 2 in attempts

    until(received_last, 30, "the second retry is received")
    assert attempts == [0, 1, 2]
    copies = [
        dict(row.headers) for level in ("1s", "2s") for row in dump(group.bootstrap, f"{group.names.ready}-{level}")
    ]
    assert [copy[wire.RETRY_REASON] for copy in copies] == [b"lease-expired"] * 2
    first, second = (int(copy[wire.RETRY_DUE_AT] or 0) for copy in copies)
    ends = int(copies[0][wire.RETRY_FIRST_FAILED_AT] or 0), int(copies[1][wire.RETRY_LAST_FAILED_AT] or 0)
    assert [first - ends[0], second - ends[1]] == waits == [1_000, 2_000]
    assert sidecar.stop().code == 0
    ledger.close()
