"""A topic's own limits bind its fresh records, retries and redrives together, and keep no other record waiting."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.sidecar.core.outcome import COMMITTED
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.pace.pace import Pace
from reconsume.sidecar.core.pace.rates import DeliveryLimits, LimitFacts, TopicTerms
from reconsume.sidecar.core.pace.topic_turns import RESERVE, ReadyFlows
from reconsume.sidecar.core.record import NEVER, Now, Partition, Record
from reconsume.topics.rates import Rate
from reconsume.topics.retry_headers import RetryState
from tests.sim.samples import record

SLOW, FAST = "slow", "fast"
LEVEL = Partition("billing-RETRY-1s", 0)


class Line:
    """A lane that only sends."""

    has_open = True

    def __init__(self, gate: Dispatcher) -> None:
        self.ready, self.out = ReadyFlows(), list[Record]()
        self._gate, self._offset = gate, 0
        gate.join(self)

    def send(self, record: Record, now: Now) -> bool:
        self.out.append(record)
        return True

    def answered_in_bulk(self, now: Now) -> None:
        self._gate.dispatch(now)

    def fresh(self, topic: str, count: int, partition: int = 0) -> None:
        self.ready.extend([record(self._next(), source=Partition(topic, partition)) for _ in range(count)])

    def retries(self, topic: str, count: int) -> None:
        life = RetryState(f"{topic}:0:1", topic, 1)
        self.ready.extend([replace(record(self._next(), source=LEVEL), retry_state=life) for _ in range(count)])

    def answer(self, now: Now) -> None:
        self._gate.answered(self.out.pop(0), COMMITTED, now)
        self._gate.dispatch(now)

    def _next(self) -> int:
        self._offset += 1
        return self._offset


def at(ms: int) -> Now:
    return Now(ms, ms)


def topic_of(one: Record) -> str:
    return one.source.topic if one.retry_state is None else one.retry_state.topic


def gate_of(places: int = 64, **terms: TopicTerms) -> tuple[Dispatcher, Line, Line]:
    gate = Dispatcher(Pace(places), limits=DeliveryLimits(terms=terms))
    return gate, Line(gate), Line(gate)


def test_a_topic_has_no_more_out_than_its_places_over_all_lanes_and_others_take_the_rest() -> None:
    gate, main, retry = gate_of(8, slow=TopicTerms(concurrency=2))
    main.fresh(SLOW, 20)
    main.fresh(FAST, 20)
    retry.retries(SLOW, 20)
    retry.retries(FAST, 20)
    gate.dispatch(at(0))
    out = Counter(topic_of(one) for one in main.out + retry.out)
    assert out == {SLOW: 2, FAST: 6}
    assert gate.limit_facts() == [LimitFacts("concurrency", SLOW, 2, waits=True)]
    gate.check()
    for _ in range(60):
        (main if len(main.out) > len(retry.out) else retry).answer(at(0))
        gate.check()
        assert sum(topic_of(one) == SLOW for one in main.out + retry.out) <= 2
    assert gate.next_at(at(0)) == NEVER, "only an answer lets more go"


def test_a_topic_with_a_rate_goes_by_it_and_the_others_at_once() -> None:
    gate, main, retry = gate_of(slow=TopicTerms(rate=Rate(10, 1_000)))
    main.fresh(SLOW, 8)
    main.fresh(FAST, 8)
    retry.retries(SLOW, 8)
    gate.dispatch(at(0))
    assert Counter(map(topic_of, main.out)) == {FAST: 8}
    assert gate.next_at(at(0)) == 100
    assert len(main.ready) == 8, "what rests is counted as ready"
    for ms in range(100, 1_001, 100):
        assert gate.next_at(at(ms - 100)) == ms
        gate.dispatch(at(ms))
        gate.check()
    assert sum(topic_of(one) == SLOW for one in main.out + retry.out) == 10
    assert {topic_of(one) for one in retry.out} == {SLOW}, "retries go by turns with the fresh ones"


def test_a_closed_dispatcher_wakes_nobody_for_a_rate() -> None:
    limits = DeliveryLimits(Rate(10, 1_000), None, {SLOW: TopicTerms(rate=Rate(5, 1_000))})
    gate = Dispatcher(Pace(8), limits=limits)
    main = Line(gate)
    main.fresh(SLOW, 3)
    main.fresh(FAST, 3)
    gate.dispatch(at(0))
    assert gate.next_at(at(0)) == 100
    gate.close()
    gate.dispatch(at(5_000))
    assert gate.next_at(at(5_000)) == NEVER


def test_partitions_that_go_take_nothing_of_a_limit_with_them() -> None:
    gate, main, retry = gate_of(slow=TopicTerms(concurrency=1))
    main.fresh(SLOW, 3)
    retry.retries(SLOW, 3)
    gate.dispatch(at(0))
    (out,) = main.out + retry.out
    main.ready.drop([Partition(SLOW, 0)])
    assert len(retry.ready.take_back(LEVEL)) == 3
    retry.ready.drop([LEVEL])
    gate.check()
    gate.answered(out, COMMITTED, at(0))
    gate.check()
    main.fresh(SLOW, 1)
    gate.dispatch(at(0))
    assert len(main.out) == 2


def test_the_rate_of_the_instance_counts_all_records_and_is_told_when_it_binds() -> None:
    gate = Dispatcher(Pace(64), 8, DeliveryLimits(Rate(100, 1_000)))
    main, retry = Line(gate), Line(gate)
    main.fresh(FAST, 200)
    retry.retries(SLOW, 200)
    gate.dispatch(at(0))
    assert not main.out + retry.out
    assert gate.limit_facts() == [LimitFacts("rate", None, 100.0, waits=True)]
    went = 0
    for ms in range(10, 2_001, 10):
        gate.dispatch(at(ms))
        for line in (main, retry):
            went += len(line.out)
            for one in line.out:
                gate.answered(one, COMMITTED, at(ms))
            line.out.clear()
        gate.check()
    assert went == 200
    gate.limits.set_rates(None, None, at(2_000))
    gate.dispatch(at(2_000))
    assert len(main.out + retry.out) == 64
    assert gate.limit_facts() == []


STEP = st.one_of(
    st.tuples(st.just("fresh"), st.sampled_from([SLOW, FAST]), st.integers(1, 5)),
    st.tuples(st.just("retries"), st.sampled_from([SLOW, FAST]), st.integers(1, 5)),
    st.tuples(st.just("answer"), st.sampled_from([SLOW, FAST]), st.integers(1, 3)),
    st.tuples(st.just("drop"), st.sampled_from([SLOW, FAST]), st.just(0)),
    st.tuples(st.just("wait"), st.just(SLOW), st.integers(1, 700)),
)


@settings(max_examples=60)
@given(
    st.lists(STEP, max_size=30),
    st.one_of(st.none(), st.integers(1, 3)),
    st.one_of(st.none(), st.integers(1, 20)),
    st.sampled_from([1, 4]),
)
def test_whatever_comes_no_limit_is_passed_and_nothing_that_may_go_stays(
    steps: list[tuple[str, str, int]], places: int | None, rate: int | None, unit: int
) -> None:
    own = None if rate is None else Rate(rate, 1_000)
    gate = Dispatcher(Pace(16), unit, DeliveryLimits(terms={SLOW: TopicTerms(places, own)}))
    main, retry, ms, went, told = Line(gate), Line(gate), 0, 0, 0
    for what, topic, count in steps:
        if what in ("fresh", "retries"):
            getattr(main if what == "fresh" else retry, what)(topic, count)
        elif what == "wait":
            ms += count
        elif what == "drop":
            main.ready.drop([Partition(topic, 0)])
        else:
            for line in (main, retry):
                for one in line.out[:count]:
                    gate.answered(one, COMMITTED, at(ms))
                    told += topic_of(one) == SLOW
                del line.out[:count]
        gate.dispatch(at(ms))
        gate.check()
        main.ready.check()
        retry.ready.check()
        out = sum(topic_of(one) == SLOW for one in main.out + retry.out)
        went = told + out
        assert places is None or out <= places
        assert rate is None or went <= ms * rate / 1_000
        (limit,) = gate.limits.topics.values()
        waits = [one for one in (*main.ready, *retry.ready) if topic_of(one) == SLOW]
        reserve = max(unit, 16 // RESERVE)
        assert not waits or limit.room(ms) < 1 or gate.in_flight >= 16 - reserve, "it waits for a limit, or for a slot"


def test_a_topic_that_had_nothing_to_send_for_long_goes_on_with_a_second_of_its_rate_and_no_more() -> None:
    """Nobody looks at a limit that is not reached: what it gained meanwhile is bounded when a record goes."""
    gate, line, _ = gate_of(slow=TopicTerms(rate=Rate(1, 1_000)))
    line.fresh(SLOW, 1)
    gate.dispatch(at(1_000))
    line.answer(at(1_001))
    gate.dispatch(at(3_000))  # it is looked at, and not reached any more
    times = list[int]()
    for now in range(60_000, 64_000):
        line.fresh(SLOW, 1)
        gate.dispatch(at(now))
        times += [now] * len(line.out)
        while line.out:
            line.answer(at(now))
    assert len([one for one in times if one < 61_000]) <= 2
    assert len(times) <= 5


def test_only_a_limited_topic_has_flows_of_its_own_within_a_partition_of_others() -> None:
    """The key of a flow must be one that a partition's flows are looked for by, or they are never dropped."""
    limits = DeliveryLimits(terms={SLOW: TopicTerms(concurrency=1)})
    retried = {
        topic: replace(record(source=LEVEL), retry_state=RetryState(f"{topic}:0:1", topic, 1)) for topic in (SLOW, FAST)
    }
    assert limits.key(retried[SLOW]) == (LEVEL, SLOW)
    assert limits.key(retried[FAST]) == LEVEL
    for topic in (SLOW, FAST):
        assert limits.key(record(source=Partition(topic, 3))) == Partition(topic, 3)
