"""The doctor's pure parts: how checks run side by side, what their words mean, and what each number leads to."""

from __future__ import annotations

import json
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from reconsume.sidecar.cli.doctor import compare
from reconsume.sidecar.core.record import Now
from reconsume.sidecar.doctor.all_checks import Check, Once, kafka_checks, local_checks, run, unreachable
from reconsume.sidecar.doctor.checks.control_log import instances_differ, policy
from reconsume.sidecar.doctor.checks.instances import clock
from reconsume.sidecar.doctor.checks.kafka import lacking, metadata, timeouts
from reconsume.sidecar.doctor.checks.progress import retention_of, strangers
from reconsume.sidecar.doctor.checks.topics import differing
from reconsume.sidecar.doctor.findings import Finding, Report, Status, fail, listed, ok, warn
from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.group_policy.state import ControlState
from reconsume.sidecar.kafka.admin.cluster import DeniedError
from reconsume.sidecar.kafka.admin.descriptions import ConsumerGroup, Topic
from reconsume.sidecar.kafka.credentials.reachability import diagnosed
from reconsume.sidecar.printable import ago
from reconsume.sidecar.settings.group_policy import agreed_values
from reconsume.sidecar.settings.model import Settings
from reconsume.sidecar.settings.policy import heartbeat_of
from reconsume.topics.acls import Operation, Permission, Resource
from reconsume.topics.agreement import SettingsHeard, SettingsRecord, digest_of
from reconsume.topics.policy_record import Heard, InstanceHeard, ObeysTold, PolicyHeard, PolicyRecord
from reconsume.topics.specs import Source, queue_spec
from tests.support.control_log import said, state_of
from tests.support.deadline import SOON
from tests.support.sidecar.settings import good

NOW = Now(1_000_000_000, 5_000)

# --- running -------------------------------------------------------------------------------------------------------


def test_a_check_that_hangs_is_one_failure_and_holds_up_no_other() -> None:
    forever = threading.Event()

    def hangs() -> list[Finding]:
        forever.wait()
        return []

    began = time.monotonic()
    reports = {report.check: report for report in run([Check("hangs", hangs, 0.3), Check("good", lambda: [ok("yes")])])}
    assert time.monotonic() - began < SOON
    assert reports["good"].status is Status.OK
    assert (reports["hangs"].status, reports["hangs"].findings[0].finding) == (Status.FAIL, "no answer within 0.3 s")
    forever.set()


def test_what_a_check_raises_is_its_own_report() -> None:
    def raising(fault: Exception) -> Check:
        def call() -> list[Finding]:
            raise fault

        return Check(type(fault).__name__, call)

    checks = [raising(BrokerError("away")), raising(DeniedError("not for you")), raising(ZeroDivisionError("oops"))]
    found = {report.check: report.findings[0] for report in run(checks)}
    assert (found["BrokerError"].status, found["BrokerError"].finding) == (Status.FAIL, "away")
    assert (found["DeniedError"].status, found["DeniedError"].finding) == (Status.NOT_CHECKED, "not for you")
    assert found["ZeroDivisionError"].status is Status.FAIL
    assert "ZeroDivisionError: oops" in found["ZeroDivisionError"].finding


def test_a_question_of_several_checks_is_asked_once_and_its_fault_is_everybodys() -> None:
    asked: list[int] = []

    def answer() -> int:
        asked.append(1)
        return 7

    once = Once(answer)
    assert [once(), once(), asked] == [7, 7, [1]]

    def refuse() -> int:
        asked.append(2)
        raise BrokerError("no")

    refused = Once(refuse)
    for _ in range(2):
        with pytest.raises(BrokerError, match="no"):
            refused()
    assert asked == [1, 2]


def test_without_kafka_its_checks_are_not_checked(tmp_path: Path) -> None:
    reports = unreachable(kafka_checks(good(tmp_path), None, lambda _spec, _found: [])[0])
    assert {report.status for report in reports} == {Status.NOT_CHECKED}
    assert [check.name for check in local_checks(good(tmp_path))] == ["kafka", "service"]


