"""A Spark job's copies and events are the sidecar's, byte for byte, for the same record, outcome and time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core import decide, outcome, policy
from reconsume.sidecar.core import record as core
from reconsume.spark.consumer.configuration import build_rules
from reconsume.spark.consumer.handling import Judge, Result, Written, after_handling, before_handling
from reconsume.spark.consumer.record import Read, for_handler, parse
from reconsume.spark.consumer.rules import Rules
from reconsume.spark.consumer.verdict import DeadLetter, Retry, Verdict, dead_letter, retry
from reconsume.topics import transition_records, transitions
from reconsume.topics.events import Event, decode_event
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import Headers, RetryState, parse_retry_headers

NOW = 1_763_690_000_000
OWN: Headers = [("trace", b"1"), ("TAGS", None), ("trace", b""), ("b", b"\xff\x00")]
FORGED: Headers = [("RECONSUMETIMES", b"7"), ("__dlq.errors.topic", b"x")]
LADDER = ["1s", "2s", "1m"]
MOST = 4


def rules_of(**more: Any) -> Rules:
    return build_rules(
        "billing", ["orders", "bills"], **{"ladder": LADDER, "max_reconsume_times": MOST, **more}, name="ship"
    )


def policy_of(rules: Rules) -> policy.Policy:
    return policy.Policy(
        rules.names,
        rules.topics,
        rules.ladder,
        rules.table,
        rules.delays,
        max_reconsume_times=rules.max_reconsume_times,
        instance=rules.instance,
    )


def main_row(headers: Headers | None = None, timestamp: int = NOW - 9_000) -> Read:
    return Read("orders", 3, 1024, timestamp, b"\x00k", b"v", OWN + FORGED if headers is None else headers)


def retried_row(rules: Rules, topic: str | None = None, due: int = NOW - 5, times: int = 1) -> Read:
    life = RetryState("orders:3:1024", "orders", times, 2, due, NOW - 9_000, NOW - 8_000, "http-500: no")
    topic = topic or rules.names.ready
    return Read(topic, 1, 7, NOW - 3, None, None, OWN + render_retry_headers(life, "billing", topic))


def sidecars(row: Read, rules: Rules, verdict: Verdict | None) -> list[Written]:
    """What the sidecar writes."""
    found = None if row.topic in rules.topics else parse_retry_headers(row.headers, rules.topics, NOW + 10**10)
    life = found if isinstance(found, RetryState) else None
    source = core.Partition(row.topic, row.partition)
    record = core.Record(source, row.offset, 1, row.timestamp, row.key, row.value, row.headers, life)
    match verdict:
        case None:
            came: outcome.Outcome = outcome.COMMITTED
        case Retry():
            came = outcome.Failed(verdict.reason, delay=verdict.wait, level=verdict.level)
        case DeadLetter():
            came = outcome.Rejected(verdict.reason)
    decision = decide.decide(record, came, policy_of(rules), NOW)
    assert isinstance(decision, transitions.Commit | transitions.Retry | transitions.DeadLetter)
    return written(transition_records.writes_of(record, decision, policy_of(rules), NOW))


def written(copies: Iterable[transition_records.Copy]) -> list[Written]:
    return [(copy.topic, copy.key, copy.value, copy.headers) for copy in copies]


def ours(row: Read, rules: Rules, verdict: Verdict | None) -> Result:
    record = parse(row, rules, NOW)
    return after_handling(record, Judge(rules).outcome(verdict, for_handler(record)), rules, NOW)


VERDICTS: list[Verdict | None] = [
    None,
    retry(),
    retry(delay="90s", reason="busy"),
    retry(delay="3s"),
    retry(delay="20d"),
    retry(delay="500ms", level=3),
    retry(level=5),
    retry(level=-1, reason="no"),
    retry(level=99),
    retry(reason="ValueError"),
    dead_letter("bad-sku"),
    dead_letter("x" * 5000 + "\n"),
]


@pytest.mark.parametrize("prefix", ["{group}", "{topic}-{group}"])
@pytest.mark.parametrize("verdict", VERDICTS, ids=lambda verdict: repr(verdict)[:40])
def test_every_copy_and_event_is_the_sidecars(verdict: Verdict | None, prefix: str) -> None:
    rules = rules_of(topic_prefix=prefix)
    rows = [main_row(), main_row(timestamp=-1), *(retried_row(rules, times=times) for times in (1, 3, 4, 9))]
    for row in rows:
        assert ours(row, rules, verdict).writes == sidecars(row, rules, verdict)


def test_the_ladders_last_delay_repeats_up_to_max_reconsume_times() -> None:
    rules = rules_of()
    topics = [ours(retried_row(rules, times=times), rules, retry()).writes[0][0] for times in range(5)]
    names = [rules.names.level(delay, "orders") for delay in (1_000, 2_000, 60_000, 60_000)]
    assert topics == [*names, rules.names.dlq("orders")]


def test_a_wait_below_the_shortest_level_takes_that_one_and_keeps_its_due_time() -> None:
    rules = build_rules("billing", ["orders"], ladder=["10s"], levels=["5s", "10s"], name="ship")
    topic, _, _, headers = ours(main_row(), rules, retry(delay="1s")).writes[0]
    life = parse_retry_headers(headers, rules.topics, NOW + 10**10)
    assert topic == "billing-RETRY-5s"
    assert isinstance(life, RetryState)
    assert life.due_at == NOW + 1_000


def test_a_success_at_once_writes_nothing_and_a_success_after_a_retry_one_event() -> None:
    rules = rules_of()
    assert ours(main_row(), rules, None) == Result("commit", ("orders", ""), fresh=True, waited=9_000, writes=[])
    ((topic, key, value, _),) = ours(retried_row(rules), rules, None).writes
    told = decode_event(value)
    assert isinstance(told, Event)
    assert (topic, key, told.state, told.times) == (rules.names.events, b"orders:3:1024", "COMMIT", 1)


@pytest.mark.parametrize(
    ("rest", "level"), [(1_001, 1_000), (58_999, 30_000), (59_999, 60_000), (86_400_000, 7_200_000)]
)
def test_a_record_on_a_hop_is_sent_on_and_not_handled(rest: int, level: int) -> None:
    rules = rules_of(levels="table")
    row = retried_row(rules, due=NOW + rest)
    routed = before_handling(parse(row, rules, NOW), rules, NOW)
    assert routed is not None
    ((topic, key, value, hopped),) = routed.writes
    before, after = (parse_retry_headers(headers, rules.topics, NOW + 10**10) for headers in (row.headers, hopped))
    assert (routed.outcome, topic) == ("hop", rules.names.level(level, "orders"))
    assert (before, row.key, row.value) == (after, key, value)


@pytest.mark.parametrize("rest", [-5, 0, 1, 1_000])
def test_a_record_that_is_due_within_a_second_is_handled(rest: int) -> None:
    rules = rules_of()
    assert before_handling(parse(retried_row(rules, due=NOW + rest), rules, NOW), rules, NOW) is None


def test_a_main_record_is_handled_whatever_headers_of_ours_it_brings() -> None:
    rules = rules_of()
    row = main_row([("RECONSUMETIMES", b"no number"), ("RETRY_DUE_AT", b"%d" % (NOW + 10**9))])
    taken = parse(row, rules, NOW)
    assert before_handling(taken, rules, NOW) is None
    assert for_handler(taken).headers == row.headers, "they mean nothing here, and are the handler's to see"


BROKEN: dict[str, tuple[int, bytes | None]] = {"count": (3, b"-1"), "topic": (0, b"other"), "null": (1, None)}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_broken_headers_of_ours_are_dead_lettered_unseen_as_the_sidecar_does(broken: tuple[int, bytes | None]) -> None:
    rules = rules_of()
    row = retried_row(rules)
    place = len(OWN) + broken[0]
    headers = [(key, broken[1] if at == place else value) for at, (key, value) in enumerate(row.headers)]
    taken = parse(row._replace(headers=headers), rules, NOW)
    record = core.Record(
        core.Partition(row.topic, row.partition), row.offset, 1, row.timestamp, None, None, headers, None, taken.fault
    )
    condemned = decide.dead_letter_unreadable(record, policy_of(rules), NOW)
    wanted = written(transition_records.writes_of(record, condemned, policy_of(rules), NOW))
    routed = before_handling(taken, rules, NOW)
    assert routed is not None
    assert routed.outcome == "refused"
    assert routed.writes == wanted


def stray_row(rules: Rules, found: str, due: int) -> Read:
    """A retry of a main topic that this job does not consume."""
    life = RetryState("returns:3:1024", "returns", 2, 1, due, NOW - 9_000, NOW - 8_000, "http-500: no")
    return Read(found, 1, 7, NOW - 3, b"k", b"v", OWN + render_retry_headers(life, "billing", found))


@pytest.mark.parametrize("prefix", ["{group}", "{topic}-{group}"])
@pytest.mark.parametrize("rest", [-3_599_999, -5, 500, 70_000])
def test_a_retry_of_a_topic_that_another_configuration_consumes_is_passed_on_as_the_sidecar_does(
    rest: int, prefix: str
) -> None:
    rules = rules_of(topic_prefix=prefix)
    for found in (rules.names.ready, *(rules.names.level(delay, "orders") for delay in rules.delays[:3])):
        row = stray_row(rules, found, NOW + rest)
        routed = before_handling(parse(row, rules, NOW), rules, NOW)
        assert routed is not None
        assert (routed.outcome, routed.writes) == ("hop", stray_of_the_sidecar(row, rules))


def test_a_retry_that_nobody_consumes_is_a_dead_letter_with_its_whole_life_after_unknown_topic() -> None:
    rules = rules_of(unknown_topic="10m")
    row = stray_row(rules, rules.names.ready, NOW - 600_000)
    routed = before_handling(parse(row, rules, NOW), rules, NOW)
    assert routed is not None
    assert (routed.outcome, routed.writes) == ("dead_letter", stray_of_the_sidecar(row, rules))
    event = decode_event(routed.writes[1][2])
    assert isinstance(event, Event)
    assert (event.id, event.times, event.redrives, event.reason) == ("returns:3:1024", 2, 1, "unknown-topic")


def stray_of_the_sidecar(row: Read, rules: Rules) -> list[Written]:
    """What the sidecar writes of it once its level is over."""
    at_most = replace(policy_of(rules), unknown_topic=rules.unknown_topic)
    life = parse_retry_headers(row.headers, at_most, NOW + 10**10)
    assert isinstance(life, RetryState)
    source = core.Partition(row.topic, row.partition)
    record = core.Record(source, row.offset, 1, row.timestamp, row.key, row.value, row.headers, life)
    decision = transitions.after_wait(record, at_most, NOW)
    assert isinstance(decision, transitions.Hop | transitions.DeadLetter)
    return written(transition_records.writes_of(record, decision, at_most, NOW))


def postponed_row(rules: Rules, due: int, times: int = 0) -> Read:
    """A copy that a sidecar's service has postponed."""
    state = RetryState("orders:3:1024", "orders", times, 0, due, NOW - 9_000, 0, "", postponed_at=NOW - 7_000)
    headers: Headers = [*OWN, *render_retry_headers(state, "billing", "x")]
    return Read("billing-RETRY-1s", 1, 7, NOW - 3, b"k", None, headers)


