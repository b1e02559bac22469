"""Check limits that a record or its progress may meet on its way: of the brokers, and of the configured client."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sidecar.core.progress_codec import LONGEST
from sidecar.doctor.findings import Finding, listed, ok, warn
from sidecar.kafka.admin.cluster import Cluster
from sidecar.kafka.committer.record_form import COMPRESSION, STRONGEST

METADATA = "offset.metadata.max.bytes"


def limits(cluster: Cluster, kafka: Mapping[str, str], posted: Collection[str] = ()) -> list[Finding]:
    """Report limits that are lower than what the main topics' records may need.

    `posted`: the topics whose records a service posts; their limits decide how large a post may be.
    """
    findings = [
        warn(f"kafka.{name}: {kafka[name]}: a copy of a record that its producer packed smaller may not fit", PACK)
        for name in COMPRESSION
        if name in kafka and kafka[name] != STRONGEST
    ]
    hidden = set(posted) - cluster.settings(posted).keys()
    if hidden:
        text = (
            f"posts to /v1/retry are limited as for Kafka's default: the limits of {listed(hidden)} are not to be seen"
        )
        findings.append(warn(text, "give this user DESCRIBE_CONFIGS on them, if their records may be larger"))
    told = cluster.broker_settings(METADATA)
    least = min((int(value) for value in told if value.isdecimal()), default=LONGEST)
    if least < LONGEST:
        text = f"{METADATA} is {least}: after a crash, finished records far above the first open one come again"
        findings.append(warn(text, f"set {METADATA} to {LONGEST} on the brokers"))
    unseen = "" if told else " (the brokers' own are not for this user to see)"
    return findings or [ok(f"none is lower than what is written{unseen}")]


PACK = f"leave it out: copies are packed by {STRONGEST} where a topic refuses them as they are"