def test_a_broadcast_is_not_asked_for_topics_that_it_has_not(tmp_path: Path) -> None:
    settings = good(tmp_path, "deliver.broadcast=true")
    names = {check.name for check in kafka_checks(settings, None, lambda _spec, _found: [])[0]}
    assert not names & {"clock", "instances-differ", "policy"}


# --- words ---------------------------------------------------------------------------------------------------------


def test_a_report_is_as_bad_as_its_worst_finding_and_shows_the_bad_ones_first() -> None:
    report = Report("x", (ok("a"), warn("b"), fail("c")))
    assert report.status is Status.FAIL
    assert [found.finding for found in report.bad] == ["c", "b"]
    assert [found.finding for found in Report("x", (ok("a"),)).bad] == ["a"]


@pytest.mark.parametrize(("partitions", "status"), [(2, Status.FAIL), (3, None), (4, Status.WARN)])
def test_a_queue_that_is_narrower_than_its_main_topic_stops_records_and_a_wider_one_may_hide_some(
    partitions: int, status: Status | None
) -> None:
    spec = queue_spec("billing-ORDERED-orders", Source("orders", 3, 1, 1_000_000, 1))
    topic = Topic(spec.name, partitions, 1, spec.config)
    found = list(differing(spec, topic, spec.config, partial(compare, servers="kafka:9092")))
    assert [finding.status for finding in found] == ([] if status is None else [status])
    assert all("its main topic has 3" in finding.finding and finding.mend for finding in found)


@pytest.mark.parametrize(
    ("ms", "text"), [(0, "0s"), (-5, "0s"), (1_499, "1s"), (61_000, "1m1s"), (3_600_000, "1h"), (90_000_000, "1d1h")]
)
def test_a_time_is_told_by_its_two_largest_units(ms: int, text: str) -> None:
    assert ago(ms) == text


def test_many_names_are_cut() -> None:
    assert listed(str(number) for number in range(12)) == "0, 1, 10, 11, 2, 3, 4, 5, 6, 7 and 2 more"


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["_TRANSPORT Connect failed: Connection refused", "_SSL x: certificate verify failed"], "not trusted"),
        (
            ["_TRANSPORT ssl://b/bootstrap: SSL handshake failed: connecting to a PLAINTEXT broker listener?"],
            "without TLS",
        ),
        (["_SSL SSL handshake failed: sslv3 alert bad certificate"], "does not accept our certificate"),
        (["_SSL SSL handshake failed: unexpected message"], "TLS: the handshake fails"),
        (["_AUTHENTICATION SASL authentication error: Authentication failed"], "SASL: the login is refused"),
        (["_AUTHENTICATION Unsupported SASL mechanism: broker's supported mechanisms: PLAIN"], "this mechanism"),
        (["_AUTHENTICATION not valid in current SASL state: broker's supported mechanisms:  (x)"], "no login"),
        (["_RESOLVE Failed to resolve 'x'"], "no such host"),
        (
            ["FAIL b/bootstrap: Disconnected: connection reset by peer (after 1ms in state UP)"],
            "another security.protocol",
        ),
        (["REQTMOUT Timed out ApiVersionRequest in flight"], "nobody answers"),
        ([], "no broker answered"),
    ],
)
def test_what_the_client_says_is_told_by_its_cause(texts: list[str], says: str) -> None:
    found = diagnosed("b:9092", texts)
    assert says in found.finding
    assert found.mend


# --- rights, groups, instances, policy -------------------------------------------------------------------------------


def test_a_right_is_missing_only_where_kafka_said_what_there_is() -> None:
    read = Permission(Resource.TOPIC, "a", Operation.READ)
    assert list(lacking([read], {(Resource.TOPIC, "a"): frozenset({"READ"})})) == []
    assert list(lacking([read], {})) == []
    named = {(Resource.TOPIC, "a"): frozenset({"WRITE"})}
    assert list(lacking([read], named)) == [read]


