"""Every change that Reconsume makes to a cluster: topics, partitions, deleted records, access rules (ACLs), groups.

What the cluster refuses to change is part of the result, never an exception. Topics and consumer groups are deleted
with the whole group alone (`group delete`). Access rules are read here too, as plain values, to be compared with those
that are wanted.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the package re-exports them without saying so
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.kafka.admin.cluster import DENIED, SILENT, Connection
from reconsume.sidecar.kafka.admin.descriptions import PartitionName
from reconsume.sidecar.kafka.errors import ANSWER_SECONDS, code_of, sentence_of
from reconsume.topics.acls import Permission, Resource
from reconsume.topics.specs import TopicSpec

LISTED_WITHIN = 30.0
"""Seconds until a new topic must be listed. On an idle cluster it takes milliseconds."""
STEP_S = 0.05


class CreateState(StrEnum):
    """The outcome of a request to create a topic, or to give it partitions."""

    CREATED = "created"
    GROWN = "grown"
    EXISTS = "exists"
    FAILED = "failed"


class CreateResult(NamedTuple):
    """The outcome for one topic; `error` is the broker's reason if it failed."""

    name: str
    state: CreateState
    error: str = ""


class TopicAdmin:
    """The requests that change topics. What the cluster refuses to change is part of the result, never an exception."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(self, specs: Sequence[TopicSpec], *, only_ask: bool = False) -> tuple[CreateResult, ...]:
        """Create the topics, each by itself. With `only_ask` find out whether the broker would create them.

        A topic that another client has created meanwhile is `exists`. The caller must check whether its settings are
        right. The broker that is asked here lists the created topics then: a controller creates a topic before the
        brokers know (KRaft). Raises BrokerError if they are not listed in `LISTED_WITHIN` seconds.
        """
        if not specs:
            return ()
        wanted = [
            NewTopic(spec.name, num_partitions=spec.partitions, replication_factor=spec.replication, config=spec.config)
            for spec in specs
        ]
        futures = self._connection.client.create_topics(
            wanted, operation_timeout=ANSWER_SECONDS, request_timeout=ANSWER_SECONDS, validate_only=only_ask
        )
        results = self._results(futures, CreateState.CREATED)
        if not only_ask:
            self._await_listed([result.name for result in results if result.state is CreateState.CREATED])
        return results

    def grow(self, specs: Sequence[TopicSpec], *, only_ask: bool = False) -> tuple[CreateResult, ...]:
        """Give topics the partitions that they lack. With `only_ask` find out whether the broker would."""
        if not specs:
            return ()
        futures = self._connection.client.create_partitions(
            [NewPartitions(spec.name, spec.partitions) for spec in specs],
            operation_timeout=ANSWER_SECONDS,
            request_timeout=ANSWER_SECONDS,
            validate_only=only_ask,
        )
        return self._results(futures, CreateState.GROWN)

    def _results(self, futures: Mapping[str, Future[Any]], done: CreateState) -> tuple[CreateResult, ...]:
        return tuple(_created(name, error, done) for name, error in self._connection.errors_of(futures).items())

    def delete(self, names: Sequence[str]) -> dict[str, str]:
        """Delete topics. Return the broker's reason for each that it refuses; empty for one that is gone."""
        if not names:
            return {}
        futures = self._connection.client.delete_topics(
            list(names), operation_timeout=ANSWER_SECONDS, request_timeout=ANSWER_SECONDS
        )
        return self._refusals(futures, KafkaError.UNKNOWN_TOPIC_OR_PART)

    def delete_groups(self, names: Sequence[str]) -> dict[str, str]:
        """Delete consumer groups. Kafka refuses one that has members. Return the same as `delete`."""
        if not names:
            return {}
        futures = self._connection.client.delete_consumer_groups(list(names), request_timeout=ANSWER_SECONDS)
        return self._refusals(futures, KafkaError.GROUP_ID_NOT_FOUND)

    def _refusals(self, futures: Mapping[str, Future[Any]], gone: int) -> dict[str, str]:
        errors = self._connection.errors_of(futures)
        return {
            name: "" if error is None or error.code() == gone else sentence_of(error) for name, error in errors.items()
        }

    def _await_listed(self, created: Collection[str]) -> None:
        until = time.monotonic() + LISTED_WITHIN
        while created := self._unlisted(created):
            if time.monotonic() > until:
                raise BrokerError(f"created, but not listed within {LISTED_WITHIN:.0f} s: {', '.join(created)}")
            time.sleep(STEP_S)

    def _unlisted(self, names: Collection[str]) -> list[str]:
        def send(some: Collection[str]) -> Mapping[str, Future[Any]]:
            return self._connection.client.describe_topics(TopicCollection(list(some)), request_timeout=ANSWER_SECONDS)

        unknown = KafkaError.UNKNOWN_TOPIC_OR_PART
        _, refused = self._connection.answers("topic {}".format, names, send, DENIED | {unknown})
        return [name for name, code in refused.items() if code == unknown]

    def delete_records(self, before: Mapping[PartitionName, int]) -> dict[PartitionName, str]:
        """Delete all records below an offset of each partition. Return the broker's reasons where it refuses."""
        topic_partitions = [TopicPartition(*partition, offset) for partition, offset in before.items()]
        futures = self._connection.client.delete_records(topic_partitions, request_timeout=2 * ANSWER_SECONDS)
        errors = self._connection.errors_of(futures)
        return {(one.topic, one.partition): sentence_of(error) for one, error in errors.items() if error is not None}


