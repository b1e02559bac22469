"""Our own parsers take whatever we write for a record, also at the extremes of every count, time, name and reason."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.sidecar.core.decide import dead_letter_unreadable, decide
from reconsume.sidecar.core.outcome import COMMITTED, EXPIRED, Failed, Outcome, Rejected
from reconsume.sidecar.core.policy import InPlace, Policy
from reconsume.sidecar.core.progress import SPAN, Progress
from reconsume.sidecar.core.progress_codec import decode, encode
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.dlq.letters import Filter, RedriveRequest, read_letter, redrive
from reconsume.sidecar.dlq.redrive_history import Eligibility, RedriveHistory, eligibility
from reconsume.topics.events import Event, State, decode_event
from reconsume.topics.headers_fast import parse_rendered
from reconsume.topics.levels import LONGEST
from reconsume.topics.reasons import LONGEST_REASON
from reconsume.topics.retry_headers import (
    LARGEST_COUNT,
    LARGEST_LONG,
    LARGEST_PARTITION,
    BadHeader,
    RetryState,
    parse_retry_headers,
)
from reconsume.topics.transition_records import Copy, redriven_writes, writes_of
from reconsume.topics.transitions import Commit, DeadLetter, Forward, Hop, Retry, after_wait
from tests.sim import samples
from tests.sim.samples import WALL, life, record
from tests.support.rings import EXAMPLES

HERE = Partition("orders", 3)
LONGEST_GROUP = "g" * (249 - len("-RETRY-EVENTS"))
NAMES = ("orders", "o" * 249, "a.b_c-D")
COUNTS = st.sampled_from((0, 1, LARGEST_COUNT - 1, LARGEST_COUNT, LARGEST_COUNT + 1, 2**31, 10**18))
HEADER_COUNTS = st.sampled_from((0, 1, LARGEST_COUNT - 1, LARGEST_COUNT))
WALLS = st.sampled_from((0, 1, WALL, 9 * 10**15))
TEXTS = st.text(st.characters(), max_size=40) | st.sampled_from(("", "x" * 70_000, "\ud800" * 2_000, "é: " * 900, "\n"))


def policies() -> st.SearchStrategy[Policy]:
    """Policies with every rule for a failure, and with names as long as Kafka takes them."""

    def build(ordered: InPlace | None, retries: int, group: str, topic: str) -> Policy:
        usual = samples.policy(topics=(topic,), retries=retries)
        return replace(usual, in_place=ordered, names=replace(usual.names, group=group))

    rules = st.none() | st.builds(InPlace, st.just(10), st.none() | HEADER_COUNTS)
    return st.builds(build, rules, HEADER_COUNTS, st.sampled_from(("billing", LONGEST_GROUP)), st.sampled_from(NAMES))


def lives(topic: str, latest_due: int) -> st.SearchStrategy[RetryState]:
    """Every state that the headers of a copy of `topic` may carry."""
    return st.builds(
        RetryState,
        id=st.builds(
            lambda number, offset: f"{topic}:{number}:{offset}",
            st.sampled_from((0, LARGEST_PARTITION)),
            st.sampled_from((0, LARGEST_LONG)),
        ),
        topic=st.just(topic),
        times=HEADER_COUNTS,
        redrives=HEADER_COUNTS,
        due_at=st.sampled_from((0, min(latest_due, 10**16 - 1))),
        timestamp=st.sampled_from((0, LARGEST_LONG)),
        first_failed_at=st.sampled_from((0, 10**16 - 1)),
        reason=st.sampled_from(("", "http-500: no", "r" * LONGEST_REASON)),
    )


@st.composite
def records(draw: st.DrawFn, policy: Policy, now: int) -> Record:
    """A record of a main topic, or a copy, that was tried in place any number of times."""
    topic = policy.topics[0]
    source = Partition(topic, draw(st.sampled_from((0, LARGEST_PARTITION))))
    offset, stamp = draw(st.sampled_from((0, LARGEST_LONG))), draw(st.sampled_from((-1, 0, LARGEST_LONG)))
    found = draw(st.none() | lives(topic, policy.latest_due(now)))
    again = draw(COUNTS)
    plain = Record(source, offset, 1, stamp, b"k", b"v", [("a", None)], found)
    return replace(plain, again=again, failed_at_ms=now if again else 0)


OUTCOMES: st.SearchStrategy[Outcome] = st.one_of(
    st.just(COMMITTED),
    st.just(EXPIRED),
    st.builds(Rejected, TEXTS, TEXTS),
    st.builds(
        Failed,
        TEXTS,
        TEXTS,
        delay=st.none() | st.sampled_from((0, 1_000, LONGEST, LONGEST + 1)),
        level=st.none() | st.integers(-9_999, 9_999),
    ),
)


def read_back(writes: tuple[Copy, ...], policy: Policy, now: int) -> None:
    """Read everything that was written, as a sidecar, the command line and the view do."""
    names, events, found = policy.names, list[Event](), list[RetryState]()
    for copy in writes:
        if copy.topic == names.events:
            event = decode_event(copy.value)
            assert isinstance(event, Event), event
            events.append(event)
        elif copy.topic == policy.dlq_of(policy.topics[0]):
            letter = read_letter(written(copy, now), policy)
            assert letter.retry_state is not None, letter.fault
            found.append(letter.retry_state)
        else:
            life = parse_retry_headers(copy.headers, policy, policy.latest_due(now))
            assert not isinstance(life, BadHeader), life
            quick = parse_rendered(copy.headers, policy.topics, policy.latest_due(now))
            assert quick == (None if life.most_times else life), "only a redriven copy is read the long way"
            found.append(life)
    for life, event in zip(found, events, strict=False):
        assert (life.id, life.times, life.redrives, life.due_at) == (event.id, event.times, event.redrives, event.due)


def written(copy: Copy, now: int) -> Record:
    """A copy as Kafka returns it."""
    return Record(Partition(copy.topic, 0), 0, 1, now, copy.key, copy.value, copy.headers, None)


@settings(deadline=None, max_examples=EXAMPLES)
@given(st.data())
def test_whatever_follows_from_an_outcome_is_read_back(data: st.DataObject) -> None:
    policy, now = data.draw(policies()), data.draw(WALLS)
    one = data.draw(records(policy, now))
    outcome = data.draw(OUTCOMES)
    decision = decide(one, outcome, policy, now)
    if isinstance(decision, Commit | Retry | Hop | Forward | DeadLetter):
        read_back(writes_of(one, decision, policy, now), policy, now)


@settings(deadline=None)
@given(st.data())
def test_whatever_follows_from_a_wait_is_read_back(data: st.DataObject) -> None:
    relay, now = data.draw(st.booleans()), data.draw(WALLS)
    policy = replace(data.draw(policies()), relay=relay)
    found = data.draw(lives(data.draw(st.sampled_from((policy.topics[0], "another"))), policy.latest_due(now)))
    source = Partition(policy.names.level(policy.delays[0], policy.topics[0]), 0)
    writes = writes_of(Record(source, 0, 1, now, b"k", b"v", [], found), Retry(found, 1_000), policy, now)
    one = Record(source, 0, 1, now, b"k", b"v", writes[0].headers, found)
    decision = after_wait(one, policy, now)
    if isinstance(decision, Hop | Forward | DeadLetter):
        copies = writes_of(one, decision, policy, now)
        if found.topic in policy.topics or isinstance(decision, DeadLetter):
            read_back(copies, policy, now)
        else:
            life = parse_retry_headers(copies[0].headers, policy, policy.latest_due(now))
            assert life == found


@given(TEXTS, st.integers(0, LARGEST_LONG))
@example("\ud800", 0)
def test_the_dead_letter_of_unreadable_headers_is_read_back(fault: str, offset: int) -> None:
    policy = samples.policy()
    one = record(offset, source=Partition("billing-RETRY-10s", 3), timestamp=-1, fault=fault or "bad-header")
    decision = dead_letter_unreadable(one, policy, WALL)
    copy, event = writes_of(one, decision, policy, WALL)
    assert read_letter(written(copy, WALL), policy).retry_state is not None
    assert isinstance(decode_event(event.value), Event)


@given(HEADER_COUNTS, HEADER_COUNTS)
def test_a_redriven_letter_is_read_back(times: int, redrives: int) -> None:
    policy = samples.policy()
    state = replace(life(times), redrives=redrives)
    read_back(redriven_writes(record(), replace(state, redrives=redrives + 1), policy, WALL), policy, WALL)


@pytest.mark.parametrize("again", [1_000_000, 10**12])
def test_a_dead_letter_can_be_redriven_however_often_its_record_was_tried_in_place(again: int) -> None:
    """An ordered group tries a record a million times in three hours (`ordered_interval: 10ms`), or in twelve days."""
    policy = replace(samples.policy(), in_place=InPlace(10))
    tried = replace(record(7), again=again, failed_at_ms=WALL)
    decision = decide(tried, Rejected("no"), policy, WALL)
    assert isinstance(decision, DeadLetter)
    copy, event = writes_of(tried, decision, policy, WALL)
    letter = read_letter(written(copy, WALL), policy)
    assert letter.retry_state is not None
    assert letter.retry_state.times == decode_event(event.value).times == LARGEST_COUNT  # type: ignore[union-attr]
    request = RedriveRequest(Filter(), topics=policy.topics)
    assert eligibility(letter, request, RedriveHistory("id", 0)) is Eligibility.READY
    read_back(redrive(letter, policy, WALL).writes, policy, WALL)


def test_an_event_of_a_record_that_was_tried_too_often_to_be_counted_is_an_event() -> None:
    policy = replace(samples.policy(), in_place=InPlace(10))
    state = replace(life(LARGEST_COUNT), times=10**12)
    (event,) = writes_of(record(life=state), Commit(state), policy, WALL)
    heard = decode_event(event.value)
    assert isinstance(heard, Event)
    assert (heard.state, heard.times) == (State.COMMIT, LARGEST_COUNT)


@given(
    st.builds(
        Progress,
        next=st.just(7),
        done=st.frozensets(st.integers(7, 7 + SPAN - 1), max_size=40),
        clean=st.booleans(),
        deaths=COUNTS,
        mark=st.none() | st.sampled_from((7, 7 + SPAN, LARGEST_LONG)),
        reach=st.none() | st.sampled_from((6, 7 + SPAN - 1, LARGEST_LONG)),
        width=st.none() | COUNTS,
        last_at_ms=st.none() | st.sampled_from((0, WALL, LARGEST_LONG)),
    )
)
def test_progress_is_read_back_whatever_its_numbers_and_never_with_a_done_offset_more(progress: Progress) -> None:
    text = encode(HERE, progress)
    found = decode(HERE, 7, text)
    assert len(text) <= 4_096
    assert (found.next, found.done, found.clean, found.ours) == (7, progress.done, progress.clean, True)
    assert encode(HERE, found) == text, "nothing of it was dropped by the parser"
