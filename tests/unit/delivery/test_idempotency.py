"""The producer's text as the key of an effect: read from a record, sent in header and envelope, read by `once`."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.once import DeliveryKey, ProducerKey, delivery_key, record_key
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.delivery.envelope import envelope
from reconsume.sidecar.delivery.idempotency import producer_key_of
from reconsume.sidecar.delivery.push.request import RenderBatch
from reconsume.sidecar.delivery.push.target import parse_target
from reconsume.sidecar.settings.idempotency import IDEMPOTENCY
from reconsume.topics.retry_headers import Headers, RetryState
from tests.support.sidecar.push_requests import a_record, read

PLAIN = "billing/orders:3:1024/0"
LIFE = RetryState(id="orders:3:1024", topic="orders", times=2, redrives=1, timestamp=1_700_000_000_000)


def setting(text: str) -> Any:
    """What reads a record's text, by the setting."""
    return producer_key_of(IDEMPOTENCY.take(msgspec.yaml.decode(text)))


def sent(text: str, record: Record) -> tuple[str, str]:
    """`Idempotency-Key` of a request, and `idempotency_key` of the envelope."""
    key = setting(text)
    return read(record, producer_key=key)["Idempotency-Key"], envelope(record, "billing", key).idempotency_key


def hashed(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    ("headers", "header", "enveloped"),
    [
        ([("order-id", b"A-17")], "A-17", "A-17"),
        ([("order-id", b"A-17"), ("order-id", b"A-18"), ("other", b"x")], "A-18", "A-18"),
        ([("order-id", b"A-17"), ("order-id", b"")], PLAIN, PLAIN),
        ([("order-id", None)], PLAIN, PLAIN),
        ([("Order-Id", b"A-17")], PLAIN, PLAIN),
        (None, PLAIN, PLAIN),
        ([("order-id", b"x" * 200)], "x" * 200, "x" * 200),
        ([("order-id", b"x" * 201)], hashed(b"x" * 201), "x" * 201),
        ([("order-id", b"two words")], hashed(b"two words"), "two words"),
        ([("order-id", "Mü".encode())], hashed("Mü".encode()), "Mü"),
        ([("order-id", b"a\r\nX: y")], hashed(b"a\r\nX: y"), "a\r\nX: y"),
        ([("order-id", b"\xff")], hashed(b"\xff"), hashed(b"\xff")),
    ],
)
def test_a_header_is_sent_as_it_is_or_as_its_hash(headers: Headers | None, header: str, enveloped: str) -> None:
    assert sent("{from: header, name: order-id}", a_record(headers=headers)) == (header, enveloped)


@pytest.mark.parametrize(
    ("value", "pointer", "key"),
    [
        (b'{"order": {"id": "A-17"}}', "/order/id", "A-17"),
        (b' [ {"a/b~": 17.50} ] ', "/0/a~1b~0", "17.50"),
        (b'{"": {"0": true}}', "//0", "true"),
        (b'{"id": 1, "id": 2}', "/id", "2"),
        (b'"A-17"', "", "A-17"),
        (b" 12 ", "", "12"),
        (b'{"id": null}', "/id", None),
        (b'{"id": ""}', "/id", None),
        (b'{"id": {}}', "/id", None),
        (b'{"id": [1]}', "/id", None),
        (b'{"id": "A-17"', "/id", None),
        (b'{"id": "\\ud800"}', "/id", None),
        (b"[1, 2]", "/2", None),
        (b"[1, 2]", "/01", None),
        (b"[1, 2]", "/-", None),
        (b"[1, 2]", "/99999999999999999999", None),
        (b"no json", "/id", None),
        (b"[" * 100_000, "/0/0", None),
        (b"", "", None),
        (None, "/id", None),
    ],
)
def test_a_field_of_a_json_value_is_its_text(value: bytes | None, pointer: str, key: str | None) -> None:
    setting_text = f"{{from: json, pointer: '{pointer}'}}"
    assert sent(setting_text, a_record(value=value))[0] == (key or PLAIN)


def test_the_id_of_a_cloud_event_counts_and_the_default_is_the_id_of_the_record() -> None:
    record = a_record(headers=[("ce_id", b"e-1")])
    assert sent("{from: ce_id}", record) == ("e-1", "e-1")
    assert sent("{from: id}", record) == (PLAIN, PLAIN)


def test_the_text_is_that_of_the_first_delivery_at_each_attempt_and_after_a_redrive() -> None:
    retried = a_record(headers=[("ce_id", b"e-1")], source=Partition("billing-RETRY-10s", 0), retry_state=LIFE)
    assert sent("{from: ce_id}", retried) == ("e-1", "e-1")
    assert sent("{from: ce_id}", replace(retried, headers=[])) == ("billing/orders:3:1024/1",) * 2


@given(st.one_of(st.none(), st.binary(max_size=40)), st.binary(max_size=300), st.sampled_from([None, LIFE]))
def test_whatever_a_producer_writes_the_request_has_one_key_and_once_reads_the_same_from_each_form(
    value: bytes | None, text: bytes, life: RetryState | None
) -> None:
    source = Partition("orders", 3) if life is None else Partition("billing-RETRY", 0)
    record = a_record(headers=[("ce_id", text)], value=value, retry_state=life, source=source)
    key = setting("{from: ce_id}")
    request = read(record, producer_key=key)
    of_request = delivery_key(dict(request.headers))
    body = json.loads(msgspec.json.encode(envelope(record, "billing", key)))
    assert record_key("billing", body) == of_request
    assert isinstance(of_request, ProducerKey if text else DeliveryKey)


def test_a_text_that_looks_like_the_key_of_another_record_is_a_text() -> None:
    """Given a producer that writes the key of another group's or record's id, then no effect of that is touched."""
    for text in (b"billing/orders:3:1025/0", b"shipping/orders:3:1024/0", b"billing/orders:3:1024/1"):
        record = a_record(headers=[("ce_id", text)])
        request = read(record, producer_key=setting("{from: ce_id}"))
        assert delivery_key(dict(request.headers)) == ProducerKey("billing", "orders", text.decode())


def test_a_reset_is_a_new_effect_and_a_redrive_is_not() -> None:
    key = setting("{from: ce_id}")

    def keyed(**counts: int) -> DeliveryKey | ProducerKey:
        life = replace(LIFE, **counts)
        record = a_record(headers=[("ce_id", b"e-1")], source=Partition("billing-RETRY", 0), retry_state=life)
        return delivery_key(dict(read(record, producer_key=key).headers))

    assert keyed(redrives=0) == keyed(redrives=3) == ProducerKey("billing", "orders", "e-1")
    assert keyed(redrives=0, cycle=2) == ProducerKey("billing", "orders", "e-1", 2)


def test_each_record_of_a_batch_has_the_text_of_its_producer() -> None:
    render = RenderBatch(parse_target("http://127.0.0.1/", False), "billing", 30_000, setting("{from: ce_id}"))
    records = [a_record(offset=number, headers=[("ce_id", b"e-%d" % number)]) for number in (1, 2)]
    body = json.loads(render([render.part(record) for record in records]).partition(b"\r\n\r\n")[2])
    assert [one["idempotency_key"] for one in body["records"]] == ["e-1", "e-2"]
