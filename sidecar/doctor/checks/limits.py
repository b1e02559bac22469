"""Check limits that a record or its progress may meet on its way: of the brokers, and of the configured client."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from reconsume.sidecar.core.progress_codec import NEEDED
from reconsume.sidecar.doctor.findings import Finding, fail, listed, not_checked, ok, warn
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.client_config import consumer_config, producer_config
from reconsume.sidecar.kafka.committer.record_form import COMPRESSION, STRONGEST

METADATA = "offset.metadata.max.bytes"


def limits(cluster: Cluster, kafka: Mapping[str, str], posted: Collection[str] = ()) -> list[Finding]:
    """Report limits that are lower than what the main topics' records may need.

    `posted`: the topics whose records a service posts; their limits decide how large a post may be.
    """
    findings = [*packing(kafka)]
    hidden = set(posted) - cluster.settings(posted).keys()
    if hidden:
        text = (
            f"posts to /v1/retry are limited as for Kafka's default: the limits of {listed(hidden)} are not to be seen"
        )
        findings.append(not_checked(text, "give this user DESCRIBE_CONFIGS on them, if their records may be larger"))
    brokers = cluster.broker_configs()
    findings += [*timeouts(kafka, brokers), *metadata(brokers)]
    if not numbers(brokers, METADATA):
        mend = "give this user DESCRIBE_CONFIGS on the cluster"
        findings.append(not_checked("the brokers' own limits are not for this user to see", mend))
    return findings or [ok("none is lower than what is written")]


def packing(kafka: Mapping[str, str]) -> Iterator[Finding]:
    """Report a codec of the user's own that may make copies larger than the records were on their way."""
    for name in COMPRESSION:
        if name in kafka and kafka[name] != STRONGEST:
            text = f"kafka.{name}: {kafka[name]}: a copy of a record that its producer packed smaller may not fit"
            yield warn(text, PACK)


def metadata(brokers: Sequence[Mapping[str, str]]) -> Iterator[Finding]:
    """Report brokers that take less metadata with an offset than progress may need."""
    if (least := min(numbers(brokers, METADATA), default=NEEDED)) < NEEDED:
        yield fail(
            f"{METADATA} is {least}: an instance exits with 78 before its first delivery",
            f"set {METADATA} to {NEEDED} on the brokers",
        )


def timeouts(kafka: Mapping[str, str], brokers: Sequence[Mapping[str, str]]) -> Iterator[Finding]:
    """Report timeouts for which the brokers take no member into a group, or no transactional producer."""
    consumer, producer = consumer_config(kafka, ANY, ANY), producer_config(kafka, ANY, ANY)
    if SESSION in consumer:  # with KIP-848 the brokers set it
        session, least = int(str(consumer[SESSION])), max(numbers(brokers, f"group.min.{SESSION}"), default=0)
        most = min(numbers(brokers, f"group.max.{SESSION}"), default=session)
        if not least <= session <= most:
            text = f"kafka.{SESSION} is {session}, and the brokers take {least} to {most}"
            yield fail(f"{text}: no instance is taken into the group", f"set kafka.{SESSION} within these bounds")
    open_for = int(str(producer[TRANSACTION]))
    if open_for > (most := min(numbers(brokers, "transaction.max.timeout.ms"), default=open_for)):
        text = f"kafka.{TRANSACTION} is {open_for}, and the brokers take {most} at most: nothing can be written"
        yield fail(text, "raise transaction.max.timeout.ms on the brokers")


def numbers(brokers: Sequence[Mapping[str, str]], name: str) -> list[int]:
    """Return the brokers' values of a setting, as far as they are known."""
    return [int(value) for config in brokers if (value := config.get(name, "")).isdecimal()]


ANY = "doctor"
SESSION, TRANSACTION = "session.timeout.ms", "transaction.timeout.ms"
PACK = f"leave it out: copies are packed by {STRONGEST} where a topic refuses them as they are"
