"""The table of all checks of `reconsume doctor`, in the order in which they are shown, and what runs them side by side.

A check is a function from what it needs to its findings; `checks/` has them, by subject. It changes nothing, and raises
BrokerError if it gets no answer. Each runs on a thread of its own and has a deadline: a check that hangs is one failure
and never holds up the others. What could not be looked at is `not checked`, never ok.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from reconsume.sidecar.clock import now
from reconsume.sidecar.doctor.checks import kafka, progress, topics
from reconsume.sidecar.doctor.checks.control_log import decisions, holds, instances_differ, policy
from reconsume.sidecar.doctor.checks.instances import clock, instances
from reconsume.sidecar.doctor.checks.resets import resets
from reconsume.sidecar.doctor.checks.service import delivered_to_each, service
from reconsume.sidecar.doctor.checks.sums import dead_letters, failures, lag, parked
from reconsume.sidecar.doctor.findings import Finding, Report, Status, fail, not_checked, ok, unseen
from reconsume.sidecar.errors import BrokerError, ReconsumeError
from reconsume.sidecar.group_policy.agreement import group_settings
from reconsume.sidecar.group_policy.control_log import ControlLog
from reconsume.sidecar.group_policy.decisions import DecisionStatus, DecisionStore
from reconsume.sidecar.group_policy.state import ControlState
from reconsume.sidecar.hints import hint
from reconsume.sidecar.kafka.admin.cluster import Cluster, DeniedError
from reconsume.sidecar.kafka.clients import one_operation
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.model import group_of
from reconsume.topics.acls import PEOPLE, GroupShape, User

T = TypeVar("T")
FindRole: TypeAlias = Callable[[], kafka.RoleFound]

KAFKA = "kafka"
"""The check that all other checks depend on, except that of the service."""
TRANSACTION_TIMEOUT = 10_000
"""ms. Reconsume's own value, used if the configuration sets none."""


TURN = 0.1
"""Seconds between two checks of the time while checks run. Ctrl-C waits no longer."""
HANGS = "Kafka takes connections and does not answer: look at the brokers, and at what is between"
ASK_ADMIN = "run doctor as a user who may see it, such as the admin"
OF_BROADCAST = ("rights", "topics", "limits", "transactions", "instances")
"""The checks of a broadcast, which has no retries, no progress and no topics of its own."""


class Check(NamedTuple):
    """A check with its name. It is abandoned `seconds` after it began."""

    name: str
    call: Callable[[], Sequence[Finding]]
    seconds: float = 25.0


def local_checks(settings: Settings, *, deliver: bool = False, record: str | None = None) -> list[Check]:
    """Return the checks that can run while Kafka does not answer.

    `deliver`: also send the service a made-up record, or one with what the record of this id has, which is in Kafka.
    """
    checks = [Check(KAFKA, lambda: kafka.reach(settings.kafka), 20.0)]
    if settings.deliver.mode == "spark":  # there is no service to call
        return checks
    checks.append(Check("service", lambda: service(settings.deliver)))
    if deliver:
        paths = len({topic.path for topic in settings.topics if topic.drains is None})
        checks.append(Check("delivery", lambda: delivered_to_each(settings, record), 25.0 * paths))
    return checks


def kafka_checks(settings: Settings, preset: User | None, compare: topics.Compare) -> tuple[list[Check], FindRole]:
    """Return the checks that need Kafka's answers, and what finds the role of the user.

    `preset`: the role that the configured Kafka user should have; None: found out by its rights.
    """
    cluster = Cluster(settings.kafka, "reconsume-doctor")
    log = Once(ControlLog(cluster, settings.names).read_if_there)
    relay = settings.deliver.mode == "relay"
    timeout = int(settings.kafka.get("transaction.timeout.ms", TRANSACTION_TIMEOUT))
    name = settings.kafka.get("sasl.username", "NAME")

    def in_force() -> Settings:
        return group_settings(settings, state_of(log), now().wall_ms).settings

    def group() -> GroupShape:
        return group_of(in_force())

    def open_decisions() -> list[DecisionStatus]:
        return DecisionStore(cluster, settings.names).open_decisions()

    role = Once(lambda: kafka.role_of(cluster, group(), preset))

    def rights() -> list[Finding]:
        grant = hint(f"acls apply --role {role().user} --principal User:{name}")
        return kafka.rights(cluster, group(), role(), grant)

    checks = [
        Check("rights", rights, 40.0),
        Check("topics", lambda: topics.topics(cluster, group(), compare)),
        Check("limits", lambda: kafka.limits(cluster, settings.kafka)),
        Check("leftovers", lambda: topics.removed_topics(cluster, group(), in_order=settings.drained)),
        Check("clock", lambda: clock(state_of(log), now())),
        Check("progress", lambda: progress.progress(cluster, group(), state_of(log))),
        Check("overdue", lambda: progress.overdue(cluster, group(), state=state_of(log))),
        Check("transactions", lambda: topics.transactions(cluster, group(), timeout)),
        Check("groups", lambda: progress.groups(cluster, group(), state_of(log))),
        Check("instances-differ", lambda: instances_differ(log(), settings, now().wall_ms)),
        Check("instances", lambda: instances(state_of(log), in_force(), now())),
        *([] if relay or settings.deliver.mode == "spark" else sum_checks(log, settings)),
        Check("policy", lambda: policy(log(), settings, now().wall_ms)),
        Check("holds", lambda: holds(cluster, log(), group(), now().wall_ms)),
        Check("decisions", lambda: decisions(open_decisions(), now().wall_ms)),
        *(
            []
            if relay or settings.deliver.mode == "spark"
            else [Check("resets", lambda: resets(cluster, log(), settings, now().wall_ms))]
        ),
    ]
    if settings.deliver.broadcast:
        checks = [check for check in checks if check.name in OF_BROADCAST]
    return [check._replace(call=partial(for_role, check.call, role)) for check in checks], role


