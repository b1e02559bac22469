"""What every page of the dashboard says is wrong, from the heartbeats of the instances."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.pace.refusals import SAID_ELSEWHERE, hint_of
from reconsume.sidecar.doctor.checks.instances import slowed
from reconsume.sidecar.ui.overview import OVERDUE, Alarm, alarms, attempts_told
from reconsume.sidecar.ui.templating import moment
from reconsume.topics.instance_sums import InstanceSums, TopicFailures
from reconsume.topics.policy_record import PaceTold, RefusedTold, SubscriptionRecord

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
    (found,), (nothing,) = (list(slowed("pod", one, NOW)) for one in (pace, waits))
    for text in (alarm.text, found.finding):
        assert says in text
    for text in (idle.text, nothing.finding):
        assert says not in text
        assert "the next one shows whether the service is back" in text
    assert idle.reason == f"No record since {moment(NOW - 65_000)} UTC; before that: http-500"
    assert "the service is back (none for 1m5s): http-500" in nothing.finding


def test_the_attempts_of_all_running_instances_are_added_up_with_what_is_retried_in_place() -> None:
    sums = InstanceSums(NOW, [TopicFailures("orders", 20, 18, {"http-409": 18})])
    stuck, silent = beat(sums=sums, retried_in_place=1), beat(ago=60_000, sums=sums, retried_in_place=5)
    assert attempts_told({"a": stuck, "b": stuck, "c": silent}, NOW - 60_000) == (40, 36, [("http-409", 36)], 2)
    assert attempts_told({"a": beat()}, NOW - 60_000) is None


def test_two_causes_at_a_time_are_two_alarms() -> None:
    failing, unwell = (beat(PaceTold("outage", NOW, cause=cause)) for cause in ("failing", "unwell"))
    assert [alarm.who for alarm in seen(a=failing, b=unwell)] == ["a", "b"]


def test_a_topic_that_a_service_rejects_is_an_alarm_with_what_was_sent_and_the_fix() -> None:
    """Given heartbeats of two instances, then they are one alarm; one that is silent says nothing."""
    told = RefusedTold("orders", 415, NOW - 95_000, "POST", "/events", "text/csv")
    one, other = beat(all_refused=(told,)), beat(all_refused=(replace(told, since=NOW - 5_000),))
    (alarm,) = seen(pod_0=one, pod_1=other, pod_2=beat(all_refused=(told,), ago=60_000))
    assert alarm.text == "All refused: the service answers 415 to every record of orders"
    assert alarm.reason == f"Sent: POST /events text/csv. {hint_of(415)}"
    assert (alarm.since, alarm.who) == (NOW - 95_000, "pod_0, pod_1")
    (alarm,) = seen(pod_0=beat(all_refused=(replace(told, said=True),)))
    assert alarm.reason == f"Sent: POST /events text/csv. {SAID_ELSEWHERE}; {hint_of(415)}"