def test_a_group_that_is_not_for_us_to_see_has_no_strangers() -> None:
    assert list(strangers("billing", None, ["orders"])) == []
    assert list(strangers("billing", ConsumerGroup(True, (), frozenset()), ["orders"])) == []


@pytest.mark.parametrize(
    ("kafka", "says"),
    [
        ({}, None),
        ({"session.timeout.ms": "5000"}, "kafka.session.timeout.ms is 5000, and the brokers take 6000 to 1800000"),
        ({"session.timeout.ms": "1900000"}, "kafka.session.timeout.ms is 1900000, and the brokers take 6000"),
        ({"group.protocol": "consumer"}, None),
        ({"transaction.timeout.ms": "9000"}, None),
        ({"transaction.timeout.ms": "10000"}, None),
    ],
)
def test_a_timeout_that_the_brokers_refuse_is_named_before_an_instance_reads_nothing(
    kafka: dict[str, str], says: str | None
) -> None:
    usual = {"group.min.session.timeout.ms": "6000", "group.max.session.timeout.ms": "1800000"}
    found = [*timeouts(kafka, [usual, {**usual, "group.min.session.timeout.ms": "100"}, {}])]
    assert [one.status for one in found] == ([] if says is None else [Status.FAIL])
    assert all(one.finding.startswith(says or "") for one in found)
    small = [*timeouts(kafka, [{"transaction.max.timeout.ms": "9500"}])]
    assert bool(small) == ("9000" not in kafka.values()), "a transaction may be open for 10 s, if nothing else is said"
    assert [*timeouts(kafka, [])] == [], "what this user may not see is no finding"


@pytest.mark.parametrize(("told", "says"), [((4096, 4096), []), ((4096, 512), [512]), ((), [])])
def test_brokers_that_take_little_metadata_are_named(told: tuple[int, ...], says: list[int]) -> None:
    found = [*metadata([{"offset.metadata.max.bytes": str(most)} for most in told])]
    assert [(one.status, f"is {most}:" in one.finding) for one, most in zip(found, says, strict=True)] == [
        (Status.FAIL, True) for _ in says
    ]


def test_a_compacted_topic_keeps_its_records() -> None:
    assert retention_of({"retention.ms": "5", "cleanup.policy": "compact"}) is None
    assert retention_of({"retention.ms": "-1", "cleanup.policy": "delete"}) is None
    assert retention_of({"retention.ms": "5", "cleanup.policy": "compact,delete"}) == 5


def heard(*told: Heard) -> ControlState:
    return state_of(*told, at=NOW.wall_ms)


def instance(settings: Settings, name: str, started: int = 0) -> tuple[SettingsHeard, InstanceHeard]:
    """What an instance with these settings has written."""
    beat, values = replace(heartbeat_of(settings), started=started), agreed_values(settings)
    return SettingsHeard(digest_of(values), SettingsRecord(values, 1)), InstanceHeard(name, beat)


@pytest.mark.parametrize(
    ("ahead", "status"), [(300, Status.OK), (-1_900, Status.OK), (2_100, Status.WARN), (-60_000, Status.FAIL)]
)
def test_a_clock_that_is_not_the_brokers_is_named_with_its_instance(tmp_path: Path, ahead: int, status: Status) -> None:
    settled, told = instance(good(tmp_path), "pod-0")
    assert told.record is not None
    beat = InstanceHeard("pod-0", replace(told.record, at=NOW.wall_ms + ahead))
    (found,) = clock(heard(settled, beat), NOW)
    assert found.status is status
    assert ("the clock of pod-0 is" in found.finding) == (status is not Status.OK)
    assert ("behind the brokers'" in found.finding) == (ahead < -2_000)


def test_without_a_running_instance_no_clock_is_compared() -> None:
    assert [found.status for found in clock(heard(), NOW)] == [Status.NOT_CHECKED]
    assert [found.status for found in clock(None, NOW)] == [Status.NOT_CHECKED]


