"""Turns of the query that looks for old rows and the one that does not, on a clock that does not wait."""

from __future__ import annotations

import pytest

from spark.errors import GoneError
from spark.job.eviction import SETTLED, EvictingQuery


class Query:
    """A query that runs until it is stopped or given a fault."""

    def __init__(self, name: str) -> None:
        self.name, self.batches, self.stopped = name, 0, False
        self.fault: str | None = None

    def turn(self) -> str | None:
        return self.fault

    def stop(self) -> None:
        self.stopped = True


class World:
    """What was started, in order, and the time."""

    def __init__(self, every: float = 86_400.0) -> None:
        self.at, self.begun = 0.0, list[Query]()
        self.failure: Exception | None = None
        self.swept = EvictingQuery(
            lambda: self.begin("quick"), lambda: self.begin("sweep"), every, lambda: self.at, print
        )

    def begin(self, name: str) -> Query:
        if self.begun and self.failure is not None:
            raise self.failure
        self.begun.append(Query(name))
        return self.begun[-1]

    def look(self, after: float = 0.0) -> str | None:
        self.at += after
        fault = self.swept.turn()
        assert [query.stopped for query in self.begun] == [True] * (len(self.begun) - 1) + [False], "one at a time"
        return fault

    @property
    def names(self) -> list[str]:
        return [query.name for query in self.begun]


def test_a_sweep_comes_soon_after_the_start_then_every_interval_and_lasts_two_batches() -> None:
    world = World(every=10_000.0)
    world.look(SETTLED - 1)
    assert world.names == ["quick"]
    world.look(1)
    assert world.names == ["quick", "sweep"]
    world.begun[-1].batches = 1
    world.look(50_000)
    assert world.names == ["quick", "sweep"], "it waits for events, however long"
    world.begun[-1].batches = 2
    world.look()
    world.look(9_999)
    assert world.names == ["quick", "sweep", "quick"]
    world.look(1)
    assert world.names == ["quick", "sweep", "quick", "sweep"]


def test_an_interval_shorter_than_the_first_wait_is_kept_to() -> None:
    world = World(every=5.0)
    world.look(5)
    assert world.names == ["quick", "sweep"]


def test_a_query_that_fails_in_either_turn_is_the_queries_fault() -> None:
    world = World()
    world.begun[-1].fault = "it broke"
    assert world.look() == "it broke"
    world.begun[-1].fault = None
    world.look(SETTLED)
    world.begun[-1].fault = "it broke, sweeping"
    assert world.look() == "it broke, sweeping"


def test_a_turn_that_cannot_begin_is_a_fault_in_one_line_and_a_dead_java_is_told_as_such() -> None:
    for failure in RuntimeError("no\nstack"), GoneError("gone"):
        world = World()
        world.failure, world.at = failure, SETTLED
        if isinstance(failure, GoneError):
            with pytest.raises(GoneError):
                world.swept.turn()
        else:
            assert world.swept.turn() == "RuntimeError: no"


def test_a_stop_ends_the_query_that_has_its_turn() -> None:
    world = World()
    world.look(SETTLED)
    world.swept.stop()
    assert world.begun[-1].stopped
