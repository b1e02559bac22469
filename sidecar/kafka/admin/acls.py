"""Read and create access rules (ACLs) of the cluster, as plain values, and delete those of a group that ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the package re-exports them without saying so
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.kafka.admin.connection import SILENT, Connection
from reconsume.sidecar.kafka.errors import ANSWER_SECONDS, code_of, sentence_of
from reconsume.topics.acls import Permission, Resource

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
            raise failure(f"the access rules cannot be read: {self._why(error)}") from error
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
        results: dict[Permission, str] = {}
        for binding, future in futures.items():
            try:
                self._connection.answer(future)
            except KafkaException as error:
                results[wanted[binding]] = self._why(error)
            else:
                results[wanted[binding]] = ""
        return results

    def delete(self, rules: Sequence[Rule]) -> dict[Rule, str]:
        """Delete exactly these rules. Return for each the broker's reason for a refusal; empty if it is gone."""
        filters = {filter_of(rule): rule for rule in rules}
        if not filters:
            return {}
        results = dict.fromkeys(rules, "")
        futures = self._connection.client.delete_acls(list(filters), request_timeout=ANSWER_SECONDS)
        for rule_filter, future in futures.items():
            try:
                self._connection.answer(future)
            except KafkaException as error:
                results[filters[rule_filter]] = self._why(error)
        return results

    def _why(self, error: KafkaException) -> str:
        if code_of(error) in SILENT:
            return self._connection.silence()
        match code_of(error):
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
