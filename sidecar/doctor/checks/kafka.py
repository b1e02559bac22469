"""Check Kafka itself, and this user on it: whether it can be reached, rights, limits, and the brokers' clocks.

Each kind of refusal is reported separately, since each is corrected elsewhere. Kafka reports the rights on topics and
groups; those on transactional ids are tried. A right on a topic that does not exist is judged as well, if Kafka says
that this user may not see the topic.

The brokers' clocks are compared with this machine's by records in a transaction that is aborted. The ready topic stores
the broker's time of each append, which the broker returns when it acknowledges a record. No reader of committed records
ever sees these records. There is no other way: Kafka has no request for its time.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message, Producer

from reconsume.sidecar.core.progress_codec import NEEDED
from reconsume.sidecar.doctor.findings import RIGHTS, Finding, fail, listed, not_checked, ok, warn
from reconsume.sidecar.hints import hint
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.client_config import consumer_config, producer_config
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.committer.record_form import COMPRESSION, STRONGEST
from reconsume.sidecar.kafka.credentials.reachability import Unreachable, answers, listed_in
from reconsume.sidecar.kafka.errors import FIRST_ANSWER_SECONDS, code_of, sentence_of
from reconsume.topics.acls import Permission, Resource
from reconsume.topics.names import Names

# --- reach -----------------------------------------------------------------------------------------------------------


CONNECT_SECONDS = 2.0
PLAIN_PORT = 9092


def reach(kafka: Mapping[str, str]) -> list[Finding]:
    """Report whether a broker answers, and whether all brokers that it names can be connected to."""
    brokers = answers(kafka)
    if isinstance(brokers, Unreachable):
        return [fail(brokers.finding, brokers.mend)]
    return [
        ok(f"{len(brokers)} {'broker answers' if len(brokers) == 1 else 'brokers answer'}"),
        *addresses(kafka, brokers),
    ]


def addresses(kafka: Mapping[str, str], brokers: Iterable[str]) -> Iterable[Finding]:
    """Report wrong addresses among those that the brokers advertise, and among the configured ones."""
    away = [address for address in brokers if not connects(address)]
    if away:
        yield fail(
            f"brokers name addresses that cannot be connected to from here: {listed(away)}",
            "advertised.listeners of these brokers must be reachable from where the sidecar runs",
        )
    servers = listed_in(kafka["bootstrap.servers"])
    dead = [address for address in servers if address not in away and not connects(address)]
    if dead:
        yield warn(
            f"bootstrap.servers has addresses where nobody answers: {listed(dead)}", "take them out, or repair them"
        )


def connects(address: str) -> bool:
    """Whether `host:port` accepts connections."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        host, port = address.rpartition("://")[2], str(PLAIN_PORT)
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


# --- rights ----------------------------------------------------------------------------------------------------------


TRY_ID = "~doctor"
"""The end of a transactional id that is only tried. No instance's name has a `~`, so no instance is fenced."""


def rights(cluster: Cluster, rights: Sequence[Permission], mend: str) -> list[Finding]:
    """Return a failure for each right that is missing. `mend` is the command that grants them."""
    if not rights:
        return [ok("none is needed in this mode")]
    authorizers = cluster.broker_settings("authorizer.class.name")  # to describe rules fails in no way without one
    if authorizers and not any(authorizers):
        return [ok("the cluster has no authorizer: every user may do everything")]
    wanted = {kind: [right.name for right in rights if right.resource is kind] for kind in Resource}
    topics, denied = cluster.topics(wanted[Resource.TOPIC])
    groups = cluster.groups(wanted[Resource.GROUP])
    operations = {(Resource.TOPIC, name): topic.operations for name, topic in topics.items()}
    operations |= {(Resource.TOPIC, name): frozenset() for name in denied}
    operations |= {
        (Resource.GROUP, name): groups[name].operations if name in groups else frozenset()
        for name in wanted[Resource.GROUP]
    }
    findings = list(lacking(rights, operations, mend))
    ids = [right for right in rights if right.resource is Resource.TRANSACTIONAL_ID]
    for right in ids:
        if right.prefixed:
            findings += on_transactions(cluster.kafka, right, mend)
    if untried := [right for right in ids if not right.prefixed]:
        text = f"{listed(map(str, untried))}: to try it would end a redrive that runs"
        findings.append(not_checked(text, f"nothing, if `{hint('dlq redrive')}` works"))
    return findings or [ok(f"all {len(rights)} that are needed are there")]


