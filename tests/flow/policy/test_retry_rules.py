"""Rules on a real broker: each failure has the way of its topic and reason, also while the policy changes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from reconsume.topics.retry_headers import RETRY_EXPIRES_AT, RETRY_REASON
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.topic_io import dump, produce
from tests.support.proof.invariants import GRAIN
from tests.support.service.behaviours import OK, Answer, by_name, verdict
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.policy import CALM, follows, set_policy, with_policy

BUSY, GONE = Answer(409), Answer(410)
SCRIPT = by_name(
    {
        "busy": (BUSY,),
        "gone": (GONE, OK),
        "other": (Answer(500), OK),
        "worthless": (verdict("retry; expires=500ms"),),
        "patient": (verdict("retry; expires=1h; reason=wait"), OK),
    }
)
RULES = [
    {"name": "busy", "reasons": ["http-409"], "ladder": ["2s"], "max_reconsume_times": 1},
    {"name": "gone", "topics": ["orders*"], "reasons": ["http-41?"], "dead_letter": True},
]


@pytest.mark.parametrize("live", [False, True], ids=["in the file", "in the group's policy"])
def test_each_failure_has_the_way_of_its_rule_and_worthless_records_expire(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, live: bool
) -> None:
    group = with_policy(new_group())
    service = start_service(SCRIPT)
    ruled = {**CALM, "retry": {"ladder": ["1s"], "rules": RULES}}
    sidecar = start_sidecar(group, service.url, overrides={**CALM, "retry": {"ladder": ["1s"]}} if live else ruled)
    if live:
        set_policy(group, rules=RULES)
        follows(sidecar, rules=RULES)
    names = ("busy", "gone", "other", "worthless", "patient")
    produce(group.bootstrap, group.main, [f"{name}:{number}".encode() for name in names for number in range(5)])
    sidecar.until(lambda: len(dump(group.bootstrap, group.dlq)) == 15, 30, "the busy, the gone, the worthless are dead")
    sidecar.until(lambda: len(service.ledger.taken()) == 10, 30, "the others are taken")
    counts = Counter((delivery.value or b"").partition(b":")[0] for delivery in service.ledger.deliveries())
    assert counts == {b"busy": 10, b"gone": 5, b"other": 10, b"worthless": 5, b"patient": 10}
    reasons = Counter(dict(row.headers)[RETRY_REASON] for row in dump(group.bootstrap, group.dlq))
    assert reasons == {b"http-409": 5, b"http-410": 5, b"expired: retry-asked": 5}
    first, second = (one for one in service.ledger.deliveries() if one.value == b"busy:0")
    assert first.answered is not None
    assert second.received - first.answered >= 2_000 - GRAIN
    waited = [row for row in dump(group.bootstrap, group.names.level(1_000, group.main)) if row.value == b"patient:0"]
    assert int(dict(waited[0].headers)[RETRY_EXPIRES_AT] or b"") > 0


def test_rules_are_set_and_shown(new_group: FreshGroup, tmp_path: Path) -> None:
    group = with_policy(new_group())
    tree = {
        "group": group.group,
        "topics": list(group.mains),
        "kafka": {"bootstrap.servers": group.bootstrap},
        "deliver": {"url": "http://127.0.0.1:1/"},
        "retry": {"levels": [f"{delay}ms" for delay in group.delays], "ladder": ["1s"]},
    }
    (tmp_path / "reconsume.yaml").write_text(json.dumps(tree), encoding="utf-8")
    command = ("policy", "set", "--yes", "-c", str(tmp_path / "reconsume.yaml"))
    for rules in (
        "[{name: busy, reasons: [http-409]}, {name: gone, dead_letter: true}]",
        "[{name: busy, reasons: [timeout]}]",
    ):
        result = reconsume(*command, f"rules={rules}")
        assert result.exit_code == 0, result.stderr
    shown = reconsume("policy", "show", "-c", str(tmp_path / "reconsume.yaml"))
    (row,) = (row for row in map(json.loads, shown.stdout.splitlines()) if row["key"] == "rules")
    assert row == {"key": "rules", "value": [{"name": "busy", "reasons": ["timeout"]}], "origin": "policy"}
    table = reconsume("policy", "show", "-c", str(tmp_path / "reconsume.yaml"), "-o", "table").stdout
    assert "busy" in table
    assert "[timeout]" in table
