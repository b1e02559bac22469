"""Attempts as spans: who is whose parent, what is linked, what the service and the copies carry, what nobody sees."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from opentelemetry.trace import SpanKind, StatusCode, Tracer, format_span_id, format_trace_id

from reconsume.sidecar.core.decide import LeaveUncommitted, decide
from reconsume.sidecar.core.outcome import (
    CANCELLED,
    COMMITTED,
    EXPIRED,
    NACKED,
    Failed,
    NotSent,
    Outcome,
    Rejected,
    Throttled,
)
from reconsume.sidecar.core.ports import NoDelivery, Reply
from reconsume.sidecar.core.record import Now, Partition, Record
from reconsume.sidecar.delivery.envelope import envelope
from reconsume.sidecar.delivery.pull.lease_table import LeaseEnd
from reconsume.sidecar.delivery.pull.queue import PullQueue
from reconsume.sidecar.delivery.push.forwarded_headers import Forward
from reconsume.sidecar.observability.tracing.setup import Untraced
from reconsume.sidecar.observability.tracing.spans import Attempts
from reconsume.topics.headers_fast import parse_rendered
from reconsume.topics.render_headers import RETRY_TRACEPARENT, attempt_before, without_ours
from reconsume.topics.retry_headers import Headers
from reconsume.topics.transition_records import redriven_writes, writes_of
from reconsume.topics.transitions import Commit, Retry, Wait
from tests.sim.samples import WALL, policy, read, record

PAGE = Path(__file__).parents[3] / "docs" / "tracing.md"
POLICY = replace(policy(), traced=True)
NOW = Now(WALL, 0)
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PRODUCER = f"00-{TRACE}-{SPAN}-01".encode()
STATE, BAGGAGE = b"rojo=00f067aa0ba902b7,congo=t61", b"tenant=7"
OWN: Headers = [("a", b"1"), ("traceparent", PRODUCER), ("tracestate", STATE), ("baggage", BAGGAGE), ("a", None)]


class Service(NoDelivery):
    """The delivery inside: keeps what it was handed."""

    def __init__(self) -> None:
        super().__init__()
        self.out: list[tuple[Record, Reply]] = []
        self.told: list[str] = []

    def __call__(self, record: Record, reply: Reply) -> None:
        self.out.append((record, reply))

    def recall(self, partitions: Collection[Partition], *, lost: bool) -> None:
        self.told.append("recall")

    def close(self) -> None:
        self.told.append("close")


@dataclass(frozen=True)
class Rig:
    """Traced deliveries, and the spans that they left."""

    service: Service
    attempts: Attempts
    tracer: Tracer
    exporter: InMemorySpanExporter

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def deliver(self, found: Record, outcome: Outcome) -> Headers:
        """One delivery and its answer; the headers that the service got."""
        told: list[tuple[Record, Outcome]] = []
        self.attempts(found, lambda record, outcome, _now: told.append((record, outcome)))
        sent, reply = self.service.out.pop()
        reply(sent, outcome, NOW)
        [(answered, came)] = told
        assert answered is found  # the pace knows probes by their identity
        assert came is outcome
        assert sent.headers is not None
        return sent.headers

    def retried(self, found: Record) -> Record:
        """The copy that a failed delivery of the record leads to, as the retry lane would bring it."""
        self.deliver(found, Failed("http-500"))
        decision = decide(found, Failed("http-500"), POLICY, WALL)
        assert isinstance(decision, Retry)
        copy = writes_of(found, decision, POLICY, WALL)[0]
        life, fault = read(copy.headers, POLICY)
        assert (life, fault) == (replace(decision.retry_state, last_failed_at=0), "")  # it is that of the first failure
        return Record(Partition(copy.topic, 0), 5, 1, WALL, copy.key, copy.value, copy.headers, life)


@pytest.fixture
def rig() -> Rig:
    return a_rig()


def a_rig(sampler: Sampler = ALWAYS_ON) -> Rig:
    exporter, provider = InMemorySpanExporter(), TracerProvider(sampler, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    service, tracer = Service(), provider.get_tracer("t")
    return Rig(service, Attempts(service, tracer, "billing"), tracer, exporter)


def place(span: ReadableSpan) -> str:
    """The span as a `traceparent` names it, without its flags."""
    context = span.get_span_context()
    assert context is not None
    return f"{format_trace_id(context.trace_id)}-{format_span_id(context.span_id)}"


def links(span: ReadableSpan) -> dict[str, str]:
    return {
        str((link.attributes or {})["reconsume.link"]): (
            f"{format_trace_id(link.context.trace_id)}-{format_span_id(link.context.span_id)}"
        )
        for link in span.links
    }


def parent_of(span: ReadableSpan) -> str | None:
    return None if span.parent is None else format_span_id(span.parent.span_id)


def test_the_service_gets_the_attempts_context_and_all_else_as_it_was(rig: Rig) -> None:
    got = rig.deliver(record(headers=list(OWN)), COMMITTED)
    [span] = rig.spans
    assert got[0] == ("traceparent", f"00-{place(span)}-01".encode())
    assert got[1] == ("tracestate", STATE)
    assert got[2:] == [("a", b"1"), ("baggage", BAGGAGE), ("a", None)]
    names = [line.partition(":")[0] for line in Forward(())(got).lines.splitlines()]
    assert names == ["traceparent", "tracestate", "baggage"]


def test_a_first_attempt_is_a_child_of_the_producers_span_and_linked_to_it(rig: Rig) -> None:
    rig.deliver(record(headers=list(OWN)), COMMITTED)
    [span] = rig.spans
    assert place(span).startswith(TRACE)
    assert parent_of(span) == SPAN
    assert links(span) == {"origin": f"{TRACE}-{SPAN}"}


def test_each_retry_is_linked_to_the_attempt_before_and_to_the_producer(rig: Rig) -> None:
    """Given three attempts, then they are siblings in the producer's trace, each linked to the one before."""
    second = rig.retried(record(headers=list(OWN)))
    third = rig.retried(second)
    rig.deliver(third, COMMITTED)
    one, two, three = rig.spans
    assert {parent_of(span) for span in rig.spans} == {SPAN}
    assert links(two) == {"attempt-before": place(one), "origin": f"{TRACE}-{SPAN}"}
    assert links(three) == {"attempt-before": place(two), "origin": f"{TRACE}-{SPAN}"}