def _created(name: str, error: KafkaError | None, done: CreateState) -> CreateResult:
    if error is None:
        return CreateResult(name, done)
    if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
        return CreateResult(name, CreateState.EXISTS)
    return CreateResult(name, CreateState.FAILED, sentence_of(error))


ANY_HOST = "*"
TYPES = {
    Resource.TOPIC: ResourceType.TOPIC,
    Resource.GROUP: ResourceType.GROUP,
    Resource.TRANSACTIONAL_ID: ResourceType.TRANSACTIONAL_ID,
}
KINDS = {kind: resource for resource, kind in TYPES.items()}


class Rule(msgspec.Struct, frozen=True):
    """An access rule of the cluster. `operation` and `pattern` are Kafka's words; `allow` is False if it denies."""

    principal: str
    resource: Resource
    name: str
    pattern: str
    operation: str
    allow: bool = True
    host: str = ANY_HOST


class HiddenRulesError(BrokerError):
    """This user may not read the access rules, or the cluster has none: nothing can be compared with them."""


class Acls:
    """The access rules of a cluster."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def found(self) -> tuple[Rule, ...]:
        """Return every rule on topics, groups and transactional ids.

        Raises HiddenRulesError if this user may not see them, and BrokerError if they cannot be read.
        """
        anything: Any = None  # the client's types require text, but it takes None for all
        everything = AclBindingFilter(
            ResourceType.ANY,
            anything,
            ResourcePatternType.ANY,
            anything,
            anything,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        try:
            bindings = self._connection.answer(
                self._connection.client.describe_acls(everything, request_timeout=ANSWER_SECONDS)
            )
            # No rules may also mean that this user may not see them: the client (2.16) does not report the refusal.
            if not bindings:
                self._expect_to_see()
        except KafkaException as error:
            hidden = code_of(error) in (KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.SECURITY_DISABLED)
            failure = HiddenRulesError if hidden else BrokerError
            raise failure(f"the access rules cannot be read: {self._why(error.args[0])}") from error
        return tuple(rule_of(binding) for binding in bindings if binding.restype in KINDS)

    def _expect_to_see(self) -> None:
        """Raise KafkaException if this user may not see the rules."""
        described = self._connection.answer(
            self._connection.client.describe_cluster(include_authorized_operations=True, request_timeout=ANSWER_SECONDS)
        )
        if AclOperation.DESCRIBE not in (described.authorized_operations or ()):
            raise KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED))

    def create(self, principal: str, rights: Sequence[Permission]) -> dict[Permission, str]:
        """Create a rule for each right.

        Returns for each right the broker's reason for a refusal, or an empty string if the rule was created.
        """
        wanted = {binding_of(principal, right): right for right in rights}
        if not wanted:
            return {}
        futures = self._connection.client.create_acls(list(wanted), request_timeout=ANSWER_SECONDS)
        errors = self._connection.errors_of(futures)
        return {wanted[binding]: "" if error is None else self._why(error) for binding, error in errors.items()}

    def delete(self, rules: Sequence[Rule]) -> dict[Rule, str]:
        """Delete exactly these rules. Return for each the broker's reason for a refusal; empty if it is gone."""
        filters = {filter_of(rule): rule for rule in rules}
        if not filters:
            return {}
        futures = self._connection.client.delete_acls(list(filters), request_timeout=ANSWER_SECONDS)
        errors = self._connection.errors_of(futures)
        return {filters[one]: "" if error is None else self._why(error) for one, error in errors.items()}

    def _why(self, error: KafkaError) -> str:
        if error.code() in SILENT:
            return self._connection.silence()
        match error.code():
            case KafkaError.SECURITY_DISABLED:
                return "the cluster has no authorizer: everybody may do everything"
            case KafkaError.CLUSTER_AUTHORIZATION_FAILED:
                return "this user needs DESCRIBE (to read them) and ALTER (to create them) on the cluster"
            case _:
                return sentence_of(error)


def rule_of(binding: Any) -> Rule:
    """Return a binding of the client as a plain value.

    The client's types also admit text and numbers, which it never returns.
    """
    return Rule(
        principal=binding.principal,
        resource=KINDS[binding.restype],
        name=binding.name,
        pattern=binding.resource_pattern_type.name.lower(),
        operation=binding.operation.name,
        allow=binding.permission_type == AclPermissionType.ALLOW,
        host=binding.host,
    )


def filter_of(rule: Rule) -> AclBindingFilter:
    """Return what matches this rule and no other."""
    kind = AclPermissionType.ALLOW if rule.allow else AclPermissionType.DENY
    pattern, operation = ResourcePatternType[rule.pattern.upper()], AclOperation[rule.operation]
    return AclBindingFilter(TYPES[rule.resource], rule.name, pattern, rule.principal, rule.host, operation, kind)


def binding_of(principal: str, right: Permission) -> AclBinding:
    """Return a right of a principal as a binding of the client."""
    pattern = ResourcePatternType.PREFIXED if right.prefixed else ResourcePatternType.LITERAL
    operation = AclOperation[right.operation.value]
    return AclBinding(
        TYPES[right.resource], right.name, pattern, principal, ANY_HOST, operation, AclPermissionType.ALLOW
    )
