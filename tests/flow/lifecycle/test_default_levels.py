"""A group with the default topics: ten of them, and delays of several hops that end on time."""

from __future__ import annotations

from pathlib import Path

import yaml

from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.topics.levels import SIX
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.topic_io import Out, create_topic, produce
from tests.support.proof.checker import check
from tests.support.proof.evidence import collect
from tests.support.proof.way import check_way, levels_of
from tests.support.service.behaviours import FAIL, OK, by_name, verdict
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.config import config_of

DEFAULTS = {"retry": {"ladder": "rocketmq", "levels": None, "max_reconsume_times": 16}}
WAITS = {"ladder": 10_000, "two-hops": 20_000, "three-hops": 50_000}
CASES = {
    "ladder": (FAIL, OK),
    "two-hops": (verdict("retry; delay=20s"), OK),
    "three-hops": (verdict("retry; delay=50s"), OK),
}
HOPS = {"ladder": ["10s"], "two-hops": ["10s", "10s"], "three-hops": ["30s", "10s", "10s"]}


def test_a_default_group_has_ten_topics_and_long_waits_end_on_time(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    group = new_group(delays=SIX)
    create_topic(group.bootstrap, group.main, 12)
    service = start_service(by_name(CASES))
    file = tmp_path / "reconsume.yaml"
    file.write_text(yaml.safe_dump(config_of(group, service.url, 1, DEFAULTS)), "utf-8")
    applied = reconsume("-c", str(file), "topics", "apply", "--yes")
    assert applied.exit_code == 0, applied.stderr
    kinds = [f"-RETRY-{delay}" for delay in ("10s", "30s", "1m", "5m", "30m", "2h")]
    kinds += ["-RETRY", "-DLQ", "-RETRY-EVENTS", "-RETRY-POLICY"]
    there = Cluster({"bootstrap.servers": group.bootstrap}).topic_names()
    assert {name for name in there if name.startswith(group.group)} == {f"{group.group}{kind}" for kind in kinds}
    assert len(Cluster({"bootstrap.servers": group.bootstrap}).find_topics([group.dlq])[group.dlq].all_partitions) == 6

    sidecar = start_sidecar(group, service.url, overrides=DEFAULTS)
    produce(group.bootstrap, group.main, [Out(name.encode(), b"key") for name in CASES])
    sidecar.until(lambda: len(service.ledger.taken()) == len(CASES), 70, "each record is taken by its retry")
    assert sidecar.stop().code == 0
    evidence = collect(group, service.ledger)
    check(evidence)
    ids = {row.value: ident for ident, (_, row) in evidence.sources.items()}
    for name, wait in WAITS.items():
        first, second = (one for one in service.ledger.deliveries() if one.value == name.encode())
        assert first.answered is not None
        late = second.received - first.answered - wait
        assert late + 5 >= 0, f"{name} is {-late} ms early"  # the service's clock is read after the failure was decided
        assert late <= 1_000 + 1_000, f"{name} is {late} ms late"  # a busy machine may take another second
        [copies] = evidence.lives[ids[name.encode()], 0].values()
        check_way(evidence, copies, wait)
        hops = HOPS[name]  # the last of several is not taken, but waited in memory, if the others were a second late
        assert levels_of(copies) in (hops, hops[:-1] or hops)
