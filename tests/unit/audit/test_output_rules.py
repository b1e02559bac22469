"""The audit's rules for outputs on made-up facts: what breaks them, and what may not be told."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconsume.sidecar.audit.facts import Breach, Fact, FactKind, Known, Terms
from reconsume.sidecar.audit.parsing import TopicRecord, output_fact
from reconsume.sidecar.audit.rules import judge_outputs
from reconsume.sidecar.core.progress import Progress
from reconsume.topics.retry_headers import Headers
from reconsume.topics.transitions import BY_OPERATOR
from tests.unit.audit.lives import BEGIN, DELAYS, DONE, ID, SECOND, TERMS, copy, told

TORN, TWICE = Breach.OUTPUT_TORN, Breach.OUTPUT_TWICE
QUEUE = "billing-ORDERED-orders"
ORDERED = replace(TERMS, mains=frozenset({"orders"}), delays={**DELAYS, QUEUE: 0})


def out(times: int = 0, number: int = 0, redrives: int = 0, topic: str = "invoices", offset: int = 0) -> Fact:
    place = (topic, 0, offset, BEGIN)
    return Fact(FactKind.OUTPUT, ID, redrives, times, *place, level=str(number))


def open_at(topic: str, terms: Terms = TERMS, following: int = 0) -> Terms:
    """The terms with progress of a topic that covers nothing from an offset on."""
    return replace(terms, after={**DONE, (topic, 0): Progress(following)})


def incomplete(terms: Terms) -> Terms:
    return replace(terms, known=Known({SECOND: BEGIN}))


def stuck(terms: Terms) -> Terms:
    return replace(terms, known=Known(until=BEGIN))


PARKED = replace(copy(1, topic=QUEUE), parked=True)
TRIED = replace(copy(1, topic=QUEUE), reason=BY_OPERATOR)
REDRIVEN = copy(0, 0, "billing-RETRY", redrives=1)
PAIR = (out(offset=0), out(offset=1))


@pytest.mark.parametrize(
    ("outputs", "facts", "terms", "found"),
    [
        ([out(), out(number=1)], [], TERMS, []),
        ([out()], [], open_at("orders"), [TORN]),
        ([out()], [], open_at("orders", following=8), []),
        ([out()], [], replace(TERMS, after={}), []),
        ([out()], [], replace(TERMS, after={**DONE, ("orders", 0): Progress(3, frozenset({7}))}), []),
        ([out(), out(number=1)], [], open_at("orders"), [TORN]),
        # The copy that its attempt has written may wait, the one that was tried may not.
        ([out()], [copy(1)], open_at(SECOND), []),
        ([out(1)], [copy(1)], open_at(SECOND), [TORN]),
        ([out(1)], [copy(1)], incomplete(open_at(SECOND)), [TORN]),
        ([out(1)], [copy(1, topic=QUEUE)], open_at(QUEUE, ORDERED), [TORN]),
        ([out(1)], [copy(1, topic=QUEUE)], incomplete(open_at(QUEUE, ORDERED)), []),
        ([out(2)], [copy(1)], open_at(SECOND), [TORN]),
        ([out(1), out(0)], [copy(1)], open_at(SECOND), [TORN]),
        ([out(1)], [copy(1), copy(1, 2_050, "billing-RETRY")], open_at("billing-RETRY"), [TORN]),
        # Counted in memory, or the copies are deleted: the record itself is done at least.
        ([out(3)], [], TERMS, []),
        ([out(3)], [], open_at("orders"), [TORN]),
        # A redriven life has no other source than its copies.
        ([out(redrives=1)], [], open_at("orders"), []),
        ([out(redrives=1)], [REDRIVEN], open_at("billing-RETRY"), [TORN]),
        ([out(redrives=1)], [REDRIVEN], TERMS, []),
        # What is parked waits with the count of the attempt that failed, and is tried again with it.
        ([out(1)], [copy(1), PARKED], open_at(QUEUE, ORDERED), []),
        ([out(1), out(1, offset=1)], [copy(1), PARKED, TRIED], ORDERED, []),
        ([out(1), out(1, offset=1)], [copy(1), replace(told("DLQ"), parked=True)], ORDERED, []),
        ([*PAIR, out(1)], [copy(1), PARKED], ORDERED, [TWICE]),
        # A former relay's service has read the copy by progress of its own.
        ([out(1)], [copy(1)], replace(open_at(SECOND), service={(SECOND, 0): Progress(9)}), []),
        (PAIR, [], TERMS, [TWICE]),
        (PAIR, [], ORDERED, [TWICE]),
        (PAIR, [], incomplete(TERMS), [TWICE]),
        (PAIR, [], incomplete(ORDERED), []),
        (PAIR, [], stuck(ORDERED), []),
        (PAIR, [], open_at("orders"), [TORN, TWICE]),
        ([out(), out(topic="copied")], [], TERMS, []),
        ([out(), out(1)], [copy(1)], TERMS, []),
        ([out(), out(redrives=1)], [REDRIVEN], TERMS, []),
        ([out(redrives=1), out(redrives=1, offset=1)], [REDRIVEN], TERMS, [TWICE]),
        ([out(redrives=1), out(redrives=1, offset=1)], [REDRIVEN], incomplete(TERMS), []),
        ([out(redrives=1), out(redrives=1, offset=1)], [REDRIVEN, replace(REDRIVEN, offset=1)], TERMS, []),
    ],
)
def test_an_output_is_there_once_and_only_if_its_record_is_done(
    outputs: list[Fact], facts: list[Fact], terms: Terms, found: list[Breach]
) -> None:
    assert [finding.kind for finding in judge_outputs(outputs, facts, terms)] == found


def test_a_finding_names_the_source_and_the_outputs_but_no_flood_of_them() -> None:
    outputs = [out(1, number, offset=number) for number in range(100)]
    [torn] = judge_outputs(outputs, [copy(1)], open_at(SECOND))
    assert torn.records == (f"{SECOND}:0:0", *(f"invoices:0:{number}" for number in range(9)))


OF, BY = ("RETRY_OUTPUT_OF", b"orders:0:7/1/2#3"), ("RETRY_OUTPUT_BY", b"billing")


@pytest.mark.parametrize(
    ("headers", "is_ours"),
    [
        ([("a", b"1"), OF, BY], True),
        ([OF], False),
        ([OF, ("RETRY_OUTPUT_BY", b"shipping")], False),
        ([("RETRY_OUTPUT_OF", b"payments:0:7/1/2#3"), BY], False),
        ([("RETRY_OUTPUT_OF", b"orders:0:7"), BY], False),
        ([], False),
        (None, False),
    ],
)
def test_only_what_the_group_has_stamped_for_its_main_topics_is_its_output(
    headers: Headers | None, is_ours: bool
) -> None:
    row = TopicRecord("invoices", 2, 5, BEGIN, None, None, headers)
    ours = Fact(FactKind.OUTPUT, ID, 1, 2, "invoices", 2, 5, BEGIN, level="3")
    assert output_fact(row, "billing", {"orders"}) == (ours if is_ours else None)
