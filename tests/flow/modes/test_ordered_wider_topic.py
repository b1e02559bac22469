"""A main topic gets partitions while its keys wait, and `topics apply` gives its queue topic as many."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import yaml

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.flow.modes.test_ordered_park import put
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import Out, add_partitions, produce
from tests.support.proof.audited import violations
from tests.support.service.behaviours import BadFails
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.config import Config, config_of

LADDER: Config = {
    "deliver": {"order": "key", "outage_failures": None},
    "retry": {"ordered_ladder": ["1s"], "max_reconsume_times": 100},
    "kafka": {"topic.metadata.refresh.interval.ms": 2_000},
}
SECONDS = 60


def test_what_fails_in_an_added_partition_goes_by_the_ladder_once_the_topics_are_applied(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    group, bad = create_group(replace(new_group(), delays=(), queued=True), 1), BadFails()
    service = start_service(bad)
    sidecar = start_sidecar(group, service.url, overrides=LADDER)
    old = put(group, (b"bad:0", b"a"), (b"behind:0", b"a"))
    sidecar.until(lambda: len(service.ledger.of(old[0])) > 1, SECONDS, "the first key waits")
    add_partitions(group.bootstrap, group.main, 2)
    file = tmp_path / "reconsume.yaml"
    file.write_text(yaml.safe_dump(config_of(group, service.url, 0, LADDER)))
    applied = reconsume("-c", file, "topics", "apply", "--yes")
    results = {row["topic"]: row["result"] for row in map(json.loads, applied.stdout.splitlines())}
    assert results[group.queues[0]] == "grown"
    places = produce(group.bootstrap, group.main, [Out(b"bad:1", b"b", (), 1), Out(b"behind:1", b"b", (), 1)])
    new = [f"{group.main}:{number}:{offset}" for number, offset in places]
    sidecar.until(
        lambda: max((one.times for one in service.ledger.of(new[0])), default=0) > 1, SECONDS, "it waits by the ladder"
    )
    assert not service.ledger.of(new[1]), "what follows of its key is behind it"
    bad.well.set()
    sidecar.until(lambda: len(service.ledger.taken()) == 4, SECONDS, "all are taken")
    assert sidecar.stop().code == 0
    assert violations(group, tmp_path, LADDER) == []