def test_where_the_producer_traces_nothing_the_attempts_are_one_trace(rig: Rig) -> None:
    second = rig.retried(record(headers=[("a", b"1")]))
    rig.deliver(second, COMMITTED)
    one, two = rig.spans
    assert parent_of(one) is None
    assert (links(one), links(two)) == ({}, {"attempt-before": place(one)})
    assert parent_of(two) == place(one).partition("-")[2]


def test_a_copy_carries_one_mark_and_the_records_own_headers_byte_for_byte(rig: Rig) -> None:
    second = rig.retried(record(headers=list(OWN)))
    third = rig.retried(second)
    assert third.headers is not None
    assert without_ours(third.headers) == OWN
    assert [value for name, value in third.headers if name == RETRY_TRACEPARENT] == [
        f"00-{place(rig.spans[1])}-01".encode()
    ]
    assert (
        parse_rendered(third.headers, POLICY.topics, POLICY.latest_due(WALL)) == third.retry_state
    )  # the quick way still


def test_a_redrive_keeps_the_last_attempt(rig: Rig) -> None:
    """Given a dead letter that is brought back, then its next attempt is linked to the last one before."""
    letter = rig.retried(record(headers=list(OWN)))
    assert letter.retry_state is not None
    copy = redriven_writes(letter, letter.retry_state, POLICY, WALL)[0]
    assert attempt_before(copy.headers) == f"00-{place(rig.spans[0])}-01".encode()


def test_without_tracing_copies_are_as_ever(rig: Rig) -> None:
    """Given a record that another instance marked, then one that does not trace leaves the mark behind."""
    second = rig.retried(record(headers=list(OWN)))
    decision = decide(second, Failed("http-500"), policy(), WALL)
    assert isinstance(decision, Retry)
    copy = writes_of(second, decision, policy(), WALL)[0]
    assert RETRY_TRACEPARENT not in dict(copy.headers)
    assert without_ours(copy.headers) == OWN
    assert Untraced().around(rig.service) is rig.service


