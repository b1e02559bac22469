"""What an instance says while its service is not there: the address, the cause, and how often."""

from __future__ import annotations

import pytest

from reconsume.sidecar.runtime.service_wait import WARN_AFTER, WARN_EVERY, ServiceWait
from reconsume.sidecar.settings.deliver import Deliver

PUSH = Deliver(url="http://127.0.0.1:8081/events?key=secret")
GUARDED = Deliver(url="http://127.0.0.1:8080/", health_url="http://127.0.0.1:8080/health")
PULL = Deliver(mode="pull")


def lines(wait: ServiceWait, times: list[float], caplog: pytest.LogCaptureFixture) -> list[float]:
    """The times of these looks at which a line was written."""
    written = []
    for waited in times:
        caplog.clear()
        wait.log_wait(waited)
        written += [waited for record in caplog.records if vars(record)["event"] == "waiting-for-service"]
    return written


@pytest.mark.parametrize(
    ("deliver", "reason"),
    [
        (PUSH, "no connection to http://127.0.0.1:8081/events?******** (connection-refused)"),
        (GUARDED, "http://127.0.0.1:8080/health is not well (connection-refused)"),
        (PULL, "no call of receive"),
    ],
)
def test_it_names_the_address_and_the_cause_and_no_secret(deliver: Deliver, reason: str) -> None:
    wait = ServiceWait(deliver)
    wait.note_cause("connection-refused")
    assert wait.reason() == reason


def test_it_is_logged_after_a_while_and_then_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    wait = ServiceWait(PUSH)
    wait.note_cause("connection-refused")
    second = WARN_AFTER + WARN_EVERY
    assert lines(wait, [0.0, WARN_AFTER - 1, WARN_AFTER, WARN_AFTER + 1, second - 1, second], caplog) == [
        WARN_AFTER,
        second,
    ]
    assert "deliver.url" in caplog.text


def test_a_service_that_came_and_went_is_logged_as_the_first_time(caplog: pytest.LogCaptureFixture) -> None:
    wait = ServiceWait(PULL)
    assert lines(wait, [WARN_AFTER, 0.0, WARN_AFTER], caplog) == [WARN_AFTER, WARN_AFTER]


def test_nothing_is_said_before_the_service_was_asked(caplog: pytest.LogCaptureFixture) -> None:
    wait = ServiceWait(PUSH)
    assert lines(wait, [WARN_AFTER, WARN_AFTER + 1], caplog) == []
    wait.note_cause("no-such-host")
    assert lines(wait, [WARN_AFTER + 2], caplog) == [WARN_AFTER + 2]
