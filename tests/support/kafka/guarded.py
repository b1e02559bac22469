"""A broker that asks who you are (SASL/PLAIN) and lets you do only what a rule allows (StandardAuthorizer).

The embedded broker's plain listener is the administrator's: there nobody has a name, and is a super user. The listener
with a login is behind a proxy, because its address must be known before the broker is started.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the package re-exports them without saying so
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from reconsume.sidecar.kafka.admin.changes import TYPES, Acls
from reconsume.sidecar.kafka.admin.cluster import Connection
from reconsume.topics.acls import Permission
from tests.support.canary import CANARY
from tests.support.deadline import until
from tests.support.kafka.proxy import KafkaProxy
from tests.support.kafka.topic_io import SECONDS

USERS = ("sidecar", "relay", "service", "spark", "admin", "ui", "oncall", "nobody", "redriver")
PLAIN_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
JAAS = " ".join([f"{PLAIN_LOGIN} required", *(f'user_{name}="{name}-{CANARY}"' for name in USERS)]) + ";"
GUARDED = {
    "listener.security.protocol.map": "PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXY:SASL_PLAINTEXT",
    "listener.name.proxy.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.proxy.plain.sasl.jaas.config": JAAS,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "false",
}


class GuardedKafka(NamedTuple):
    """`bootstrap` is the super user's listener, `address` the one that asks who you are; `direct`: it without proxy."""

    bootstrap: str
    address: str
    direct: str = ""

    def login(self, user: str) -> dict[str, str]:
        """The client's properties of one of `USERS`."""
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": f"{user}-{CANARY}",
        }

    def allow(self, user: str, rights: Sequence[Permission]) -> None:
        """Give a user rights, and wait until the broker knows; raises AssertionError when one is refused."""
        acls = Acls(Connection({"bootstrap.servers": self.bootstrap}))
        results = acls.create(f"User:{user}", rights)
        assert not any(results.values()), results
        wanted = {told(user, right) for right in rights}
        until(lambda: wanted <= self._rules(acls), SECONDS, f"the rights of {user} are in force")

    @staticmethod
    def _rules(acls: Acls) -> set[tuple[str, ...]]:
        return {(rule.principal, rule.resource, rule.name, rule.operation) for rule in acls.found()}

    def forbid_all(self, user: str) -> None:
        """Take all rights of a user away, and wait until the broker knows. Raises KafkaException."""
        which = AclBindingFilter(
            ResourceType.ANY,
            None,  # type: ignore[arg-type]  # any name
            ResourcePatternType.ANY,
            f"User:{user}",
            None,  # type: ignore[arg-type]  # any host
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        admin = AdminClient({"bootstrap.servers": self.bootstrap})  # kept: without it the answers are never told
        (future,) = admin.delete_acls([which]).values()
        assert future.result(SECONDS), f"{user} never had a right"
        acls = Acls(Connection({"bootstrap.servers": self.bootstrap}))
        until(lambda: all(who != f"User:{user}" for who, *_ in self._rules(acls)), SECONDS, f"{user} has no right")

    def forbid(self, user: str, right: Permission) -> None:
        """Take one right away again, and wait until the broker knows. Raises KafkaException."""
        pattern = ResourcePatternType.PREFIXED if right.prefixed else ResourcePatternType.LITERAL
        which = AclBindingFilter(
            TYPES[right.resource],
            right.name,
            pattern,
            f"User:{user}",
            "*",
            AclOperation[right.operation.value],
            AclPermissionType.ALLOW,
        )
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        (future,) = admin.delete_acls([which]).values()
        gone: list[AclBinding] = future.result(SECONDS)
        assert len(gone) == 1, f"{user} never had {right}"
        rule = told(user, right)
        acls = Acls(Connection({"bootstrap.servers": self.bootstrap}))
        until(lambda: rule not in self._rules(acls), SECONDS, f"{user} has lost {right}")


def told(user: str, right: Permission) -> tuple[str, ...]:
    """A user's right as `_rules` tells it."""
    return (f"User:{user}", right.resource, right.name, right.operation)


@contextmanager
def guarded_kafka() -> Iterator[GuardedKafka]:
    """A broker of its own."""
    with (
        KafkaProxy() as proxy,
        EmbeddedKafka.start(properties=GUARDED, advertised=lambda _node: proxy.address) as kafka,
    ):
        proxy.target(kafka.node(0).plan.proxied_port)
        yield GuardedKafka(kafka.bootstrap, proxy.address, f"127.0.0.1:{kafka.node(0).plan.proxied_port}")
