"""Check Kafka itself, and this user on it: whether it can be reached, rights, and limits.

Each kind of refusal is reported separately, since each is corrected elsewhere. Kafka reports the rights on topics and
groups; those on transactional ids are tried. A right on a topic that does not exist is judged as well, if Kafka says
that this user may not see the topic.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from reconsume.sidecar.core.progress_codec import NEEDED
from reconsume.sidecar.doctor.findings import Finding, fail, listed, not_checked, ok, unseen, warn
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.client_config import consumer_config, producer_config
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.credentials.reachability import Unreachable, answers, listed_in
from reconsume.sidecar.kafka.errors import FIRST_ANSWER_SECONDS, code_of, sentence_of
from reconsume.topics.acls import GroupShape, Permission, Resource, User, permissions_of

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


ROLES = (User.SIDECAR, User.ADMIN, User.ONCALL, User.UI, User.SPARK, User.SERVICE)
"""The one that the configuration is for, then the others, those with more rights first."""


class RoleFound(NamedTuple):
    """The role of the configured Kafka user, and which of its rights are missing.

    `is_given`: whether the user named it. `open`: the cluster has no authorizer.
    """

    user: User
    missing: tuple[Permission, ...] = ()
    is_given: bool = False
    open: bool = False


def role_of(cluster: Cluster, group: GroupShape, preset: User | None) -> RoleFound:
    """Return the role that the configured user has: the `preset` one, else the first of ROLES that lacks no right, else
    the one that lacks the fewest.

    Rights on transactional ids are not looked at: Kafka tells them to nobody. Raises BrokerError.
    """
    wanted = {user: permissions_of(user, group) for user in (ROLES if preset is None else (preset,))}
    if preset is None:  # a role without rights fits everybody
        wanted = {user: planned for user, planned in wanted.items() if planned} or {User.SIDECAR: ()}
    authorizers = cluster.broker_settings("authorizer.class.name")  # to describe rules fails in no way without one
    if authorizers and not any(authorizers):
        return RoleFound(next(iter(wanted)), is_given=preset is not None, open=True)
    every = {right for rights in wanted.values() for right in rights}
    topics, denied = cluster.topics({right.name for right in every if right.resource is Resource.TOPIC})
    names = {right.name for right in every if right.resource is Resource.GROUP}
    groups = cluster.groups(names)
    operations = {(Resource.TOPIC, name): topic.operations for name, topic in topics.items()}
    operations |= {(Resource.TOPIC, name): frozenset() for name in denied}
    operations |= {(Resource.GROUP, name): groups[name].operations if name in groups else frozenset() for name in names}
    candidates = [
        RoleFound(user, tuple(lacking(rights, operations)), preset is not None) for user, rights in wanted.items()
    ]
    return min(candidates, key=lambda one: len(one.missing))  # of equal ones the first


def lacking(
    wanted: Iterable[Permission], operations: Mapping[tuple[Resource, str], frozenset[str]]
) -> Iterator[Permission]:
    """Yield each right that is not among the operations that Kafka has named."""
    for right in wanted:
        if right.operation not in operations.get((right.resource, right.name), {right.operation}):
            yield right


def rights(cluster: Cluster, group: GroupShape, role: RoleFound, mend: str) -> list[Finding]:
    """Return a failure for each right that the role needs and the user lacks. `mend` is the command that grants them.

    It never gives more than the role has: a person who reads is not to become a sidecar.
    """
    planned = permissions_of(role.user, group)
    if not planned:
        return [ok("none is needed in this mode")]
    if role.open:
        return [ok("the cluster has no authorizer: every user may do everything")]
    is_plain = role.is_given or role.user is User.SIDECAR
    fits = "" if is_plain else f" (of the role {role.user}, which fits this user best; --role names another)"
    findings = [fail(f"missing: {right}{fits}", mend) for right in role.missing]
    ids = [right for right in planned if right.resource is Resource.TRANSACTIONAL_ID]
    for right in ids:
        if right.prefixed:
            findings += on_transactions(cluster.kafka, right, mend)
    if findings:
        return findings
    untried = listed(str(right) for right in ids if not right.prefixed)
    text = f"all {len(planned)} that the role {role.user} needs are there"
    return [ok(f"{text}, but {untried}, which is not tried: that would end a redrive that runs" if untried else text)]


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


def limits(cluster: Cluster, kafka: Mapping[str, str]) -> list[Finding]:
    """Report limits of the brokers that are lower than what instances need."""
    brokers = cluster.broker_configs()
    findings = [*timeouts(kafka, brokers), *metadata(brokers)]
    if not numbers(brokers, METADATA):
        mend = "give this user DESCRIBE_CONFIGS on the cluster"
        findings.append(unseen("the brokers' own limits are not for this user to see", mend))
    return findings or [ok("none is lower than what is written")]


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
