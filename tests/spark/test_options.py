"""The job's arguments, its properties file, its back-off and its progress: all that is pure, without Spark."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from reconsume.spark.errors import GoneError
from reconsume.spark.job.progress import ProgressBoard, line, read_batch
from reconsume.spark.job.supervisor import (
    HEALTHY_AFTER,
    LONGEST_WAIT,
    LOOK_SECONDS,
    PASSING,
    Running,
    Streak,
    Supervisor,
)
from reconsume.spark.options import Run, Sql, parse
from reconsume.spark.properties import parse_properties

PLACE = ("--checkpoint", "/tmp/place")


def run(*words: str) -> Run:
    options = parse(["run", *PLACE, *words])
    assert isinstance(options, Run)
    return options


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        parse(words)
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_what_is_not_given_is_as_the_topics_are_kept_and_the_view_is_quick() -> None:
    options = run("--groups", "billing")
    assert (options.trigger, options.slow_trigger) == (1_000, 30_000)
    assert (options.sums_delay, options.max_offsets, options.max_failures) == (600_000, 50_000, 10)
    assert (options.master, options.bad_topic, options.metrics_listen, options.conf) == (None, None, None, ())


def test_durations_addresses_and_settings_are_read() -> None:
    options = run(
        "--groups=a",
        "--trigger=500ms",
        "--metrics-listen=127.0.0.1:0",
        "--conf=a.b=c=d",
    )
    assert options.trigger == 500
    assert (options.metrics_listen, options.conf) == (("127.0.0.1", 0), (("a.b", "c=d"),))


def test_whose_events_are_read_is_told_in_words() -> None:
    assert run("--groups", "a, b").reads() == "the groups a, b"
    assert run("--pattern", "a.*").reads() == "all groups that match a.*"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run", *PLACE), "one of the arguments --groups --pattern is required"),
        (("run", *PLACE, "--groups=a", "--pattern=b"), "not allowed with argument"),
        (("run", "--groups=a"), "--checkpoint"),
        (("run", *PLACE, "--groups=,"), "name at least one group"),
        (("run", *PLACE, "--groups=a b"), "'a b-RETRY-EVENTS' is not a name for Kafka"),
        (("run", *PLACE, "--pattern=a)|(b"), "is not a regular expression"),
        (("run", *PLACE, "--pattern="), "an empty pattern matches no group"),
        (("run", *PLACE, "--groups=a", "--trigger=14"), "'14' is not a duration"),
        (("run", *PLACE, "--groups=a", "--trigger=0s"), "must be more than 0s"),
        (("run", *PLACE, "--groups=a", "--max-failures=0"), "'0' is not a number from 1"),
        (("run", *PLACE, "--groups=a", "--metrics-listen=9404"), "'9404' is not HOST:PORT"),
        (("run", *PLACE, "--groups=a", "--conf=x"), "'x' is not KEY=VALUE"),
        (("run", *PLACE, "--groups=a", "--bad-topic=b c"), "is not a name for Kafka"),
        (("run", *PLACE, "--groups=a", "--bad-topic=a-RETRY-EVENTS"), "the job would feed itself"),
        (("run", *PLACE, "--pattern=.*", "--bad-topic=x-RETRY-EVENTS"), "the job would feed itself"),
        (("sql", "--group=a"), "--query"),
    ],
)
def test_a_wrong_option_is_one_sentence(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str) -> None:
    error = refused(capsys, *words)
    assert says in error
    assert error.startswith("reconsume: ")
    assert error.count("\n") == 1


def test_bad_events_may_go_to_a_topic_that_only_looks_like_one_that_is_read() -> None:
    assert run("--groups=a", "--bad-topic=a-BAD").bad_topic == "a-BAD"
    assert run("--pattern=a", "--bad-topic=b-RETRY-EVENTS").bad_topic == "b-RETRY-EVENTS"


def test_a_query_may_begin_with_dashes() -> None:
    options = parse(["sql", "--query=-- a comment\nSELECT 1", "--group=a"])
    assert isinstance(options, Sql)
    assert options.query == "-- a comment\nSELECT 1"


def test_properties_are_read_as_java_writes_them() -> None:
    text = "# a comment\n! another\n\na=1\n b : 2 \nc 3\nd=x\\\n   y\ne\\ f\\=g=h\\u00e9\\n\\\\i\nempty=\na=last\n"
    assert parse_properties(text) == {"a": "last", "b": "2 ", "empty": "", "c": "3", "d": "xy", "e f=g": "hé\n\\i"}


@pytest.mark.parametrize("text", ["=1", "a", "x=1\n\n: 2"])
def test_a_line_that_is_no_property_is_named_by_its_line(text: str) -> None:
    with pytest.raises(ValueError, match=f"line {len(text.splitlines())} is not"):
        parse_properties(text)


def test_waits_double_up_to_a_minute_and_health_forgets() -> None:
    streak, waits = Streak(), []
    for _ in range(9):
        streak = streak.failed(ran=2.0)
        waits.append(streak.wait)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert streak.failed(HEALTHY_AFTER - 1).failures == 10
    assert streak.failed(HEALTHY_AFTER).failures == 1
    assert Streak(100_000).wait == LONGEST_WAIT


class Query:
    """A query that ends after so many seconds, or never."""

    def __init__(self, world: World, lasts: float | None) -> None:
        self._world, self._ends = world, None if lasts is None else world.at + lasts

    def turn(self) -> str | None:
        if self._world.gone:
            raise GoneError("gone")
        return "it broke" if self._ends is not None and self._world.at >= self._ends else None

    def stop(self) -> None:
        self._world.stopped.append(self)


class World:
    """A clock that does not wait, and what happens on it: how long each start of each query lasts (None: for ever)."""

    def __init__(self, lasts: Mapping[str, list[float | Exception | None]], until: float = 10_000.0) -> None:
        self.at, self.until, self.gone = 0.0, until, False
        self.begun: list[tuple[str, float]] = []
        self.said: list[str] = []
        self.stopped: list[Query] = []
        self.restarted: list[str] = []
        self._lasts = {name: list(times) for name, times in lasts.items()}

    def now(self) -> float:
        return self.at

    def pause(self, seconds: float) -> bool:
        self.at += seconds
        return self.at >= self.until

    def start(self, name: str) -> Running:
        self.begun.append((name, self.at))
        lasts = self._lasts[name].pop(0)
        if isinstance(lasts, Exception):
            raise lasts
        return Query(self, lasts)

    def run(self, most: int = 5, **more: Any) -> bool:
        starts = {name: (lambda name=name: self.start(name)) for name in self._lasts}
        return Supervisor(starts, self, most=most, say=self.said.append, restarting=self.restarted.append, **more).run()


def test_a_query_that_fails_starts_again_later_each_time_and_the_other_goes_on() -> None:
    world = World({"view": [None], "stats": [1.0, 1.0, 1.0, None]})
    assert world.run()
    assert len([at for name, at in world.begun if name == "view"]) == 1
    gaps = [at for name, at in world.begun if name == "stats"]
    lasted = [later - earlier for earlier, later in itertools.pairwise(gaps)]
    assert lasted == pytest.approx([1 + 1, 1 + 2, 1 + 4], abs=3 * LOOK_SECONDS)
    assert (len(world.stopped), world.restarted) == (2, ["stats"] * 3)
    assert "the stats query failed (1 of 5 failures in a row) and starts again in 1 s: it broke" in world.said


def test_a_start_that_raises_counts_as_a_failure_and_is_told_in_one_line() -> None:
    world = World({"view": [RuntimeError("no\nstack"), None]})
    assert world.run()
    assert world.said == ["the view query failed (1 of 5 failures in a row) and starts again in 1 s: RuntimeError: no"]


def test_a_query_that_fails_too_often_in_a_row_is_given_up_and_the_other_goes_on() -> None:
    world = World({"view": [1_000.0, None], "stats": [1.0] * 9})
    given_up: list[str] = []
    assert not world.run(most=3, giving_up=given_up.append)
    assert len([name for name, _ in world.begun if name == "stats"]) == 3
    assert any("given up after 3 of 3 failures in a row" in said for said in world.said)
    assert (given_up, len(world.stopped), world.at) == (["stats"], 1, pytest.approx(world.until, abs=LOOK_SECONDS))


def test_the_job_ends_when_no_query_is_left() -> None:
    world = World({"view": [1.0] * 9, "stats": [1.0] * 9})
    assert not world.run(most=3)
    assert world.at < 60


def test_a_query_that_waits_for_its_turn_begins_later_and_its_restarts_do_not_wait() -> None:
    world = World({"view": [None], "stats": [1.0, None]})
    assert world.run(may_begin=lambda name: name == "view" or (30 < world.at < 32))
    [view, first, second] = [at for _, at in world.begun]
    assert view < 1
    assert 30 < first < 31
    assert 32 < second < first + 1 + 1 + 3 * LOOK_SECONDS


def test_failures_with_health_between_them_are_never_too_many() -> None:
    world = World({"view": [HEALTHY_AFTER + 1] * 8 + [None]})
    assert world.run(most=2)
    assert len(world.begun) == 9


def test_a_query_that_only_begins_again_has_not_failed() -> None:
    world = World({"view": [None] * 4})

    class Passing(Query):
        def turn(self) -> str | None:
            return PASSING if len(world.begun) < 4 else None

    starts = {"view": lambda: (world.start("view"), Passing(world, None))[1]}
    assert Supervisor(starts, world, most=1, say=world.said.append, restarting=world.restarted.append).run()
    assert (len(world.begun), world.said, world.restarted) == (4, [], [])


def test_all_queries_are_stopped_at_the_same_time_and_one_that_does_not_stop_is_named() -> None:
    both = threading.Barrier(2, timeout=10)

    class Slow(Query):
        def stop(self) -> None:
            both.wait()  # else it breaks: the other one was not stopped meanwhile
            super().stop()

    class Stuck(Slow):
        def stop(self) -> None:
            super().stop()
            raise RuntimeError("it hangs")

    world = World({}, until=1.0)
    starts = {"view": lambda: Slow(world, None), "stats": lambda: Stuck(world, None)}
    assert Supervisor(starts, world, most=1, say=world.said.append).run()
    assert (len(world.stopped), world.said) == (2, ["the stats query did not stop: RuntimeError: it hangs"])


def test_a_java_process_that_is_gone_is_not_a_failure_of_a_query() -> None:
    world = World({"view": [None]})
    world.gone = True
    with pytest.raises(GoneError):
        world.run()
    assert world.said == []


PROGRESS: dict[str, Any] = {
    "name": "view",
    "batchId": 7,
    "numInputRows": 120,
    "durationMs": {"triggerExecution": 420},
    "eventTime": {"watermark": "2026-01-02T03:04:05.000Z"},
    "stateOperators": [{"numRowsTotal": 50, "numRowsDroppedByWatermark": 2}, {"numRowsTotal": 1}],
    "sources": [{"endOffset": {"t": {"0": 10, "1": 5}}, "latestOffset": {"t": {"0": 17, "1": 5}, "u": {"0": 3}}}],
    "observedMetrics": {"events": {"read": 120, "bad": 4, "first": "{}"}},
}


def test_a_batch_is_read_from_sparks_progress() -> None:
    batch = read_batch(PROGRESS)
    assert (batch.query, batch.number, batch.rows, batch.seconds) == ("view", 7, 120, 0.42)
    assert (batch.behind, batch.state_rows, batch.dropped, batch.bad, batch.first_bad) == (10, 51, 2, 4, "{}")
    assert batch.watermark is not None


def test_offsets_may_come_as_text_and_a_batch_without_anything_is_all_zero() -> None:
    source = {"endOffset": json.dumps({"t": {"0": 1}}), "latestOffset": json.dumps({"t": {"0": 3}})}
    assert read_batch({"sources": [source]}).behind == 2
    nothing = read_batch({"name": None, "sources": [], "eventTime": {"watermark": "1970-01-01T00:00:00.000Z"}})
    assert (nothing.rows, nothing.bad, nothing.watermark) == (0, 0, None)


def test_a_query_without_state_has_neither_rows_nor_a_watermark() -> None:
    board = ProgressBoard(now=0.0)
    board.took(read_batch({**PROGRESS, "eventTime": {}, "stateOperators": []}))
    [(*_, rows, watermark, _)] = board.rows(now=1.0)
    assert (rows, watermark) == ("-", "-")


def test_the_line_tells_the_rate_since_the_last_line() -> None:
    board = ProgressBoard(now=0.0)
    board.took(read_batch(PROGRESS))
    board.took(read_batch(PROGRESS))
    told = "view {} rows/s, 10 behind, 51 state rows, watermark 2026-01-02T03:04:05Z, batch 0.4 s"
    assert line(board.rows(now=2.0)) == told.format(120)
    assert line(board.rows(now=4.0)) == told.format(0)
