"""How the job waits for the brokers: its deadlines, what it says meanwhile, and the request to stop."""

from __future__ import annotations

import pytest

from reconsume.spark.job.answers import (
    ANSWER_SECONDS,
    LOOK_SECONDS,
    START_SECONDS,
    TELL_SECONDS,
    Answers,
    UnansweredError,
)
from reconsume.spark.job.liveness import LIVE_SECONDS


class Waits:
    """A clock that waits make go on, and what was said. An answer is there `after` so many seconds of it."""

    def __init__(self, stops_after: float = float("inf")) -> None:
        self.at, self.said = 0.0, list[str]()
        self.answers = Answers(self.said.append, lambda: self.at >= stops_after, lambda: self.at)

    def ask(self, after: float) -> None:
        """Ask, and wait for the answer."""
        began = self.at

        def ready(seconds: float) -> bool:
            assert seconds <= LOOK_SECONDS, "a stop is noticed soon"
            self.at = min(self.at + max(seconds, 0.001), began + after)
            return self.at >= began + after

        self.answers.until(ready, "the offsets of 7 partitions")


def test_an_answer_is_waited_for_in_silence_until_its_deadline() -> None:
    waits = Waits()
    waits.ask(after=ANSWER_SECONDS - 0.1)
    assert waits.said == []
    with pytest.raises(UnansweredError, match="has not told the offsets of 7 partitions in 5 s"):
        waits.ask(after=ANSWER_SECONDS + 0.1)


def test_all_answers_of_a_start_share_its_deadline_and_the_log_says_what_is_waited_for() -> None:
    waits = Waits()
    with waits.answers.within(START_SECONDS):
        waits.ask(after=START_SECONDS - 11)
        assert len(waits.said) == (START_SECONDS - 11) // TELL_SECONDS
        assert waits.said[0] == "Kafka is asked for the offsets of 7 partitions, and has not answered for 5 s"
        with waits.answers.within(ANSWER_SECONDS):  # a commit, with a deadline of its own where there is no other
            waits.ask(after=ANSWER_SECONDS + 1)
        with pytest.raises(UnansweredError, match="in 5 s"):
            waits.ask(after=ANSWER_SECONDS + 1)
    assert waits.at == pytest.approx(START_SECONDS, abs=0.01)
    with pytest.raises(UnansweredError, match="in 5 s"):
        waits.ask(after=START_SECONDS)


@pytest.mark.parametrize("within", [ANSWER_SECONDS, START_SECONDS])
def test_a_job_that_must_stop_waits_no_longer(within: float) -> None:
    waits = Waits(stops_after=2.0)
    with waits.answers.within(within), pytest.raises(UnansweredError, match="the job stops"):
        waits.ask(after=within)
    assert waits.at <= 2.0 + LOOK_SECONDS


def test_an_answer_that_is_there_counts_also_after_the_deadline() -> None:
    waits = Waits()
    with waits.answers.within(1.0):
        waits.at = 2.0
        waits.answers.until(lambda seconds: seconds == 0.0, "what it has told")


def test_a_start_that_waits_is_not_taken_for_a_query_that_stands() -> None:
    assert START_SECONDS < LIVE_SECONDS