@pytest.mark.parametrize("outcome", [NotSent("connection-refused"), CANCELLED])
def test_what_never_reached_the_service_is_no_span(rig: Rig, outcome: Outcome) -> None:
    found = record(headers=list(OWN))
    rig.deliver(found, outcome)
    assert rig.spans == ()
    assert found.headers == OWN
    assert isinstance(decide(found, outcome, POLICY, WALL), Wait | LeaveUncommitted)


@pytest.mark.parametrize("outcome", [Throttled(1_000), NACKED])
def test_a_delivery_that_is_repeated_from_memory_is_linked_too(rig: Rig, outcome: Outcome) -> None:
    found = record(headers=list(OWN))
    for _ in range(2):
        rig.deliver(found, outcome)
    rig.deliver(found, COMMITTED)
    one, two, three = rig.spans
    assert (links(two)["attempt-before"], links(three)["attempt-before"]) == (place(one), place(two))
    assert without_ours(found.headers or []) == OWN


def test_success_at_once_leaves_the_record_untouched(rig: Rig) -> None:
    found = record(headers=list(OWN))
    rig.deliver(found, COMMITTED)
    assert found.headers == OWN
    assert decide(found, COMMITTED, POLICY, WALL) == Commit(None)


@pytest.mark.parametrize(
    ("outcome", "label", "error"),
    [
        (COMMITTED, "commit", None),
        (Failed("http-500", "secret-body"), "retry", "http-500"),
        (Failed("timeout", label="timeout"), "timeout", "timeout"),
        (Rejected("bad-sku", "secret-body"), "dead_letter", "bad-sku"),
        (EXPIRED, "timeout", "lease-expired"),
        (Throttled(500), "throttled", None),
    ],
)
def test_a_span_tells_of_its_attempt_and_never_of_the_payload(
    rig: Rig, outcome: Outcome, label: str, error: str | None
) -> None:
    rig.deliver(record(17, key=b"secret-key", value=b"secret-value", headers=[("x", b"secret")]), outcome)
    [span] = rig.spans
    assert (span.name, span.kind) == ("process orders", SpanKind.CONSUMER)
    assert span.attributes is not None
    told = dict(span.attributes)
    assert (told.pop("reconsume.outcome"), told.pop("error.type", None)) == (label, error)
    assert (span.status.status_code is StatusCode.ERROR) == (error is not None)
    assert told == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 17,
        "messaging.kafka.message.tombstone": False,
        "messaging.message.body.size": 12,
        "messaging.consumer.group.name": "billing",
        "messaging.message.id": "orders:0:17",
        "reconsume.topic": "orders",
        "reconsume.times": 0,
        "reconsume.redrives": 0,
    }
    assert "secret" not in span.to_json()


