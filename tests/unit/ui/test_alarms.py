"""What every page of the dashboard says is wrong, from the heartbeats of the instances."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from reconsume.sidecar.clock import utc
from reconsume.sidecar.core.pace.refusals import SAID_ELSEWHERE, hint_of
from reconsume.sidecar.core.record import Now
from reconsume.sidecar.doctor.checks.instances import beating
from reconsume.sidecar.group_policy.blocking import retried_in_place
from reconsume.sidecar.group_policy.signs import OVERDUE
from reconsume.sidecar.settings.policy import failure_end
from reconsume.sidecar.ui.overview import Alarm, alarms, attempts_told
from reconsume.topics.in_place_told import InPlaceTold
from reconsume.topics.instance_sums import InstanceSums, TopicFailures
from reconsume.topics.policy_record import PaceTold, RefusedTold, SubscriptionRecord
from tests.support.sidecar.settings import good

NOW = 1_763_690_000_000
ALL = {"orders": "*"}
AWAY = PaceTold("outage", NOW - 95_000, 1, 1, "connection refused")


def beat(pace: PaceTold | None = None, ago: int = 1_000, **more: object) -> SubscriptionRecord:
    return SubscriptionRecord(ALL, NOW - ago, pace, **more)  # type: ignore[arg-type]


def seen(**records: SubscriptionRecord) -> list[Alarm]:
    return alarms(records, NOW - 60_000)


CASES = {
    "all is well": (beat(PaceTold("open", NOW)), []),
    "no pace is told": (beat(), []),
    "a pace of a newer version": (beat(PaceTold("dozing", NOW)), []),
    "an outage": (beat(AWAY), ["outage"]),
    "an outage of an instance that is silent": (beat(AWAY, ago=60_000), []),
    "throttled": (beat(PaceTold("throttled", NOW)), ["throttled"]),
    "a little late": (beat(overdue=OVERDUE - 1), []),
    "overdue": (beat(overdue=OVERDUE), ["overdue"]),
    "waiting for its service": (
        beat(PaceTold("waiting", NOW - 17_000, reason="no connection"), well=False),
        ["waiting"],
    ),
    "outside the group": (beat(well=False), ["away"]),
    "an outage outside the group": (beat(AWAY, well=False), ["outage"]),
    "an outage that makes retries overdue": (beat(AWAY, overdue=2**62), ["outage", "overdue"]),
}


@pytest.mark.parametrize(("record", "kinds"), CASES.values(), ids=CASES)
def test_what_an_instance_tells_is_an_alarm_or_none(record: SubscriptionRecord, kinds: list[str]) -> None:
    assert [alarm.kind for alarm in seen(billing=record)] == kinds


def test_instances_with_the_same_alarm_are_one_line_since_the_first_of_them() -> None:
    later = PaceTold("outage", NOW - 5_000, 1, 1, "")
    names = {f"billing-{number}": beat(later) for number in range(5)} | {"billing-9": beat(AWAY)}
    (alarm,) = seen(**names)
    assert alarm.since == AWAY.since
    assert alarm.reason == "connection refused"
    assert alarm.who == "billing-0, billing-1, billing-2 and 3 more"


@pytest.mark.parametrize(
    ("cause", "says"),
    [
        ("unreachable", "no retries are used up"),
        ("failing", "each failure uses up a retry"),
        ("unwell", "the health URL"),
    ],
)
def test_each_cause_of_an_outage_has_a_text_of_its_own(cause: str, says: str) -> None:
    pace = PaceTold("outage", NOW, cause=cause)
    (alarm,) = seen(billing=beat(pace))
    waits = replace(pace, idle_since=NOW - 65_000, reason="http-500")
    (idle,) = seen(billing=beat(waits))
    (found,), (nothing,) = (list(beating("pod", beat(one), Now(NOW, 0))) for one in (pace, waits))
    for text in (alarm.text, found.finding):
        assert says in text
    for text in (idle.text, nothing.finding):
        assert says not in text
        assert "the next one shows whether the service is back" in text
    assert idle.reason == f"no record since {utc(NOW - 65_000)}; before that: http-500"
    assert idle.reason in nothing.finding


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ((), "a record becomes a dead letter when its retries are used up"),
        (("deliver.order=key",), "each record is retried in place until it succeeds, and no retries are used up"),
        (("deliver.order=key", "retry.ordered_max_times=3"), "a record becomes a dead letter when its retries"),
        (("deliver.order=key", "retry.ordered_ladder=[1s]"), "a record becomes a dead letter when its retries"),
        (
            ("deliver.order=key", "retry.ordered_ladder=[1s]", "retry.ordered_exhausted=park"),
            "a record is parked with its key when its retries are used up",
        ),
        (("deliver.broadcast=true",), "a failed record is not retried"),
    ],
)
def test_an_outage_of_a_service_that_fails_everything_says_what_follows_by_the_settings_in_force(
    tmp_path: Path, chosen: tuple[str, ...], says: str
) -> None:
    pace, end = PaceTold("outage", NOW, cause="failing"), failure_end(good(tmp_path, *chosen))
    (alarm,) = alarms({"billing": beat(pace)}, NOW - 60_000, end)
    (found,) = beating("pod", beat(pace), Now(NOW, 0), end=end)
    for text in (alarm.text, found.finding):
        assert says in text
    assert alarm.text.count("used up") <= 1


def test_the_attempts_of_all_running_instances_are_added_up_with_what_is_retried_in_place() -> None:
    sums = InstanceSums(NOW, [TopicFailures("orders", 20, 18, {"http-409": 18})])
    stuck, silent = beat(sums=sums, retried_in_place=1), beat(ago=60_000, sums=sums, retried_in_place=5)
    assert attempts_told({"a": stuck, "b": stuck, "c": silent}, NOW - 60_000) == (
        *(40, 36, [("http-409", 36)], 2),
        NOW - 1_000,
    )
    assert attempts_told({"a": beat()}, NOW - 60_000) is None


STUCK = InPlaceTold("orders:0:5", 12, NOW + 2_000, NOW - 185_000, "http-500")


def test_a_record_that_blocks_its_key_for_a_minute_is_an_alarm_that_names_it_and_how_it_fails() -> None:
    young = replace(STUCK, id="orders:1:9", since=NOW - 59_000)
    (alarm,) = seen(billing=beat(in_place=(STUCK, young), retried_in_place=2))
    assert alarm.text == "Blocked: what follows orders:0:5 waits for it"
    assert alarm.reason == "12 attempts failed, the last with http-500; the next one is due in 3s"
    assert (alarm.since, alarm.record, alarm.at) == (STUCK.since, "orders:0:5", NOW - 1_000)
    (alarm,) = seen(billing=beat(in_place=(replace(STUCK, held=True),)))
    assert alarm.reason == "12 attempts failed, the last with http-500; an operator holds it"


@pytest.mark.parametrize(("ago", "says"), [(9_000, ""), (40_000, " (as of 40s ago)")])
def test_a_sentence_of_an_older_heartbeat_gives_its_age(ago: int, says: str) -> None:
    retried = retried_in_place({"a": beat(ago=ago, in_place=(STUCK,), retried_in_place=3)}, NOW - 60_000)
    assert retried.sentence(NOW) == f"3 records are retried in place{says}"
    assert retried.named[0].fails(NOW).endswith(f"the next one is due in 2s{says}")
    finding = [one.finding for one in beating("a", beat(AWAY, ago=ago), Now(NOW, 0))]
    assert finding[0].endswith(f": connection refused{says}")


def test_two_causes_at_a_time_are_two_alarms() -> None:
    failing, unwell = (beat(PaceTold("outage", NOW, cause=cause)) for cause in ("failing", "unwell"))
    assert [alarm.who for alarm in seen(a=failing, b=unwell)] == ["a", "b"]


def test_a_topic_that_a_service_rejects_is_an_alarm_with_what_was_sent_and_the_fix() -> None:
    """Given heartbeats of two instances, then they are one alarm; one that is silent says nothing."""
    told = RefusedTold("orders", 415, NOW - 95_000, "POST", "/events", "text/csv")
    one, other = beat(all_refused=(told,)), beat(all_refused=(replace(told, since=NOW - 5_000),))
    (alarm,) = seen(pod_0=one, pod_1=other, pod_2=beat(all_refused=(told,), ago=60_000))
    assert alarm.text == "All refused: the service answers 415 to every record of orders"
    assert alarm.reason == f"sent: POST /events text/csv. {hint_of(415)}"
    assert (alarm.since, alarm.who) == (NOW - 95_000, "pod_0, pod_1")
    (alarm,) = seen(pod_0=beat(all_refused=(replace(told, said=True),)))
    assert alarm.reason == f"sent: POST /events text/csv. {SAID_ELSEWHERE}; {hint_of(415)}"
