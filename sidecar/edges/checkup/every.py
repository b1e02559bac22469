"""All checks of a configuration, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Sequence

from sidecar.edges.checkup.cluster import Cluster
from sidecar.edges.checkup.dead_view import dead_view
from sidecar.edges.checkup.findings import Report, warn
from sidecar.edges.checkup.hanging import hanging
from sidecar.edges.checkup.layout import Compare, layout
from sidecar.edges.checkup.members import in_force, policy, subscriptions
from sidecar.edges.checkup.overdue import overdue
from sidecar.edges.checkup.permits import permits
from sidecar.edges.checkup.progress import progress
from sidecar.edges.checkup.reach import reach
from sidecar.edges.checkup.runner import Check
from sidecar.edges.checkup.service import service
from sidecar.edges.checkup.sharing import sharing
from sidecar.edges.checkup.skew import skew
from sidecar.edges.checkup.told import Once, Told, read_policy_topic
from sidecar.edges.clock import now
from sidecar.errors import BrokerError
from sidecar.settings import Settings
from sidecar.settings.users import group_of
from topics.rights import Group, User, rights_of

KAFKA = "kafka"
"""The check that all but the service's depend on."""
TRANSACTION_TIMEOUT = 10_000
"""ms. Ours, where the configuration does not say."""


def first(settings: Settings) -> list[Check]:
    """What can be asked without a word from Kafka."""
    return [
        Check(KAFKA, lambda: reach(settings.kafka), 20.0),
        Check("service", lambda: service(settings.deliver)),
    ]


def rest(settings: Settings, user: User, compare: Compare) -> list[Check]:
    """What Kafka must answer. `user`: whose rights those of the configured Kafka user are compared with."""
    cluster = Cluster(settings.kafka)
    told = Once(lambda: read_policy_topic(cluster, settings.names))
    own = {topic.name: topic.tags for topic in settings.topics}

    def group() -> Group:
        return group_of(in_force(heard(told), settings))

    timeout = int(settings.kafka.get("transaction.timeout.ms", TRANSACTION_TIMEOUT))
    checks = [
        Check("rights", lambda: permits(cluster, rights_of(user, group()), mend_rights(settings, user)), 40.0),
        Check("topics", lambda: layout(cluster, group(), compare)),
        Check("clock", lambda: skew(cluster, settings.names)),
        Check("progress", lambda: progress(cluster, group(), heard(told))),
        Check("overdue", lambda: overdue(cluster, group())),
        Check("transactions", lambda: hanging(cluster, group(), timeout)),
        Check("groups", lambda: sharing(cluster, group())),
        Check("subscriptions", lambda: subscriptions(told(), own, now())),
        Check("policy", lambda: policy(told(), settings)),
        Check("view", lambda: dead_view(cluster, group())),
    ]
    # A broadcast has no topics of its own, so there is nothing to ask of them.
    lonely = ("clock", "subscriptions", "policy")
    return [check for check in checks if not (settings.deliver.broadcast and check.name in lonely)]


def unreachable(checks: Sequence[Check]) -> list[Report]:
    """The reports of checks that cannot be made; one failure, that of Kafka itself, is enough."""
    return [Report(check.name, (warn("not looked at: Kafka cannot be reached"),)) for check in checks]


def heard(told: Once[tuple[Told, ...] | None]) -> tuple[Told, ...] | None:
    """What the policy topic says; None where it cannot be read, which another check reports."""
    try:
        return told()
    except BrokerError:
        return None


def mend_rights(settings: Settings, user: User) -> str:
    """The command that gives the configured Kafka user the rights of `user`."""
    name = settings.kafka.get("sasl.username", "NAME")
    return f"reconsume acls apply --role {user} --principal User:{name}"
