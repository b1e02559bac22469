"""Records that an answer asks to be written: read strictly, and never in silence."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.core.outcome import COMMITTED, Committed, Failed, Rejected
from reconsume.sidecar.delivery.outputs import MOST, OutputsRefusedError, read_outputs
from reconsume.sidecar.delivery.push.batch_verdicts import Verdicts, read_answer
from reconsume.sidecar.delivery.verdict import OddAnswer, VerdictRules, verdict_from_response
from reconsume.topics.attempt import Attempt
from reconsume.topics.outputs import OUR_HEADERS, OUTPUT_REFUSED, AllowedOutputs, OutputOf, output_of, stamped
from reconsume.topics.transition_records import Copy

WALL = 1_763_690_000_000
JSON, OURS = (b"content-type", b"application/json"), (b"content-type", b"application/vnd.reconsume+json")
TOPICS = AllowedOutputs(("invoices", "mail-*", "orders-copy", "billing-RETRY-POLICY", "*-DLQ", "__*"), ("mail-orders",))
RULES = VerdictRules(outputs=TOPICS, longest_body=65_536)

GOOD: list[tuple[dict[str, Any], Copy]] = [
    ({"topic": "invoices"}, Copy("invoices", None, None, [])),
    ({"topic": "invoices", "key": "k", "value": "ä"}, Copy("invoices", b"k", "ä".encode(), [])),
    ({"topic": "mail-out", "key_base64": "aw==", "value_base64": "AP8="}, Copy("mail-out", b"k", b"\0\xff", [])),
    ({"topic": "invoices", "key": None, "value": None}, Copy("invoices", None, None, [])),
    ({"topic": "invoices", "json": None}, Copy("invoices", None, b"null", [])),
    ({"topic": "invoices", "json": {"a": [1, "ä"]}}, Copy("invoices", None, '{"a":[1,"ä"]}'.encode(), [])),
    ({"topic": "invoices", "value": ""}, Copy("invoices", None, b"", [])),
    ({"topic": "invoices", "headers": [["a", "AQ=="]]}, Copy("invoices", None, None, [("a", b"\1")])),
    ({"topic": "invoices", "headers": [["a", None]] * 2}, Copy("invoices", None, None, [("a", None)] * 2)),
    ({"topic": "invoices", "partition": 3}, Copy("invoices", None, None, [], 3, scattered=True, exact=True)),
    ({"topic": "invoices", "timestamp": 5}, Copy("invoices", None, None, [], timestamp=5)),
]  # fmt: skip
BAD: list[tuple[Any, str]] = [
    (None, "produce must be a list"),
    ({}, "produce must be a list"),
    ([5], "produce[0]: "),
    ([{}], "produce[0]: "),
    ([{"topic": 5}], "produce[0]: "),
    ([{"topic": "payments"}], "does not allow the topic 'payments'"),
    ([{"topic": ""}], "does not allow the topic ''"),
    ([{"topic": "x" * 400}], "does not allow the topic 'xxx"),
    ([{"topic": "mail-RETRY-5s"}], "does not allow"),
    ([{"topic": "mail-DLQ"}], "does not allow"),
    ([{"topic": "mail-ORDERED-x"}], "does not allow"),
    ([{"topic": "mail-orders"}], "does not allow"),
    ([{"topic": "mail-\n"}], "does not allow"),
    ([{"topic": "billing-RETRY-POLICY"}], "does not allow"),
    ([{"topic": "other-DLQ"}], "does not allow"),
    ([{"topic": "__consumer_offsets"}], "does not allow"),
    *(
        ([{"topic": "invoices", "headers": [["a", None], [name, "AQ=="]]}], "the header 1 is one that Reconsume writes")
        for name in sorted({*OUR_HEADERS, "RETRY_TRACEPARENT", "RETRY_LATER"})
    ),
    ([{"topic": "invoices"}, {"topic": "invoices", "val": "x"}], "produce[1]: Object contains unknown field `val`"),
    ([{"topic": "invoices", "key": 5}], "produce[0]: "),
    ([{"topic": "invoices", "value": "a", "json": 5}], "more than one value"),
    ([{"topic": "invoices", "key": "a", "key_base64": None}], "more than one key"),
    ([{"topic": "invoices", "value_base64": "A"}], "value_base64 is no Base64"),
    ([{"topic": "invoices", "value_base64": "ä==="}], "value_base64 is no Base64"),
    ([{"topic": "invoices", "headers": [["a"]]}], "produce[0]: "),
    ([{"topic": "invoices", "headers": [["a", "!"]]}], "the header 0 is no Base64"),
    ([{"topic": "invoices", "headers": [["a\0b", None]]}], "NUL"),
    ([{"topic": "invoices", "headers": [["a", None]] * 1_001}], "more than 1000 headers"),
    ([{"topic": "invoices", "partition": -1}], "partition is no partition"),
    ([{"topic": "invoices", "partition": 2**31}], "partition is no partition"),
    ([{"topic": "invoices", "partition": True}], "produce[0]: "),
    ([{"topic": "invoices", "timestamp": -1}], "timestamp is no time"),
    ([{"topic": "invoices", "timestamp": 2**63}], "timestamp is no time"),
    ([{"topic": "invoices"}] * (MOST + 1), "at most 1000 records"),
]


@pytest.mark.parametrize(("form", "copy"), GOOD)
def test_a_record_is_read_as_it_is_meant(form: dict[str, Any], copy: Copy) -> None:
    assert read_outputs([form], TOPICS) == (copy,)
    assert answered({"verdict": "commit", "produce": [form, form]}) == Committed((copy, copy))


@pytest.mark.parametrize(("produce", "why"), BAD)
def test_what_may_not_be_written_is_a_failure_that_says_why(produce: Any, why: str) -> None:
    with pytest.raises(OutputsRefusedError) as caught:
        read_outputs(produce, TOPICS)
    assert why in str(caught.value)
    if produce is not None:
        outcome = answered({"verdict": "commit", "produce": produce})
        assert isinstance(outcome, Failed)
        assert (outcome.reason, why in outcome.text) == (OUTPUT_REFUSED, True)
        assert outcome.outputs == ()


def answered(
    body: object, rules: VerdictRules = RULES, status: int = 200, noted: list[tuple[bytes, bytes]] | None = None
) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    judged = verdict_from_response(status, noted or [JSON], data, rules, WALL)
    return judged.judged if isinstance(judged, OddAnswer) else judged


ONE = [{"topic": "invoices", "value": "x"}]
COPY = (Copy("invoices", None, b"x", []),)
NOWHERE = VerdictRules()
IN_PLACE = VerdictRules(outputs=TOPICS, in_place=True)
REFUSED = "refused"

MEANINGS: list[tuple[object, VerdictRules, int, list[tuple[bytes, bytes]], object]] = [
    ({"verdict": "commit", "produce": ONE}, RULES, 500, [JSON], Committed(COPY)),
    ({"verdict": "commit", "produce": []}, RULES, 200, [JSON], COMMITTED),
    ({"verdict": "commit", "produce": None}, RULES, 200, [JSON], COMMITTED),
    ({"verdict": "retry", "produce": ONE}, RULES, 200, [JSON], Failed("retry-asked", asked=True, outputs=COPY)),
    ({"verdict": "dead-letter", "produce": ONE}, RULES, 200, [JSON], Rejected("dead-letter-asked", outputs=COPY)),
    ({"verdict": "postpone", "produce": ONE}, RULES, 200, [JSON], REFUSED),
    ({"verdict": "retry", "produce": ONE}, IN_PLACE, 200, [JSON], REFUSED),
    ({"verdict": "commit", "produce": ONE}, IN_PLACE, 200, [JSON], Committed(COPY)),
    ({"verdict": "commit", "produce": ONE}, NOWHERE, 200, [JSON], REFUSED),
    ({"produce": ONE}, RULES, 200, [JSON], REFUSED),
    ({"produce": "apples"}, NOWHERE, 200, [JSON], COMMITTED),
    ({"produce": ONE}, RULES, 200, [(b"reconsume-verdict", b"commit"), JSON], REFUSED),
    ({"id": 7}, RULES, 200, [(b"reconsume-verdict", b"commit"), JSON], COMMITTED),
    (b"OK", RULES, 200, [JSON], REFUSED),
    (b"OK", RULES, 200, [(b"reconsume-verdict", b"commit"), JSON], COMMITTED),
    ({"verdict": "commit", "produce": [{"topic": "invoices", "value": "x" * 70_000}]}, RULES, 200, [JSON], REFUSED),
    ({"verdict": "approved"}, RULES, 200, [JSON], COMMITTED),
    ({"verdict": "commit", "produce": ONE}, RULES, 200, [OURS], Committed(COPY)),
]


@pytest.mark.parametrize(("body", "rules", "status", "noted", "expected"), MEANINGS)
def test_outputs_need_a_verdict_of_their_body_and_are_never_lost_in_silence(
    body: object, rules: VerdictRules, status: int, noted: list[tuple[bytes, bytes]], expected: object
) -> None:
    outcome = answered(body, rules, status, noted)
    assert (outcome.reason == OUTPUT_REFUSED and outcome.asked) if expected == REFUSED else outcome == expected


def test_each_verdict_of_a_batch_has_its_own_and_one_for_many_has_none() -> None:
    ids = ["orders:0:1", "orders:0:2"]
    listed = {"verdicts": [{"id": ids[0], "verdict": "commit", "produce": ONE}, {"id": ids[1], "verdict": "commit"}]}
    assert read_answer(ids, 200, [JSON], json.dumps(listed).encode(), RULES, WALL) == Verdicts(
        [Committed(COPY), COMMITTED]
    )
    listed["verdicts"][1]["produce"] = [{"topic": "payments"}]  # type: ignore[assignment]
    judged = read_answer(ids, 200, [JSON], json.dumps(listed).encode(), RULES, WALL)
    assert isinstance(judged, Verdicts)
    assert [getattr(one, "reason", "") for one in judged.outcomes] == ["", OUTPUT_REFUSED]
    whole = json.dumps({"verdict": "commit", "produce": ONE}).encode()
    assert read_answer(ids[:1], 200, [JSON], whole, RULES, WALL) == Committed(COPY)
    refused = read_answer(ids, 200, [JSON], whole, RULES, WALL)
    assert isinstance(refused, Failed)
    assert "each record needs its own" in refused.text


def test_an_output_says_which_attempt_asked_for_it_and_keeps_a_trace_that_it_has() -> None:
    plain, traced = (
        Copy("a", None, None, [("RETRY_OUTPUT_OF", b"forged"), ("RETRY_OUTPUT_BY", b"forged")]),
        Copy("b", None, None, [("TraceParent", b"own")]),
    )
    first, second = stamped((plain, traced), "billing", "orders:3:7", Attempt(0, 1, 2), b"00-aa-bb-01")
    by = ("RETRY_OUTPUT_BY", b"billing")
    assert first.headers == [("RETRY_OUTPUT_OF", b"orders:3:7/1/2#0"), by, ("traceparent", b"00-aa-bb-01")]
    assert second.headers == [("TraceParent", b"own"), ("RETRY_OUTPUT_OF", b"orders:3:7/1/2#1"), by]
    assert output_of(second.headers) == OutputOf("billing", "orders:3:7", Attempt(0, 1, 2), 1)


def test_an_output_of_a_later_cycle_is_another_one() -> None:
    attempt = Attempt(3, 1, 2)
    (found,) = stamped((Copy("a", None, None, []),), "billing", "orders:3:7", attempt, None)
    assert found.headers == [("RETRY_OUTPUT_OF", b"orders:3:7/3.1/2#0"), ("RETRY_OUTPUT_BY", b"billing")]
    assert output_of(found.headers) == OutputOf("billing", "orders:3:7", attempt, 0)


BY = ("RETRY_OUTPUT_BY", b"billing")


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [BY],
        [("RETRY_OUTPUT_OF", b"orders:3:7/1/2#1")],
        [("RETRY_OUTPUT_OF", b"orders:3:7/1/2#1"), ("RETRY_OUTPUT_BY", None)],
        [("RETRY_OUTPUT_OF", None), BY],
        [("RETRY_OUTPUT_OF", b"orders:3:7/01/2#1"), BY],
        [("RETRY_OUTPUT_OF", b"orders:3:7/1/2#1 "), BY],
        [("RETRY_OUTPUT_OF", b"or/ders:3:7/1/2#1"), BY],
        [("RETRY_OUTPUT_OF", b"orders:3:7/1/%d#1" % 10**6), BY],
        [("RETRY_OUTPUT_OF", b"orders:3:7/1/2#1"), ("RETRY_OUTPUT_OF", b"orders:3:8/1/2#1"), BY],
    ],
)
def test_stamps_that_are_not_there_once_or_not_in_their_form_say_nothing(
    headers: list[tuple[str, bytes | None]],
) -> None:
    assert output_of(headers) is None


FIELDS = st.sampled_from(["topic", "key", "value", "json", "headers", "partition", "x"])
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("invoices")
JUNK = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4), max_leaves=12
)


@given(JUNK)
def test_any_json_is_read_or_refused(junk: Any) -> None:
    copies: tuple[Copy, ...] = ()
    with suppress(OutputsRefusedError):
        copies = read_outputs(junk, TOPICS)
    assert not any(TOPICS.fault(copy.topic, None) for copy in copies)
