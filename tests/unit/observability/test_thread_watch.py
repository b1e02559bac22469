"""Which thread makes no progress, by its name; on threads that a test ends and clocks that it sets."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from reconsume.sidecar.observability.thread_watch import StopRequest, ThreadWatch, WatchedThread, log_ends

WITHIN = 10.0


def ended(target: Callable[[], object]) -> threading.Thread:
    """A thread that has come to its end."""
    thread = threading.Thread(target=target, name="t")
    thread.start()
    thread.join(WITHIN)
    assert not thread.is_alive()
    return thread


class Runs:
    """A thread that runs, without one."""

    ident = 7

    def is_alive(self) -> bool:
        return True


def test_a_thread_that_was_not_started_yet_is_no_problem() -> None:
    assert WatchedThread("view", threading.Thread(), lambda: 0.0, limit=1.0).check(1e9) == ""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("target", [lambda: None, sys.exit], ids=["returned", "SystemExit"])
def test_a_thread_that_has_ended_is_named_also_when_it_says_nothing(target: Callable[[], object]) -> None:
    """Given a SystemExit, which Python passes over in silence, then the thread is missed all the same."""
    assert WatchedThread("poster", ended(target)).check(0.0) == "thread poster has ended"


def test_why_a_thread_has_ended_is_told_where_it_is_known() -> None:
    thread = ended(lambda: None)
    assert WatchedThread("consumer-main", thread, why=lambda: ValueError("x")).check(0.0) == (
        "thread consumer-main has ended: ValueError('x')"
    )


def test_a_thread_that_does_not_turn_is_named_with_its_time_and_its_limit() -> None:
    watched = WatchedThread("consumer-retry", Runs(), lambda: 100.0, limit=40.0)
    assert watched.check(100.0) == ""
    assert watched.check(140.0) == ""
    assert watched.check(141.0) == "thread consumer-retry has not turned for 41 s, its limit is 40 s"


def test_a_thread_that_waits_for_work_need_not_turn() -> None:
    watched = WatchedThread("committer-main", Runs(), lambda: None, limit=1.0)
    assert (watched.check(0.0), watched.check(1e6)) == ("", "")


def test_a_thread_that_is_started_long_after_it_was_made_has_its_time_from_then_on() -> None:
    """Given a consumer that waited an hour for Kafka, then its first turn may take as long as any other."""
    watched = WatchedThread("consumer-main", Runs(), lambda: 0.0, limit=40.0)
    assert watched.check(3_600.0) == ""
    assert watched.check(3_639.0) == ""
    assert watched.check(3_641.0) != ""


def test_each_look_at_whether_it_is_asked_to_end_is_a_turn() -> None:
    asked = StopRequest()
    made = asked.turned_at
    while time.monotonic() == made:
        pass
    assert not asked.is_set()
    looked = asked.turned_at
    assert looked > made
    assert not asked.wait(0.001)
    assert asked.turned_at > looked
    asked.set()
    assert asked.is_set()
    assert asked.wait(0.0)


class Part:
    """A part with two threads, one of which has ended."""

    def watched(self) -> list[WatchedThread]:
        return [WatchedThread("view", Runs()), WatchedThread("policy", ended(lambda: None))]


def test_the_watch_names_those_that_have_a_problem_alone() -> None:
    watch = ThreadWatch([Part(), None])
    assert watch.names == ("view", "policy")
    assert watch.check() == ["thread policy has ended"]


class Slow:
    """A part whose thread made its last turn at 0."""

    def watched(self) -> list[WatchedThread]:
        return [WatchedThread("view", Runs(), lambda: 0.0, limit=40.0)]


def test_a_process_that_stood_still_gives_its_threads_their_time_once_more() -> None:
    watch = ThreadWatch([Slow()])
    looks = [0.0, 20.0, 40.0, 3_600.0, 3_620.0, 3_640.0, 3_641.0]
    stuck = "thread view has not turned for 41 s, its limit is 40 s"
    assert [watch.check(moment) for moment in looks] == [[]] * 6 + [[stuck]]


@pytest.fixture
def hook_kept() -> Iterator[None]:
    """Threads of other tests are told of as before."""
    kept = threading.excepthook
    yield kept
    threading.excepthook = kept


@pytest.mark.usefixtures("hook_kept")
def test_what_ends_a_thread_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    def breaks() -> None:
        raise ValueError("the cause")

    log_ends()
    ended(breaks)
    (line,) = caplog.records
    assert (line.getMessage(), line.levelname) == ("thread t ended with ValueError('the cause')", "ERROR")
    assert vars(line)["event"] == "thread-ended"
    assert "in breaks" in caplog.text
