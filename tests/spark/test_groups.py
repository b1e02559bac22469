"""Which groups a query serves, and how it follows groups that come and go, on a clock that does not wait."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from reconsume.spark.errors import GoneError
from reconsume.spark.job.answers import UnansweredError
from reconsume.spark.job.cluster import begins, described, listed, positions_in
from reconsume.spark.job.groups import Plan, planned
from reconsume.spark.job.positions import Position
from reconsume.spark.job.serving_groups import (
    DOUBT_SECONDS,
    HELD_SECONDS,
    LOOK_SECONDS,
    Followed,
    NothingToReadError,
    next_look,
)

VIEW = "-RETRY-VIEW"


def topics(*groups: str, without: Iterable[str] = ()) -> dict[str, str]:
    """All topics of groups, but some, with ids."""
    names = {f"{group}-RETRY-{kind}" for group in groups for kind in ("EVENTS", "VIEW", "STATS", "10s")}
    return {name: f"id of {name}" for name in names - set(without)}


def test_groups_that_are_named_are_served_when_their_topics_are_there_and_the_others_are_named() -> None:
    there = topics("a", "b", "c", without=["b-RETRY-VIEW", "c-RETRY-EVENTS", "c-RETRY-VIEW"])
    plan = planned(("c", "b", "a", "d"), None, there, VIEW)
    assert (plan.served, plan.lacking) == (("a",), {"b": "b-RETRY-VIEW", "c": "c-RETRY-EVENTS", "d": "d-RETRY-EVENTS"})
    assert plan.ids == {name: f"id of {name}" for name in ("a-RETRY-EVENTS", "a-RETRY-VIEW")}
    assert planned(("a",), None, there, VIEW, "c-RETRY-10s").ids.keys() - plan.ids.keys() == {"c-RETRY-10s"}
    assert planned(("a",), None, there, VIEW, "not-there").ids == plan.ids


def test_a_pattern_takes_whole_names_of_groups_that_have_events() -> None:
    there = topics("a", "abc", "a-RETRY", "xa", "b", without=["b-RETRY-EVENTS"])
    assert planned((), "a.*", there, VIEW).served == ("a", "a-RETRY", "abc")
    assert planned((), "a|b", there, VIEW)[:2] == (("a",), {}), "alternatives keep the suffix; b has told nothing"
    assert planned((), "a.*", dict.fromkeys(("a-RETRY-EVENTS-x", "a-RETRY-VIEW", "a"), ""), VIEW) == Plan((), {})


def test_topics_and_their_ids_are_read_from_the_clients_list_and_an_unknown_form_is_an_error() -> None:
    text = "[(name=a-RETRY-EVENTS, topicId=x_-1, internal=false), (name=__t, topicId=Y, internal=true)]"
    assert listed(text) == {"a-RETRY-EVENTS": "x_-1", "__t": "Y"}
    assert listed("[]") == {}
    with pytest.raises(UnansweredError, match="unknown form"):
        listed("[(name=a, id=1)]")


def test_offsets_are_read_from_the_clients_answer_and_an_unknown_form_is_an_error() -> None:
    said = "ListOffsetsResultInfo(offset={}, timestamp=-1, leaderEpoch=Optional[0])"
    text = f"{{a-1-RETRY-EVENTS-0={said.format(7)}, a_b.c-12={said.format(0)}}}"
    assert begins(text) == {("a-1-RETRY-EVENTS", "0"): 7, ("a_b.c", "12"): 0}
    assert begins("{}") == {}
    with pytest.raises(UnansweredError, match="unknown form"):
        begins("{a-0=ListOffsetsResultInfo(at=1)}")


def test_partitions_and_committed_offsets_are_read_from_the_clients_answers_and_an_unknown_form_is_an_error() -> None:
    part = "(partition={}, leader=h:1 (id: 1 rack: null), replicas=h:1 (id: 1 rack: null), isr=, elr=, lastKnownElr=)"
    topic = "(name={}, internal=false, partitions={}, authorizedOperations=null)"
    text = (
        f"{{a={topic.format('a', part.format(0))}, b.c={topic.format('b.c', part.format(0) + ',' + part.format(1))}}}"
    )
    assert described(text) == [("a", "0"), ("b.c", "0"), ("b.c", "1")]
    assert described("{}") == []
    committed = "OffsetAndMetadata{{offset={}, leaderEpoch={}, metadata='{}'}}"
    of_g = f"g={{a-1-RETRY-EVENTS-0={committed.format(7, 'null', '1 x y')}}}"
    text = f"{{{of_g}, h={{}}, i={{b-0={committed.format(0, 3, '')}}}}}"
    assert positions_in(text) == {("a-1-RETRY-EVENTS", "0"): Position(7, "1 x y"), ("b", "0"): Position(0, "")}
    for read, unknown in (
        (described, "{a=(name=a, internal=false, parts=1)}"),
        (positions_in, "{g={a-0=OffsetAndMetadata{7}}}"),
    ):
        with pytest.raises(UnansweredError, match="unknown form"):
            read(unknown)


class Query:
    """A query that runs for a plan until it is stopped or given a fault."""

    def __init__(self, plan: Plan) -> None:
        self.served, self.stopped, self.is_cut_off = plan.served, False, False
        self.fault: str | None = None

    def turn(self) -> str | None:
        return self.fault

    def stop(self) -> None:
        self.stopped = True

    def cut_off(self) -> None:
        self.stopped = self.is_cut_off = True


def ids_of(*groups: str, made: int = 1) -> dict[str, str]:
    return {f"{group}-RETRY-EVENTS": f"id {made}" for group in groups}


class World:
    """The groups that there are, and what was begun for them."""

    def __init__(self, *served: str, open_end: bool = True) -> None:
        self.at, self.lived, self.signs = 0.0, 0, 0
        self.plan: Plan | Exception = Plan(served, {}, ids_of(*served))
        self.failure: Exception | None = None
        self.begun = list[Query]()
        self.said = list[str]()
        self.may_change = True
        parts = self.look, self.begin, lambda: self.at, self.said.append
        calls = {"alive": self.live, "starting": self.sign, "may_change": lambda: self.may_change}
        self.followed = Followed(*parts, open_end=open_end, **calls)

    def look(self) -> Plan:
        if isinstance(self.plan, Exception):
            raise self.plan
        return self.plan

    def begin(self, plan: Plan) -> Query:
        if self.failure is not None:
            raise self.failure
        self.begun.append(Query(plan))
        return self.begun[-1]

    def live(self) -> None:
        self.lived += 1

    def sign(self) -> None:
        self.signs += 1

    def after(self, seconds: float, plan: Plan | Exception) -> list[tuple[str, ...]]:
        """What was begun so far, when the plan is another one and it was looked for `seconds`."""
        self.plan = plan
        until = self.at + seconds
        while self.at < until:
            self.at += DOUBT_SECONDS
            assert self.followed.turn() is None
        assert [query.stopped for query in self.begun[:-1]] == [True] * (len(self.begun) - 1), "one at a time"
        return [query.served for query in self.begun]


def test_a_group_that_comes_is_served_at_the_next_look() -> None:
    world = World("a")
    assert world.after(LOOK_SECONDS, Plan(("a", "b"), {}, ids_of("a", "b"))) == [("a",), ("a", "b")]


def test_a_start_that_waits_long_for_kafka_leaves_the_first_batch_its_time() -> None:
    """Of hundreds of groups both take most of a minute, after which the query would be taken for one that stands."""
    world = World("a")
    assert world.signs == 2, "a sign of life before and after a start"
    world.after(LOOK_SECONDS, Plan(("a", "b"), {}, ids_of("a", "b")))
    assert world.signs == 4


def test_a_query_is_begun_anew_when_a_topic_that_it_reads_is_made_anew() -> None:
    world = World("a")
    assert world.after(LOOK_SECONDS + DOUBT_SECONDS, Plan(("a",), {}, ids_of("a", made=2))) == [("a",), ("a",)]


def test_a_group_that_lacks_a_topic_is_named_once_and_served_once_it_is_there() -> None:
    world = World("a")
    assert world.after(20, Plan(("a",), {"b": "b-RETRY-VIEW"}, ids_of("a"))) == [("a",)]
    assert world.after(20, Plan(("a", "b"), {}, ids_of("a", "b"))) == [("a",), ("a", "b")]
    assert world.said == [
        "b is not served until it has a topic b-RETRY-VIEW, which `reconsume topics apply` creates",
        "b has its topics now; the job reads it from its first event",
    ]


def test_a_group_is_taken_for_gone_when_it_is_so_in_two_looks() -> None:
    world = World("a", "b")
    gone = Plan(("a",), {"b": "b-RETRY-VIEW"}, ids_of("a"))
    assert world.after(LOOK_SECONDS, gone) == [("a", "b")]
    assert world.after(LOOK_SECONDS, Plan(("a", "b"), {}, ids_of("a", "b"))) == [("a", "b")]
    assert world.after(LOOK_SECONDS, gone) == [("a", "b")]
    assert world.after(DOUBT_SECONDS, gone) == [("a", "b"), ("a",)], "the second look comes soon"
    world.after(LOOK_SECONDS + DOUBT_SECONDS, Plan((), {"b": "b-RETRY-VIEW"}))
    assert world.said[-1] == "a is no longer read: its topics were deleted"
    assert world.begun[-1].stopped


def test_a_batch_is_waited_for_where_a_group_comes_and_cut_off_where_it_may_hang_on_a_missing_topic() -> None:
    world = World("a")
    world.after(LOOK_SECONDS, Plan(("a", "b"), {}, ids_of("a", "b")))
    world.after(LOOK_SECONDS + DOUBT_SECONDS, Plan(("b",), {}, ids_of("b")))
    world.after(LOOK_SECONDS + DOUBT_SECONDS, Plan(("b",), {}, ids_of("b", made=2)))
    assert [query.is_cut_off for query in world.begun] == [False, True, True, False]


def test_a_group_that_comes_waits_for_another_query_but_not_for_ever_and_one_that_goes_does_not_wait() -> None:
    world, both = World("a"), Plan(("a", "b"), {}, ids_of("a", "b"))
    world.may_change = False
    assert world.after(LOOK_SECONDS + 5, both) == [("a",)]
    world.may_change = True
    assert world.after(DOUBT_SECONDS, both) == [("a",), ("a", "b")]
    world.may_change = False
    world.after(LOOK_SECONDS + DOUBT_SECONDS, Plan(("a",), {}, ids_of("a")))
    assert len(world.begun) == 3, "a batch may hang on what is gone"
    world.after(HELD_SECONDS, both)
    assert len(world.begun) == 3
    world.after(LOOK_SECONDS + 2 * DOUBT_SECONDS, both)
    assert len(world.begun) == 4, "each change waits anew"


def test_all_queries_list_the_groups_in_the_same_turn_whenever_they_were_begun() -> None:
    assert {next_look(at) for at in (600.0, 600.1, 602.9)} == {603.0}


def test_a_pattern_waits_for_its_first_group_and_is_well_meanwhile() -> None:
    world = World()
    assert world.after(20, Plan((), {})) == []
    assert world.lived == 20 // LOOK_SECONDS
    assert world.after(LOOK_SECONDS, Plan(("a",), {}, ids_of("a"))) == [("a",)]


def test_groups_that_are_named_and_not_there_are_a_failure_only_when_none_is() -> None:
    with pytest.raises(NothingToReadError, match="there is nothing to read"):
        World(open_end=False)


def test_while_kafka_does_not_say_what_there_is_the_query_goes_on_and_it_is_said_once() -> None:
    world = World("a")
    assert world.after(20, RuntimeError("no\nanswer")) == [("a",)]
    assert world.said == ["the groups cannot be listed, so the job reads those that it knows: RuntimeError: no"]
    assert world.after(LOOK_SECONDS, Plan(("a", "b"), {}, ids_of("a", "b"))) == [("a",), ("a", "b")]


def test_a_query_that_fails_or_cannot_begin_anew_is_a_fault_and_a_dead_java_is_told_as_such() -> None:
    world = World("a")
    world.begun[-1].fault = "it broke"
    assert world.followed.turn() == "it broke"
    for failure in RuntimeError("no\nstack"), GoneError("gone"):
        world = World("a")
        world.plan, world.failure, world.at = Plan(("a", "b"), {}, ids_of("a", "b")), failure, LOOK_SECONDS
        if isinstance(failure, GoneError):
            with pytest.raises(GoneError):
                world.followed.turn()
        else:
            assert world.followed.turn() == "RuntimeError: no"


def test_a_stop_ends_what_runs_and_nothing_where_nothing_does() -> None:
    world = World("a")
    world.followed.stop()
    assert world.begun[-1].stopped
    World().followed.stop()
