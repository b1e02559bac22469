"""What an answer to a batch means for each of its records, and that no answer whatever is too much."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.core.outcome import COMMITTED, Failed, Outcome, Rejected, Throttled
from reconsume.sidecar.delivery.push.batch_verdicts import Verdicts, WholeRefused, read_batch_answer
from reconsume.sidecar.delivery.push.response_reader import Judged
from reconsume.sidecar.delivery.verdict import (
    EXPIRES,
    MISSING,
    NO_ID,
    UNKNOWN_ID,
    UNKNOWN_WORD,
    UNREADABLE,
    OddAnswer,
    VerdictRules,
)
from reconsume.topics.expiry import Expiry
from tests.support.sidecar.push_requests import a_record

WALL = 1_763_690_000_000
JSON = (b"content-type", b"application/json")
OURS = (b"content-type", b"application/vnd.reconsume+json")
RULES = VerdictRules(frozenset({410}))
RECORDS = [a_record(offset=offset) for offset in (7, 8, 9)]
A, B, C = (record.id for record in RECORDS)
RETRY = Failed("retry-asked", asked=True)


def read(text: bytes, status: int = 200, noted: list[tuple[bytes, bytes]] | None = None) -> Judged | OddAnswer:
    return read_batch_answer(RECORDS, status, [JSON] if noted is None else noted, text, RULES, WALL)


def listed(*entries: object) -> Judged | OddAnswer:
    return read(json.dumps({"verdicts": entries}).encode())


@pytest.mark.parametrize(
    ("status", "noted", "text", "expected"),
    [
        (200, [], b"", COMMITTED),
        (204, [], b"", COMMITTED),
        (200, [JSON], b'{"taken": 3}', COMMITTED),
        (200, [JSON], b"[]", COMMITTED),
        (200, [(b"content-type", b"text/plain")], b'{"verdict": "retry"}', COMMITTED),
        (200, [JSON], b'{"verdict": "retry", "delay": "90s"}', Failed("retry-asked", delay=90_000, asked=True)),
        (500, [JSON], b'{"verdict": "commit"}', COMMITTED),
        (200, [JSON], b'{"verdict": "dead-letter", "verdicts": []}', Rejected("dead-letter-asked")),
        (200, [(b"reconsume-verdict", b"retry"), JSON], b'{"verdicts": []}', RETRY),
        (200, [JSON], b'{"verdicts": []}', COMMITTED),
        (200, [OURS], b'{"verdicts": []}', COMMITTED),
        (429, [], b"", Throttled(1_000)),
        (503, [(b"retry-after", b"2")], b"", Throttled(2_000)),
        (503, [], b"", Failed("http-503")),
        (500, [JSON], b'{"verdicts": {}}', Failed("http-500")),
        (410, [], b"", Rejected("http-410")),
    ],
)
def test_one_verdict_is_that_of_every_record(
    status: int, noted: list[tuple[bytes, bytes]], text: bytes, expected: Outcome
) -> None:
    """Given an answer without a list, then it says one thing, as it would of a single record."""
    judged = read(text, status, noted)
    assert (judged.outcome if isinstance(judged, WholeRefused) else judged) == expected


def test_a_list_decides_for_each_record_in_whatever_order() -> None:
    """Given a verdict for each, then each has its own, whatever the status."""
    entries = [
        {"id": C, "verdict": "retry", "delay": "90s"},
        {"id": A, "verdict": "commit"},
        {"id": B, "verdict": "dead-letter", "reason": "bad-sku"},
    ]
    wanted: list[Outcome] = [COMMITTED, Rejected("bad-sku"), Failed("retry-asked", delay=90_000, asked=True)]
    for status in (200, 429, 500):
        assert read(json.dumps({"verdicts": entries}).encode(), status) == Verdicts(wanted)


def test_a_record_that_the_list_leaves_out_is_retried() -> None:
    """Given a list with one of three, then nothing that was left out is committed."""
    assert listed({"id": B, "verdict": "commit"}) == Verdicts([MISSING, COMMITTED, MISSING])


@pytest.mark.parametrize("entries", [[1], [{}], [{"id": "order-7", "verdict": "commit"}], [{"id": 7}, {"id": 8}]])
def test_a_list_of_the_service_s_own_says_nothing(entries: list[object]) -> None:
    """Given a list that names no record of the batch, then the status decides; under our own type it is unreadable."""
    text = json.dumps({"verdicts": entries}).encode()
    assert read(text) == OddAnswer(COMMITTED, (NO_ID,))
    assert read(text, 500) == OddAnswer(WholeRefused(500, Failed("http-500")), (NO_ID,))
    assert read(text, 200, [OURS]) == OddAnswer(UNREADABLE, (NO_ID,))


def test_entries_of_no_record_of_the_batch_are_passed_over_and_counted() -> None:
    """Given unknown ids and what is no entry at all, then the others count as ever."""
    entries = ({"id": "orders:3:99", "verdict": "dead-letter"}, 1, None, {"id": [A]}, {"verdict": "commit"})
    assert listed(*entries, {"id": A, "verdict": "commit"}) == OddAnswer(
        Verdicts([COMMITTED, MISSING, MISSING]), (UNKNOWN_ID,) * 5
    )


def test_an_entry_that_says_nothing_readable_is_a_retry_of_its_record_alone() -> None:
    """Given an unknown word, no word, and one id twice, then these are retried and nothing else."""
    found = listed({"id": A, "verdict": "Commit"}, {"id": B}, {"id": C, "verdict": "commit"})
    assert found == OddAnswer(Verdicts([UNREADABLE, UNREADABLE, COMMITTED]), (UNKNOWN_WORD,) * 2)
    twice = listed({"id": A, "verdict": "commit"}, {"id": A, "verdict": "retry"}, {"id": B, "verdict": "commit"})
    assert twice == OddAnswer(Verdicts([UNREADABLE, COMMITTED, MISSING]), (UNKNOWN_WORD,))
    assert listed(*[{"id": A, "verdict": "commit"}] * 2) == Verdicts([COMMITTED, MISSING, MISSING])


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9) | st.sampled_from([A, B, "commit", "retry", "1s"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["id", "verdict", "delay", "level", "reason"]), inner, max_size=5)
    ),
    max_leaves=12,
)


@given(st.lists(junk, max_size=5) | junk, st.integers(100, 999))
def test_no_list_raises(verdicts: object, status: int) -> None:
    """Given anything for a list, then every record has an outcome within its bounds."""
    found = read(json.dumps({"verdicts": verdicts}).encode(), status)
    found = found.judged if isinstance(found, OddAnswer) else found
    found = found.outcome if isinstance(found, WholeRefused) else found
    outcomes = found.outcomes if isinstance(found, Verdicts) else [found]
    assert len(outcomes) in (1, len(RECORDS))
    for outcome in outcomes:
        assert not isinstance(outcome, Failed | Rejected) or (len(outcome.text) <= 256 and outcome.reason.isascii())


@given(st.binary(max_size=200))
def test_no_body_raises(text: bytes) -> None:
    """Given any bytes, then there is an outcome."""
    assert read(b'{"verdicts": ' + text) is not None


def test_an_entry_may_say_when_its_record_expires_and_an_odd_one_is_counted() -> None:
    good = {"id": A, "verdict": "retry", "expires": "6h"}
    odd = {"id": B, "verdict": "retry", "expires": "soon"}
    expected = Verdicts([Failed("retry-asked", asked=True, expires=Expiry(after=21_600_000)), RETRY, MISSING])
    assert listed(good, odd) == OddAnswer(expected, (EXPIRES,))
