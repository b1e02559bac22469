"""A service that rejects every record of a topic: when that is noticed, what is told of it, and when it is over."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from starlette.requests import Request

from reconsume.sidecar.api.holds import shown_to
from reconsume.sidecar.core.outcome import (
    CANCELLED,
    COMMITTED,
    EXPIRED,
    NACKED,
    Committed,
    Failed,
    NotSent,
    Outcome,
    Postponed,
    Rejected,
    Throttled,
)
from reconsume.sidecar.core.pace.refusals import (
    IN_A_ROW,
    LOG_EVERY,
    SAID_ELSEWHERE,
    Refusals,
    Refused,
    Sent,
    hint_of,
    status_of,
    without_text,
)
from reconsume.sidecar.core.record import Now, Record
from reconsume.sidecar.http.calls import VALUES
from tests.support.sidecar.push_requests import a_record

REFUSED = Failed("http-415")
SENT = Sent("POST", "/events", "text/csv")


class World:
    """The rows of some topics, at a clock that stands until it is moved."""

    def __init__(self) -> None:
        self.reported: list[Refused] = []
        self.described: list[Record] = []
        self.now = 1_000
        self.records, self.several = 0, True
        """How many deliveries have ended, and whether each is of another record."""
        self.refusals = Refusals(self._describe, lambda one: self.reported.append(replace(one)))

    def _describe(self, record: Record) -> Sent:
        self.described.append(record)
        return SENT

    def end(self, *outcomes: Outcome, topic: str = "orders") -> None:
        """Deliveries of a topic that end one after the other."""
        for outcome in outcomes:
            self.records += 1
            record = a_record(
                source=a_record().source._replace(topic=topic), offset=self.records if self.several else 1
            )
            self.refusals.note(record, outcome, Now(50_000 + self.now, self.now))


def test_ten_failures_in_a_row_with_the_same_4xx_are_told_once() -> None:
    """Given nine, then nothing is told; the tenth is, with what was sent, and those that follow are counted."""
    world = World()
    world.end(*[REFUSED] * (IN_A_ROW - 1))
    assert (world.refusals.refused, world.reported) == ((), [])
    world.end(REFUSED)
    [told] = world.reported
    assert (told.topic, told.status, told.since_ms, told.deliveries) == ("orders", 415, 51_000, IN_A_ROW)
    assert (told.sent, told.text) == (SENT, "")
    world.end(REFUSED)
    assert world.refusals.refused == (replace(told, deliveries=IN_A_ROW + 1),)
    assert len(world.reported) == len(world.described) == 1


def test_one_record_that_is_retried_in_place_is_not_every_record() -> None:
    """Given one record that is refused over and over, then nothing is told until two others are refused too."""
    world = World()
    world.several = False
    world.end(*[REFUSED] * (3 * IN_A_ROW))
    assert world.refusals.refused == ()
    world.several = True
    world.end(REFUSED)
    assert world.refusals.refused == ()
    world.end(REFUSED)
    assert [one.deliveries for one in world.refusals.refused] == [3 * IN_A_ROW + 2]
    assert len(world.reported) == 1
    world.refusals.check()


@pytest.mark.parametrize("status", [422, 409])
def test_what_the_service_said_last_is_in_the_hint_unless_texts_are_hidden(status: int) -> None:
    world = World()
    said = [Failed(f"http-{status}", text) for text in ("body.sku: Field required", "body.id: Field required", "")]
    world.end(*said * IN_A_ROW)
    shown = status_of(world.refusals.refused[0])
    assert (shown["text"], str(shown["hint"]).startswith("the service says: body.id: Field required")) == (
        "body.id: Field required",
        True,
    )
    open_to = [shown_to(Request({"type": "http", VALUES: sees}), {"all_refused": [shown]}) for sees in (True, False)]
    assert open_to == [{"all_refused": [shown]}, {"all_refused": [without_text(shown)]}]
    hidden = without_text(shown)
    assert (hidden["text"], str(hidden["hint"]).startswith(SAID_ELSEWHERE)) == (None, True)


def test_a_dead_letter_by_its_status_is_a_failure_too() -> None:
    world = World()
    world.end(*[Rejected("http-422")] * IN_A_ROW)
    assert [one.status for one in world.refusals.refused] == [422]


@pytest.mark.parametrize("success", [COMMITTED, Committed(outputs=())])
def test_it_is_told_until_a_delivery_succeeds(success: Outcome) -> None:
    """Given other failures, then it stays; given a success, then it is over, and ten more begin again."""
    world = World()
    world.end(*[REFUSED] * IN_A_ROW, Failed("http-500"), EXPIRED, *[REFUSED] * (IN_A_ROW - 1))
    assert [one.deliveries for one in world.refusals.refused] == [IN_A_ROW]
    world.end(success)
    assert (world.refusals.refused, world.refusals.rows) == ((), {})
    world.end(*[REFUSED] * (IN_A_ROW - 1))
    assert world.refusals.refused == ()


@pytest.mark.parametrize(
    "other",
    [Failed("http-500"), Failed("timeout"), Failed("http-404"), Failed("http-415", asked=True), EXPIRED, COMMITTED],
)
def test_another_end_in_between_begins_a_new_row(other: Outcome) -> None:
    world = World()
    world.end(*[REFUSED] * (IN_A_ROW - 1), other, *[REFUSED] * (IN_A_ROW - 1))
    assert world.refusals.refused == ()


@pytest.mark.parametrize("none", [Throttled(1), Postponed(1), NotSent("connection-refused"), CANCELLED, NACKED])
def test_what_is_no_attempt_and_what_comes_later_changes_nothing(none: Outcome) -> None:
    world = World()
    world.end(*[none] * IN_A_ROW)
    assert not world.refusals.rows
    world.end(*[REFUSED] * (IN_A_ROW - 1), none, REFUSED, none)
    assert len(world.refusals.refused) == 1


@pytest.mark.parametrize("reason", ["http-500", "http-301", "timeout", "http-4", "http-4xx"])
def test_other_failures_are_no_refusal(reason: str) -> None:
    world = World()
    world.end(*[Failed(reason)] * (2 * IN_A_ROW))
    assert not world.refusals.rows


def test_topics_are_told_apart() -> None:
    """Given one that works between the failures of another, then only that other is told."""
    world = World()
    for _ in range(IN_A_ROW):
        world.end(REFUSED, topic="bills")
        world.end(COMMITTED, topic="orders")
    assert [one.topic for one in world.refusals.refused] == ["bills"]


def test_a_topic_is_reported_at_most_once_an_hour() -> None:
    """Given failures for an hour, with a success in between, then the next report has the count of its own row."""
    world = World()
    world.end(*[REFUSED] * IN_A_ROW, COMMITTED, *[REFUSED] * IN_A_ROW)
    assert len(world.reported) == 1
    world.now += LOG_EVERY - 1
    world.end(REFUSED)
    assert len(world.reported) == 1
    world.now += 1
    world.end(REFUSED)
    assert [one.deliveries for one in world.reported] == [IN_A_ROW, IN_A_ROW + 2]


def test_a_service_that_answers_another_status_now_is_told_with_that_one() -> None:
    world = World()
    world.end(*[REFUSED] * IN_A_ROW, *[Failed("http-404")] * IN_A_ROW)
    [found] = world.refusals.refused
    assert status_of(found) == {
        "topic": "orders",
        "status": 404,
        "since": 51_000,
        "deliveries": IN_A_ROW,
        "sent": {"method": "POST", "path": "/events", "content_type": "text/csv"},
        "text": None,
        "hint": hint_of(404),
    }


def test_every_status_has_a_hint_that_names_what_to_correct() -> None:
    assert "deliver.content_type" in hint_of(400) == hint_of(415) == hint_of(422)
    assert "path" in hint_of(404) == hint_of(405)
    assert "deliver.bearer_token_file" in hint_of(401) == hint_of(403)
    assert all(hint_of(status) for status in range(400, 500))
