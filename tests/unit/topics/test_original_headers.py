"""A main topic's headers under our names: kept in the copy under another name, once, the oldest value."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reconsume.topics.other_group_headers import is_original, kept_originals
from reconsume.topics.render_headers import DROPPED, RETRY_TRACEPARENT, render_retry_headers, without_ours
from reconsume.topics.retry_headers import OURS, Headers, RetryState

OWN: Headers = [("tenant", b"7"), ("tenant", None)]
LIFE = RetryState("orders:0:7", "orders", 16, 0, 1, 2, 3, "http-500")


def test_headers_of_a_dead_letter_are_kept_and_say_nothing_any_more() -> None:
    """Given a dead letter of another group, then its copy has all that it had, and none of it under a name of ours."""
    dead = [*OWN, *render_retry_headers(LIFE, "billing", "billing-RETRY-10s")]
    kept = kept_originals(dead)
    assert kept[:2] == OWN
    assert {name.removeprefix("ORIGINAL_"): value for name, value in kept[2:]} == dict(dead[2:])
    assert without_ours(kept) == kept


def test_in_a_third_group_the_first_failure_stays_known() -> None:
    """Given what a second group wrote beside the first one's, then the first one's stays."""
    first = kept_originals([("RECONSUMETIMES", b"16")])
    assert kept_originals([*first, ("RECONSUMETIMES", b"3"), ("RETRY_REASON", b"http-400")]) == [
        ("ORIGINAL_RECONSUMETIMES", b"16"),
        ("ORIGINAL_RETRY_REASON", b"http-400"),
    ]


names = st.sampled_from(sorted(DROPPED)) | st.sampled_from([f"ORIGINAL_{name}" for name in sorted(OURS)]) | st.text()


@given(st.lists(st.tuples(names, st.none() | st.binary(max_size=3)), max_size=12))
def test_a_copy_never_has_a_name_of_ours_and_no_own_header_is_lost(headers: Headers) -> None:
    """Given any headers, then those of the record's own stay in their order, and a second time changes nothing."""
    kept = kept_originals(headers)
    own = [header for header in headers if header[0] not in DROPPED]
    assert kept[: len(own)] == own
    assert all(is_original(name) for name, _ in kept[len(own) :])
    assert RETRY_TRACEPARENT not in dict(kept)
    assert kept_originals(kept) == kept