def test_an_instance_that_wants_other_records_is_a_failure_while_it_lives(tmp_path: Path) -> None:
    settings = good(tmp_path)
    same, other = instance(settings, "pod-0"), instance(good(tmp_path, "topics=[{name: orders, tags: A}]"), "pod-1")
    well = [ok("1 running instance, configured as here")]
    assert instances_differ(heard(*same), settings, NOW.wall_ms) == well
    (finding,) = instances_differ(heard(*same, *other), settings, NOW.wall_ms)
    assert finding.status is Status.FAIL
    assert "tags is orders at pod-0, this configuration and orders (A) at pod-1: each goes by" in finding.finding
    later, silent = NOW.wall_ms + 179_000, heard(*other)
    for record in said(*same, at=later, begin=silent.next_offset):
        silent.apply(record, later)
    assert instances_differ(silent, settings, later)[0].status is Status.FAIL
    assert instances_differ(silent, settings, later + 1_000) == well
    gone = heard(*other, InstanceHeard("pod-1", None))
    assert instances_differ(gone, settings, NOW.wall_ms)[0].status is Status.NOT_CHECKED
    assert instances_differ(None, settings, NOW.wall_ms)[0].status is Status.NOT_CHECKED


def test_other_settings_of_an_instance_are_a_warning_that_says_whose_apply(tmp_path: Path) -> None:
    settings, wall = good(tmp_path, "retry.max_reconsume_times=3"), NOW.wall_ms
    old = instance(settings, "pod-0", wall - 3_600_000)
    new_settings, beat = instance(good(tmp_path, "retry.max_reconsume_times=20"), "pod-1", wall - 60_000)
    assert new_settings.record is not None
    newest = SettingsHeard(new_settings.digest, replace(new_settings.record, rank=2))
    (finding,) = instances_differ(heard(*old, newest, beat), settings, wall)
    assert finding.status is Status.WARN
    assert "is 3 at pod-0, this configuration and 20 at pod-1: 20 applies to all" in finding.finding
    assert finding.finding.endswith("(instances), for 1m")
    said_of = policy(heard(*old, newest, beat), settings, wall)
    assert [one.status for one in said_of] == [Status.OK]
    assert "this configuration has others for max_reconsume_times" in said_of[0].finding


def test_an_instance_that_does_not_follow_the_newest_settings_is_a_failure(tmp_path: Path) -> None:
    settings, wall = good(tmp_path), NOW.wall_ms
    record, beat = instance(settings, "pod-0", wall - 60_000)
    assert beat.record is not None
    elsewhere = InstanceHeard("pod-1", replace(beat.record, obeys=ObeysTold(settings="0123456789abcdef")))
    following = InstanceHeard("pod-2", replace(beat.record, obeys=ObeysTold(settings=record.digest)))
    finding = policy(heard(record, beat, elsewhere, following), settings, wall)
    assert [one.status for one in finding] == [Status.OK, Status.FAIL]
    assert finding[1].finding.startswith("pod-1 cannot apply the newest settings")


def test_a_policy_that_cannot_be_taken_or_forbids_to_start_is_a_failure(tmp_path: Path) -> None:
    settings, strict, wall = good(tmp_path), good(tmp_path, "policy_mode=strict"), NOW.wall_ms

    def record(values: dict[str, object]) -> ControlState:
        return heard(PolicyHeard(PolicyRecord(json.loads(json.dumps(values)), "me", 1)))

    assert policy(heard(), settings, wall) == [
        ok("none is set, and no instance that runs is followed: each goes by its configuration")
    ]
    assert policy(record({"max_reconsume_times": 3}), settings, wall) == [
        ok("the group's values hold for max_reconsume_times")
    ]
    assert policy(record({"max_reconsume_times": 3}), strict, wall)[0].status is Status.FAIL
    assert policy(record({"max_reconsume_times": "many"}), settings, wall)[0].status is Status.FAIL
    assert policy(None, settings, wall)[0].status is Status.NOT_CHECKED
