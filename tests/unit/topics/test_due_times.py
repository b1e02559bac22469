"""When a retry is due, spread but never early, and when a record is too old for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.sidecar.core.outcome import Failed
from reconsume.topics.due_times import due_time
from reconsume.topics.expiry import LATEST, Expiry, parse_expiry
from reconsume.topics.headers_fast import parse_rendered
from reconsume.topics.levels import LONGEST
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import RETRY_EXPIRES_AT, RetryState, parse_retry_headers
from reconsume.topics.transitions import DeadLetter, Retry, after_failure, redriven
from tests.sim.samples import WALL, life, policy, record

DAY = 86_400_000


@given(
    st.integers(0, 10**9),
    st.integers(1, 10**6),
    st.integers(0, LONGEST),
    st.integers(0, 50),
    st.none() | st.integers(0, 10**9),
)
def test_a_wait_is_never_shorter_nor_longer_than_its_jitter_allows_and_its_time_is_one_that_readers_take(
    offset: int, retry: int, wait: int, jitter: int, rest: int | None
) -> None:
    last = None if rest is None else WALL + wait + rest
    due = due_time(f"orders:0:{offset}", retry, wait, jitter, WALL, last)
    assert WALL + wait <= due <= WALL + min(wait + wait * jitter // 100, LONGEST)
    assert last is None or due <= last
    assert due <= policy().latest_due(WALL)
    assert due == due_time(f"orders:0:{offset}", retry, wait, jitter, WALL, last)


def test_records_that_failed_together_come_back_evenly_over_the_jitter() -> None:
    dues = sorted(due_time(f"orders:3:{offset}", 1, 100_000, 50, 0, None) for offset in range(1_000))
    tenths = [sum(100_000 + 5_000 * n <= due < 105_000 + 5_000 * n for due in dues) for n in range(10)]
    assert sum(tenths) == 1_000
    assert all(70 <= count <= 130 for count in tenths)


def test_jitter_changes_the_due_time_and_not_the_level() -> None:
    even, spread = policy(), replace(policy(), jitter=50)
    for offset in range(50):
        one = after_failure(record(offset), Failed("no"), even, WALL)
        two = after_failure(record(offset), Failed("no"), spread, WALL)
        assert isinstance(one, Retry)
        assert isinstance(two, Retry)
        assert one.level == two.level
        assert one.retry_state.due_at <= two.retry_state.due_at <= one.retry_state.due_at + 5_000


AGES = [
    # age of the record, max_age, wait: dead?
    (0, DAY, 10_000, False),
    (DAY - 10_000, DAY, 10_000, False),
    (DAY - 9_999, DAY, 10_000, True),
    (2 * DAY, DAY, 1_000, True),
    (0, 5_000, 10_000, True),
]


@pytest.mark.parametrize(("age", "most", "wait", "dead"), AGES)
@pytest.mark.parametrize("times", [0, 5])
def test_a_record_whose_next_retry_would_come_after_its_age_is_dead_now(
    age: int, most: int, wait: int, dead: bool, times: int
) -> None:
    state = replace(life(times), timestamp=WALL - age) if times else None
    step = after_failure(record(timestamp=WALL - age, life=state), Failed("busy", delay=wait), aged(most), WALL)
    assert isinstance(step, DeadLetter) == dead
    assert step.retry_state.times == (times if dead else times + 1)
    assert not dead or step.retry_state.reason == "expired: busy"


def aged(most: int) -> object:
    return replace(policy(), max_age=most)


@pytest.mark.parametrize("stamp", [-1, 0, WALL + 1, WALL * 1_000_000])
def test_a_record_without_a_time_or_with_one_ahead_of_the_clock_is_as_old_as_its_first_failure(stamp: int) -> None:
    assert isinstance(after_failure(record(timestamp=stamp), Failed("no"), aged(60_000), WALL), Retry)  # type: ignore[arg-type]
    state = replace(life(3), timestamp=stamp, first_failed_at=WALL - 55_000)
    step = after_failure(record(life=state), Failed("no"), aged(60_000), WALL)  # type: ignore[arg-type]
    assert isinstance(step, DeadLetter)


EXPIRIES = [
    (Expiry(after=10_000), False),
    (Expiry(after=9_999), True),
    (Expiry(at=WALL + 10_000), False),
    (Expiry(at=WALL - DAY), True),
    (Expiry(at=0), True),
    (Expiry(after=300 * DAY), False),
]


@pytest.mark.parametrize(("expiry", "dead"), EXPIRIES)
def test_what_the_service_says_of_the_end_goes_along_with_the_copy_until_it_says_otherwise(
    expiry: Expiry, dead: bool
) -> None:
    step = after_failure(record(), Failed("no", expires=expiry), policy(), WALL)
    assert isinstance(step, DeadLetter) == dead
    if isinstance(step, Retry):
        assert step.retry_state.expires_at == expiry.time(WALL) <= LATEST
        later = step.retry_state.expires_at - 9_999
        copy = record(life=step.retry_state)
        assert isinstance(after_failure(copy, Failed("no", delay=10_000), policy(), later), DeadLetter)
        again = after_failure(copy, Failed("no", delay=10_000, expires=Expiry(after=DAY)), policy(), later)
        assert isinstance(again, Retry)
        assert redriven(again.retry_state, later).retry_state.expires_at == 0


def test_an_expiry_beyond_what_the_header_can_say_is_the_last_time_that_it_can() -> None:
    step = after_failure(record(), Failed("no", expires=Expiry(after=10**18)), policy(), WALL)
    assert step.retry_state.expires_at == LATEST


def test_the_earlier_of_age_and_expiry_counts() -> None:
    step = after_failure(record(), Failed("no", expires=Expiry(after=DAY)), aged(9_999), WALL)  # type: ignore[arg-type]
    assert isinstance(step, DeadLetter)
    step = after_failure(record(), Failed("no", expires=Expiry(after=9_999)), aged(DAY), WALL)  # type: ignore[arg-type]
    assert isinstance(step, DeadLetter)


def test_the_header_comes_back_as_it_was_written_and_a_forged_one_is_refused() -> None:
    state = RetryState("orders:0:7", "orders", 1, 0, WALL, WALL, WALL, "no", expires_at=WALL + 5)
    headers = render_retry_headers(state, "billing", "billing-RETRY-10s")
    assert parse_retry_headers(headers, ("orders",), WALL) == state
    assert parse_rendered(headers, ("orders",), WALL) in (None, state)
    for forged in (b"", b"-1", b"1_0", b"1" * 17, "１".encode()):
        bad = [(name, forged if name == RETRY_EXPIRES_AT else value) for name, value in headers]
        assert "RETRY_EXPIRES_AT" in str(parse_retry_headers(bad, ("orders",), WALL))
        assert parse_rendered(bad, ("orders",), WALL) is None


TEXTS = {
    "2026-11-26T18:00:00Z": Expiry(at=1_795_716_000_000),
    "2026-11-26t18:00:00.250z": Expiry(at=1_795_716_000_250),
    "2026-11-26 19:00:00+01:00": Expiry(at=1_795_716_000_000),
    "2026-11-26T18:00:00.123456789Z": Expiry(at=1_795_716_000_123),
    "1969-12-31T00:00:00Z": Expiry(at=0),
    "6h": Expiry(after=21_600_000),
    "0s": Expiry(after=0),
}
BAD = ["", "never", "2026-11-26", "2026-11-26T18:00:00", "2026-13-26T18:00:00Z", "2026-11-26T18:61:00Z", "-5s", "5"]
BAD += ["0000-01-01T00:00:00Z", "6h" * 99, "٦h", "2026-11-26T18:00:00+99:99", "18:00", "1e3s", " 6h"]


@pytest.mark.parametrize("text", TEXTS)
def test_a_time_or_a_duration_is_read(text: str) -> None:
    assert parse_expiry(text) == TEXTS[text]


@pytest.mark.parametrize("text", BAD)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_expiry(text)