def lacking(
    wanted: Iterable[Permission], operations: Mapping[tuple[Resource, str], frozenset[str]], mend: str
) -> Iterator[Finding]:
    """Yield a failure for each right that is not among the operations that Kafka has named."""
    for right in wanted:
        if right.operation not in operations.get((right.resource, right.name), {right.operation}):
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


# --- limits ----------------------------------------------------------------------------------------------------------


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


# --- clocks ----------------------------------------------------------------------------------------------------------


WARN_MS = 1_000
"""ms. The shortest level: from this difference on retries come noticeably early or late."""
FAIL_MS = 10_000
"""ms. The first delay of the default ladder."""
ROUNDS = 2
"""Measurements per broker. The first one includes the time to connect, so the last one counts."""
SYNC = "synchronise the clocks of this machine and of the brokers (NTP)"


def clock(cluster: Cluster, names: Names) -> list[Finding]:
    """Report how far the clocks are apart, for each broker that leads a partition of the ready topic."""
    topics, denied = cluster.topics([names.ready])
    if names.ready not in topics:
        why = "this user may not see it" if denied else "it does not exist"
        mend = RIGHTS if denied else hint("topics apply")
        return [not_checked(f"it takes {names.ready}, and {why}", mend)]
    leaders = topics[names.ready].leaders
    partitions = {leader: number for number, leader in enumerate(leaders) if leader >= 0}
    try:
        differences = measured(cluster.kafka, names, partitions)
    except KafkaException as error:
        return [not_checked(sentence_of(error), RIGHTS)]
    if not differences:
        return [not_checked(f"{names.ready} does not carry the broker's time", "see the check of topics")]
    return [judged(broker, *topics) for broker, topics in sorted(differences.items())]


def judged(broker: int, offset: float, accuracy: float) -> Finding:
    """Return the finding for one broker. `offset`: ms that it is ahead of this machine, true within `accuracy`."""
    where = "ahead of" if offset >= 0 else "behind"
    certain = max(0.0, abs(offset) - accuracy)
    if certain < WARN_MS:
        return ok(f"broker {broker} is within {abs(offset) + accuracy:.0f} ms")
    text = f"broker {broker} is {certain / 1000:.1f} s {where} this machine: retries come early or late by as much"
    return fail(text, SYNC) if certain >= FAIL_MS else warn(text, SYNC)


def measured(kafka: Mapping[str, str], names: Names, partitions: Mapping[int, int]) -> dict[int, tuple[float, float]]:
    """Return by broker how many ms it is ahead of this machine, and how wrong that may be. Raises KafkaException."""
    config = {
        **producer_config(kafka, f"{names.group}-retry-~clock", "reconsume-doctor"),
        "transaction.timeout.ms": 5_000,
        "delivery.report.only.error": False,
        "log_level": 0,
    }
    producer = make_client(Producer, config)
    producer.init_transactions(FIRST_ANSWER_SECONDS)
    producer.begin_transaction()
    try:
        rounds = [one_round(producer, names.ready, partitions) for _ in range(ROUNDS)]
    finally:
        with suppress(KafkaException):  # an earlier error says more; the broker ends it after 5 s by itself
            producer.abort_transaction(FIRST_ANSWER_SECONDS)
    return rounds[-1]


def one_round(producer: Producer, topic: str, partitions: Mapping[int, int]) -> dict[int, tuple[float, float]]:
    """Send one record to each broker, and return what its append time says. Raises KafkaException."""
    by_partition: dict[int, tuple[float, float]] = {}
    faults: list[KafkaError] = []
    sent = time.time() * 1_000

    def landed(error: KafkaError | None, message: Message) -> None:
        kind, stamp = message.timestamp()
        back = time.time() * 1_000
        if error is not None:
            faults.append(error)
        elif kind == TIMESTAMP_LOG_APPEND_TIME:
            by_partition[message.partition() or 0] = (stamp - (sent + back) / 2, (back - sent) / 2 + 1)

    for number in partitions.values():
        producer.produce(topic, b"", partition=number, on_delivery=landed)
    producer.flush(FIRST_ANSWER_SECONDS)
    if faults:
        raise KafkaException(faults[0])
    return {broker: by_partition[number] for broker, number in partitions.items() if number in by_partition}
