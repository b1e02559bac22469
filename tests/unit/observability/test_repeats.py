"""A cause that lasts is logged once and then summed up once a minute, whichever logger tells of it."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from reconsume.sidecar.observability.repeats import BURST, KINDS, MOST, WINDOW, Repeats


def line(text: str, *args: object, level: int = logging.WARNING, name: str = "reconsume.x", **extra: Any) -> Any:
    told = {"name": name, "levelno": level, "msg": text, "args": args, **extra}
    return logging.makeLogRecord(told)


def written(repeats: Repeats, records: Iterator[tuple[float, Any]]) -> list[tuple[float, str, int]]:
    """What is written of records: when, the text, and how many lines it stands for. Sums are looked for each second."""
    found: list[tuple[float, str, int]] = []
    checked = 0.0
    for now, record in records:
        while checked <= now:
            found += [(checked, told.getMessage(), getattr(told, "kept_back", 1)) for told in repeats.sums(checked)]
            checked += 1.0
        if record is not None and repeats.admit(record, now):
            found.append((now, record.getMessage(), 1))
    return found


CAUSES = {
    "the same text": lambda n: line("not allowed: %s", "TOPIC_AUTHORIZATION_FAILED", event="copies-refused"),
    "a text that counts on": lambda n: line("Kafka refuses %d of %d records", n, 2 * n, event="copies-refused"),
    "a text without a kind": lambda n: line(f"try {n}"),
    "one partition": lambda n: line("refused after %d s", n, event="refused", partition="orders[3]"),
    "one topic in changing words": lambda n: line("a" * (n % 50), event="refused", topic="orders"),
    "the same fault with its trace": lambda n: line("broken", event="x", exc_info=(ValueError, ValueError(n), None)),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_lasting_cause_is_one_line_and_then_one_sum_a_minute(cause: str) -> None:
    """Given ten lines a second for ten minutes, then eleven are written, and they count every line."""
    repeats = Repeats()
    told = written(repeats, ((n / 10, CAUSES[cause](n)) for n in range(6_001)))
    assert [when for when, _, _ in told] == [0.0, *(WINDOW * minute for minute in range(1, 11))]
    assert sum(count for _, _, count in told) + len(list(_rest(repeats))) == 6_001


def _rest(repeats: Repeats) -> Iterator[Any]:
    for told in repeats.sums(1e9):
        yield from [told] * getattr(told, "kept_back", 1)


def test_two_hundred_partitions_are_named_five_times_and_counted() -> None:
    """Given a refusal of 200 partitions that each tells of itself every second, for three minutes."""
    repeats = Repeats()
    refusals = (
        (second + part / 200, line("%s refuses", f"t[{part}]", event="refused", partition=f"t[{part}]"))
        for second in range(180)
        for part in range(200)
    )
    told = written(repeats, refusals)
    assert [when for when, *_ in told][BURST:] == [WINDOW, 2 * WINDOW]
    assert "about 200 partitions or topics; the last: t[" in told[-1][1]


def test_what_is_new_is_written_beside_what_repeats() -> None:
    """Given one partition that is refused for minutes, when another one is too, then that line comes at once."""
    repeats = Repeats()
    old = line("refused", event="refused", partition="t[0]")
    assert [repeats.admit(old, now) for now in range(100)] == [True] + [False] * 99
    list(repeats.sums(100.0))
    assert not repeats.admit(old, 101.0)
    assert repeats.admit(line("refused", event="refused", partition="t[1]"), 101.0)
    assert not repeats.admit(line("refused", event="refused", about=["t[0]", "t[1]"]), 102.0)


def test_a_cause_that_ended_is_news_when_it_comes_back() -> None:
    repeats = Repeats()
    again = line("refused", event="refused")
    assert repeats.admit(again, 0.0)
    assert not repeats.admit(again, 59.0)
    assert [getattr(told, "kept_back", None) for told in repeats.sums(60.0)] == [1]
    assert list(repeats.sums(120.0)) == []
    assert repeats.admit(again, 121.0)
    assert repeats.next_sum(121.0) == WINDOW


@pytest.mark.parametrize("told", [{"level": logging.INFO}, {"was": "open"}], ids=["an event", "a change of state"])
def test_events_and_changes_of_state_are_written_five_times(told: dict[str, Any]) -> None:
    repeats = Repeats()
    assert [repeats.admit(line("again", **told), 0.0) for _ in range(7)] == [True] * BURST + [False] * 2


def test_records_at_different_offsets_of_a_partition_are_told_apart() -> None:
    repeats = Repeats()
    lost = [line("lost", event="offset-lost", partition="t[0]", offset=offset) for offset in (1, 2, 1)]
    assert [repeats.admit(one, 0.0) for one in lost] == [True, True, False]


def test_a_caller_who_invents_kinds_fills_neither_log_nor_memory() -> None:
    """Given 100 000 invented kinds, then some hundreds are written, and another logger's first line is."""
    repeats = Repeats()
    invented = sum(
        repeats.admit(line("x", level=logging.INFO, name="reconsume.audit", event="api-call", peer=str(n)), 0.0)
        for n in range(100_000)
    )
    assert invented <= KINDS + BURST
    assert len(repeats._kinds) <= KINDS + 1
    assert repeats.admit(line("refused", event="refused"), 0.0)


