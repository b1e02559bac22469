"""Records that a service asks to be written with its verdict: what a lane adds to them, and what a refusal means."""

from __future__ import annotations

from msgspec.structs import replace

from reconsume.sidecar.core.commit_batch import Refusal
from reconsume.sidecar.core.outcome import Outputs
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.record import Record, weight_of
from reconsume.topics.attempt import attempt_of
from reconsume.topics.outputs import stamped
from reconsume.topics.render_headers import attempt_before


def with_outputs(record: Record, outputs: Outputs, policy: Policy) -> tuple[Record, Outputs]:
    """Return the record with the weight of its outputs, which it has until it is done, and the outputs stamped."""
    trace = attempt_before(record.headers or []) if policy.traced else None
    more_bytes = sum(weight_of(copy.key, copy.value, copy.headers, None) for copy in outputs)
    group = policy.names.group
    # Contract 13.2: what a service asks to be written is memory of the lane too, until it is in Kafka.
    return replace(record, weight=record.weight + more_bytes), stamped(
        outputs, group, record.id, attempt_of(record), trace
    )


def is_about_output(refusal: Refusal) -> bool:
    """Return whether Kafka refuses for good what the service asked to be written.

    A partition without a leader is no reason to fail: the record waits for it, as for that of a copy.
    """
    entry = refusal.entry
    # Contract 7.7: what has no leader now will have one. To fail would spend a retry for an outage of Kafka.
    if not entry.outputs or refusal.about == "partition":
        return False
    topic = refusal.where.partition("[")[0]
    return not topic or any(copy.topic == topic for copy in entry.output_writes)
