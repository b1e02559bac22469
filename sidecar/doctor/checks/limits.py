"""Check limits that a record or its progress may meet on its way: of the brokers, and of the configured client."""

from __future__ import annotations

from collections.abc import Mapping

from sidecar.core.progress_codec import LONGEST
from sidecar.doctor.findings import Finding, ok, warn
from sidecar.kafka.admin.cluster import Cluster
from sidecar.kafka.committer.record_form import COMPRESSION, STRONGEST

METADATA = "offset.metadata.max.bytes"


def limits(cluster: Cluster, kafka: Mapping[str, str]) -> list[Finding]:
    """Report limits that are lower than what the main topics' records may need."""
    findings = [
        warn(f"kafka.{name}: {kafka[name]}: a copy of a record that its producer packed smaller may not fit", PACK)
        for name in COMPRESSION
        if name in kafka and kafka[name] != STRONGEST
    ]
    told = cluster.broker_settings(METADATA)
    least = min((int(value) for value in told if value.isdecimal()), default=LONGEST)
    if least < LONGEST:
        text = f"{METADATA} is {least}: after a crash, finished records far above the first open one come again"
        findings.append(warn(text, f"set {METADATA} to {LONGEST} on the brokers"))
    unseen = "" if told else " (the brokers' own are not for this user to see)"
    return findings or [ok(f"none is lower than what is written{unseen}")]


PACK = f"leave it out: copies are packed by {STRONGEST} where a topic refuses them as they are"
