"""What is written for a decision: the record byte for byte as it was, our headers replaced, one event a change."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.sidecar.core.decide import dead_letter_unreadable, decide
from reconsume.sidecar.core.outcome import COMMITTED, Failed, Rejected
from reconsume.sidecar.core.record import Partition
from reconsume.topics.dead_letter_headers import DEAD_LETTER
from reconsume.topics.events import Event, State, decode_event
from reconsume.topics.other_group_headers import kept_originals
from reconsume.topics.render_headers import RETRY_TRACEPARENT, render_retry_headers
from reconsume.topics.retry_headers import MOST_HEADERS, MOST_OF_OURS, OURS, RETRY_HEADERS_DROPPED, Headers
from reconsume.topics.transition_records import Copy, redriven_writes, writes_of
from reconsume.topics.transitions import Commit, DeadLetter, Forward, Hop, Retry
from tests.sim.samples import WALL, life, policy, read, record

POLICY = policy()
ANY_KEY = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(sorted(OURS | DEAD_LETTER))
HEADERS = st.lists(st.tuples(ANY_KEY, st.none() | st.binary(max_size=8)), max_size=8)
BYTES = st.none() | st.binary(max_size=8)


def own(headers: Headers) -> Headers:
    return [(key, value) for key, value in headers if key not in OURS and key not in DEAD_LETTER]


def event_in(copy: Copy) -> Event:
    event = decode_event(copy.value)
    assert isinstance(event, Event)
    assert (copy.topic, copy.headers) == ("billing-RETRY-EVENTS", [])
    assert copy.key == event.id.encode()
    return event


@given(BYTES, BYTES, HEADERS, st.sampled_from(["retry", "hop", "dead"]))
def test_the_record_stays_as_it_was_and_ours_are_replaced(
    key: bytes | None, value: bytes | None, headers: Headers, what: str
) -> None:
    found = record(key=key, value=value, headers=list(headers))
    decisions: dict[str, Retry | Hop | DeadLetter] = {
        "retry": Retry(life(1), 10_000),
        "hop": Hop(life(1), 10_000),
        "dead": DeadLetter(life(1), "http-500", 2),
    }
    copy = writes_of(found, decisions[what], POLICY, WALL)[0]
    assert (copy.key, copy.value) == (key, value)
    assert own(copy.headers) == kept_originals(headers)
    assert found.headers == headers  # the record itself is untouched
    names = [name for name, _ in copy.headers if name in OURS]
    assert len(names) == len(set(names)) == 10
    assert read(copy.headers, POLICY) == (life(1), "")


def test_many_rounds_leave_one_set_of_our_headers() -> None:
    headers: Headers = [("a", b"1"), ("a", None), ("b", b""), ("a", b"1")]
    found = record(7, headers=headers)
    for times in range(1, 6):
        decision = decide(found, Failed("http-500"), POLICY, WALL)
        assert isinstance(decision, Retry)
        copy = writes_of(found, decision, POLICY, WALL)[0]
        assert own(copy.headers) == headers
        told, _ = read(copy.headers, POLICY)
        assert told is not None
        assert (told.times, told.id, len(copy.headers)) == (times, "orders:0:7", 14)
        found = record(99 + times, headers=copy.headers, life=told)


def test_a_success_at_once_writes_nothing() -> None:
    assert writes_of(record(), Commit(None), POLICY, WALL) == ()


def test_a_success_after_retries_writes_one_event() -> None:
    found = record(life=life(2))
    decision = decide(found, COMMITTED, POLICY, WALL + 9)
    assert isinstance(decision, Commit)
    (write,) = writes_of(found, decision, POLICY, WALL + 9)
    event = event_in(write)
    assert (event.state, event.times, event.level, event.at) == (State.COMMIT, 2, None, WALL + 9)
    assert (event.id, event.topic, event.partition, event.offset) == ("orders:0:7", "orders", 0, 7)
    assert (event.reason, event.instance) == ("http-500", "billing-0")


def test_a_retry_writes_a_copy_and_an_event() -> None:
    found = record(7, source=Partition("orders", 0))
    decision = decide(found, Failed("timeout", "no answer"), POLICY, WALL)
    assert isinstance(decision, Retry)
    copy, told = writes_of(found, decision, POLICY, WALL)
    event = event_in(told)
    assert copy.topic == "billing-RETRY-10s"
    assert dict(copy.headers)["RETRY_TOPIC"] == b"billing-RETRY-10s"
    assert (event.state, event.times, event.level, event.due) == (State.WAITING_RETRY, 1, "10s", WALL + 10_000)
    assert event.reason == "timeout"


def test_a_retry_below_every_level_goes_to_the_ready_topic() -> None:
    copy, told = writes_of(record(), Retry(life(1), None), POLICY, WALL)
    assert copy.topic == "billing-RETRY"
    assert event_in(told).level is None


def test_a_hop_is_no_event() -> None:
    (copy,) = writes_of(record(life=life(3)), Hop(life(3), 60_000), POLICY, WALL)
    assert copy.topic == "billing-RETRY-1m"
    assert read(copy.headers, POLICY)[0] == life(3)


@pytest.mark.parametrize("outcome", [Failed("http-500", "no"), Rejected("http-500", "no")])
def test_a_dead_letter_carries_the_six_headers_of_share_groups(outcome: Failed | Rejected) -> None:
    found = record(3, life=life(16), source=Partition("billing-RETRY-2h", 1), headers=[("__dlq.errors.topic", b"x")])
    decision = decide(found, outcome, POLICY, WALL)
    assert isinstance(decision, DeadLetter)
    copy, told = writes_of(found, decision, POLICY, WALL)
    assert copy.topic == "billing-DLQ"
    assert [header for header in copy.headers if header[0] in DEAD_LETTER] == [
        ("__dlq.errors.topic", b"orders"),
        ("__dlq.errors.partition", b"0"),
        ("__dlq.errors.offset", b"7"),
        ("__dlq.errors.group", b"billing"),
        ("__dlq.errors.delivery.count", b"17"),
        ("__dlq.errors.message", b"http-500: no"),
    ]
    assert dict(copy.headers)["RECONSUMETIMES"] == b"16"
    assert (event_in(told).state, event_in(told).times) == (State.DLQ, 16)


@pytest.mark.parametrize("headers", [None, [("RECONSUMETIMES", b"x"), ("mine", None)]])
def test_a_broken_record_is_dead_with_what_can_be_read_of_it(headers: Headers | None) -> None:
    source = Partition("billing-RETRY-10s", 2)
    found = record(9, source=source, value=None, key=b"", headers=headers, fault="bad-header: x")
    copy, told = writes_of(found, dead_letter_unreadable(found, POLICY, WALL), POLICY, WALL)
    assert (copy.key, copy.value, own(copy.headers)) == (b"", None, own(headers or []))
    assert dict(copy.headers)["ORIGIN_MESSAGE_ID"] == b"billing-RETRY-10s:2:9"
    assert (event_in(told).reason, event_in(told).state) == ("bad-header", State.DLQ)


def test_a_record_without_a_key_keeps_its_partition_number() -> None:
    found = record(source=Partition("orders", 5), key=None)
    assert writes_of(found, Hop(life(1), 1_000), POLICY, WALL)[0].spread == 5


@pytest.mark.parametrize("own_headers", [[], [("a", b"1"), ("b", None), ("a", b"1")]])
def test_what_is_forwarded_is_as_it_was_but_for_the_topic_that_it_is_in(own_headers: Headers) -> None:
    level = Partition("billing-RETRY-10s", 3)
    headers = own_headers + render_retry_headers(life(2), "billing", level.topic)
    found = record(source=level, key=None, value=b"", headers=headers, life=life(2))
    expected = own_headers + render_retry_headers(life(2), "billing", "billing-RETRY")
    assert writes_of(found, Forward(life(2)), POLICY, WALL) == (Copy("billing-RETRY", None, b"", expected, 3),)


def test_a_redriven_letter_is_due_at_once_and_says_so() -> None:
    copy, told = redriven_writes(record(life=life(0)), life(0), POLICY, WALL + 9)
    event = event_in(told)
    assert copy.topic == "billing-RETRY"
    assert (event.state, event.level, event.at) == (State.REDRIVEN, None, WALL + 9)


@pytest.mark.parametrize("traced", [True, False])
def test_the_mark_of_the_attempt_before_is_kept_where_attempts_are_traced(traced: bool) -> None:
    mark = (RETRY_TRACEPARENT, b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    for headers in ([("a", b"1"), mark], [("a", b"1")]):
        copy = writes_of(record(headers=list(headers)), Retry(life(1), 10_000), replace(POLICY, traced=traced), WALL)[0]
        assert (mark in copy.headers) is (traced and mark in headers)


@pytest.mark.parametrize(
    ("count", "kept"), [(MOST_HEADERS - MOST_OF_OURS, True), (MOST_HEADERS - MOST_OF_OURS + 1, False)]
)
def test_a_copy_has_the_records_headers_if_they_can_be_read_together_with_ours(count: int, *, kept: bool) -> None:
    found = record(7, headers=[("a", b"")] * count)
    (copy, _) = writes_of(found, Retry(life(1), 10_000), POLICY, WALL)
    assert len(copy.headers) <= MOST_HEADERS
    if not kept:
        assert own(copy.headers) == [(RETRY_HEADERS_DROPPED, b"%d" % count)]
        again = writes_of(record(8, headers=copy.headers, life=life(1)), Retry(life(2), 10_000), POLICY, WALL)[0]
        assert own(again.headers) == own(copy.headers), "the number stays with the record"
    else:
        assert own(copy.headers) == found.headers
