"""The doctor and the lists on a group that a Spark query reads: they know how far it is, and start no other reader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconsume.sidecar.cli.instances import rows_of
from reconsume.sidecar.clock import now as now_of
from reconsume.sidecar.doctor.checks.control_log import instances_differ
from reconsume.sidecar.doctor.checks.instances import instances
from reconsume.sidecar.doctor.checks.progress import LONG, SLACK, groups, overdue, overdue_finding, progress
from reconsume.sidecar.doctor.checks.sums import failures, lag
from reconsume.sidecar.doctor.findings import Finding, Status
from reconsume.sidecar.group_policy.control_log import ControlLog
from reconsume.sidecar.group_policy.queries import is_gated, live_queries
from reconsume.sidecar.group_policy.state import ControlState
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.settings import load
from reconsume.sidecar.settings.model import Settings
from reconsume.sidecar.ui.progress import read_lags
from reconsume.spark.consumer.brokers import Lookup
from reconsume.spark.consumer.claim import Claim
from reconsume.topics.acls import GroupShape
from reconsume.topics.ownership import CLAIM_LIVES
from tests.support.kafka.group_topics import GroupTopics
from tests.support.kafka.topic_io import Out, produce
from tests.support.sidecar.doctoring import DELAYS, now, worst

(DELAY,) = DELAYS
LATER = DELAY + LONG + SLACK


@pytest.fixture
def query(topics: GroupTopics) -> Iterator[Claim]:
    claim = Claim({"bootstrap.servers": topics.bootstrap}, topics.names, "ship", topics.mains, gated=True)
    claim.hold()
    yield claim
    claim.withdraw()


@pytest.fixture
def settings(topics: GroupTopics, tmp_path: Path) -> Settings:
    file = tmp_path / "reconsume.yaml"
    tree = {
        "group": topics.group,
        "topics": list(topics.mains),
        "kafka": {"bootstrap.servers": topics.bootstrap},
        "deliver": {"mode": "spark"},
        "retry": {"levels": ["1s"], "ladder": ["1s"]},
    }
    file.write_text(json.dumps(tree), encoding="utf-8")
    return load(file, [], {})


def state_of(settings: Settings) -> ControlState:
    return ControlLog(Cluster(settings.kafka), settings.names).read()


def done(topics: GroupTopics, offset: int) -> None:
    """Leave progress of the query."""
    at = {(topic, 0): offset for topic in (topics.main, *topics.levels)}
    Lookup({"bootstrap.servers": topics.bootstrap}, {}).commit(topics.names.spark_group("ship"), at)


def starts_nobody(findings: list[Finding]) -> bool:
    """Whether no finding asks for another reader."""
    return not any("start" in finding.mend for finding in findings)


def test_what_a_query_has_handled_is_not_overdue_and_what_it_has_not_is_its_own(
    cluster: Cluster, topics: GroupTopics, group: GroupShape, query: Claim, settings: Settings
) -> None:
    """D4: a healthy group, of which the doctor said that no instance has the partition and to start one."""
    (level,) = topics.levels
    produce(topics.bootstrap, level, [Out(b"v", partition=0)] * 2)
    produce(topics.bootstrap, topics.names.events, [b"{}"])
    done(topics, 2)
    state = state_of(settings)
    assert worst(overdue(cluster, group, now() + LATER, state=state))[0] is Status.OK
    assert progress(cluster, group, state)[0].status is Status.OK
    assert 'the Spark query "ship" (host ' in groups(cluster, group, state)[0].finding
    done(topics, 1)
    [named] = [one for one in live_queries(state, now()) if is_gated(one)]
    mend = overdue_finding((level, 0), 1, 2, LONG, None, [named]).mend
    assert mend.startswith('the Spark query "ship" (host ')
    [finding] = overdue(cluster, group, now() + LATER, state=state)
    assert finding.mend.startswith("nobody reads the partition: start"), "the query is silent by then"


def test_no_check_of_instances_asks_for_one_while_a_query_reads(
    topics: GroupTopics, query: Claim, settings: Settings
) -> None:
    state, at = state_of(settings), now_of()
    findings = [
        *instances(state, settings, at),
        *instances_differ(state, settings, at.wall_ms),
        *failures(state, at),
        *lag(state, settings.topic_names, at),
    ]
    assert starts_nobody(findings)
    assert any(
        finding.status is Status.NOT_CHECKED and finding.finding == 'the Spark job "ship" reads it'
        for finding in findings
    )


def test_a_query_that_was_killed_is_named_until_another_reads_or_its_progress_is_gone(
    cluster: Cluster,
    topics: GroupTopics,
    group: GroupShape,
    query: Claim,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done(topics, 0)
    state = state_of(settings)
    monkeypatch.setattr("reconsume.sidecar.doctor.checks.progress.wall", lambda: now() + CLAIM_LIVES + SLACK + 1_000)
    silent = [finding for finding in progress(cluster, group, state) if "has been silent for 2m" in finding.finding]
    assert [finding.mend for finding in silent] == ["start it again; it goes on where it stopped"]
    query.withdraw()
    assert not any("silent" in finding.finding for finding in progress(cluster, group, state_of(settings)))


def test_a_query_is_a_row_of_the_instances_with_the_lag_of_what_it_reads(
    cluster: Cluster, topics: GroupTopics, query: Claim, settings: Settings
) -> None:
    produce(topics.bootstrap, topics.main, [Out(b"v", partition=0)] * 5)
    done(topics, 2)
    lags = read_lags(cluster, settings)
    [row] = rows_of(state_of(settings), {}, lags, settings, now())
    shown = {name: row[name] for name in ("instance", "state", "topics", "mode", "lag")}
    assert shown == {"instance": "spark/ship", "state": "live", "topics": [topics.main], "mode": "spark", "lag": 3}
