"""The log of the pace: an outage says what it costs, and a pace that flaps does not fill the log."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from reconsume.sidecar.clock import utc, wall
from reconsume.sidecar.core.outcome import COMMITTED, Failed, NotSent
from reconsume.sidecar.core.pace.pace import WELL_FOR_MS, Cause, Change, Pace, State
from reconsume.sidecar.delivery import pace_monitor
from reconsume.sidecar.delivery.pace_monitor import PaceLog, log_change
from tests.support.sidecar.paces import RECORD, at, failing, guarded, probe, row

DOWN = Change(State.OPEN, State.OUTAGE, "connection-refused", 5_000, Cause.UNREACHABLE)
UP = Change(State.PROBING, State.OPEN, "", 2_000)


@pytest.mark.parametrize(
    ("cause", "says"),
    [
        (Cause.UNREACHABLE, "no retries are used up"),
        (Cause.FAILING, "each delivery is an attempt"),
        (Cause.UNWELL, "the health URL does not say"),
    ],
)
def test_an_outage_is_logged_with_its_cause_and_what_it_costs(
    cause: Cause, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    log_change(DOWN._replace(cause=cause), 3, wall())
    (record,) = caplog.records
    assert says in record.getMessage()
    assert vars(record)["cause"] == str(cause)


def test_a_pace_that_flaps_is_logged_at_once_and_then_summed_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "reconsume.pace")
    monkeypatch.setattr(pace_monitor, "QUIET", 0.05)

    async def flap() -> None:
        log = PaceLog(lambda: 0)
        for _ in range(5):
            log.changed(DOWN)
            log.changed(UP)
        while len(caplog.records) < 2:
            await asyncio.sleep(0.005)
        log.changed(DOWN)
        log.flush()

    asyncio.run(asyncio.wait_for(flap(), 10))
    lines: list[dict[str, Any]] = [vars(record) for record in caplog.records]
    assert [(line["event"], line.get("changes", 1)) for line in lines] == [
        ("pace-outage", 1),
        ("pace-open", 9),
        ("pace-outage", 1),
    ]
    assert lines[1]["message"].startswith("the pace changed 9 times")
    assert "since then deliveries go on" in lines[1]["message"]


def test_a_change_that_is_logged_later_says_when_it_was(caplog: pytest.LogCaptureFixture) -> None:
    at = wall() - 12_400
    log_change(DOWN, 3, at)
    log_change(DOWN, 3, at, 4)
    alone, last = caplog.records
    assert alone.getMessage().startswith("12s ago: an outage: the service is unreachable")
    assert last.getMessage().startswith("the pace changed 4 times, the last time 12s ago; since then an outage: ")
    assert {vars(line)["changed_at"] for line in caplog.records} == {utc(at, "%Y-%m-%dT%H:%M:%SZ")}


@pytest.mark.parametrize("state", State)
def test_a_probe_is_a_part_of_its_outage_for_whoever_looks(state: State) -> None:
    assert state.shown is (State.OUTAGE if state is State.PROBING else state)


def test_the_cause_of_an_outage_changes_with_what_its_probes_show() -> None:
    pace = failing(8)
    assert pace.cause is Cause.FAILING
    changes: list[Change] = []
    pace.changed = changes.append
    pace.note(RECORD, NotSent("connection-refused"), probe(pace))
    assert pace.cause is Cause.UNREACHABLE
    told = [(change.was, change.cause) for change in changes if change.was is change.state]
    assert told == [(State.PROBING, Cause.UNREACHABLE)]
    pace.note(RECORD, Failed("timeout", label="timeout"), probe(pace))
    assert (pace.state, pace.cause) == (State.OUTAGE, Cause.FAILING), "it was sent, and used up a retry"
    pace.note(RECORD, COMMITTED, probe(pace))
    assert (pace.state, pace.cause) == (State.OPEN, None)


def test_without_a_good_health_url_the_cause_is_unwell() -> None:
    assert Pace(8, guarded=True).cause is Cause.UNWELL
    pace = guarded(8)
    assert pace.cause is None
    row(pace, WELL_FOR_MS)
    pace.unhealthy("health URL: http-503", at(WELL_FOR_MS))
    assert (pace.state, pace.cause) == (State.OUTAGE, Cause.UNWELL)
