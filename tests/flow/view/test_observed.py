"""One sidecar in every kind of trouble, seen by who operates it: its metrics, its alerts and panels, its spans."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from reconsume.topics import retry_headers as wire
from reconsume.topics.render_headers import DROPPED, RETRY_TRACEPARENT
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.collector import Collector
from tests.support.collector import Exported as Span
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import Out, Row, dump, produce
from tests.support.kubernetes.promql import QUEUED, Exported, exported_by, expressions, faults, uses
from tests.support.proof.ledger import Delivery
from tests.support.service.behaviours import FAIL, GARBAGE, HANG, OK, Answer, by_name, verdict

TRACE, PRODUCER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACED = (
    ("traceparent", f"00-{TRACE}-{PRODUCER}-01".encode()),
    ("tracestate", b"rojo=1"),
    ("baggage", b"tenant=7"),
    ("a", None),
)
CASES = {
    "good": (OK,),
    "flaky": (FAIL, OK),
    "untraced": (FAIL, OK),
    "poison": (FAIL,),
    "refused": (verdict("dead-letter; reason=bad-sku"),),
    "throttled": (Answer(429), OK),
    "garbage": (GARBAGE, OK),
    "hang": (HANG, OK),
    "hops": (verdict("retry; delay=3500ms"), OK),
    "odd": (verdict("retry; delay=999ms"), OK),
    "late": (FAIL, OK),
}
TAKEN = set(CASES) - {"poison", "refused", "late"}
INTERFACE = (
    "deliveries_total",
    "delivery_duration_seconds",
    "in_flight",
    "retries_scheduled_total",
    "dead_lettered_total",
    "buffered_records",
    "overdue_seconds",
    "lateness_seconds",
    "transactions_total",
    "transaction_duration_seconds",
    "progress_lag",
    "pace",
    "rebalances_total",
    "fenced_answers_total",
    "records_lost_total",
    "bad_headers_total",
    "view_lag_seconds",
    "build_info",
)
ELSEWHERE = {
    "fenced_answers_total": "lifecycle/test_rebalance.py",
    "records_lost_total": "faults/test_lost_offsets.py",
    "view_lag_seconds": "view/test_view_api.py",
}
"""What takes another scene to move, and which test has it."""
OF_OTHERS = (
    *(f"alert ReconsumeViewJob{end}" for end in ("Stopped", "Slow", "Behind")),
    *("alert ReconsumeViewEventsLost", "alert ReconsumeGroupGone"),
    *("panel Deliveries of queries A", "panel Unread by the view's job A"),
)
"""Ask what Spark jobs and the dashboard export (`unit/deploy/test_monitoring`)."""
EXPRESSIONS = {
    place: text
    for place, text in expressions().items()
    if place not in OF_OTHERS and not any(metric in QUEUED for metric, *_ in uses(text))
}
OUTCOMES = ("commit", "retry", "dead_letter", "throttled", "not_sent", "timeout", "broken_answer")
"""All but `cancelled`, which takes a rebalance."""


class Run(NamedTuple):
    """What was seen from outside."""

    scrapes: tuple[str, ...]
    spans: tuple[Span, ...]
    ids: dict[str, str]
    deliveries: tuple[Delivery, ...]
    retries: tuple[Row, ...]
    letters: tuple[Row, ...]

    def spans_of(self, case: str) -> list[Span]:
        return [span for span in self.spans if span.attributes["messaging.message.id"] == self.ids[case]]

    def requests_of(self, case: str) -> list[dict[str, str]]:
        return [dict(delivery.headers) for delivery in self.deliveries if delivery.id == self.ids[case]]


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as collector, pytest.MonkeyPatch.context() as environ:
        environ.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        environ.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        yield collector


@pytest.fixture(scope="module")
def run(new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, collector: Collector) -> Run:
    group = create_group(new_group(1, (1_000, 2_000)), partitions=2)
    service = start_service(by_name(CASES))
    overrides = {
        "deliver": {"timeout": "3s"},
        "retry": {"ladder": ["1s"], "max_reconsume_times": 1},
        "tracing": {"enabled": True},
    }
    sidecar = start_sidecar(group, service.url, overrides=overrides)
    scrapes: list[str] = []
    ids: dict[str, str] = {}

    def send(*names: str) -> None:
        outs = [Out(name.encode(), None, () if name == "untraced" else TRACED) for name in names]
        places = produce(group.bootstrap, group.main, outs)
        ids.update({name: f"{group.main}:{part}:{offset}" for name, (part, offset) in zip(names, places, strict=True)})

    def seen(series: str, least: float, what: str) -> None:
        """Wait until a metric says so, and keep that scrape."""
        sidecar.until(lambda: sidecar.metric(series) >= least, 20, what)
        scrapes.append(sidecar.metrics())

    send(*sorted(TAKEN | {"poison", "refused"}))
    produce(group.bootstrap, group.names.ready, [Out(b"forged", b"k", ((wire.RECONSUMETIMES, b"-1"),))])
    seen("reconsume_in_flight", 1, "one hangs")
    sidecar.until(lambda: {ids[name] for name in TAKEN} <= service.ledger.taken(), 30, "all that can be is taken")
    seen("reconsume_bad_headers_total", 1, "the forged record is found out")
    send("late")
    sidecar.until(lambda: service.ledger.of(ids["late"]), 15, "it fails for the first time")
    service.down()
    send("good")
    seen('reconsume_pace_changes_total{state="outage"}', 1, "the service is away")
    seen('reconsume_overdue_seconds{level="1s"}', 0.2, "a retry waits for it")
    lag = [f'reconsume_progress_lag{{partition="{number}",topic="{group.main}"}}' for number in range(2)]
    sidecar.until(lambda: any(sidecar.metric(series) > 0 for series in lag), 20, "the lag is seen")
    scrapes.append(sidecar.metrics())
    service.up()
    sidecar.until(lambda: {ids["good"], ids["late"]} <= service.ledger.taken(), 20, "both are taken when it is back")
    scrapes.append(sidecar.metrics())
    assert sidecar.stop().code == 0
    levels = tuple(row for topic in group.retries for row in dump(group.bootstrap, topic))
    letters = tuple(dump(group.bootstrap, group.dlq))
    return Run(tuple(scrapes), collector.spans(), ids, service.ledger.deliveries(), levels, letters)


@pytest.fixture(scope="module")
def exported(run: Run) -> dict[str, Exported]:
    return exported_by(run.scrapes[-1])


# --- metrics -------------------------------------------------------------------------------------------------------


def moved(run: Run, pattern: str) -> bool:
    """Whether a series that matches was ever above 0."""
    lines = [line.rpartition(" ") for scrape in run.scrapes for line in scrape.splitlines()]
    return any(float(value) > 0 for series, _, value in lines if re.fullmatch(f"reconsume_{pattern}", series))


@pytest.mark.parametrize("name", [name for name in INTERFACE if name not in ELSEWHERE])
def test_a_metric_moves(run: Run, name: str) -> None:
    assert moved(run, rf"{name}(_count)?(\{{.*\}})?")


@pytest.mark.parametrize(("name", "file"), ELSEWHERE.items())
def test_what_needs_another_scene_is_moved_there(name: str, file: str) -> None:
    assert re.search(rf"\.metric\(f?['\"]reconsume_{name}", (Path(__file__).parents[1] / file).read_text()) is not None


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_delivery_is_counted_by_its_outcome(run: Run, outcome: str) -> None:
    assert moved(run, rf'deliveries_total\{{group="[\w-]+",level="\w+",outcome="{outcome}",topic="[\w-]+"\}}')


@pytest.mark.parametrize(("place", "expression"), EXPRESSIONS.items(), ids=list(EXPRESSIONS))
def test_an_alert_or_panel_reads_what_a_real_sidecar_exports(
    exported: dict[str, Exported], place: str, expression: str
) -> None:
    assert faults(expression, exported) == [], place


# --- spans ---------------------------------------------------------------------------------------------------------


def test_each_attempt_is_one_span(run: Run) -> None:
    """Given all deliveries that reached the service, then there is a span for each, and for nothing else."""
    told = sorted(f"00-{span.place}" for span in run.spans)
    assert told == sorted(dict(delivery.headers)["traceparent"][:-3] for delivery in run.deliveries)
    assert all(span.consumer and span.ended >= span.began for span in run.spans)
    assert {span.resource["service.name"] for span in run.spans} == {"reconsume"}
    assert {span.resource["service.instance.id"] for span in run.spans} == {"pod-0"}


def test_a_retry_is_linked_to_the_attempt_before_across_kafka(run: Run) -> None:
    first, second = run.spans_of("flaky")
    assert (first.trace, second.trace) == (TRACE, TRACE)
    assert (first.parent, second.parent) == (PRODUCER, PRODUCER)
    assert first.links == {"origin": f"{TRACE}-{PRODUCER}"}
    assert second.links == {"origin": f"{TRACE}-{PRODUCER}", "attempt-before": first.place}
    assert (first.failed, second.failed) == (True, False)
    assert first.ended < second.began  # a wait of a second is in neither
    assert (second.ended - second.began) < 900_000_000


def test_without_a_producers_trace_the_attempts_are_one_trace(run: Run) -> None:
    first, second = run.spans_of("untraced")
    assert first.parent == ""
    assert (second.trace, second.parent) == (first.trace, first.span)
    assert second.links == {"attempt-before": first.place}


@pytest.mark.parametrize("case", ["flaky", "poison", "good"])
def test_the_service_gets_the_context_of_its_attempt_and_the_baggage(run: Run, case: str) -> None:
    spans, requests = run.spans_of(case), run.requests_of(case)
    assert [request["traceparent"] for request in requests] == [f"00-{span.place}-01" for span in spans]
    assert {(request["tracestate"], request["baggage"]) for request in requests} == {("rojo=1", "tenant=7")}


def test_copies_and_dead_letters_carry_the_attempt_before_and_their_own_headers_untouched(run: Run) -> None:
    first, last = run.spans_of("poison")
    (copy,) = (row for row in run.retries if row.value == b"poison")
    (letter,) = (row for row in run.letters if row.value == b"poison")
    for row, attempt in ((copy, first), (letter, last)):
        own = [header for header in row.headers if header[0] not in DROPPED]
        assert own == list(TRACED)
        assert dict(row.headers)[RETRY_TRACEPARENT] == f"00-{attempt.place}-01".encode()


def test_hops_keep_the_attempt(run: Run) -> None:
    (first, second) = run.spans_of("hops")
    marks = [dict(row.headers).get(RETRY_TRACEPARENT) for row in run.retries if row.value == b"hops"]
    assert set(marks) == {f"00-{first.place}-01".encode()}, "one hop or two: what is late takes fewer"
    assert second.links["attempt-before"] == first.place


def test_a_span_names_its_record_and_its_end(run: Run) -> None:
    (span,) = run.spans_of("refused")
    assert span.attributes["reconsume.outcome"] == "dead_letter"
    assert span.attributes["error.type"] == "bad-sku"
    assert span.attributes["messaging.consumer.group.name"].startswith("bill-")
    assert {s.attributes["reconsume.outcome"] for s in run.spans_of("hang")} == {"timeout", "commit"}
