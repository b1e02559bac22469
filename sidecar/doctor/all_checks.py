"""All checks of a configuration, in the order in which they are shown."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from reconsume.sidecar.clock import now
from reconsume.sidecar.doctor.checks.clock import clock
from reconsume.sidecar.doctor.checks.groups import groups
from reconsume.sidecar.doctor.checks.holds import holds
from reconsume.sidecar.doctor.checks.instances import instances
from reconsume.sidecar.doctor.checks.kafka import reach
from reconsume.sidecar.doctor.checks.leftovers import removed_topics
from reconsume.sidecar.doctor.checks.limits import limits
from reconsume.sidecar.doctor.checks.overdue import overdue
from reconsume.sidecar.doctor.checks.policy import in_force, policy
from reconsume.sidecar.doctor.checks.progress import progress
from reconsume.sidecar.doctor.checks.rights import rights
from reconsume.sidecar.doctor.checks.service import delivered_to_each, service
from reconsume.sidecar.doctor.checks.subscriptions import subscriptions
from reconsume.sidecar.doctor.checks.sums import dead_letters, failures, lag
from reconsume.sidecar.doctor.checks.topics import Compare, topics
from reconsume.sidecar.doctor.checks.transactions import transactions
from reconsume.sidecar.doctor.checks.view import dead_view
from reconsume.sidecar.doctor.findings import Report, not_checked
from reconsume.sidecar.doctor.runner import Check
from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.group_policy.control_log import ControlLog
from reconsume.sidecar.group_policy.state import ControlState
from reconsume.sidecar.hints import hint
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.model import group_of
from reconsume.topics.acls import GroupShape, User, permissions_of

T = TypeVar("T")

KAFKA = "kafka"
"""The check that all other checks depend on, except that of the service."""
TRANSACTION_TIMEOUT = 10_000
"""ms. Reconsume's own value, used if the configuration sets none."""


def local_checks(settings: Settings, *, deliver: bool = False) -> list[Check]:
    """Return the checks that can run while Kafka does not answer. `deliver`: also send the service a made-up record."""
    checks = [
        Check(KAFKA, lambda: reach(settings.kafka), 20.0),
        Check("service", lambda: service(settings.deliver)),
    ]
    if deliver:
        paths = len({topic.path for topic in settings.topics})
        checks.append(Check("delivery", lambda: delivered_to_each(settings), 25.0 * paths))
    return checks


def kafka_checks(settings: Settings, user: User, compare: Compare) -> list[Check]:
    """Return the checks that need Kafka's answers.

    `user`: the role whose rights are compared with those of the configured Kafka user.
    """
    cluster = Cluster(settings.kafka, "reconsume-doctor")
    log = Once(ControlLog(settings.kafka, settings.names, "reconsume-doctor").read_if_there)
    posted = settings.topic_names if settings.deliver.mode == "relay" else ()
    own = {topic.name: topic.tags for topic in settings.topics}

    def group() -> GroupShape:
        return group_of(in_force(state_of(log), settings))

    timeout = int(settings.kafka.get("transaction.timeout.ms", TRANSACTION_TIMEOUT))
    checks = [
        Check("rights", lambda: rights(cluster, permissions_of(user, group()), mend_rights(settings, user)), 40.0),
        Check("topics", lambda: topics(cluster, group(), compare)),
        Check("limits", lambda: limits(cluster, settings.kafka, posted)),
        Check("leftovers", lambda: removed_topics(cluster, group(), in_order=settings.drained)),
        Check("clock", lambda: clock(cluster, settings.names)),
        Check("progress", lambda: progress(cluster, group(), state_of(log))),
        Check("overdue", lambda: overdue(cluster, group())),
        Check("transactions", lambda: transactions(cluster, group(), timeout)),
        Check("groups", lambda: groups(cluster, group())),
        Check("subscriptions", lambda: subscriptions(log(), own, now())),
        Check(
            "instances",
            lambda: instances(state_of(log), settings.group, settings.api.listen, settings.api.token_file, now()),
        ),
        *([] if settings.deliver.mode == "relay" else sum_checks(log, settings)),
        Check("policy", lambda: policy(log(), settings)),
        Check("holds", lambda: holds(cluster, log(), group(), now().wall_ms)),
        Check("view", lambda: dead_view(cluster, group())),
    ]
    # A broadcast has no topics of its own, so these checks have nothing to read.
    lonely = ("clock", "subscriptions", "failures", "dead-letters", "lag", "policy", "holds")
    return [check for check in checks if not (settings.deliver.broadcast and check.name in lonely)]


def sum_checks(log: Once[ControlState | None], settings: Settings) -> list[Check]:
    """Return the checks of what instances say of their last minutes. In relay mode the service reads and delivers."""
    return [
        Check("failures", lambda: failures(state_of(log), now())),
        Check("dead-letters", lambda: dead_letters(state_of(log), now())),
        Check("lag", lambda: lag(state_of(log), settings.topic_names, now())),
    ]


def unreachable(checks: Sequence[Check]) -> list[Report]:
    """Return the reports of checks that cannot run."""
    return [Report(check.name, (not_checked("Kafka cannot be reached"),)) for check in checks]


def state_of(log: Once[ControlState | None]) -> ControlState | None:
    """Return what the control log says; None if it cannot be read, which another check reports."""
    try:
        return log()
    except BrokerError:
        return None


def mend_rights(settings: Settings, user: User) -> str:
    """Return the command that gives the configured Kafka user the rights of `user`."""
    name = settings.kafka.get("sasl.username", "NAME")
    return hint(f"acls apply --role {user} --principal User:{name}")


class Once(Generic[T]):
    """A call that several threads need and one of them makes for all. A BrokerError is raised in every thread."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._lock = threading.Lock()
        self._answer: list[T] = []
        self._fault: tuple[type[BrokerError], str] | None = None

    def __call__(self) -> T:
        """Return the result of the call. Raises BrokerError."""
        with self._lock:
            if self._fault is not None:
                kind, text = self._fault
                raise kind(text)
            if not self._answer:
                try:
                    self._answer.append(self._call())
                except BrokerError as fault:
                    self._fault = type(fault), str(fault)
                    raise
            return self._answer[0]
