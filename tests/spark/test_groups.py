"""Which groups the query serves, and how it follows groups that come and go, on a clock that does not wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from reconsume.spark.errors import JobError
from reconsume.spark.job.groups import (
    DOUBT_SECONDS,
    LOOK_SECONDS,
    RETRY_SECONDS,
    FollowedGroups,
    Plan,
    names_topic_of,
    planned,
)


def topics(*groups: str, without: Iterable[str] = ()) -> dict[str, str]:
    """All topics of groups, but some, with ids."""
    names = {f"{group}-RETRY-{kind}" for group in groups for kind in ("EVENTS", "VIEW", "10s")}
    return {name: f"id of {name}" for name in names - set(without)}


def test_groups_that_are_named_are_served_when_their_topics_are_there_and_the_others_are_named() -> None:
    there = topics("a", "b", "c", without=["b-RETRY-VIEW", "c-RETRY-EVENTS", "c-RETRY-VIEW"])
    plan = planned(("c", "b", "a", "d"), None, there)
    assert (plan.served, plan.lacking) == (("a",), {"b": "b-RETRY-VIEW", "c": "c-RETRY-EVENTS", "d": "d-RETRY-EVENTS"})
    assert plan.ids == {name: f"id of {name}" for name in ("a-RETRY-EVENTS", "a-RETRY-VIEW")}


def test_a_pattern_takes_whole_names_of_groups_that_have_events() -> None:
    there = topics("a", "abc", "a-RETRY", "xa", "b", without=["b-RETRY-EVENTS"])
    assert planned((), "a.*", there).served == ("a", "a-RETRY", "abc")
    assert planned((), "a|b", there)[:2] == (("a",), {}), "alternatives keep the suffix; b has no events"
    assert planned((), "a.*", dict.fromkeys(("a-RETRY-EVENTS-x", "a-RETRY-VIEW", "a"), "")) == Plan((), {})


def test_a_text_names_a_group_only_by_a_whole_topic() -> None:
    assert names_topic_of("b", "Not authorized to access topics: [b-RETRY-VIEW]")
    assert not names_topic_of("b", "Topic a-b-RETRY-VIEW not present; b-RETRY-VIEW-x; b-RETRY-10s")


class Query:
    """A query that runs for a plan until it is stopped or given a fault."""

    def __init__(self, plan: Plan) -> None:
        self.served, self.stopped, self.is_cut_off = plan.served, False, False
        self.error: str | None = None

    def fault(self) -> str | None:
        return self.error

    def stop(self, *, at_once: bool = False) -> None:
        self.stopped, self.is_cut_off = True, at_once


def plan_of(*groups: str, made: int = 1, lacking: Mapping[str, str] | None = None) -> Plan:
    return Plan(
        groups, lacking or {}, {f"{g}-RETRY-{kind}": f"id {made}" for g in groups for kind in ("EVENTS", "VIEW")}
    )


class World:
    """The groups that there are, which of them Kafka refuses, and what was begun for them."""

    def __init__(self, *served: str, refuses: Mapping[str, str] | None = None) -> None:
        self.at = 0.0
        self.plan: Plan | JobError = plan_of(*served)
        self.refuses: dict[str, str] = dict(refuses or {})
        self.begun, self.said = list[Query](), list[str]()
        self.asked: tuple[str, ...] = ()
        self.groups = FollowedGroups(self, lambda: self.at, self.said.append)
        self.groups.begin()

    def look(self) -> Plan:
        if isinstance(self.plan, JobError):
            raise self.plan
        return self.plan

    def ended(self, plan: Plan) -> None:
        assert all(query.stopped or query.error for query in self.begun), "no query runs"

    def check(self, plan: Plan) -> Mapping[str, str]:
        self.asked = plan.served
        return {group: reason for group, reason in self.refuses.items() if group in plan.served}

    def begin(self, plan: Plan) -> Query:
        self.begun.append(Query(plan))
        return self.begun[-1]

    def after(self, seconds: float, plan: Plan | JobError | None = None) -> list[tuple[str, ...]]:
        """What was begun so far, when the plan is another one and it was looked for `seconds`."""
        self.plan = plan or self.plan
        until = self.at + seconds
        while self.at < until:
            self.at += DOUBT_SECONDS
            self.groups.turn()
        return [query.served for query in self.begun]


def test_a_group_that_comes_is_served_at_the_next_look() -> None:
    world = World("a")
    assert world.after(LOOK_SECONDS, plan_of("a", "b")) == [("a",), ("a", "b")]
    assert (len(world.groups.served), world.groups.left_out) == (2, {})


def test_a_query_is_begun_again_when_a_topic_of_its_is_recreated() -> None:
    world = World("a")
    assert world.after(LOOK_SECONDS + DOUBT_SECONDS, plan_of("a", made=2)) == [("a",), ("a",)]


def test_a_group_that_lacks_a_topic_is_named_once_and_served_once_it_is_there() -> None:
    world = World("a")
    assert world.after(20, plan_of("a", lacking={"b": "b-RETRY-VIEW"})) == [("a",)]
    assert world.groups.left_out == {"b": "there is no topic b-RETRY-VIEW"}
    assert world.after(20, plan_of("a", "b"))[-1] == ("a", "b")
    assert world.said == ["b is not served: there is no topic b-RETRY-VIEW", "b can be served now"]


def test_a_group_is_taken_for_gone_when_two_looks_find_it_so() -> None:
    world = World("a", "b")
    gone = plan_of("a", lacking={"b": "b-RETRY-VIEW"})
    assert world.after(LOOK_SECONDS, gone) == [("a", "b")]
    assert world.after(LOOK_SECONDS, plan_of("a", "b")) == [("a", "b")]
    assert world.after(DOUBT_SECONDS, gone) == [("a", "b")]
    assert world.after(DOUBT_SECONDS, gone) == [("a", "b"), ("a",)], "the second look comes soon"
    world.after(LOOK_SECONDS + DOUBT_SECONDS, Plan((), {"b": "b-RETRY-VIEW"}))
    assert world.said[-1] == "a is no longer read: its topics were deleted"
    assert world.begun[-1].stopped
    assert world.groups.served == ()


def test_a_batch_is_waited_for_where_a_group_comes_and_cut_off_where_it_may_hang_on_a_missing_topic() -> None:
    world = World("a")
    world.after(LOOK_SECONDS, plan_of("a", "b"))
    world.after(LOOK_SECONDS + DOUBT_SECONDS, plan_of("b"))
    world.after(LOOK_SECONDS + DOUBT_SECONDS, plan_of("b", made=2))
    assert [query.is_cut_off for query in world.begun] == [False, True, True, False]


def test_the_job_waits_for_its_first_group() -> None:
    world = World()
    assert world.after(20) == []
    assert world.after(LOOK_SECONDS, plan_of("a")) == [("a",)]


def test_while_kafka_does_not_say_what_there_is_the_query_goes_on_and_the_log_says_so_once() -> None:
    world = World("a")
    assert world.after(20, JobError("no answer")) == [("a",)]
    assert world.said == ["the groups cannot be listed, so the job reads those that it knows: no answer"]
    assert world.after(LOOK_SECONDS, plan_of("a", "b")) == [("a",), ("a", "b")]


def test_a_group_that_kafka_refuses_is_left_out_by_name_and_tried_again_without_a_pause_for_the_others() -> None:
    world = World("a", "b", refuses={"b": "this user has no right to WRITE b-RETRY-VIEW"})
    assert world.after(2 * RETRY_SECONDS) == [("a",)], "the query of the others is not begun again for a check"
    assert world.asked == ("b",)
    assert world.said == ["b is not served: this user has no right to WRITE b-RETRY-VIEW"]
    assert world.groups.left_out.keys() == {"b"}
    world.refuses.clear()
    assert world.after(RETRY_SECONDS + LOOK_SECONDS)[-1] == ("a", "b")
    assert world.said[-1] == "b can be served now"


def test_a_refused_group_whose_topics_are_recreated_is_tried_at_once() -> None:
    world = World("a", "b", refuses={"b": "no"})
    world.refuses.clear()
    again = Plan(("a", "b"), {}, {**plan_of("a").ids, **plan_of("b", made=2).ids})
    assert world.after(LOOK_SECONDS + DOUBT_SECONDS, again) == [("a",), ("a", "b")]


def test_a_query_that_dies_of_one_group_is_begun_again_without_it() -> None:
    world = World("a", "b", "c")
    world.begun[-1].error = "TimeoutException: Topic b-RETRY-VIEW not present in metadata"
    assert world.after(DOUBT_SECONDS) == [("a", "b", "c"), ("a", "c")]
    world.begun[-1].error = "Job aborted"
    world.refuses["c"] = "partition 0 of c-RETRY-EVENTS has no leader"
    assert world.after(DOUBT_SECONDS)[-1] == ("a",)
    world.refuses.clear()
    assert world.after(RETRY_SECONDS + LOOK_SECONDS)[-1] == ("a", "b", "c")


def test_a_query_that_dies_as_a_topic_goes_is_begun_again_without_it_at_once() -> None:
    world = World("a", "b")
    world.begun[-1].error = "Job aborted"
    assert world.after(DOUBT_SECONDS, plan_of("a", lacking={"b": "b-RETRY-VIEW"})) == [("a", "b"), ("a",)]


@pytest.mark.parametrize("fault", ["Job aborted", "a-RETRY-VIEW and b-RETRY-VIEW", "no topic BAD"])
def test_a_query_that_dies_of_no_group_ends_the_job(fault: str) -> None:
    world = World("a", "b")
    world.begun[-1].error = fault
    with pytest.raises(JobError, match=f"the query has ended: {fault}"):
        world.after(DOUBT_SECONDS)


def test_a_query_that_dies_while_kafka_is_away_ends_the_job_with_both_reasons() -> None:
    world = World("a")
    world.begun[-1].error = "it broke"
    with pytest.raises(JobError, match="the query has ended: it broke; no answer"):
        world.after(DOUBT_SECONDS, JobError("no answer"))


def test_a_stop_ends_what_runs_and_nothing_where_nothing_does() -> None:
    world = World("a")
    world.groups.stop()
    assert world.begun[-1].stopped
    World().groups.stop()
