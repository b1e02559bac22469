"""Where spans go, and that a collector which hangs holds up nothing."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator

import pytest

from reconsume.sidecar.core.outcome import COMMITTED
from reconsume.sidecar.core.ports import NoDelivery, Reply
from reconsume.sidecar.core.record import Now, Record
from reconsume.sidecar.observability.tracing.export import FLUSH_WITHIN, Exported, resource
from tests.support.collector import Collector
from tests.support.sidecar.push_client import a_record

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
EXPORT_WITHIN = 3
"""Seconds that the exporter itself would wait."""


class AtOnce(NoDelivery):
    """A delivery that succeeds."""

    def __call__(self, record: Record, reply: Reply) -> None:
        reply(record, COMMITTED, Now(0, 0))


@pytest.fixture
def silence() -> Iterator[str]:
    """The address of a collector that takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def delivered(tracing: Exported) -> None:
    tracing.around(AtOnce())(a_record(), lambda _record, _outcome, _now: None)


def test_what_is_left_is_exported_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with Collector() as collector:
        monkeypatch.setenv(ENDPOINT, collector.url)
        tracing = Exported("billing", "pod-7")
        delivered(tracing)
        asyncio.run(tracing.close())
        (span,) = collector.spans()
    assert (span.name, span.attributes["messaging.consumer.group.name"]) == ("process orders", "billing")
    assert span.resource["service.instance.id"] == "pod-7"


def test_a_collector_that_hangs_does_not_hold_up_the_end(silence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, silence)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", str(EXPORT_WITHIN))
    tracing = Exported("billing", "pod-7")
    delivered(tracing)
    begin = time.monotonic()
    asyncio.run(tracing.close())
    assert FLUSH_WITHIN <= time.monotonic() - begin < EXPORT_WITHIN


def test_the_variables_of_opentelemetry_win_over_our_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resource("pod-7").attributes["service.name"] == "reconsume"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "billing-retries")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.namespace=shop,service.instance.id=mine")
    found = resource("pod-7").attributes
    assert (found["service.name"], found["service.namespace"]) == ("billing-retries", "shop")
    assert found["service.instance.id"] == "mine"
