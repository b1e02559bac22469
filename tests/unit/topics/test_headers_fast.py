"""The quick ways with our headers say what the long ones say, or nothing."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.topics.headers_fast import for_topic, parse_rendered
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import OURS, BadHeader, Headers, RetryState, parse_retry_headers
from reconsume.topics.retry_order import LARGEST_OFFSET, Order

WAITS = st.just((None, False)) | st.tuples(
    st.builds(Order, st.integers(0, LARGEST_OFFSET), st.just(0) | st.integers(1, LARGEST_OFFSET)), st.booleans()
)
"""The order of a copy in a queue, and whether it waits behind another."""
TOPICS, LATEST = ("orders", "invoices"), 1_763_690_000_000
LIVES = st.builds(
    RetryState,
    st.builds("orders:{}:{}".format, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)),
    st.just("orders"),
    st.integers(0, 999_999),
    st.integers(0, 999_999),
    st.integers(0, LATEST),
    st.integers(0, 2**63 - 1),
    st.integers(0, 10**16 - 1),
    st.text(st.characters(categories=["L", "N"]), max_size=20),
    st.just(0),
    st.just(0) | st.integers(0, 10**16 - 1),
).filter(lambda life: not life.last_failed_at or life.last_failed_at != life.first_failed_at)  # it is not written then
LIVES = st.builds(lambda life, waits: replace(life, order=waits[0], behind=waits[1]), LIVES, WAITS)
OWN = st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=4)), max_size=3)
BAD = [None, b"", b"00", b"01", b"-1", b"1_0", b" 1", b"9" * 7, b"9" * 17, b"9" * 20, b"\xff", b"r" * 1_025]
BAD += [
    b"orders:0:01",
    b"orders:00:1",
    b"orders:2147483648:1",
    b"orders:1:9223372036854775808",
    b"x:orders:1:2",
    b"a:1",
]
BAD += [b"1.0", b"1.01", b"9223372036854775808", b"1.9223372036854775808"]
BAD += [b"orders:1:2\n", b"orders:1:", b"invoices:1:2", b"1763690000001", "\u0661".encode(), b"a b", b"a:1", b"secrets"]


@given(OWN, LIVES)
def test_what_we_have_written_is_read_the_quick_way(own: Headers, life: RetryState) -> None:
    headers = [*own, *render_retry_headers(life, "billing", "billing-RETRY-10s")]
    assert parse_rendered(headers, TOPICS, LATEST) == parse_retry_headers(headers, TOPICS, LATEST) == life


@given(OWN, LIVES, st.data())
def test_what_is_changed_is_read_as_the_long_way_reads_it_or_left_to_it(
    own: Headers, life: RetryState, data: st.DataObject
) -> None:
    headers = [*own, *render_retry_headers(life, "billing", "billing-RETRY-10s")]
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(headers) - 1))
        match data.draw(st.sampled_from(["value", "value", "value", "drop", "more", "swap"])):
            case "value":
                headers[place] = (headers[place][0], data.draw(st.sampled_from(BAD)))
            case "drop" if len(headers) > 1:
                del headers[place]
            case "more":
                headers.insert(place, (data.draw(st.sampled_from(sorted(OURS))), b"1"))
            case _:
                headers.append(headers.pop(place))
    quick, slow = parse_rendered(headers, TOPICS, LATEST), parse_retry_headers(headers, TOPICS, LATEST)
    assert quick in (None, slow)
    assert quick is None or not isinstance(slow, BadHeader)


@given(st.lists(st.tuples(st.sampled_from([*sorted(OURS), "a", "b"]), st.none() | st.binary(max_size=4)), max_size=14))
def test_a_move_changes_the_retry_topic_alone(headers: Headers) -> None:
    before = list(headers)
    copy = for_topic(headers, "billing-RETRY")
    assert headers == before
    assert [header for header in copy if header[0] != "RETRY_TOPIC"] == [h for h in headers if h[0] != "RETRY_TOPIC"]
    assert ("RETRY_TOPIC", b"billing-RETRY") in copy


def test_a_move_of_our_own_headers_keeps_their_order() -> None:
    life = RetryState("orders:0:1", "orders", 1)
    headers = render_retry_headers(life, "billing", "billing-RETRY-10s")
    assert for_topic(headers, "billing-RETRY") == render_retry_headers(life, "billing", "billing-RETRY")