def test_the_page_names_each_attribute(rig: Rig) -> None:
    rig.deliver(record(), Failed("http-500"))
    told = re.findall(r"^\| `([\w.]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(told) == set(rig.spans[0].attributes or ())


BROKEN: dict[str, Headers] = {
    "no trace": [("traceparent", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01")],
    "not ASCII": [("traceparent", b"\xff\xfe\x00")],
    "null": [("traceparent", None), ("tracestate", None)],
    "line end": [("traceparent", PRODUCER + b"\r\nX-Evil: 1")],
    "odd state": [("tracestate", b"\xff=,,,=" * 900)],
    "mark in capitals": [(RETRY_TRACEPARENT, PRODUCER.upper())],
    "mark too long": [(RETRY_TRACEPARENT, PRODUCER + b"0")],
    "mark is null": [(RETRY_TRACEPARENT, None)],
}


@pytest.mark.parametrize("headers", BROKEN.values(), ids=BROKEN)
def test_what_is_no_context_is_none(rig: Rig, headers: Headers) -> None:
    """Given headers that are not in their form, then the attempt begins a trace, and the request stays one request."""
    got = rig.deliver(record(headers=list(headers)), COMMITTED)
    [span] = rig.spans
    assert (span.parent, links(span)) == (None, {})
    assert attempt_before(headers) is None  # nor would a copy carry it on
    assert [name for name, _ in got if name.lower() == "traceparent"] == ["traceparent"]
    assert "Evil" not in Forward(())(got).lines


@pytest.mark.parametrize(
    "state", [b"secret", b"a=secret" + b" " * 600 + b"b", b"a=secret,a=secret", b"a=b," * 90, b"x" * 9_000]
)
def test_nothing_of_a_records_headers_gets_into_the_log(
    rig: Rig, state: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Given a trace state that is not in its form, then OpenTelemetry does not quote it."""
    rig.deliver(record(headers=[("traceparent", PRODUCER), ("tracestate", state)]), COMMITTED)
    rig.deliver(record(headers=[("traceparent", b"00-" + state)]), COMMITTED)
    assert caplog.text == ""


def test_names_of_trace_headers_are_known_in_any_case(rig: Rig) -> None:
    got = rig.deliver(record(headers=[("TraceParent", PRODUCER)]), COMMITTED)
    assert parent_of(rig.spans[0]) == SPAN
    assert [name for name, _ in got] == ["traceparent"]


def test_what_is_not_sampled_says_so_to_the_service_and_to_the_next_attempt() -> None:
    rig = a_rig(ALWAYS_OFF)
    found = record(headers=[])
    ((_, told),) = rig.deliver(found, Failed("http-500"))
    assert told is not None
    assert int(told[-2:], 16) & 1 == 0  # the other bits say how the trace's id was made
    assert attempt_before(found.headers or []) == told
    assert rig.spans == ()


def test_each_record_of_a_batch_carries_its_own_attempt(rig: Rig) -> None:
    """Given two records gathered for one request, then the envelope has a context for each."""
    for offset in (1, 2):
        rig.attempts(record(offset, headers=list(OWN)), lambda _record, _outcome, _now: None)
    parts = [dict(envelope(sent, "billing").headers)["traceparent"] for sent, _ in rig.service.out]
    for sent, reply in rig.service.out:
        reply(sent, COMMITTED, NOW)
    assert parts == [f"00-{place(span)}-01".encode() for span in rig.spans]
    assert len(set(parts)) == 2


def test_in_pull_mode_the_attempt_goes_out_with_the_record_and_ends_with_its_lease(rig: Rig) -> None:
    """Given records to receive, then each has its context; what nobody received leaves no span."""

    async def pulled() -> Headers:
        leases = PullQueue(lambda: NOW)
        attempts = Attempts(leases, rig.tracer, "billing")
        for offset in (1, 2):
            attempts(record(offset, headers=list(OWN)), lambda _record, _outcome, _now: None)
        [received] = leases.receive(1, 10_000)
        assert rig.spans == ()
        leases.settle(received.handle, LeaseEnd.ACKED, COMMITTED)
        leases.close()
        await asyncio.sleep(0)
        return envelope(received.record, "billing").headers

    headers = asyncio.run(pulled())
    [span] = rig.spans
    assert dict(headers)["traceparent"] == f"00-{place(span)}-01".encode()


def in_a_fresh_process(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


SETTINGS = """
import sys
from types import SimpleNamespace
import reconsume.sidecar.runtime.run
from reconsume.sidecar.observability.tracing.setup import Untraced, build_tracing
def settings(enabled):
    return SimpleNamespace(group="billing", tracing=SimpleNamespace(enabled=enabled))
"""


@pytest.mark.parametrize(
    "claim",
    [
        "assert isinstance(build_tracing(settings(False), 'pod-0'), Untraced)\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]",
        "sys.modules['opentelemetry'] = None\n"
        "try:\n    build_tracing(settings(True), 'pod-0')\n"
        "except Exception as refused:\n    assert '.[otel]' in str(refused), refused\n"
        "else:\n    raise SystemExit('not refused')",
    ],
    ids=["off-loads-nothing", "missing-is-a-bad-configuration"],
)
def test_opentelemetry_is_loaded_only_where_it_is_asked_for(claim: str) -> None:
    done = in_a_fresh_process(SETTINGS + claim)
    assert (done.returncode, done.stderr) == (0, "")


def test_recalls_and_the_end_reach_the_delivery_inside(rig: Rig) -> None:
    rig.attempts.recall([Partition("orders", 0)], lost=True)
    rig.attempts.close()
    assert rig.service.told == ["recall", "close"]
    assert rig.attempts.durations is rig.service.durations