def test_subjects_without_end_are_bounded() -> None:
    repeats = Repeats()
    for number in range(3 * MOST):
        repeats.admit(line("x", event="refused", partition=f"t[{number}]"), 0.0)
    [told] = repeats.sums(WINDOW)
    assert (told.kept_back, told.about) == (3 * MOST - BURST, MOST)  # type: ignore[attr-defined]


def test_a_line_that_is_held_back_keeps_no_exception_alive() -> None:
    """Given a warning with an exception among its arguments and as its trace, then neither outlives the call."""

    class BrokenError(Exception):
        pass

    repeats = Repeats()

    def told() -> weakref.ref[BrokenError]:
        fault = BrokenError("x")
        repeats.admit(line("%s", fault, event="refused", exc_info=(BrokenError, fault, None)), 0.0)
        return weakref.ref(fault)

    kept = [told(), told()]
    gc.collect()
    assert [one() for one in kept] == [None, None]


def test_each_dead_letter_is_a_line_five_times_a_minute_for_each_reason() -> None:
    """Given 200 letters a minute of one reason for three minutes, when one of another reason comes, it is written."""
    repeats = Repeats()
    told = written(
        repeats,
        (
            (n * 0.3, line("t:0:%d is dead", n, event="dead-letter", id=f"t:0:{n}", reason="http-500"))
            for n in range(600)
        ),
    )
    assert sum(1 for *_, count in told if count == 1) == 3 * BURST
    assert [count for *_, count in told if count > 1] == [200 - BURST] * 2
    assert repeats.admit(line("t:0:9 is dead", event="dead-letter", id="t:0:9", reason="timeout"), 200.0)


def test_each_kind_of_an_odd_verdict_has_a_line() -> None:
    """Given eight kinds that come together for a minute, then each is written once, and each has a sum of its own."""
    repeats = Repeats()
    kinds = [f"kind-{letter}" for letter in "abcdefgh"]
    told = written(
        repeats,
        ((n / 10, line("it has %s", kind, event="odd-verdict", kind=kind)) for n in range(601) for kind in kinds),
    )
    assert sorted(text for when, text, _ in told if when == 0.0) == [f"it has {kind}" for kind in kinds]
    assert len([when for when, *_ in told if when == WINDOW]) == len(kinds)


def test_lines_about_deliveries_and_refused_calls_are_sixty_a_minute_together_with_their_sums() -> None:
    """Given a storm of many classes, each known for minutes, then no minute has more than 60 lines of them."""
    repeats = Repeats()

    def storm() -> Iterator[tuple[float, Any]]:
        for second in range(300):
            for number in range(50):
                told = {"event": "dead-letter", "reason": f"r{number}", "id": f"orders:0:{second}"}
                yield float(second), line("dead", name="reconsume.failures", **told)
            refused = {"event": "api-refused", "peer": f"10.0.0.{second % 200}"}
            yield float(second), line("refused", name="reconsume.audit", **refused)

    told = written(repeats, storm())
    by_minute = [sum(1 for when, _, _ in told if when // 60 == minute) for minute in range(5)]
    assert by_minute[0] >= 50, "the first line of each class is never left out"
    assert max(by_minute[1:]) <= 60, by_minute


def test_errors_and_what_operators_do_are_never_left_out_for_the_sake_of_others() -> None:
    repeats = Repeats()
    for number in range(500):
        repeats.admit(line("dead", name="reconsume.failures", event="dead-letter", reason=f"r{number}", id="x"), 0.0)
    assert repeats.admit(line("settled", name="reconsume.failures", event="settled", id="x", reason="by"), 1.0)
    assert repeats.admit(line("broken", name="reconsume.failures", level=logging.ERROR, id="x", reason="b"), 1.0)


def test_a_sum_is_written_now_and_says_when_the_last_line_came() -> None:
    repeats, last = Repeats(), None
    for number in range(BURST + 1):
        last = line("dead", name="reconsume.failures", event="dead-letter", reason="r", id=str(number))
        last.created = 1_763_690_000.0
        repeats.admit(last, 0.0)
    (told,) = repeats.sums(WINDOW)
    assert vars(told)["last_at"] == "2025-11-21T01:53:20.000Z"
    assert told.created > 1_763_690_000.0
