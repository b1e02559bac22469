"""The ladder ends while a key is parked: it stays so, and what a person has tried is tried in place, until decided."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from reconsume.topics.names import Kind
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.flow.modes.test_ordered_park import put
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import dump
from tests.support.proof.audited import violations
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import BadFails
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.config import Config, config_of
from tests.support.sidecar.policy import follows

PARK: Config = {
    "deliver": {"order": "key", "outage_failures": None},
    "retry": {
        "ordered_ladder": ["1s"],
        "max_reconsume_times": 0,
        "ordered_exhausted": "park",
        "ordered_interval": "100ms",
    },
}


def test_a_key_that_is_parked_as_the_ladder_ends_waits_for_a_person_who_may_decide_between_two_tries(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    group = create_group(replace(new_group(), delays=(), queued=True), 1, also=[Kind.POLICY])
    file = tmp_path / "operator.json"
    file.write_text(json.dumps(config_of(group, "http://127.0.0.1:1/", 8471, PARK)), encoding="utf-8")

    def operator(*words: str) -> None:
        done = reconsume(*words, "--yes", "-c", file)
        assert done.exit_code in (0, 3), done.stderr  # 3: it is written, and its owner is busy

    service = start_service(BadFails())
    sidecar = start_sidecar(group, service.url, overrides=PARK)
    first, behind = put(group, (b"bad", b"a"), (b"behind", b"a"))
    sidecar.until(lambda: sidecar.key_count("parked") == 1, 20, "it is parked")
    operator("policy", "set", "ordered_ladder=null", "ordered_exhausted=dead-letter")
    follows(sidecar, ordered_ladder=None, ordered_exhausted="dead-letter")
    operator("settle", first, "--retry-now", "--why", "mended")
    sidecar.until(lambda: len(service.ledger.of(first)) > 5, 20, "it was parked still, and is tried in place now")
    operator("settle", first, "--dead-letter", "--why", "never")
    sidecar.until(lambda: bool(service.ledger.of(behind)), 10, "the next one goes")
    await_quiet(group, 20)
    (letter,) = dump(group.bootstrap, group.dlq)
    assert dict(letter.headers)["RETRY_REASON"].startswith(b"by-operator")
    tried = len(service.ledger.of(first))
    assert sidecar.stop().code == 0
    assert len(service.ledger.of(first)) == tried, "it is not tried after the decision"
    assert violations(group, tmp_path, PARK) == []
