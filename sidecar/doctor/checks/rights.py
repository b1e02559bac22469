"""Find the rights that a user needs and does not have.

Kafka reports the rights on topics and groups; those on transactional ids are tried. A right on a topic that does not
exist is judged as well, if Kafka says that this user may not see the topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException, Producer

from reconsume.sidecar.doctor.findings import Finding, fail, listed, not_checked, ok
from reconsume.sidecar.hints import hint
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.client_config import producer_config
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.errors import FIRST_ANSWER_SECONDS, code_of, sentence_of
from reconsume.topics.acls import Permission, Resource

TRY_ID = "~doctor"
"""The end of a transactional id that is only tried. No instance's name has a `~`, so no instance is fenced."""


def rights(cluster: Cluster, rights: Sequence[Permission], mend: str) -> list[Finding]:
    """Return a failure for each right that is missing. `mend` is the command that grants them."""
    if not rights:
        return [ok("none is needed in this mode")]
    authorizers = cluster.broker_settings("authorizer.class.name")  # to describe rules fails in no way without one
    if authorizers and not any(authorizers):
        return [ok("the cluster has no authorizer: every user may do everything")]
    findings = [*on_topics(cluster, rights, mend), *on_groups(cluster, rights, mend)]
    ids = [right for right in rights if right.resource is Resource.TRANSACTIONAL_ID]
    for right in ids:
        if right.prefixed:
            findings += on_transactions(cluster.kafka, right, mend)
    if untried := [right for right in ids if not right.prefixed]:
        text = f"{listed(map(str, untried))}: to try it would end a redrive that runs"
        findings.append(not_checked(text, f"nothing, if `{hint('dlq redrive')}` works"))
    return findings or [ok(f"all {len(rights)} that are needed are there")]


def on_topics(cluster: Cluster, rights: Sequence[Permission], mend: str) -> Iterator[Finding]:
    """Report the rights that are missing on topics."""
    wanted = [right for right in rights if right.resource is Resource.TOPIC]
    topics, denied = cluster.topics(right.name for right in wanted)
    operations = {name: topic.operations for name, topic in topics.items()} | dict.fromkeys(denied, frozenset())
    yield from lacking(wanted, operations, mend)


def on_groups(cluster: Cluster, rights: Sequence[Permission], mend: str) -> Iterator[Finding]:
    """Report the rights that are missing on groups."""
    wanted = [right for right in rights if right.resource is Resource.GROUP]
    groups = cluster.groups(right.name for right in wanted)
    operations = {right.name: frozenset[str]() for right in wanted}
    yield from lacking(wanted, operations | {name: described.operations for name, described in groups.items()}, mend)


def lacking(wanted: Iterable[Permission], operations: Mapping[str, frozenset[str]], mend: str) -> Iterator[Finding]:
    """Yield a failure for each right that is not among the operations."""
    for right in wanted:
        if right.name in operations and right.operation not in operations[right.name]:
            yield fail(f"missing: {right}", mend)


def on_transactions(kafka: Mapping[str, str], right: Permission, mend: str) -> Iterator[Finding]:
    """Report whether transactions may begin under such an id, by preparing a producer.

    Nothing is written to any topic.
    """
    identity = f"{right.name}{TRY_ID}"
    producer = make_client(Producer, {**producer_config(kafka, identity, "reconsume-doctor"), "log_level": 0})
    try:
        producer.init_transactions(FIRST_ANSWER_SECONDS)
    except KafkaException as error:
        if code_of(error) == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            yield fail(f"missing: {right}", mend)
        else:
            yield not_checked(f"{right}: {sentence_of(error)}")