def for_role(call: Callable[[], Sequence[Finding]], role: FindRole) -> Sequence[Finding]:
    """Return the findings of a check as they are for the user's role: what a role with all its rights need not see is
    no finding."""
    try:
        findings = call()
    except DeniedError as denied:
        findings = [unseen(str(denied), ASK_ADMIN)]
    if not any(finding.unseen for finding in findings) or role().missing:
        return findings
    rest = [finding for finding in findings if not finding.unseen]
    text = "; ".join(finding.finding for finding in findings if finding.unseen)
    return [*rest, ok(f"not for the role {role().user}: {text}")]


def beside_service(report: Report, role: FindRole) -> Report:
    """Return what is said of a service that a person cannot reach: only its sidecar has to."""
    try:
        user = role().user
    except BrokerError:  # the check of rights says so
        return report
    if user not in PEOPLE or report.status is not Status.FAIL:
        return report
    return Report(report.check, (ok(f"not reached from here, as the role {user} need not"),))


def sum_checks(log: Once[ControlState | None], settings: Settings) -> list[Check]:
    """Return the checks of what instances say of their last minutes. In relay mode the service reads and delivers."""
    return [
        Check("failures", lambda: failures(state_of(log), now())),
        Check("dead-letters", lambda: dead_letters(state_of(log), now())),
        Check("lag", lambda: lag(state_of(log), settings.topic_names, now())),
        *([] if settings.order_by is None else [Check("parked", lambda: parked(state_of(log), now()))]),
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


class Once(Generic[T]):
    """A call that several threads need and one of them makes for all. A BrokerError is raised in every thread."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call, self._lock = call, threading.Lock()
        self._answer: list[T] = []
        self._fault: tuple[type[BrokerError], str] | None = None
        """The class and the text of the error: the error itself would keep the frames that it has passed."""

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


def run(checks: Sequence[Check]) -> Iterator[Report]:
    """Yield each report as soon as it is there."""
    done: queue.SimpleQueue[Report] = queue.SimpleQueue()
    began = time.monotonic()
    for check in checks:
        # Daemon threads: a client call that never returns must not keep the program from ending.
        threading.Thread(target=lambda c=check: done.put(called(c)), name=f"check-{check.name}", daemon=True).start()
    waiting = {check.name: check for check in checks}
    while waiting:
        try:
            report = done.get(timeout=TURN)
        except queue.Empty:
            late = [check for check in waiting.values() if time.monotonic() > began + check.seconds]
            for check in late:
                del waiting[check.name]
                yield Report(check.name, (fail(f"no answer within {check.seconds:g} s", HANGS),))
        else:
            if waiting.pop(report.check, None) is not None:
                yield report


def called(check: Check) -> Report:
    """Run one check to its end, whatever it raises, and return its report."""
    try:
        with one_operation():
            return Report(check.name, tuple(check.call()))
    except DeniedError as denied:
        return Report(check.name, (unseen(str(denied), ASK_ADMIN),))
    except ReconsumeError as fault:
        return Report(check.name, (fail(str(fault)),))
    except Exception as fault:  # noqa: BLE001 - one check's fault must not hide what the others find
        text = f"a fault of reconsume itself, please report it: {type(fault).__name__}: {fault}"
        return Report(check.name, (fail(text),))
