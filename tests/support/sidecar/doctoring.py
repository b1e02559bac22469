"""What the checks of the doctor are given, and the worst that they found."""

from __future__ import annotations

import time
from collections.abc import Sequence

from reconsume.sidecar.doctor.findings import Finding, Report, Status
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import Topic
from reconsume.topics.specs import TopicSpec
from tests.support.deadline import until
from tests.support.kafka.group_topics import set_config
from tests.support.kafka.topic_io import SECONDS

DAY = 86_400_000
DELAYS = (1_000,)


def now() -> int:
    return time.time_ns() // 1_000_000


def worst(findings: Sequence[Finding]) -> tuple[Status, str]:
    report = Report("any", tuple(findings))
    return report.status, "; ".join(found.finding for found in report.bad)


def configured(bootstrap: str, topic: str, name: str, value: str) -> None:
    """Change a setting, and wait until the broker says so."""
    set_config(bootstrap, topic, name, value)
    cluster = Cluster({"bootstrap.servers": bootstrap})
    until(lambda: cluster.settings([topic])[topic][name] == value, SECONDS, f"{name} of {topic} is {value}")


def nothing(_spec: TopicSpec, _found: Topic) -> list[tuple[str, str]]:
    return []
