"""How often an answer is made that is asked for without end."""

from __future__ import annotations

import pytest

from reconsume.sidecar.observability.cached_answer import LONGEST_HELD, sparing


@pytest.mark.parametrize(("cost", "made"), [(0.001, 480), (0.01, 48), (0.05, 10), (0.5, 7)])
def test_what_is_asked_for_in_a_loop_takes_a_part_of_the_time_and_is_never_older_than_a_second(
    cost: float, made: int
) -> None:
    """Given ten seconds of nothing but questions, then dear answers are made once a second, others more often."""
    now, renders = 0.0, list[float]()

    def render() -> bytes:
        nonlocal now
        renders.append(now)
        now += cost
        return str(now).encode()

    scrape = sparing(render, lambda: now)
    while now < 10.0:
        assert now - float(scrape()) <= LONGEST_HELD + 0.001
        now += 0.0005
    assert len(renders) == pytest.approx(made, rel=0.05, abs=1)


def test_an_answer_that_fails_is_asked_for_again() -> None:
    answers = [b"good", ValueError("broken")]

    def render() -> bytes:
        answer = answers.pop()
        if isinstance(answer, ValueError):
            raise answer
        return answer

    scrape = sparing(render)
    with pytest.raises(ValueError, match="broken"):
        scrape()
    assert scrape() == b"good"