@pytest.mark.parametrize("verdict", VERDICTS, ids=lambda verdict: repr(verdict)[:40])
@pytest.mark.parametrize("times", [0, 1])
def test_what_a_sidecars_service_has_postponed_ends_as_it_does_there(verdict: Verdict | None, times: int) -> None:
    rules = rules_of()
    row = postponed_row(rules, NOW - 5, times)
    assert ours(row, rules, verdict).writes == sidecars(row, rules, verdict)


def test_a_postponed_record_keeps_the_time_of_its_postponement_on_its_hop() -> None:
    rules = rules_of()
    row = postponed_row(rules, NOW + 3_000)
    routed = before_handling(parse(row, rules, NOW), rules, NOW)
    assert routed is not None
    states = [parse_retry_headers(each, rules, NOW + 10**10) for each in (row.headers, routed.writes[0][3])]
    assert states[0] == states[1]


def test_a_header_key_that_is_not_utf_8_is_dead_lettered_with_key_and_value() -> None:
    rules = rules_of()
    routed = before_handling(parse(main_row([("a\ufffd", b"1")]), rules, NOW), rules, NOW)
    assert routed is not None
    topic, key, value, headers = routed.writes[0]
    names = [name for name, _ in headers]
    assert (topic, key, value) == ("billing-DLQ", b"\x00k", b"v")
    assert "a\ufffd" not in names
    assert ("RETRY_REASON", b"headers-unreadable") in headers


def test_a_handler_gets_the_first_copys_place_and_its_own_headers() -> None:
    rules = rules_of()
    record = for_handler(parse(retried_row(rules), rules, NOW))
    assert record == ("orders:3:1024", "orders", 3, 1024, NOW - 9_000, None, None, OWN, 1, 2, 0)
    assert for_handler(parse(main_row(), rules, NOW)).headers == main_row().headers


def test_the_same_time_gives_the_same_bytes() -> None:
    rules = rules_of()
    for row, verdict in itertools.product([main_row(), retried_row(rules)], VERDICTS):
        assert ours(row, rules, verdict) == ours(row, rules, verdict)
